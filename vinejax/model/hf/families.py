"""Reads and writes config.json for each model family, with the defaults of the family."""

import dataclasses
from typing import Any

from vinejax.core.errors import ModelError
from vinejax.model.decoder import DecoderConfig
from vinejax.model.experts import Experts
from vinejax.model.hf.fields import HARMLESS, FieldReader
from vinejax.model.hf.rope_fields import KINDS, read_ropes, rope_json
from vinejax.model.rope import BY_LENGTH, Rope


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
    fixed: tuple[str, ...] = ()  # the flags of `DecoderConfig` that are true
    multipliers: bool = False  # whether the config has Granite's four multipliers
    tied: bool = False  # value of tie_word_embeddings if it is absent, as it is with `gemma`
    softcaps: tuple[tuple[str, float | None], ...] = ()  # (field, value if it is absent)
    qkv_bias: bool = False  # whether there is one; the value of attention_bias if it is absent
    biases: tuple[str, ...] = ()  # the fields of BIASES that a config may have
    experts: str = ""  # field with the feed-forward width of an expert; '' for no experts
    # Layers without RoPE: those with 0 in no_rope_layers ('listed'), or those with full attention
    # if there is a window ('full').
    unturned: str = ""
    windows: str = "none"  # layers with a window: 'none', 'all', 'switched' by a field, 'pattern'
    window: int | None = 4096  # value of `sliding_window` if it is absent; None: no window
    pattern: int = 0  # every `pattern`-th layer has full attention
    local_theta: float | None = None  # rope_theta of the layers with a window; None: rope_theta
    ropes_by_kind: bool = False  # whether rope_parameters has one object per kind of layer
    rope_theta: float = 10000.0
    partial_rope: bool = False  # whether partial_rotary_factor may be less than 1
    ones: tuple[str, ...] = ()  # optional fields that must be 1 or true
    rope_types: tuple[str, ...] = ("default", "linear", "llama3", "yarn", *BY_LENGTH)
    norm_eps: float = 1e-6


JOINT = ("qk_norm", "joint_qk_norm")
AFTER = ("bare_inputs", "sandwich_norms")
FAMILIES = {
    "llama": Family(
        "LlamaForCausalLM", kv_heads_default=True, biases=("attention_bias", "mlp_bias")
    ),
    "mistral": Family("MistralForCausalLM", windows="all"),
    "qwen2": Family("Qwen2ForCausalLM", head_dim_field=False, qkv_bias=True, windows="switched"),
    "qwen3": Family(
        "Qwen3ForCausalLM", head_dim_default=False, fixed=("qk_norm",),
        biases=("attention_bias",), windows="switched",
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM", head_dim_field=False, fixed=("qk_norm",), ones=("use_qk_norm",),
        biases=("attention_bias",), windows="switched", experts="moe_intermediate_size",
    ),
    "olmoe": Family(
        "OlmoeForCausalLM", kv_heads_default=True, head_dim_field=False, fixed=JOINT,
        biases=("attention_bias",), experts="intermediate_size", norm_eps=1e-5,
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM", kv_heads_default=True, head_dim_field=False, fixed=AFTER + JOINT,
        biases=("attention_bias",), norm_eps=1e-5,
    ),
    "olmo3": Family(
        "Olmo3ForCausalLM", kv_heads_default=True, head_dim_field=False, fixed=AFTER + JOINT,
        biases=("attention_bias",), windows="pattern", pattern=4, rope_theta=5e5, local_theta=5e5,
        ropes_by_kind=True, norm_eps=1e-5,
    ),
    "exaone4": Family(
        "Exaone4ForCausalLM", head_dim_field=False, fixed=(*AFTER, "qk_norm"),
        windows="pattern", pattern=4, unturned="full", norm_eps=1e-5,
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM", head_dim_field=False, tied=True, rope_theta=2e6, unturned="listed",
        biases=("attention_bias", "mlp_bias"), windows="switched", window=None,
    ),
    "granite": Family(
        "GraniteForCausalLM", kv_heads_default=True, head_dim_field=False, multipliers=True,
        biases=("attention_bias", "mlp_bias"),
    ),
    "seed_oss": Family(
        "SeedOssForCausalLM", kv_heads_default=True, head_dim_default=False, qkv_bias=True,
        biases=("attention_bias", "attention_out_bias", "mlp_bias"),
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM", head_dim_default=False, gemma=True,
        fixed=("sandwich_norms",),
        softcaps=(("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)),
        biases=("attention_bias",), windows="pattern", pattern=2,
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM", head_dim_default=False, gemma=True,
        fixed=("sandwich_norms", "qk_norm"),
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
BIASES = ("attention_bias", "attention_out_bias", "mlp_bias")
MULTIPLIERS = {  # our field -> Granite's
    "embed_scale": "embedding_multiplier", "attention_scale": "attention_multiplier",
    "residual_scale": "residual_multiplier", "logit_divisor": "logits_scaling",
}  # fmt: skip


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
    biases = {x: read.flag(x, family.qkv_bias and x == "attention_bias") for x in family.biases}
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
        activation=_activation(read, family),
        norm_eps=read.number("rms_norm_eps", family.norm_eps),
        norm_offset=float(family.gemma),
        attention_softcap=_softcap(read, family, "attn_logit_softcapping"),
        logit_softcap=_softcap(read, family, "final_logit_softcapping"),
        tied_head=read.flag("tie_word_embeddings", family.tied or family.gemma),
        experts=_experts(read, family),
        **dict.fromkeys(family.fixed, True),
        **_scales(read, family, width),
        **_layer_kinds(read, family, num_layers),
        qkv_bias=biases.get("attention_bias", family.qkv_bias),
        out_bias=biases.get("attention_out_bias", biases.get("attention_bias", False)),
        mlp_bias=biases.get("mlp_bias", False),
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


def _scales(read: FieldReader, family: Family, width: int) -> dict[str, float]:
    """The fields of `DecoderConfig` that scale embeddings, scores, layers' outputs and logits."""
    if family.multipliers:
        return {ours: read.number(theirs, 1.0) for ours, theirs in MULTIPLIERS.items()}
    if not family.gemma:
        return {}
    scale = read.number("query_pre_attn_scalar", 256) ** -0.5
    return {"embed_scale": width**0.5, "attention_scale": scale}


def _experts(read: FieldReader, family: Family) -> Experts | None:
    """The experts of every layer; None for a family without experts."""
    if not family.experts:
        return None
    for field, value in (("decoder_sparse_step", 1), ("mlp_only_layers", [])):
        if read.get(field, value) != value:
            read.fail(field, f"is not supported, only {value}: every layer must have experts")
    count = read.size("num_experts", read.get("num_local_experts"))
    per_token = read.size("num_experts_per_tok")
    if per_token > count:
        read.fail("num_experts_per_tok", f"must be at most num_experts = {count}")
    return Experts(count, per_token, read.size(family.experts), read.flag("norm_topk_prob"))


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


def _layer_kinds(read: FieldReader, family: Family, num_layers: int) -> dict[str, Any]:
    """The fields `windows` and `unturned` of `DecoderConfig`."""
    turned = [1] * num_layers
    if family.unturned == "listed":
        interval = read.size("no_rope_layer_interval", 4)
        turned = read.get("no_rope_layers", [(i + 1) % interval > 0 for i in range(num_layers)])
        is_known = isinstance(turned, list) and all(x in (0, 1) for x in turned)
        if not is_known or len(turned) < num_layers:
            read.fail("no_rope_layers", f"must have a 0 or 1 for each of {num_layers} layers")
    windows = _windows(read, family, num_layers, turned)
    if family.unturned == "full" and read.raw.get("sliding_window", family.window) is not None:
        turned = windows or (None,) * num_layers
    unturned = tuple(i for i in range(num_layers) if not turned[i])
    return {"windows": windows, "unturned": unturned}


def _windows(
    read: FieldReader, family: Family, num_layers: int, turned: list[int]
) -> tuple[int | None, ...]:
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
        if family.experts or family.unturned:  # transformers does not read the field for these
            full = [i for i in range(num_layers) if family.unturned and turned[i]]
        if size is None:
            full = range(num_layers)
    else:
        pattern = read.size("_sliding_window_pattern", family.pattern)
        # With `layer_types` nothing reads the pattern. EXAONE's is then in letters, or 0.
        if read.get("sliding_window_pattern") is not None and not read.get("layer_types"):
            pattern = read.size("sliding_window_pattern")
        full = range(pattern - 1, num_layers, pattern)
        if size is None and family.unturned:
            full = range(num_layers)
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
    biases = zip(BIASES, (cfg.qkv_bias, cfg.out_bias, cfg.mlp_bias), strict=True)
    raw |= {field: value for field, value in biases if field in family.biases}
    if family.multipliers:
        raw |= {theirs: getattr(cfg, ours) for ours, theirs in MULTIPLIERS.items()}
    if family.gemma:
        raw["query_pre_attn_scalar"] = round(cfg.attention_scale**-2) if cfg.attention_scale else 0
    caps = {
        "attn_logit_softcapping": cfg.attention_softcap,
        "final_logit_softcapping": cfg.logit_softcap,
    }
    raw |= {field: caps[field] for field, _ in family.softcaps}
    if cfg.experts:
        fields = ("num_experts", "num_experts_per_tok", family.experts, "norm_topk_prob")
        raw |= dict(zip(fields, dataclasses.astuple(cfg.experts), strict=True))
    local_rope, base = cfg.local_rope, family.rope_theta
    if family.ropes_by_kind and local_rope == Rope(rope_theta=base) and cfg.rope.rope_theta == base:
        local_rope = None  # transformers 4 and 5 then read the form with one RoPE alike
    raw |= rope_json(cfg.rope, local_rope, family.ropes_by_kind) | _window_json(cfg, family)
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
    raw: dict[str, Any] = {} if family.experts else {"layer_types": kinds}
    if family.unturned == "listed":
        raw["no_rope_layers"] = [int(i not in cfg.unturned) for i in range(cfg.num_layers)]
    if family.windows == "switched":
        first = next((i for i, window in enumerate(windows) if window), cfg.num_layers)
        raw |= {"use_sliding_window": size is not None, "max_window_layers": first}
    # If EXAONE's file has a window, RoPE is off in layers without one; a null leaves it on in all.
    is_written = size is not None or (family.unturned == "full" and not cfg.unturned)
    return raw | ({"sliding_window": size} if is_written else {})
