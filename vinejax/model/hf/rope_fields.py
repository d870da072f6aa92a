"""RoPE in config.json, in and out: `rope_theta` beside `rope_scaling`, or `rope_parameters`."""

from typing import Any, NamedTuple

from vinejax.errors import ModelError
from vinejax.model.hf.fields import Reader
from vinejax.model.rope import BY_LENGTH, Rope

# What a rope_type needs (True) and may have.
FIELDS: dict[str, dict[str, bool]] = {
    "default": {},
    "linear": {"factor": True},
    "dynamic": {"factor": True, "original_max_position_embeddings": False},
    "llama3": {
        "factor": True, "low_freq_factor": True, "high_freq_factor": True,
        "original_max_position_embeddings": False,
    },
    "yarn": {
        "factor": True, "original_max_position_embeddings": False, "attention_factor": False,
        "beta_fast": False, "beta_slow": False, "mscale": False, "mscale_all_dim": False,
        "truncate": False,
    },
    "longrope": {
        "short_factor": True, "long_factor": True, "factor": False, "attention_factor": False,
        "original_max_position_embeddings": False,
    },
}  # fmt: skip

KINDS = ("full_attention", "sliding_attention")  # of layers


class Defaults(NamedTuple):
    """What the inner fields of RoPE are where they are left out."""

    theta: float
    partial: float
    original: int


def read_ropes(
    read: Reader, types: tuple[str, ...], theta: float, local_theta: float | None, head_dim: int
) -> tuple[Rope, Rope | None]:
    """The RoPE of the layers that see everything and, with `local_theta`, of those with a window.

    Raises ModelError for a `rope_type` that is none of `types`, and for fields that the type does
    not have, lacks or cannot mean.
    """
    context = read.size("max_position_embeddings")
    parameters = read.get("rope_parameters")
    found = _object(read, read.get("rope_scaling") or parameters)
    local: dict[str, Any] = {}
    if local_theta is not None and "full_attention" in found:  # where transformers 5 writes both
        found, local = (_object(read, found.get(kind)) for kind in KINDS)
    defaults = Defaults(
        read.number("rope_theta", theta),
        read.number("partial_rotary_factor", 1.0),
        read.size("original_max_position_embeddings", context),
    )
    rope = _rope(read.file, found, types, defaults, head_dim, context)
    if local_theta is None:
        return rope, None
    defaults = defaults._replace(theta=read.number("rope_local_base_freq", local_theta))
    fixed = tuple(kind for kind in types if kind not in BY_LENGTH)
    return rope, _rope(read.file, local, fixed, defaults, head_dim, context)


def _object(read: Reader, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise ModelError(f"{read.file}: RoPE = {value!r} must be an object")
    return value or {}


def _rope(
    file: str,
    found: dict[str, Any],
    types: tuple[str, ...],
    defaults: Defaults,
    head_dim: int,
    context: int,
) -> Rope:
    kind = found.get("rope_type") or found.get("type") or "default"
    kind = "longrope" if kind == "su" else kind  # its name in the first Phi-3 files
    read = Reader(f"{file}: RoPE", {**found, "rope_type": kind})
    if kind not in types:
        read.fail("rope_type", f"is not supported, only {', '.join(types)}")
    values: dict[str, Any] = {
        "rope_theta": read.number("rope_theta", defaults.theta),
        "partial_rotary_factor": read.number("partial_rotary_factor", defaults.partial),
    }
    for field, is_needed in FIELDS[kind].items():
        if field == "original_max_position_embeddings":
            values[field] = read.size(field, defaults.original)
        elif read.get(field) is None and not is_needed:
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
        values.setdefault("factor", context / values["original_max_position_embeddings"])
    rope = Rope(kind, **values)
    dim = rope.rotary_dim(head_dim)
    if dim < 2 or dim % 2 or dim > head_dim:
        raise ModelError(f"{file}: {dim} of head_dim = {head_dim} channels turn; RoPE turns pairs")
    for field in ("short_factor", "long_factor"):
        if kind == "longrope" and len(values[field]) != dim // 2:
            read.fail(field, f"must have {dim // 2} entries")
    if kind == "llama3" and not rope.low_freq_factor < rope.high_freq_factor:
        read.fail("low_freq_factor", f"must be below high_freq_factor = {rope.high_freq_factor}")
    return rope


def rope_json(rope: Rope, local_rope: Rope | None) -> dict[str, Any]:
    """The fields in the older of the two forms, which transformers 4 and 5 read."""
    raw: dict[str, Any] = {"rope_theta": rope.rope_theta}
    if rope.partial_rotary_factor != 1:
        raw["partial_rotary_factor"] = rope.partial_rotary_factor
    defaults = {field: getattr(Rope, field) for field in FIELDS[rope.rope_type]}
    original = rope.original_max_position_embeddings
    if rope.rope_type == "dynamic":
        defaults["original_max_position_embeddings"] = rope.max_position_embeddings
    if rope.rope_type == "longrope":  # transformers 4 allows Phi-3 three fields, one named `type`
        raw["original_max_position_embeddings"] = original
        defaults["original_max_position_embeddings"] = original
        defaults["factor"] = rope.max_position_embeddings / original
    scaling = {
        field: list(value) if isinstance(value, tuple) else value
        for field, default in defaults.items()
        if (value := getattr(rope, field)) != default or FIELDS[rope.rope_type][field]
    }
    if rope.rope_type != "default":
        key = "type" if rope.rope_type == "longrope" else "rope_type"
        raw["rope_scaling"] = {key: rope.rope_type, **scaling}
    if local_rope is not None:
        raw["rope_local_base_freq"] = local_rope.rope_theta
    return raw
