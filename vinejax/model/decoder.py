"""The decoder: Llama-family blocks in Flax, layers scanned, attention passed in.

Letters, one meaning each in every einsum: B sequences, T query positions, S key positions,
D width, N query heads, K key-value heads, G = N / K, H head width, F feed-forward width,
V vocabulary, L layers.

A `Block` computes everything of a layer but the attention itself: it hands q, k, v to `attend` and
takes the mixed values back. Training, prefill and cached decoding are three `attend`s; the layer
is written once. Parameters are a plain nested dict, the layers' stacked on a leading axis.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

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
    context: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tied_head: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    compute_dtype: str = "float32"


def rope(
    x: Float[Array, "B T heads H"], positions: Int[Array, "B T"], theta: float
) -> Float[Array, "B T heads H"]:
    """Rotary position embedding, the halves rotated against each other (Hugging Face's layout).

    Angles stay in float32: bfloat16 rounds position 257 to 256, and their sines are far apart.
    """
    half = x.shape[-1] // 2
    inverse_frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[..., None, None].astype(jnp.float32) * inverse_frequency
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


class RMSNorm(nn.Module):
    eps: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        x32 = x.astype(jnp.float32)
        x32 = x32 * lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + self.eps)
        return (x32 * scale).astype(x.dtype)


class Projection(nn.Module):
    """x times a kernel over its last `num_in` axes, plus a bias where the model has one."""

    features: tuple[int, ...]
    bias: bool = False
    num_in: int = 1

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
        if self.bias:
            y = y + self.param("bias", nn.initializers.zeros, self.features).astype(x.dtype)
        return y


class Block(nn.Module):
    """One layer: x + attention(norm(x)), then x + SwiGLU(norm(x))."""

    cfg: DecoderConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], positions: Int[Array, "B T"], attend: Attend
    ) -> tuple[Float[Array, "B T D"], Any]:
        cfg = self.cfg
        heads, kv_heads = (cfg.num_heads, cfg.head_dim), (cfg.num_kv_heads, cfg.head_dim)
        h = RMSNorm(cfg.norm_eps, name="attention_norm")(x)
        q = rope(Projection(heads, cfg.qkv_bias, name="q")(h), positions, cfg.rope_theta)
        k = rope(Projection(kv_heads, cfg.qkv_bias, name="k")(h), positions, cfg.rope_theta)
        v = Projection(kv_heads, cfg.qkv_bias, name="v")(h)
        mixed, kept = attend(q, k, v)
        x = x + Projection((cfg.width,), cfg.out_bias, num_in=2, name="out")(mixed)
        h = RMSNorm(cfg.norm_eps, name="mlp_norm")(x)
        gate = Projection((cfg.ffn,), cfg.mlp_bias, name="gate")(h)
        up = Projection((cfg.ffn,), cfg.mlp_bias, name="up")(h)
        x = x + Projection((cfg.width,), cfg.mlp_bias, name="down")(nn.silu(gate) * up)
        return x, kept


def self_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    visible: Bool[Array, "B T T"],
) -> Float[Array, "B T N H"]:
    """Grouped-query attention over the sequence itself; scores and softmax in float32."""
    B, T, N, H = q.shape
    grouped = q.reshape(B, T, k.shape[2], -1, H)
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, k, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, None, None], scores * H**-0.5, -jnp.inf)
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
            return dict(Block(cfg).init(key, x, positions, lambda q, k, v: (q, None))["params"])

        params = {
            "embed": jax.random.normal(embed_key, (cfg.vocab_size, cfg.width)) * cfg.width**-0.5,
            "layers": jax.vmap(init_layer)(jax.random.split(layers_key, cfg.num_layers)),
            "norm": {"scale": jnp.ones(cfg.width)},
        }
        if not cfg.tied_head:
            shape = (cfg.width, cfg.vocab_size)
            params["head"] = jax.random.normal(head_key, shape) * cfg.width**-0.5
        return params

    def embed(self, params: Params, tokens: Int[Array, "*shape"]) -> Float[Array, "*shape D"]:
        return params["embed"].astype(self.cfg.compute_dtype)[tokens]

    def block(
        self, layer: Params, x: jax.Array, positions: jax.Array, attend: Attend
    ) -> tuple[jax.Array, Any]:
        """One layer of unstacked parameters."""
        return Block(self.cfg).apply({"params": layer}, x, positions, attend)  # pyright: ignore

    def hidden(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        segment_ids: Int[Array, "B T"],
        keep_kv: bool = False,
    ) -> tuple[Float[Array, "B T D"], Any]:
        """The final hidden states, and with `keep_kv` each layer's (k, v), [L,B,T,K,H] both.

        A position sees itself and what is before it in its own segment.
        """
        index = jnp.arange(tokens.shape[1])
        same_segment = segment_ids[:, :, None] == segment_ids[:, None, :]
        visible = same_segment & (index[:, None] >= index)

        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
            return self_attention(q, k, v, visible), (k, v) if keep_kv else None

        def body(x: jax.Array, layer: Params) -> tuple[jax.Array, Any]:
            return self.block(layer, x, positions, attend)

        # Cast before the scan, so that each weight is rounded once and not once a layer trip.
        layers = cast(params["layers"], self.cfg.compute_dtype)
        return lax.scan(body, self.embed(params, tokens), layers)

    def logits(self, params: Params, x: Float[Array, "*shape D"]) -> Float[Array, "*shape V"]:
        """Final norm and output matrix; float32 whatever the compute dtype."""
        x = RMSNorm(self.cfg.norm_eps).apply({"params": params["norm"]}, x)  # pyright: ignore
        head = params["embed"].T if self.cfg.tied_head else params["head"]
        return jnp.matmul(x, head.astype(x.dtype), preferred_element_type=jnp.float32)  # pyright: ignore


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
    """Float32 logits of whole sequences [B, T] without padding; for tests and small use."""
    tokens = jnp.asarray(tokens, jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    x, _ = model.hidden(params, tokens, positions, jnp.ones_like(tokens))
    return model.logits(params, x)
