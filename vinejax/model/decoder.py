"""The decoder: one block in Flax for all families, layers scanned, attention passed in.

Letters, one meaning each in every einsum: B sequences, T query positions, S key positions,
D width, N query heads, K key-value heads, G = N / K, H head width, F feed-forward width,
V vocabulary, L layers.

A `Block` computes everything of a layer but the attention itself: it hands q, k, v to `attend` and
takes the mixed values back. Training, prefill and cached decoding are three `attend`s; the layer
is written once. Parameters are a plain nested dict, the layers' stacked on a leading axis.

What families differ in is a field of `DecoderConfig` each; what the layers of one model differ in
(`LayerFacts`) is scanned over beside their weights.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from vinejax.errors import ModelError
from vinejax.model.rope import BY_LENGTH, Rope, rotate

Params = dict[str, Any]
# (q [B,T,N,H], k [B,T,K,H], v [B,T,K,H]) -> (mixed values [B,T,N,H], whatever the caller keeps)
Attend = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]


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
    def context_reason(self) -> str:
        """Why the context ends before what the checkpoint claims, in brackets, or ''."""
        rope = self.rope.rope_type
        return f" (its rope_type = {rope!r} changes beyond)" if rope in BY_LENGTH else ""

    def window(self, layer: int) -> int | None:
        """How many positions a query of the layer sees, itself included; None: all before it."""
        return self.windows[layer] if self.windows else None


class LayerFacts(NamedTuple):
    """What the layers of one model differ in, other than weights."""

    frequencies: jax.Array | np.ndarray  # f32[R] of the layer's RoPE, or [L, R] stacked
    rope_scale: jax.Array | np.ndarray  # f32[]
    window: jax.Array | np.ndarray  # i32[], EVERYTHING where the layer has none


EVERYTHING = 2**30  # a window that no sequence fills


class RMSNorm(nn.Module):
    """x / rms(x) * (offset + scale) over the last axis, in float32."""

    eps: float
    offset: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        initializer = nn.initializers.constant(1.0 - self.offset)
        scale = self.param("scale", initializer, (x.shape[-1],)).astype(jnp.float32)
        x32 = x.astype(jnp.float32)
        x32 = x32 * lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + self.eps)
        return (x32 * (self.offset + scale)).astype(x.dtype)


class Projection(nn.Module):
    """x times a kernel over its last `num_in` axes, plus a bias where the model has one.

    With a mesh `axis` the kernel is a part of the rows, and the product is summed over the parts.
    """

    features: tuple[int, ...]
    bias: bool = False
    num_in: int = 1
    axis: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        in_shape = x.shape[x.ndim - self.num_in :]
        axes = tuple(range(self.num_in + len(self.features)))
        initializer = nn.initializers.variance_scaling(
            1.0, "fan_in", "normal", in_axis=axes[: self.num_in], out_axis=axes[self.num_in :]
        )
        kernel = self.param("kernel", initializer, in_shape + self.features).astype(x.dtype)
        # As plain matrices: on CPU the gradient of the batched form costs twice as much.
        batch_shape, num_in = x.shape[: x.ndim - self.num_in], math.prod(in_shape)
        y = x.reshape(-1, num_in) @ kernel.reshape(num_in, -1)
        y = y.reshape(batch_shape + self.features)
        if self.axis is not None:
            y = lax.psum(y, self.axis)
        if self.bias:
            y = y + self.param("bias", nn.initializers.zeros, self.features).astype(x.dtype)
        return y


def gelu_tanh(x: jax.Array) -> jax.Array:
    return nn.gelu(x, approximate=True)


ACTIVATIONS = {"silu": nn.silu, "gelu_tanh": gelu_tanh}


class Block(nn.Module):
    """One layer: x + attention(norm(x)), then x + gated MLP(norm(x))."""

    cfg: DecoderConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        attend: Attend,
        facts: LayerFacts,
    ) -> tuple[Float[Array, "B T D"], Any]:
        cfg = self.cfg
        heads, kv_heads = (cfg.num_heads, cfg.head_dim), (cfg.num_kv_heads, cfg.head_dim)

        def norm(name: str, x: jax.Array, present: bool = True) -> jax.Array:
            return RMSNorm(cfg.norm_eps, cfg.norm_offset, name=name)(x) if present else x

        def turn(x: jax.Array) -> jax.Array:
            return rotate(x, positions, facts.frequencies, facts.rope_scale)

        h = norm("attention_norm", x)
        q = norm("q_norm", Projection(heads, cfg.qkv_bias, name="q")(h), cfg.qk_norm)
        k = norm("k_norm", Projection(kv_heads, cfg.qkv_bias, name="k")(h), cfg.qk_norm)
        v = Projection(kv_heads, cfg.qkv_bias, name="v")(h)
        mixed, kept = attend(turn(q), turn(k), v)
        axis = cfg.tensor_axis
        h = Projection((cfg.width,), cfg.out_bias, num_in=2, axis=axis, name="out")(mixed)
        x = x + norm("post_attention_norm", h, cfg.sandwich_norms)
        h = norm("mlp_norm", x)
        gate = Projection((cfg.ffn,), cfg.mlp_bias, name="gate")(h)
        up = Projection((cfg.ffn,), cfg.mlp_bias, name="up")(h)
        gated = ACTIVATIONS[cfg.activation](gate) * up
        h = Projection((cfg.width,), cfg.mlp_bias, axis=axis, name="down")(gated)
        return x + norm("post_mlp_norm", h, cfg.sandwich_norms), kept


def softcap(x: jax.Array, cap: float | None) -> jax.Array:
    """cap * tanh(x / cap): x bounded to (-cap, cap); None leaves it."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def self_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    visible: Bool[Array, "B T T"],
    scale: float,
    cap: float | None = None,
) -> Float[Array, "B T N H"]:
    """Grouped-query attention over the sequence itself; scores and softmax in float32.

    Scores are q . k times `scale`, bounded by `cap` where the model has one.
    """
    B, T, N, H = q.shape
    grouped = q.reshape(B, T, k.shape[2], -1, H)
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, k, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, None, None], softcap(scores * scale, cap), -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", weights, v).reshape(B, T, N, H)


@dataclasses.dataclass(frozen=True)
class Decoder:
    """The functions of a model. It holds no weights: they are the first argument of each."""

    cfg: DecoderConfig

    def init(self, key: jax.Array) -> Params:
        """Random float32 parameters: {embed [V,D], layers {... [L,...]}, norm {scale}, head [D,V]}.

        Projections are scaled by 1/sqrt(fan in); the embedding by 1/sqrt(D), as it may be the head.
        """
        cfg = self.cfg
        embed_key, head_key, layers_key = jax.random.split(key, 3)
        x, positions = jnp.zeros((1, 1, cfg.width)), jnp.zeros((1, 1), jnp.int32)

        def init_layer(key: jax.Array) -> Params:
            block, facts = Block(cfg), self.facts(0)
            return dict(block.init(key, x, positions, lambda q, k, v: (q, None), facts)["params"])

        params = {
            "embed": jax.random.normal(embed_key, (cfg.vocab_size, cfg.width)) * cfg.width**-0.5,
            "layers": jax.vmap(init_layer)(jax.random.split(layers_key, cfg.num_layers)),
            "norm": {"scale": jnp.full(cfg.width, 1.0 - cfg.norm_offset)},
        }
        if not cfg.tied_head:
            shape = (cfg.width, cfg.vocab_size)
            params["head"] = jax.random.normal(head_key, shape) * cfg.width**-0.5
        return params

    def embed(self, params: Params, tokens: Int[Array, "*shape"]) -> Float[Array, "*shape D"]:
        x = params["embed"].astype(self.cfg.compute_dtype)[tokens]
        return x if self.cfg.embed_scale == 1 else x * self.cfg.embed_scale

    def facts(self, layer: int) -> LayerFacts:
        """The constants of a layer."""
        cfg, window = self.cfg, self.cfg.window(layer)
        rope = cfg.rope if window is None else cfg.local_rope or cfg.rope
        return LayerFacts(
            rope.frequencies(cfg.head_dim),
            np.array(rope.scale(), np.float32),
            np.array(EVERYTHING if window is None else window, np.int32),
        )

    def block(
        self,
        layer: Params,
        x: jax.Array,
        positions: jax.Array,
        attend: Attend,
        facts: int | LayerFacts = 0,
    ) -> tuple[jax.Array, Any]:
        """One layer of unstacked parameters.

        `facts` is its number or, where that is not known while tracing, its row of the stacked
        facts. `attend` must itself keep to `cfg.window(layer)`, `score_scale` and
        `attention_softcap`.
        """
        if isinstance(facts, int):
            facts = self.facts(facts)
        return Block(self.cfg).apply({"params": layer}, x, positions, attend, facts)  # pyright: ignore

    def hidden(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        segment_ids: Int[Array, "B T"],
        keep_kv: bool = False,
    ) -> tuple[Float[Array, "B T D"], Any]:
        """The final hidden states, and with `keep_kv` each layer's (k, v), [L,B,T,K,H] both.

        A position sees itself and what is before it in its own segment, as far as the layer's
        window goes.
        """
        cfg = self.cfg
        index = jnp.arange(tokens.shape[1])
        distance = index[:, None] - index
        same_segment = segment_ids[:, :, None] == segment_ids[:, None, :]
        visible = same_segment & (distance >= 0)

        def body(x: jax.Array, scanned: tuple[Params, LayerFacts | None]) -> tuple[jax.Array, Any]:
            layer, facts = scanned
            seen = visible if facts is None else visible & (distance < facts.window)

            def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
                mixed = self_attention(q, k, v, seen, cfg.score_scale, cfg.attention_softcap)
                return mixed, (k, v) if keep_kv else None

            return self.block(layer, x, positions, attend, 0 if facts is None else facts)

        # Cast before the scan, so that each weight is rounded once and not once a layer trip.
        layers = cast(params["layers"], cfg.compute_dtype)
        facts = None
        if cfg.windows:  # otherwise all layers are as the first
            each = [self.facts(i) for i in range(cfg.num_layers)]
            facts = jax.tree.map(lambda *x: np.stack(x), *each)
        return lax.scan(body, self.embed(params, tokens), (layers, facts))

    def logits(self, params: Params, x: Float[Array, "*shape D"]) -> Float[Array, "*shape V"]:
        """Final norm and output matrix; float32 whatever the compute dtype."""
        cfg = self.cfg
        norm = RMSNorm(cfg.norm_eps, cfg.norm_offset)
        x = norm.apply({"params": params["norm"]}, x)  # pyright: ignore
        head = params["embed"].T if cfg.tied_head else params["head"]
        logits = jnp.matmul(x, head.astype(x.dtype), preferred_element_type=jnp.float32)  # pyright: ignore
        return softcap(logits, cfg.logit_softcap)


def cast(params: Params, dtype: str) -> Params:
    """Matrices in `dtype`; norms stay float32: cheap to compute, costly to round."""

    def leaf(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
        return x if path[-1].key == "scale" else x.astype(dtype)

    return jax.tree_util.tree_map_with_path(leaf, params)


def unstack(params: Params, num_layers: int) -> list[Params]:
    """The stacked layers as a list: decoding loops over it, since a scan would copy its caches."""
    return [jax.tree.map(lambda x, i=i: x[i], params["layers"]) for i in range(num_layers)]


def apply(
    model: Decoder, params: Params, tokens: ArrayLike | list[list[int]]
) -> Float[Array, "B T V"]:
    """Float32 logits of whole sequences [B, T] without padding; for tests and small use.

    Raises ModelError where T is longer than a model goes whose RoPE changes with the length.
    """
    tokens = jnp.asarray(tokens, jnp.int32)
    length = tokens.shape[1]
    if model.cfg.rope.rope_type in BY_LENGTH and length > model.cfg.context:
        cfg = model.cfg
        rule = f"more than the model's context of {cfg.context}{cfg.context_reason}"
        raise ModelError(f"{length} tokens are {rule}")
    positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    x, _ = model.hidden(params, tokens, positions, jnp.ones_like(tokens))
    return model.logits(params, x)
