"""The decoder: one Flax block for the layers of all families, which takes attention as a function.

Letters of shapes and einsums, each with one meaning in the whole package:

    B sequences (rows of a batch)    N query heads              F feed-forward width
    T query positions                K key-value heads          V vocabulary
    S key positions                  G = N / K, query heads     L layers
    D model width                      per key-value head
                                     H width of a head

Sizes without a letter are words, such as `pairs`, the channel pairs that RoPE turns.

A `Block` computes a layer except for attention itself: it hands q, k, v to `attend`, a function
that returns the mixed values. Training, prefill and cached decoding have an `attend` each, so that
the layer is written only once. Parameters are a plain nested dict. The parameters of layers are
stacked on a leading axis.

Differences between families are fields of `DecoderConfig`. The scan over layers takes the constants
that differ between the layers of a model (`LayerFacts`) beside the weights. `Compute` has the
dtypes and kernels.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

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

from vinejax.core.arguments import check_params
from vinejax.core.errors import ModelError
from vinejax.core.settings import ModelConfig
from vinejax.model import attention, sharding
from vinejax.model.attention import softcap
from vinejax.model.chunked_softmax import LabelTokens, OutputLayer
from vinejax.model.config import Compute, DecoderConfig, LayerFacts, compute_as_set
from vinejax.model.embedding import embedding_lookup
from vinejax.model.experts import Kernels, mixture, mixture_over_mesh
from vinejax.model.rope import BY_LENGTH, rotate
from vinejax.model.sharding import BY_COLUMN, BY_POSITION, ROWS, WHOLE, Params, constrain
from vinejax.model.token_logprobs import TokenScores, token_scores

Ids = Int[Array, "B T"]
Hidden = Float[Array, "B T D"]
# (q [B,T,N,H], k [B,T,K,H], v [B,T,K,H]) -> (mixed values [B,T,N,H], any result for the caller)
Attend = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]

HEADS = ("q", "k", "v")  # projections whose outputs are heads
EXPERT_MODULES = ("router", "expert_gate", "expert_up", "expert_down")
SUM_PROJECTIONS = ("out", "down")  # projections that sum over heads, and over feed-forward units
LORA_A, LORA_B = "lora_a", "lora_b"  # names of the factors A and B of adapters: model/lora.py
ENDS = ("embed", "head")  # weights outside the layers that are split over a mesh
# Sums over `tensor` have one part per device. With at least this many parts, a sum is completed
# before it is split by position. Otherwise the TPU's compiler sends the sum in pieces while it
# computes the product that is summed. With four parts that hides the sum, but with eight it
# computes the product twice (libtpu 0.0.42 and 0.0.50).
MANY_PARTS = 8
# Checkpoint name of gathered weights, which no policy saves for the backward pass.
GATHERED_WEIGHT = "weight"
# `model.remat` -> the policy that chooses the results of a layer's forward pass to save for the
# backward pass, which computes the others again.
REMAT = {
    "none": jax.checkpoint_policies.save_anything_except_these_names(GATHERED_WEIGHT),
    # Saves products with weights, and the arrays that an attention kernel needs, but no scores.
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(attention.SAVED_ARRAYS),
    ),
    "full": jax.checkpoint_policies.nothing_saveable,
}


def cast_matrices(params: Params, dtype: str) -> Params:
    """Parameters with matrices and biases in `dtype`. Norms stay float32, which costs little."""

    def cast(path: tuple[Any, ...], x: Any) -> Any:
        return x if path[-1].key == "scale" else x.astype(dtype)

    return jax.tree_util.tree_map_with_path(cast, params)


def unstack_layers(params: Params, num_layers: int) -> list[Params]:
    """A list of the layers' parameters, for decoding, where a scan would copy the caches."""
    return [jax.tree.map(lambda x, i=i: x[i], params["layers"]) for i in range(num_layers)]


class RMSNorm(nn.Module):
    """x / rms(x) * (offset + scale) over the last `axes` axes, in float32."""

    eps: float
    offset: float = 0.0
    axes: int = 1
    mean_axis: str | None = None  # mesh axis that splits the first of these axes

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        initializer = nn.initializers.constant(1.0 - self.offset)
        scale = self.param("scale", initializer, x.shape[-self.axes :]).astype(jnp.float32)
        x32 = x.astype(jnp.float32)
        square = jnp.mean(x32 * x32, axis=tuple(range(-self.axes, 0)), keepdims=True)
        if self.mean_axis is not None:
            square = lax.pmean(square, self.mean_axis)
        x32 = x32 * lax.rsqrt(square + self.eps)
        return (x32 * (self.offset + scale)).astype(x.dtype)


def times_transposed(
    rows: Float[Array, "*rows inputs"],
    kernel: Float[Array, "outputs inputs"],
    few: int = 0,
    **settings: Any,
) -> Float[Array, "*rows outputs"]:
    """The product of rows and the transpose of a kernel; `settings` go to `jnp.matmul`.

    If `rows` is a matrix with fewer than `few` rows, the function computes (kernel · rowsᵀ)ᵀ. XLA's
    CPU backend copies the second factor of every product into blocks. If the second factor is the
    kernel, and there are 16 rows, the copy takes longer than the product. An optimization barrier
    keeps XLA from swapping the factors again.
    """
    if rows.shape[0] >= few:
        return jnp.matmul(rows, kernel.T, **settings)
    return lax.optimization_barrier(jnp.matmul(kernel, rows.T, **settings)).T


class Projection(nn.Module):
    """x times a kernel over the last `num_in` axes of x, plus a bias if the model has one.

    If the parameters contain an adapter (`model/lora.py`), the product of x with the adapter is
    added.
    """

    features: tuple[int, ...]
    bias: bool = False
    num_in: int = 1
    sum_axis: str | None = None  # mesh axis that splits the kernel's rows; the parts are summed
    flat: bool = True  # whether to multiply all of x as one matrix
    transposed: bool = False  # whether the kernel is [features, inputs], with one axis of each
    few_rows: int = 0  # argument `few` of `times_transposed`

    @nn.compact
    def __call__(self, x: jax.Array, lora_scale: float) -> jax.Array:
        in_shape = x.shape[x.ndim - self.num_in :]
        batch_shape = x.shape[: x.ndim - self.num_in]
        num_inputs = math.prod(in_shape)
        features = (math.prod(self.features),) if self.transposed else self.features
        if self.transposed:  # only in the decoding copy of the weights, which is never initialised
            kernel = self.get_variable("params", "kernel").astype(x.dtype)
        else:
            axes = tuple(range(self.num_in + len(features)))
            initializer = nn.initializers.variance_scaling(
                1.0, "fan_in", "normal", in_axis=axes[: self.num_in], out_axis=axes[self.num_in :]
            )
            kernel = self.param("kernel", initializer, in_shape + features).astype(x.dtype)
        # With one matrix, the gradient costs half as much on CPU as with a batch of them. Over a
        # mesh, a flat axis would hide from the compiler how x is split.
        x_shape = (-1,) if self.flat else batch_shape
        rows = x.reshape(*x_shape, num_inputs)
        if self.transposed:
            y = times_transposed(rows, kernel, self.few_rows)
        else:
            y = rows @ kernel.reshape(num_inputs, -1)
        if self.has_variable("params", LORA_A):
            a, b = (self.get_variable("params", name).astype(x.dtype) for name in (LORA_A, LORA_B))
            rank = a.shape[-1]
            y = y + lora_scale * (rows @ a.reshape(-1, rank) @ b.reshape(rank, -1))
        y = y.reshape(batch_shape + self.features)
        if self.sum_axis is not None:
            y = lax.psum(y, self.sum_axis)
        if self.bias:
            bias = self.param("bias", nn.initializers.zeros, features).astype(x.dtype)
            y = y + bias.reshape(self.features)
        return y


class Kernel(nn.Module):
    """The kernel of a product that is computed elsewhere; its last axes are inputs and outputs."""

    shape: tuple[int, ...]

    @nn.compact
    def __call__(self, dtype: Any) -> jax.Array:
        initializer = nn.initializers.lecun_normal(batch_axis=range(len(self.shape) - 2))
        return self.param("kernel", initializer, self.shape).astype(dtype)


ACTIVATIONS = {"silu": nn.silu, "gelu_tanh": functools.partial(nn.gelu, approximate=True)}


class Block(nn.Module):
    """One layer: x + attention(norm(x)), then x + gated MLP(norm(x)), or a mixture of MLPs."""

    cfg: DecoderConfig
    compute: Compute
    mesh: Mesh | None = None  # mesh over which whole sequences are laid out

    @nn.compact
    def __call__(
        self, x: Hidden, positions: Ids, attend: Attend, facts: LayerFacts
    ) -> tuple[Hidden, Any]:
        """(the output of the layer, the second result of `attend`)."""
        cfg, compute = self.cfg, self.compute
        heads, kv_heads = (cfg.num_heads, cfg.head_dim), (cfg.num_kv_heads, cfg.head_dim)
        of_heads = "joint_norm" if cfg.joint_qk_norm else "norm"

        def norm(name: str, x: jax.Array, present: bool) -> jax.Array:
            over = (2, compute.sum_axis) if name.endswith("joint_norm") else (1, None)
            return RMSNorm(cfg.norm_eps, cfg.norm_offset, *over, name=name)(x) if present else x

        def turn(x: jax.Array) -> jax.Array:
            return rotate(x, positions, facts.frequencies, facts.rope_scale)

        # Sequence parallelism: position-wise operations are split over `tensor` by position;
        # matrix products need all positions of their columns.
        parts = 1 if self.mesh is None else self.mesh.shape["tensor"]
        summed = [WHOLE] if parts >= MANY_PARTS else []  # layouts of sums before they are split

        def whole(x: jax.Array) -> jax.Array:
            return sharding.constrain_with_gradient(x, self.mesh, WHOLE, *summed, BY_POSITION)

        def by_position(x: jax.Array) -> jax.Array:
            x = x if cfg.residual_scale == 1 else x * cfg.residual_scale
            for layout in summed:
                x = constrain(x, self.mesh, *layout)
            return sharding.constrain_with_gradient(x, self.mesh, BY_POSITION, WHOLE)

        def project(name: str, features: tuple[int, ...], bias: bool, x: jax.Array) -> jax.Array:
            num_in = 2 if name == "out" else 1  # `out` takes heads and their width
            sum_axis = compute.sum_axis if name in SUM_PROJECTIONS else None
            flat = self.mesh is None or self.mesh.size == 1
            projection = Projection(
                features,
                bias=bias,
                num_in=num_in,
                sum_axis=sum_axis,
                flat=flat,
                transposed=name in compute.transposed,
                few_rows=compute.few_rows,
                name=name,
            )
            return projection(x, compute.lora_scale)

        with jax.named_scope("attention"):
            h = whole(norm("attention_norm", x, not cfg.bare_inputs))
            q = norm(f"q_{of_heads}", project("q", heads, cfg.qkv_bias, h), cfg.qk_norm)
            k = norm(f"k_{of_heads}", project("k", kv_heads, cfg.qkv_bias, h), cfg.qk_norm)
            v = project("v", kv_heads, cfg.qkv_bias, h)
            mixed, attend_result = attend(turn(q), turn(k), v)
            h = by_position(project("out", (cfg.width,), cfg.out_bias, mixed))
            x = x + norm("post_attention_norm", h, cfg.sandwich_norms)
        with jax.named_scope("mlp"):
            h = whole(norm("mlp_norm", x, not cfg.bare_inputs))
            h = by_position(self.mlp(project, h))
            return x + norm("post_mlp_norm", h, cfg.sandwich_norms), attend_result

    def mlp(self, project: Callable[..., jax.Array], h: jax.Array) -> jax.Array:
        """The gated MLP of h, or the mixture of MLPs that the layer has in its place."""
        cfg, experts, axis = self.cfg, self.cfg.experts, self.compute.sum_axis
        activation = ACTIVATIONS[cfg.activation]
        if experts is None:
            gate = project("gate", (cfg.ffn,), cfg.mlp_bias, h)
            up = project("up", (cfg.ffn,), cfg.mlp_bias, h)
            gated = constrain(activation(gate) * up, self.mesh, *BY_COLUMN)
            return project("down", (cfg.width,), cfg.mlp_bias, gated)
        # While decoding, each device along `axis` has a part of the experts.
        count = experts.count // (1 if axis is None else lax.axis_size(axis))
        inward, outward = (count, cfg.width, experts.ffn), (count, experts.ffn, cfg.width)
        shapes = (cfg.width, experts.count), inward, inward, outward
        modules = zip(EXPERT_MODULES, shapes, strict=True)
        kernels = Kernels(*(Kernel(shape, name=name)(h.dtype) for name, shape in modules))
        if axis is None:
            return mixture_over_mesh(self.mesh, h, kernels, experts, activation)
        return lax.psum(mixture(h, kernels, experts, activation, axis), axis)


@dataclasses.dataclass(frozen=True)
class Decoder:
    """The functions of a model, which take its weights as their first argument.

    The axes `data` and `fsdp` of a `mesh` split the rows of whole sequences. The axis `tensor`
    splits heads, feed-forward units and vocabulary. The weights of a layer are gathered over `fsdp`
    only while the layer is computed.
    """

    cfg: DecoderConfig
    mesh: Mesh | None = None  # None: the compiler chooses layouts
    compute: Compute = Compute()
    # Text of the checkpoint's generation_config.json, which `save_pretrained` writes again.
    generation_config: str = dataclasses.field(default="", compare=False, repr=False)

    def computing(self, settings: ModelConfig) -> "Decoder":
        """This model with the `Compute` of the settings. Parameters keep their dtype.

        Raises ConfigError for a kind of attention that cannot compute the model on its mesh.
        """
        platform = jax.default_backend() if self.mesh is None else sharding.platform_of(self.mesh)
        return dataclasses.replace(self, compute=compute_as_set(settings, self.cfg, platform))

    def init(self, key: jax.Array) -> Params:
        """Random float32 parameters: {embed [V,D], layers {... [L,...]}, norm {scale}, head [D,V]}.

        The scale of projections is 1/sqrt(fan in). The scale of the embedding is 1/sqrt(D), because
        it may also be the output matrix.
        """
        cfg = self.cfg
        embed_key, head_key, layers_key = jax.random.split(key, 3)
        x, positions = jnp.zeros((1, 1, cfg.width)), jnp.zeros((1, 1), jnp.int32)

        def init_layer(key: jax.Array) -> Params:
            block, facts = Block(cfg, self.compute), cfg.layer_facts(0)
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
        """The weights in the compute dtype, with embedding and output matrix gathered over `fsdp`.

        An update calls this once. Layers are too large to stay gathered. A gradient with respect to
        the result is also the gradient with respect to `params`.
        """
        params = cast_matrices(params, self.compute.dtype)
        ends = {name: self._gathered(name, params[name]) for name in ENDS if name in params}
        return {**params, **ends}

    def _gathered(self, name: str, w: jax.Array) -> jax.Array:
        """The embedding or output matrix `name` in the compute dtype, gathered over `fsdp`."""
        w = w.astype(self.compute.dtype)
        if self.mesh is None:
            return w
        spec = sharding.spec_for((jax.tree_util.DictKey(name),), w.shape, self.mesh)
        return sharding.gather_over_fsdp(w, self.mesh, spec)

    @jax.named_scope("embed")
    def embed(self, params: Params, tokens: Int[Array, "*shape"]) -> Float[Array, "*shape D"]:
        """The scaled embeddings of tokens in the compute dtype."""
        x = embedding_lookup(params["embed"].astype(self.compute.dtype), tokens, self.mesh)
        return x if self.cfg.embed_scale == 1 else x * self.cfg.embed_scale

    def block(
        self, layer: Params, x: Hidden, positions: Ids, attend: Attend, facts: int | LayerFacts = 0
    ) -> tuple[Hidden, Any]:
        """Apply one layer, given by its unstacked parameters, and return the results of `Block`.

        `facts` is the number of the layer or, if the number is a tracer, the layer's row of the
        stacked facts. `attend` must apply three properties of the architecture: the layer's window,
        `score_scale` and `attention_softcap`.
        """
        if isinstance(facts, int):
            facts = self.cfg.layer_facts(facts)
        block = Block(self.cfg, self.compute, self.mesh)
        return block.apply({"params": layer}, x, positions, attend, facts)  # pyright: ignore

    def hidden(
        self,
        params: Params,
        tokens: Ids,
        positions: Ids,
        segment_ids: Ids,
        keep_kv: bool = False,
        seen_until: Ids | None = None,
        tap: int | None = None,
    ) -> tuple[Hidden, Any]:
        """(final hidden states of whole sequences, a second result that is None by default).

        With `keep_kv`, the second result is (k, v) of all layers, both [L,B,T,K,H]. With `tap`, it
        is the hidden states [B,T,D] after `tap` layers. `attention.visibility_for` says which
        positions a position sees.
        """
        cfg, mesh = self.cfg, self.mesh
        tokens, positions, segment_ids, seen_until = jax.tree.map(
            lambda x: constrain(x, mesh, ROWS, None), (tokens, positions, segment_ids, seen_until)
        )
        kind, visibility = self.choose_attention(positions, segment_ids, seen_until)
        places = jnp.arange(tokens.shape[1]) if seen_until is None else positions

        def body(x: jax.Array, scanned: tuple[Params, LayerFacts | None]) -> tuple[jax.Array, Any]:
            layer, facts = scanned

            def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
                near = visibility
                if facts is not None and cfg.is_mixed:
                    near = visibility & attention.in_window(places, facts.window)
                mixed = attention.attend_over_mesh(kind, mesh, q, k, v, near, cfg.rule())
                return mixed, (k, v) if keep_kv else None

            layer = self._gathered_layer(layer)
            x, attend_result = self.block(
                layer, x, positions, attend, 0 if facts is None else facts
            )
            return constrain(x, mesh, *BY_POSITION), attend_result

        remat = self.compute.remat
        if remat != "none" or (mesh is not None and mesh.shape["fsdp"] > 1):
            body = jax.checkpoint(body, policy=REMAT[remat], prevent_cse=False)
        # Casting before the scan rounds each weight once, and not again in every trip.
        layers = cast_matrices(params["layers"], self.compute.dtype)
        facts = None  # the facts of the first layer are those of all layers
        if cfg.is_mixed or cfg.unturned:
            facts_by_layer = [cfg.layer_facts(i) for i in range(cfg.num_layers)]
            facts = jax.tree.map(lambda *x: np.stack(x), *facts_by_layer)
        x = constrain(self.embed(params, tokens), mesh, *BY_POSITION)
        if tap is None:
            return lax.scan(body, x, (layers, facts))
        middle, _ = lax.scan(body, x, jax.tree.map(lambda x: x[:tap], (layers, facts)))
        x, _ = lax.scan(body, middle, jax.tree.map(lambda x: x[tap:], (layers, facts)))
        return x, middle

    def choose_attention(
        self, positions: Ids, segment_ids: Ids, seen_until: Ids | None
    ) -> tuple[str, jax.Array]:
        """(kind of attention for whole sequences, result of `attention.visibility_for`).

        If windows differ between layers, the second result is a mask that ignores windows. In each
        layer, the method `hidden` then limits this mask to the layer's window.
        """
        cfg, kind = self.cfg, "xla"
        if not cfg.is_mixed:
            platform = "" if self.mesh is None else sharding.platform_of(self.mesh)
            name, dtype, T = self.compute.attention, self.compute.dtype, segment_ids.shape[1]
            kind = attention.choose_kind(name, platform, cfg.rule(), T, cfg.head_dim, dtype)
        window = None if cfg.is_mixed else cfg.window(0)
        single = self.compute.single_rows
        return kind, attention.visibility_for(
            kind, positions, segment_ids, seen_until, window, single
        )

    def _gathered_layer(self, layer: Params) -> Params:
        mesh = self.mesh
        if mesh is None:
            return layer

        def gather(path: tuple[Any, ...], w: jax.Array) -> jax.Array:
            spec = P(*sharding.spec_for(path, (self.cfg.num_layers, *w.shape), mesh)[1:])
            return checkpoint_name(sharding.gather_over_fsdp(w, mesh, spec), GATHERED_WEIGHT)

        return jax.tree_util.tree_map_with_path(gather, layer)

    @jax.named_scope("logits")
    def logits(self, params: Params, x: Float[Array, "*shape D"]) -> Float[Array, "*shape V"]:
        """The float32 logits of `x`, the hidden states after the last layer.

        The function applies the final norm to `x`.
        """
        cfg, name = self.cfg, self.cfg.output_matrix
        x = self._normalised(params, x)
        head = self._gathered(name, params[name])
        if x.ndim == 3:
            x = sharding.constrain_with_gradient(x, self.mesh, WHOLE, BY_POSITION)
        if cfg.tied_head:
            few = self.compute.few_rows if x.ndim == 2 else 0
            logits = times_transposed(x, head, few, preferred_element_type=jnp.float32)
        else:
            logits = jnp.matmul(x, head, preferred_element_type=jnp.float32)
        if x.ndim == 3:
            logits = constrain(logits, self.mesh, *BY_COLUMN)
        return softcap(logits, cfg.logit_softcap)

    @jax.named_scope("logits")
    def scores_of(
        self,
        params: Params,
        x: Hidden,
        tokens: Ids,
        labels: LabelTokens | None,
        temperature: float,
        axis: str | None = None,
    ) -> TokenScores:
        """Log-probabilities of tokens and labels, and entropies of their distributions.

        The distribution is softmax(logits(params, x) / temperature). Its logits are computed in
        parts. `axis` is the argument of `token_scores`.
        """
        name = self.cfg.output_matrix
        output = OutputLayer(name, self.cfg.logit_softcap, temperature, self.compute.vocab_chunk)
        x, table = self._normalised(params, x), params[name].astype(self.compute.dtype)
        return token_scores(x, table, tokens, labels, output, self.mesh, axis)

    def _normalised(self, params: Params, x: jax.Array) -> jax.Array:
        """The final norm of x, divided by the divisor of the logits."""
        norm = RMSNorm(self.cfg.norm_eps, self.cfg.norm_offset)
        x = norm.apply({"params": params["norm"]}, x)  # pyright: ignore
        return x if self.cfg.logit_divisor == 1 else x / self.cfg.logit_divisor


def apply(
    model: Decoder, params: Params, tokens: ArrayLike | list[list[int]]
) -> Float[Array, "B T V"]:
    """Float32 logits of whole sequences [B, T] without padding, for tests and small inputs.

    Raises ModelError if T exceeds the context of a model whose RoPE changes with the length.

    >>> model, params, tokenizer = vinejax.load_pretrained("configs/tiny_start")
    >>> vinejax.apply(model, params, [tokenizer.encode("7+8=")]).shape
    (1, 5, 20)
    """
    check_params(params)
    cfg = model.cfg
    tokens = jnp.asarray(tokens, jnp.int32)
    length = tokens.shape[1]
    if cfg.rope.rope_type in BY_LENGTH and length > cfg.context:
        message = f"more than the model's context of {cfg.context}{cfg.context_reason}"
        raise ModelError(f"{length} tokens are {message}")
    positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    x, _ = model.hidden(params, tokens, positions, jnp.ones_like(tokens))
    return model.logits(params, x)
