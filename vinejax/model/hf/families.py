"""Reads and writes config.json for each model family, with the defaults of the family."""

import dataclasses
from typing import Any

from vinejax.core.errors import ModelError
from vinejax.model.decoder import DecoderConfig
from vinejax.model.hf.fields import HARMLESS, FieldReader
from vinejax.model.hf.rope_fields import KINDS, read_ropes, rope_json
from vinejax.model.rope import BY_LENGTH


@dataclasses.dataclass(frozen=True)
class Family:
    """The properties that all models of a family have in common."""

    architecture: str  # name of the model class in transformers
    # Whether num_key_value_heads may be absent, and is then num_attention_heads.
    kv_heads_default: bool = False
    # Whether head_dim may be absent, and is then hidden_size / num_attention_heads.
    head_dim_default: bool = True
    head_dim_field: bool = True  # whether the config class in transformers has a `head_dim` field
    fused: bool = False  # whether q, k and v are one tensor, and gate and up another
    gemma: bool = False  # whether to use Gemma's activation, norms, embedding scale and tied head
    softcaps: tuple[tuple[str, float | None], ...] = ()  # (field, value if it is absent)
    qk_norm: bool = False
    qkv_bias: bool = False
    biases: tuple[str, ...] = ()  # the fields of attention_bias, mlp_bias that a config may have
    windows: str = "none"  # layers with a window: 'none', 'all', 'switched' by a field, 'pattern'
    window: int | None = 4096  # value of `sliding_window` if it is absent; None: no window
    pattern: int = 0  # every `pattern`-th layer has full attention
    local_theta: float | None = None  # rope_theta of the layers with a window; None: rope_theta
    rope_theta: float = 10000.0
    partial_rope: bool = False  # whether partial_rotary_factor may be less than 1
    ones: tuple[str, ...] = ()  # optional fields that must have the value 1
    rope_types: tuple[str, ...] = ("default", "linear", "llama3", "yarn", *BY_LENGTH)
    norm_eps: float = 1e-6


FAMILIES = {
    "llama": Family(
        "LlamaForCausalLM", kv_heads_default=True, biases=("attention_bias", "mlp_bias")
    ),
    "mistral": Family("MistralForCausalLM", windows="all"),
    "qwen2": Family("Qwen2ForCausalLM", head_dim_field=False, qkv_bias=True, windows="switched"),
    "qwen3": Family(
        "Qwen3ForCausalLM", head_dim_default=False, qk_norm=True, biases=("attention_bias",),
        windows="switched",
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM", head_dim_default=False, gemma=True,
        softcaps=(("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)),
        biases=("attention_bias",), windows="pattern", pattern=2,
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM", head_dim_default=False, gemma=True, qk_norm=True,
        softcaps=(("final_logit_softcapping", None),),
        biases=("attention_bias",), windows="pattern", pattern=6, rope_theta=1e6,
        local_theta=1e4,
    ),
    "phi3": Family(
        "Phi3ForCausalLM", kv_heads_default=True, head_dim_field=False, fused=True, windows="all",
        window=None, partial_rope=True, ones=("full_attn_mod", "interpolate_factor"),
        rope_types=("default", "longrope"), norm_eps=1e-5,
    ),
}  # fmt: skip

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}  # Hugging Face's name -> ours
SIZES = {  # our field -> Hugging Face's
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "width": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "tied_head": "tie_word_embeddings",
}


def parse_config(raw: dict[str, Any], file: str = "config.json") -> DecoderConfig:
    """The architecture that a config.json describes. Raises ModelError for unsupported fields."""
    read = FieldReader(file, raw)
    name = read.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        read.fail("model_type", f"is not supported, only {', '.join(FAMILIES)}")
    family = FAMILIES[name]
    if raw.get("architectures") and raw["architectures"] != [family.architecture]:
        read.fail("architectures", f"is not supported, only {family.architecture}")
    width, num_heads = read.size("hidden_size"), read.size("num_attention_heads")
    num_layers, context = read.size("num_hidden_layers"), read.size("max_position_embeddings")
    num_kv_heads = read.size("num_key_value_heads", num_heads if family.kv_heads_default else None)
    if num_heads % num_kv_heads:
        read.fail("num_key_value_heads", f"must divide num_attention_heads = {num_heads}")
    head_dim = read.size("head_dim", width // num_heads if family.head_dim_default else None)
    rope, local_rope = read_ropes(
        read, family.rope_types, family.rope_theta, family.local_theta, head_dim
    )
    if rope.partial_rotary_factor != 1 and not family.partial_rope:
        part = f"partial_rotary_factor = {rope.partial_rotary_factor}"
        raise ModelError(f"{file}: {part} is not supported for {name}, only 1.0")
    if rope.rope_type in BY_LENGTH:
        context = min(context, rope.original_max_position_embeddings)
    elif rope.rope_type == "yarn":  # in many files max_position_embeddings is the original context
        context = max(context, int(rope.factor * rope.original_max_position_embeddings))
    attention_bias = "attention_bias" in family.biases and read.flag("attention_bias")
    cfg = DecoderConfig(
        vocab_size=read.size("vocab_size"),
        num_layers=num_layers,
        width=width,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn=read.size("intermediate_size"),
        context=context,
        family=name,
        rope=rope,
        local_rope=local_rope,
        windows=_windows(read, family, num_layers),
        activation=_activation(read, family),
        norm_eps=read.number("rms_norm_eps", family.norm_eps),
        norm_offset=float(family.gemma),
        sandwich_norms=family.gemma,
        qk_norm=family.qk_norm,
        attention_scale=read.number("query_pre_attn_scalar", 256) ** -0.5 if family.gemma else None,
        attention_softcap=_softcap(read, family, "attn_logit_softcapping"),
        logit_softcap=_softcap(read, family, "final_logit_softcapping"),
        embed_scale=width**0.5 if family.gemma else 1.0,
        tied_head=read.flag("tie_word_embeddings", family.gemma),
        qkv_bias=family.qkv_bias or attention_bias,
        out_bias=attention_bias,
        mlp_bias="mlp_bias" in family.biases and read.flag("mlp_bias"),
        bos_id=read.token("bos_token_id"),
        eos_ids=eos_ids(read),
    )
    for field in family.ones:
        if read.get(field) not in (None, 1):
            read.fail(field, "is not supported, only 1")
    read.refuse_the_rest(HARMLESS)
    return cfg


def eos_ids(read: FieldReader) -> tuple[int, ...]:
    """The ids in `eos_token_id` of a config.json or generation_config.json, sorted."""
    ids = read.get("eos_token_id", [])
    if not isinstance(ids, list):
        ids = [ids]
    if any(type(x) is not int for x in ids):
        read.fail("eos_token_id", "must be a token id, or a list of them")
    return tuple(sorted(set(ids)))


def _activation(read: FieldReader, family: Family) -> str:
    name = "gelu_pytorch_tanh" if family.gemma else "silu"
    for field in ("hidden_act", "hidden_activation") if family.gemma else ("hidden_act",):
        if read.get(field, name) != name:
            read.fail(field, f"is not supported, only {name!r}")
    return ACTIVATIONS[name]


def _softcap(read: FieldReader, family: Family, field: str) -> float | None:
    """The soft-cap that `field` holds; the family's default if `field` is absent.

    The result is None if `field` is null, or if the family does not have this soft-cap.
    """
    defaults = dict(family.softcaps)
    value = read.raw[field] if field in read.raw else defaults.get(field)
    if field not in defaults or value is None:
        return None
    return read.number(field, defaults[field])


def _windows(read: FieldReader, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """The window of each layer, or () if no layer has one."""
    if family.windows == "none":
        return ()
    value = read.raw.get("sliding_window", family.window)
    size = None if value is None else read.size("sliding_window", value)
    if family.windows == "all":
        return (size,) * num_layers if size else ()
    if family.windows == "switched":
        size = size if read.flag("use_sliding_window") else None
        full = range(read.size("max_window_layers", 28, minimum=0))
        if size is None:
            full = range(num_layers)
    else:
        pattern = read.size("_sliding_window_pattern", family.pattern)
        pattern = read.size("sliding_window_pattern", pattern)
        full = range(pattern - 1, num_layers, pattern)
    kinds = read.get("layer_types")
    if kinds is None:
        kinds = ["full_attention" if i in full else "sliding_attention" for i in range(num_layers)]
    is_known = isinstance(kinds, list) and all(kind in KINDS for kind in kinds)
    if not is_known or len(kinds) != num_layers:
        message = "must be 'full_attention' or 'sliding_attention' for each of num_hidden_layers"
        read.fail("layer_types", f"is not supported: {message} = {num_layers}")
    if "sliding_attention" not in kinds:
        return ()
    if size is None:
        read.fail("sliding_window", "is off, yet layers have sliding_attention")
    return tuple(size if kind == "sliding_attention" else None for kind in kinds)


def config_json(cfg: DecoderConfig, dtype: str) -> dict[str, Any]:
    """The content of config.json for `cfg`, in which `dtype` is the dtype of the weights.

    Raises ModelError if parsing the content does not give `cfg` again.
    """
    family = FAMILIES[cfg.family]
    activations = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    raw: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": cfg.family,
        **{theirs: getattr(cfg, ours) for ours, theirs in SIZES.items()},
        "max_position_embeddings": cfg.rope.max_position_embeddings or cfg.context,
        "rms_norm_eps": cfg.norm_eps,
        "hidden_activation" if family.gemma else "hidden_act": activations[cfg.activation],
        "bos_token_id": cfg.bos_id,
        # Null if there is none, because the default in transformers can be outside the vocabulary.
        "eos_token_id": list(cfg.eos_ids) or None,
        "pad_token_id": None,
        "torch_dtype": dtype,
    }
    if family.head_dim_field or cfg.head_dim != cfg.width // cfg.num_heads:
        raw["head_dim"] = cfg.head_dim
    raw |= {field: cfg.mlp_bias if field == "mlp_bias" else cfg.out_bias for field in family.biases}
    if family.gemma:
        raw["query_pre_attn_scalar"] = round(cfg.attention_scale**-2) if cfg.attention_scale else 0
    caps = {
        "attn_logit_softcapping": cfg.attention_softcap,
        "final_logit_softcapping": cfg.logit_softcap,
    }
    raw |= {field: caps[field] for field, _ in family.softcaps}
    raw |= rope_json(cfg.rope, cfg.local_rope) | _window_json(cfg, family)
    parsed = dataclasses.replace(parse_config(raw), bos_id=cfg.bos_id, eos_ids=cfg.eos_ids)
    for field in dataclasses.fields(cfg):
        value = getattr(cfg, field.name)
        if getattr(parsed, field.name) != value:
            raise ModelError(f"{cfg.family} has no {field.name} = {value!r}: cannot be saved")
    return raw


def _window_json(cfg: DecoderConfig, family: Family) -> dict[str, Any]:
    if family.windows == "none":
        return {}
    size = next((window for window in cfg.windows if window), None)
    if family.windows == "all":
        return {"sliding_window": size}
    windows = cfg.windows or (None,) * cfg.num_layers
    kinds = ["sliding_attention" if window else "full_attention" for window in windows]
    raw: dict[str, Any] = {"layer_types": kinds}
    if family.windows == "switched":
        first = next((i for i, window in enumerate(windows) if window), cfg.num_layers)
        raw |= {"use_sliding_window": size is not None, "max_window_layers": first}
    return raw | ({"sliding_window": size} if size else {})
