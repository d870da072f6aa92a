"""Splits a model over the mesh for decoding, by hand, since every shard runs its own loop.

A shard is the devices with one pair of coordinates (`data`, `fsdp`). Weights are replicated over
shards. The tensor axis splits query and KV heads, feed-forward units and the vocabulary. If the
axis does not divide the KV heads, the KV heads are repeated until it does. If the axis does not
divide the vocabulary, the vocabulary is not split. Of a mixture of experts, the axis splits the
experts, and not their feed-forward units.
"""

import dataclasses
import functools
import math
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Float, Int

from vinejax.core.errors import ConfigError
from vinejax.core.settings import PROJECTIONS
from vinejax.model import decoder
from vinejax.model.decoder import ENDS, HEADS, LORA_A, Decoder, Params
from vinejax.model.sharding import (
    ROWS,
    AnyMesh,
    check_heads,
    platform_of,
    table_spec,
    tensor_only,
)

Tree = TypeVar("Tree")
KeyPath = tuple[Any, ...]  # path of a weight from jax.tree_util
TENSOR = "tensor"
SHARDS = Spec(ROWS)  # the first axis covers all shards, one after the other
REPLICATED = Spec()
# The decoding copy: {embed, layers, norm, head} like a model's parameters; `layers` is a list.
Weights = dict[str, Any]
FEW_ROWS = 64  # rows at which both forms of `decoder.times_transposed` take equally long on CPUs


def check_tensor(model: Decoder, mesh: AnyMesh) -> None:
    """Raises ValueError for a model that cannot be split over the tensor axis (`check_heads`)."""
    try:
        check_heads(mesh, *model.cfg.split_sizes)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def num_kv_heads(model: Decoder, mesh: AnyMesh) -> int:
    """The number of KV heads over the whole tensor axis, including repeated heads.

    It is the least common multiple of the model's KV heads and the size of the axis. Both divide
    the number of query heads, and so does this number.
    """
    return math.lcm(model.cfg.num_kv_heads, mesh.shape[TENSOR])


def own_part(model: Decoder, mesh: Mesh) -> Decoder:
    """The model that one device on the tensor axis runs with its part of the decoding weights."""
    cfg, tensor = model.cfg, mesh.shape[TENSOR]
    part = dataclasses.replace(
        cfg,
        num_heads=cfg.num_heads // tensor,
        num_kv_heads=num_kv_heads(model, mesh) // tensor,
        ffn=cfg.ffn // tensor,
        attention_scale=cfg.score_scale,
    )
    few = FEW_ROWS if _on_cpu(mesh) else 0
    compute = dataclasses.replace(
        model.compute, sum_axis=TENSOR, transposed=transposed(mesh), few_rows=few
    )
    return Decoder(part, compute=compute)


def _on_cpu(mesh: AnyMesh) -> bool:
    """Whether the mesh's devices are CPUs; False for an abstract mesh, which has no devices."""
    return isinstance(mesh, Mesh) and platform_of(mesh) == "cpu"


def transposed(mesh: AnyMesh) -> tuple[str, ...]:
    """The names of the projections whose kernels are [outputs, inputs] in the decoding copy."""
    return PROJECTIONS if _on_cpu(mesh) else HEADS


def vocab_axis(model: Decoder, mesh: AnyMesh) -> str | None:
    """The mesh axis that splits the vocabulary; None if the vocabulary is not split."""
    return None if model.cfg.vocab_size % mesh.shape[TENSOR] else TENSOR


def weight_specs(model: Decoder, mesh: AnyMesh, weights: Weights) -> dict[str, Any]:
    """A PartitionSpec for each weight of the decoding copy.

    `weights` has the arrays of the copy, or their shapes.
    """
    turned = transposed(mesh)

    def of_end(path: KeyPath, _: object) -> Spec:
        is_whole = path[0].key in ENDS and vocab_axis(model, mesh) is None
        return Spec() if is_whole else tensor_only(table_spec(path))

    def of_layer(path: KeyPath, _: object) -> Spec:
        axes = tensor_only(table_spec(path))[1:]
        # Heads and their width become one axis, split like the heads.
        *inputs, outputs = axes[:-1] if _gives_heads(path) else axes
        if path[-1].key == "kernel" and path[0].key in turned:
            return Spec(outputs, inputs[0])
        return Spec(*inputs, outputs)

    ends = {name: x for name, x in weights.items() if name != "layers"}
    specs = jax.tree_util.tree_map_with_path(of_end, ends)
    layers = [jax.tree_util.tree_map_with_path(of_layer, layer) for layer in weights["layers"]]
    return {**specs, "layers": layers}


@functools.partial(jax.jit, static_argnames=("model", "mesh"))
def for_decoding(model: Decoder, mesh: AnyMesh, params: Params) -> Weights:
    """The decoding copy of the weights, which is split as in `weight_specs`.

    Matrices have the compute dtype, and the layers are a list. Adapters stay separate from their
    kernels, since a sum would lose changes below half a unit in the last place of a kernel.

    For q, k and v the kernels are [heads * H, D], the biases are [heads * H], and lora_b is [rank,
    heads * H]. KV heads are repeated to fit `tensor`. On CPUs the kernels of all projections are
    [outputs, inputs].
    """
    repeats = num_kv_heads(model, mesh) // model.cfg.num_kv_heads
    turned = transposed(mesh)

    def as_matrix(path: KeyPath, x: jax.Array) -> jax.Array:
        if repeats > 1 and _has_kv_heads(path):
            x = jnp.repeat(x, repeats, axis=-2)
        if _gives_heads(path):
            x = x.reshape(*x.shape[:-2], -1)
        if path[-1].key != "kernel" or path[-2].key not in turned:
            return x
        return x.reshape(x.shape[0], -1, x.shape[-1]).swapaxes(-1, -2)  # [L, outputs, inputs]

    cast = decoder.cast_matrices(params, model.compute.dtype)
    params = jax.tree_util.tree_map_with_path(as_matrix, cast)
    weights = {**params, "layers": decoder.unstack_layers(params, model.cfg.num_layers)}

    def split(x: jax.Array, spec: Spec) -> jax.Array:
        return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    return jax.tree.map(split, weights, weight_specs(model, mesh, weights))


def abstract_weights(model: Decoder, mesh: AnyMesh, params: Params) -> Weights:
    """The shapes and shardings of the decoding copy, without an allocation."""
    shapes = jax.eval_shape(lambda params: for_decoding(model, mesh, params), params)

    def placed(x: jax.ShapeDtypeStruct, spec: Spec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(placed, shapes, weight_specs(model, mesh, shapes))


def _gives_heads(path: KeyPath) -> bool:
    """Whether the last axes of the weight at `path` are the heads of q, k or v."""
    return len(path) > 1 and path[-2].key in HEADS and path[-1].key != LORA_A


def _has_kv_heads(path: KeyPath) -> bool:
    """Whether the last axis but one of the weight at `path` are the KV heads."""
    if _gives_heads(path):
        return path[-2].key != "q"
    return len(path) > 1 and path[-2].key == "k_joint_norm"


def readable(mesh: Mesh, tree: Tree) -> Tree:
    """The arrays of `tree`, replicated so that every host can read all of them.

    All hosts can then make the same decisions.
    """
    if not mesh.is_multi_process:
        return tree
    return lax.with_sharding_constraint(tree, NamedSharding(mesh, REPLICATED))


@jax.named_scope("embed")
def embed(
    model: Decoder, weights: Weights, tokens: Int[Array, "*shape"], axis: str | None
) -> Float[Array, "*shape D"]:
    """The embeddings of tokens; each device along the mesh's `axis` holds part of the vocabulary.

    If `axis` is None, every device holds the whole vocabulary.
    """
    if axis is None:
        return model.embed(weights, tokens)
    size = weights["embed"].shape[0]
    place = tokens - lax.axis_index(axis) * size
    is_here = (place >= 0) & (place < size)
    x = model.embed(weights, jnp.where(is_here, place, 0))
    return lax.psum(jnp.where(is_here[..., None], x, 0), axis)
