"""The architecture of a model (`DecoderConfig`), and how to compute it (`Compute`)."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from vinejax.core.errors import ConfigError
from vinejax.core.settings import PROJECTIONS, ModelConfig
from vinejax.model.attention import KERNELS, AttentionRule, why_impossible
from vinejax.model.experts import Experts
from vinejax.model.rope import BY_LENGTH, Rope

NO_WINDOW = 2**30  # a window longer than any sequence


class LayerFacts(NamedTuple):
    """Constants, besides weights, that may differ between the layers of a model.

    If the facts of all layers are stacked, each array has a leading axis L.
    """

    frequencies: jax.Array | np.ndarray  # f32[pairs] of the layer's RoPE
    rope_scale: jax.Array | np.ndarray  # f32[] factor on RoPE's cosines and sines
    window: jax.Array | np.ndarray  # i32[] window of the layer, or NO_WINDOW


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """The architecture of a model. Hashable, so that it can be a static argument of jax.jit."""

    vocab_size: int
    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    context: int  # maximum number of tokens in a sequence
    family: str = "llama"  # Hugging Face's `model_type`, in whose layout the model is saved
    rope: Rope = Rope()
    local_rope: Rope | None = None  # RoPE of the layers with a window; None: `rope`
    # For each layer the number of positions that a query sees, its own included; None: all
    # positions. (): no layer has a window.
    windows: tuple[int | None, ...] = ()
    unturned: tuple[int, ...] = ()  # layers without RoPE
    activation: str = "silu"  # activation of the gate: 'silu' or 'gelu_tanh'
    norm_eps: float = 1e-5
    norm_offset: float = 0.0  # number added to the scale of every norm
    bare_inputs: bool = False  # whether no norms precede attention and MLP
    sandwich_norms: bool = False  # whether norms follow attention and MLP
    qk_norm: bool = False  # whether norms of each head's q and k precede RoPE
    joint_qk_norm: bool = False  # whether one norm of all heads' q, and one of all k, precede RoPE
    attention_scale: float | None = None  # factor on q . k; None: 1 / sqrt(head_dim)
    attention_softcap: float | None = None  # c in the bounded scores c tanh(score / c)
    logit_softcap: float | None = None
    embed_scale: float = 1.0
    residual_scale: float = 1.0  # factor on the outputs of attention and MLP
    logit_divisor: float = 1.0  # divisor of the logits, before their soft-cap
    experts: Experts | None = None  # the experts that every layer has in place of one MLP
    tied_head: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    @property
    def score_scale(self) -> float:
        """The factor on the products q . k."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def output_matrix(self) -> str:
        """The name of the parameter by which hidden states are multiplied to give logits."""
        return "embed" if self.tied_head else "head"

    @property
    def split_sizes(self) -> tuple[int, int, int]:
        """The numbers of query heads, feed-forward columns and experts that `tensor` splits."""
        if self.experts is None:
            return self.num_heads, self.ffn, 0
        return self.num_heads, 0, self.experts.count

    @property
    def is_mixed(self) -> bool:
        """Whether layers differ in their attention windows."""
        return len(set(self.windows)) > 1

    def rule(self, layer: int = 0) -> AttentionRule:
        """The attention rule of `layer`; layers differ only in their windows."""
        return AttentionRule(self.score_scale, self.attention_softcap, self.window(layer))

    @property
    def context_reason(self) -> str:
        """A text in brackets that says why `context` may be shorter than in the checkpoint.

        The text is empty if the kind of RoPE gives no reason.
        """
        rope = self.rope.rope_type
        return f" (its rope_type = {rope!r} changes beyond)" if rope in BY_LENGTH else ""

    def window(self, layer: int) -> int | None:
        """The number of positions that a query of `layer` sees, including the query's own.

        None means that the query sees all positions up to its own.
        """
        return self.windows[layer] if self.windows else None

    def layer_facts(self, layer: int) -> LayerFacts:
        """The constants of one layer."""
        window = self.window(layer)
        rope = self.rope if window is None else self.local_rope or self.rope
        frequencies, scale = rope.frequencies(self.head_dim), rope.scale()
        if layer in self.unturned:  # an angle of 0 at every position
            frequencies, scale = np.zeros_like(frequencies), 1.0
        return LayerFacts(
            frequencies,
            np.array(scale, np.float32),
            np.array(NO_WINDOW if window is None else window, np.int32),
        )


@dataclasses.dataclass(frozen=True)
class Compute:
    """Choices that change only speed, memory and rounding, except `lora_scale`.

    Hashable, like `DecoderConfig`. `lora_scale` changes the results.
    """

    dtype: str = "float32"  # dtype of matrix products; norms, RoPE, softmax and logits are float32
    attention: str = "auto"  # kind of attention over whole sequences, as in `attention.choose_kind`
    remat: str = "none"  # results to compute again in the backward pass: a key of `decoder.REMAT`
    # Number of columns of the output matrix whose logits exist at a time while log-probabilities
    # are computed; None: `chunked_softmax.chunk_columns`.
    vocab_chunk: int | None = None
    lora_scale: float = 0.0  # alpha / rank of adapters
    # Whether each row of a batch holds one sequence, padded on the right, without packing.
    single_rows: bool = False
    # The other fields are for decoding, where each device along `tensor` runs a part of the model.
    sum_axis: str | None = None  # mesh axis over which `out` and `down` add up their parts
    # Projections with kernels [outputs, inputs] of two axes, and the number of rows below which
    # such a kernel is the first factor of the product: see `decoder.times_transposed`.
    transposed: tuple[str, ...] = ()
    few_rows: int = 0


def compute_as_set(settings: ModelConfig, cfg: DecoderConfig, platform: str) -> Compute:
    """The `Compute` that the settings give for `cfg` on a platform ('tpu', 'gpu', 'cpu').

    Raises ConfigError for a kind of attention that cannot compute the model, or that the platform
    does not have.
    """
    name, dtype = settings.attention, settings.dtype_on(platform)
    reason = why_impossible(name, cfg.rule(), cfg.head_dim, dtype)
    for wanted, kernel in KERNELS.items():
        if kernel == name and wanted != platform:
            reason = f"is for {wanted.upper()}, and the mesh is of {platform.upper()} devices"
    if name in KERNELS.values() and cfg.is_mixed:
        reason = "needs one window for all layers, unlike this model"
    if reason:
        raise ConfigError("model.attention", f"{reason}; 'auto' takes what fits", repr(name))
    targets = settings.lora_targets
    if cfg.experts and settings.lora_rank and not set(targets) <= set(PROJECTIONS[:4]):
        if targets != PROJECTIONS:  # the default, which takes the projections that there are
            message = "names projections of experts, which have no adapters; use q, k, v, out"
            raise ConfigError("model.lora_targets", message, repr(targets))
    scale = settings.lora_alpha / settings.lora_rank if settings.lora_rank else 0.0
    return Compute(dtype, name, settings.remat, lora_scale=scale)
