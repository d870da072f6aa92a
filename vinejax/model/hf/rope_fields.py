"""Reads and writes the fields of config.json that describe RoPE, in their old and new forms."""

import math
from collections.abc import Sequence
from typing import Any

from vinejax.core.errors import ModelError
from vinejax.model.hf.fields import FieldReader
from vinejax.model.rope import BY_LENGTH, Rope

Json = dict[str, Any]
ORIGINAL = "original_max_position_embeddings"
YARN = ["attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"]
# rope_type -> (required fields, optional fields)
FIELDS: dict[str, tuple[list[str], list[str]]] = {
    "default": ([], []),
    "linear": (["factor"], []),
    "dynamic": (["factor"], [ORIGINAL]),
    "llama3": (["factor", "low_freq_factor", "high_freq_factor"], [ORIGINAL]),
    "yarn": (["factor"], [ORIGINAL, *YARN]),
    "longrope": (["short_factor", "long_factor"], ["factor", "attention_factor", ORIGINAL]),
}
KINDS = ("full_attention", "sliding_attention")  # the kinds of layers


def read_ropes(
    read: FieldReader, types: Sequence[str], theta: float, local_theta: float | None, head_dim: int
) -> tuple[Rope, Rope | None]:
    """(RoPE of layers with full attention, RoPE of layers with a window or None).

    The second result is None if `local_theta` is None. Raises ModelError for a `rope_type` outside
    `types`, a missing field, a field that the type does not have, an impossible value, and for
    `rope_parameters` whose rope_theta is lost because `rope_scaling` takes their place.
    """
    context = read.size("max_position_embeddings")
    parameters = _checked_object(read, read.get("rope_parameters"))
    fields = _checked_object(read, read.get("rope_scaling") or parameters)
    local: Json = {}
    # transformers 5 writes one object per kind of layer.
    if local_theta is not None and "full_attention" in fields:
        fields, local = (_checked_object(read, fields.get(kind)) for kind in KINDS)
    defaults: Json = {
        "rope_theta": read.number("rope_theta", theta),
        "partial_rotary_factor": read.number("partial_rotary_factor", 1.0),
        ORIGINAL: read.size(ORIGINAL, context),
    }
    rope, local_rope = _parse_rope(read.file, fields, types, defaults, head_dim, context), None
    if local_theta is not None:
        defaults["rope_theta"] = read.number("rope_local_base_freq", local_theta)
        fixed = tuple(kind for kind in types if kind not in BY_LENGTH)
        local_rope = _parse_rope(read.file, local, fixed, defaults, head_dim, context)
    by_kind = [_checked_object(read, parameters.get(kind)) for kind in KINDS]
    for replaced, by in ((by_kind[0] or parameters, rope), (by_kind[1], local_rope)):
        if by and replaced.get("rope_theta") not in (None, by.rope_theta):
            message = "has a rope_theta that rope_scaling replaces; unite the two"
            read.fail("rope_parameters", message)
    return rope, local_rope


def _checked_object(read: FieldReader, value: object) -> Json:
    """`value` if it is a JSON object, {} if it is None. Raises ModelError for any other value."""
    if value is not None and not isinstance(value, dict):
        raise ModelError(f"{read.file}: RoPE = {value!r} must be an object")
    return value or {}


def _parse_rope(
    file: str, fields: Json, types: Sequence[str], defaults: Json, head_dim: int, context: int
) -> Rope:
    """The RoPE that the JSON object `fields` describes. Raises ModelError as `read_ropes` does.

    `defaults` has the values of rope_theta, partial_rotary_factor and
    original_max_position_embeddings for an object `fields` without them.
    """
    kind = fields.get("rope_type") or fields.get("type") or "default"
    kind = "longrope" if kind == "su" else kind  # name of longrope in the first Phi-3 files
    read = FieldReader(f"{file}: RoPE", {**fields, "rope_type": kind})
    if kind not in types:
        read.fail("rope_type", f"is not supported, only {', '.join(types)}")
    top = ("rope_theta", "partial_rotary_factor")
    values: Json = {field: read.number(field, defaults[field]) for field in top}
    needed, optional = FIELDS[kind]
    for field in needed + optional:
        if field == ORIGINAL:
            values[field] = read.size(field, defaults[field])
        elif read.get(field) is None and field in optional:
            continue
        elif field == "truncate":
            values[field] = read.flag(field)
        elif field in ("short_factor", "long_factor"):
            values[field] = read.numbers(field)
        else:
            values[field] = read.number(field)
    read.refuse_the_rest({"rope_type", "type", "finetuned"})
    if kind in BY_LENGTH:
        values["max_position_embeddings"] = context
    if kind == "longrope":
        values.setdefault("factor", context / values[ORIGINAL])
    rope = Rope(kind, **values)
    dim = rope.rotary_dim(head_dim)
    if dim < 2 or dim % 2 or dim > head_dim:
        raise ModelError(f"{file}: {dim} of head_dim = {head_dim} channels turn; RoPE turns pairs")
    for field in ("short_factor", "long_factor"):
        if kind == "longrope" and len(values[field]) != dim // 2:
            read.fail(field, f"must have {dim // 2} entries")
    if kind == "yarn" and not math.isfinite(rope.factor * rope.original_max_position_embeddings):
        read.fail("factor", "is too large: the context is no finite number of tokens")
    if kind == "llama3" and not rope.low_freq_factor < rope.high_freq_factor:
        read.fail("low_freq_factor", f"must be below high_freq_factor = {rope.high_freq_factor}")
    return rope


def rope_json(rope: Rope, local_rope: Rope | None, by_kind: bool = False) -> Json:
    """The fields of config.json for RoPE, in the old form that transformers 4 and 5 both read.

    With `by_kind` the fields have the form of transformers 5, with one object per kind of layer.
    """
    if by_kind and local_rope is not None:
        ropes = [rope_json(x, None) for x in (rope, local_rope)]
        objects = [{"rope_type": "default"} | x.pop("rope_scaling", {}) | x for x in ropes]
        return {"rope_parameters": dict(zip(KINDS, objects, strict=True))}
    raw: Json = {"rope_theta": rope.rope_theta}
    if rope.partial_rotary_factor != 1:
        raw["partial_rotary_factor"] = rope.partial_rotary_factor
    needed, optional = FIELDS[rope.rope_type]
    defaults = {field: getattr(Rope, field) for field in needed + optional}
    original = rope.original_max_position_embeddings
    if rope.rope_type == "dynamic":
        defaults[ORIGINAL] = rope.max_position_embeddings
    if rope.rope_type == "longrope":  # transformers 4 allows Phi-3 three fields, with `type`
        raw[ORIGINAL] = original
        defaults[ORIGINAL] = original
        defaults["factor"] = rope.max_position_embeddings / original
    scaling = {
        field: list(value) if isinstance(value, tuple) else value
        for field, default in defaults.items()
        if (value := getattr(rope, field)) != default or field in needed
    }
    if rope.rope_type != "default":
        key = "type" if rope.rope_type == "longrope" else "rope_type"
        raw["rope_scaling"] = {key: rope.rope_type, **scaling}
    if local_rope is not None:
        raw["rope_local_base_freq"] = local_rope.rope_theta
    return raw
