"""A model's architecture as data: what families differ in is a field each."""

import dataclasses

from vinejax.errors import ConfigError
from vinejax.model.attention import BY_PLATFORM, Rule, refusal
from vinejax.model.rope import BY_LENGTH, Rope


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """The architecture. Hashable, so that a model can be a static argument of a jitted function."""

    vocab_size: int
    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    context: int  # tokens of a sequence at most
    family: str = "llama"  # Hugging Face's `model_type`: the layout that it is saved in
    rope: Rope = Rope()
    local_rope: Rope | None = None  # of the layers with a window; None: `rope` too
    windows: tuple[int | None, ...] = ()  # a layer: positions that a query sees, itself included,
    #                                       None all of them; () when all layers see everything
    activation: str = "silu"  # of the gate: 'silu' or 'gelu_tanh'
    norm_eps: float = 1e-5
    norm_offset: float = 0.0  # added to every norm's scale
    sandwich_norms: bool = False  # also after attention and after the MLP
    qk_norm: bool = False  # over each head's q and k, before they turn
    attention_scale: float | None = None  # of q . k; None: 1 / sqrt(head_dim)
    attention_softcap: float | None = None  # c: scores become c tanh(score / c)
    logit_softcap: float | None = None
    embed_scale: float = 1.0
    tied_head: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    compute_dtype: str = "float32"
    attention: str = "auto"  # of whole sequences: a kind of `attention.choose`, or 'auto'
    remat: str = "none"  # what the backward pass computes again: a key of REMAT
    # The mesh axis over which heads and feed-forward columns are split by hand, as decoding does;
    # None: by the compiler, or not at all.
    tensor_axis: str | None = None
    # The text of generation_config.json, only carried along to where the model is saved.
    generation: str = dataclasses.field(default="", compare=False, repr=False)

    @property
    def score_scale(self) -> float:
        """What q . k is multiplied by."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def is_mixed(self) -> bool:
        """Whether some layers see further than others."""
        return len(set(self.windows)) > 1

    @property
    def rule(self) -> Rule:
        """How the layers attend, but for windows that differ from layer to layer."""
        return Rule(self.score_scale, self.attention_softcap, self.window(0))

    @property
    def context_reason(self) -> str:
        """Why the context ends before what the checkpoint claims, in brackets, or ''."""
        rope = self.rope.rope_type
        return f" (its rope_type = {rope!r} changes beyond)" if rope in BY_LENGTH else ""

    def window(self, layer: int) -> int | None:
        """How many positions a query of the layer sees, itself included; None: all before it."""
        return self.windows[layer] if self.windows else None


def check_choice(name: str, platform: str, cfg: DecoderConfig) -> None:
    """ConfigError for a `name` of model.attention that the model or the platform cannot have."""
    reason = refusal(name, cfg.rule, cfg.head_dim, cfg.compute_dtype)
    for where, kind in BY_PLATFORM.items():
        if kind == name and where != platform:
            reason = f"is for {where.upper()}, and the mesh is of {platform.upper()} devices"
    if name == "splash" and cfg.is_mixed:
        reason = "needs one window for all layers, which this model has not"
    if reason:
        raise ConfigError("model.attention", f"{reason}; 'auto' takes what fits", repr(name))
