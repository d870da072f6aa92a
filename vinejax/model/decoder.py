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
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from vinejax.errors import ModelError
from vinejax.model import attention
from vinejax.model.attention import softcap
from vinejax.model.config import DecoderConfig
from vinejax.model.embedding import lookup
from vinejax.model.rope import BY_LENGTH, rotate
from vinejax.model.sharding import (
    BY_COLUMN,
    BY_POSITION,
    ROWS,
    WHOLE,
    constrain,
    gathered,
    platform_of,
    relaid,
    spec_for,
)

Params = dict[str, Any]
# (q [B,T,N,H], k [B,T,K,H], v [B,T,K,H]) -> (mixed values [B,T,N,H], whatever the caller keeps)
Attend = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]


class LayerFacts(NamedTuple):
    """What the layers of one model differ in, other than weights."""

    frequencies: jax.Array | np.ndarray  # f32[R] of the layer's RoPE, or [L, R] stacked
    rope_scale: jax.Array | np.ndarray  # f32[]
    window: jax.Array | np.ndarray  # i32[], EVERYTHING where the layer has none


EVERYTHING = 2**30  # a window that no sequence fills
HEADS = ("q", "k", "v")  # the products that give heads
SUMS = ("out", "down")  # the products over heads, and over feed-forward columns
ENDS = ("embed", "head")  # the weights outside the layers that are split
WEIGHT = "weight"  # the name of a gathered weight: too much to keep one of each layer
# What the forward pass of a layer leaves for the backward pass.
REMAT = {
    "none": jax.checkpoint_policies.save_anything_except_these_names(WEIGHT),
    # Products with weights, and what an attention kernel needs; not XLA's scores.
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(attention.SAVED),
    ),
    "full": jax.checkpoint_policies.nothing_saveable,
}


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
    flat: bool = True  # all of x as one matrix
    turned: bool = False  # the kernel lies [features, inputs], with the features' axes as one

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        in_shape = x.shape[x.ndim - self.num_in :]
        features = (math.prod(self.features),) if self.turned else self.features
        axes = tuple(range(self.num_in + len(features)))
        initializer = nn.initializers.variance_scaling(
            1.0, "fan_in", "normal", in_axis=axes[: self.num_in], out_axis=axes[self.num_in :]
        )
        shape = features + in_shape if self.turned else in_shape + features
        kernel = self.param("kernel", initializer, shape).astype(x.dtype)
        kernel = kernel.T if self.turned else kernel
        # As one matrix: on CPU the gradient of the batched form costs twice as much. Over a mesh
        # it would hide from the compiler which rows and positions are where.
        batch_shape, num_in = x.shape[: x.ndim - self.num_in], math.prod(in_shape)
        y = x.reshape(*[-1] if self.flat else batch_shape, num_in) @ kernel.reshape(num_in, -1)
        y = y.reshape(batch_shape + self.features)
        if self.axis is not None:
            y = lax.psum(y, self.axis)
        if self.bias:
            bias = self.param("bias", nn.initializers.zeros, features).astype(x.dtype)
            y = y + bias.reshape(self.features)
        return y


def gelu_tanh(x: jax.Array) -> jax.Array:
    return nn.gelu(x, approximate=True)


ACTIVATIONS = {"silu": nn.silu, "gelu_tanh": gelu_tanh}


class Block(nn.Module):
    """One layer: x + attention(norm(x)), then x + gated MLP(norm(x))."""

    cfg: DecoderConfig
    mesh: Mesh | None = None  # over which whole sequences are laid out

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

        # What is computed of each position alone is split over `tensor` by position; a product
        # needs all positions of the columns that a place has.
        def whole(x: jax.Array) -> jax.Array:
            return relaid(x, self.mesh, WHOLE, BY_POSITION)

        def by_position(x: jax.Array) -> jax.Array:
            return relaid(x, self.mesh, BY_POSITION, WHOLE)

        def project(name: str, features: tuple[int, ...], bias: bool, x: jax.Array) -> jax.Array:
            # `out` takes heads by their width, and it and `down` are sums over what is split.
            num_in, axis = 1 + (name == "out"), cfg.tensor_axis if name in SUMS else None
            flat = self.mesh is None or self.mesh.size == 1
            # For decoding they lie as a TPU wants them: it would copy them at its loop's entry.
            turned = cfg.tensor_axis is not None and name in HEADS
            return Projection(features, bias, num_in, axis, flat, turned, name=name)(x)

        h = whole(norm("attention_norm", x))
        q = norm("q_norm", project("q", heads, cfg.qkv_bias, h), cfg.qk_norm)
        k = norm("k_norm", project("k", kv_heads, cfg.qkv_bias, h), cfg.qk_norm)
        v = project("v", kv_heads, cfg.qkv_bias, h)
        mixed, kept = attend(turn(q), turn(k), v)
        h = by_position(project("out", (cfg.width,), cfg.out_bias, mixed))
        x = x + norm("post_attention_norm", h, cfg.sandwich_norms)
        h = whole(norm("mlp_norm", x))
        gate = project("gate", (cfg.ffn,), cfg.mlp_bias, h)
        up = project("up", (cfg.ffn,), cfg.mlp_bias, h)
        gated = constrain(ACTIVATIONS[cfg.activation](gate) * up, self.mesh, *BY_COLUMN)
        h = by_position(project("down", (cfg.width,), cfg.mlp_bias, gated))
        return x + norm("post_mlp_norm", h, cfg.sandwich_norms), kept


@dataclasses.dataclass(frozen=True)
class Decoder:
    """The functions of a model. It holds no weights: they are the first argument of each.

    With a `mesh`, whole sequences are laid out over it: rows over `data` and `fsdp`, heads, columns
    and vocabulary over `tensor`; a layer's weights are whole over `fsdp` only while it computes.
    """

    cfg: DecoderConfig
    mesh: Mesh | None = None  # None: wherever the compiler likes

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

    def ready(self, params: Params) -> Params:
        """The weights as all passes of an update use them: rounded, gathered where once will do.

        Embedding and output matrix are then whole over `fsdp`; the layers, which are too much for
        that, lie as before. A gradient by these is one by `params`, entry by entry.
        """
        params = cast(params, self.cfg.compute_dtype)
        ends = {name: self._gathered(name, params[name]) for name in ENDS if name in params}
        return {**params, **ends}

    def _gathered(self, name: str, w: jax.Array) -> jax.Array:
        """The embedding or output matrix `name` in the compute dtype, whole over `fsdp`."""
        w = w.astype(self.cfg.compute_dtype)
        if self.mesh is None:
            return w
        return gathered(w, self.mesh, spec_for((jax.tree_util.DictKey(name),), w.shape, self.mesh))

    def embed(self, params: Params, tokens: Int[Array, "*shape"]) -> Float[Array, "*shape D"]:
        x = lookup(params["embed"].astype(self.cfg.compute_dtype), tokens, self.mesh)
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
        block = Block(self.cfg, self.mesh)
        return block.apply({"params": layer}, x, positions, attend, facts)  # pyright: ignore

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
        cfg, mesh = self.cfg, self.mesh
        tokens, positions, segment_ids = (
            constrain(x, mesh, ROWS, None) for x in (tokens, positions, segment_ids)
        )
        kind, seen = self._attention(segment_ids)

        def body(x: jax.Array, scanned: tuple[Params, LayerFacts | None]) -> tuple[jax.Array, Any]:
            layer, facts = scanned

            def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
                own = seen if facts is None else seen & attention.before(q.shape[1], facts.window)
                mixed = attention.over_mesh(kind, mesh, q, k, v, own, cfg.rule)
                return mixed, (k, v) if keep_kv else None

            layer = self._whole_layer(layer)
            x, kept = self.block(layer, x, positions, attend, 0 if facts is None else facts)
            return constrain(x, mesh, *BY_POSITION), kept

        if cfg.remat != "none" or (mesh is not None and mesh.shape["fsdp"] > 1):
            body = jax.checkpoint(body, policy=REMAT[cfg.remat], prevent_cse=False)
        # Cast before the scan, so that each weight is rounded once and not once a layer trip.
        layers = cast(params["layers"], cfg.compute_dtype)
        facts = None
        if cfg.is_mixed:  # otherwise all layers are as the first
            each = [self.facts(i) for i in range(cfg.num_layers)]
            facts = jax.tree.map(lambda *x: np.stack(x), *each)
        x = constrain(self.embed(params, tokens), mesh, *BY_POSITION)
        return lax.scan(body, x, (layers, facts))

    def _attention(self, segment_ids: Int[Array, "B T"]) -> tuple[str, jax.Array]:
        """(the kind, what it is told: segment ids, or the positions that each position sees).

        The latter without windows that differ from layer to layer.
        """
        cfg, T = self.cfg, segment_ids.shape[1]
        platform = "" if self.mesh is None else platform_of(self.mesh)
        kind = "xla"
        if not cfg.is_mixed:
            kind = attention.choose(
                cfg.attention, platform, cfg.rule, T, cfg.head_dim, cfg.compute_dtype
            )
        if kind == "splash":
            return kind, segment_ids
        window = None if cfg.is_mixed else cfg.rule.window
        same_segment = segment_ids[:, :, None] == segment_ids[:, None, :]
        return kind, same_segment & attention.before(T, window)

    def _whole_layer(self, layer: Params) -> Params:
        """A layer's weights, whole over `fsdp`."""
        cfg, mesh = self.cfg, self.mesh
        if mesh is None:
            return layer

        def whole(path: tuple[Any, ...], w: jax.Array) -> jax.Array:
            spec = P(*spec_for(path, (cfg.num_layers, *w.shape), mesh)[1:])
            return checkpoint_name(gathered(w, mesh, spec), WEIGHT)

        return jax.tree_util.tree_map_with_path(whole, layer)

    def logits(self, params: Params, x: Float[Array, "*shape D"]) -> Float[Array, "*shape V"]:
        """Final norm and output matrix; float32 whatever the compute dtype."""
        cfg = self.cfg
        norm = RMSNorm(cfg.norm_eps, cfg.norm_offset)
        x = norm.apply({"params": params["norm"]}, x)  # pyright: ignore
        name = "embed" if cfg.tied_head else "head"
        head = self._gathered(name, params[name])
        head = head.T if cfg.tied_head else head
        if x.ndim == 3:
            x = relaid(x, self.mesh, WHOLE, BY_POSITION)
        logits = jnp.matmul(x, head, preferred_element_type=jnp.float32)
        if x.ndim == 3:
            logits = constrain(logits, self.mesh, *BY_COLUMN)
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
