"""How decoding splits a model over the mesh: by hand, since every shard runs a loop of its own.

Weights are equal on all data shards. Over the tensor axis: query and KV heads, feed-forward columns
and, where it divides, the vocabulary. KV heads that do not divide are repeated until they do.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Float, Int

from vinejax.model.decoder import HEADS, Decoder, Params, cast_matrices, unstack_layers
from vinejax.model.sharding import ROWS, AnyMesh, table_spec, tensor_only, uneven_size

TENSOR = "tensor"
SHARDS, EVERYWHERE = Spec(ROWS), Spec()  # each place on the axes of rows is a shard
CACHE = Spec(ROWS, TENSOR)  # [n, K, columns, H]


def cache_spec(axes: str) -> Spec:
    """Of a cache whose axes are in this order: slots or rows 's', KV heads 'k', any others."""
    return Spec(*({"s": ROWS, "k": TENSOR}.get(axis) for axis in axes))


def num_shards(mesh: AnyMesh) -> int:
    return mesh.shape["data"] * mesh.shape["fsdp"]


def check_tensor(model: Decoder, mesh: AnyMesh) -> None:
    """ValueError for a model that cannot be split over the tensor axis: see `uneven_size`."""
    if what := uneven_size(mesh, model.cfg.num_heads, model.cfg.ffn):
        raise ValueError(f"mesh.tensor = {mesh.shape[TENSOR]} does not divide the model's {what}")


def num_kv_heads(model: Decoder, mesh: AnyMesh) -> int:
    """K over all places of the tensor axis, repeated ones counted.

    N is a multiple of K and of the places, so of what this is, their least common multiple.
    """
    return math.lcm(model.cfg.num_kv_heads, mesh.shape[TENSOR])


def own_part(model: Decoder, mesh: Mesh) -> Decoder:
    """The model that one device on the tensor axis runs, on its part of the decoding weights."""
    cfg, tensor = model.cfg, mesh.shape[TENSOR]
    part = dataclasses.replace(
        cfg,
        num_heads=cfg.num_heads // tensor,
        num_kv_heads=num_kv_heads(model, mesh) // tensor,
        ffn=cfg.ffn // tensor,
        attention_scale=cfg.score_scale,
    )
    compute = dataclasses.replace(model.compute, sum_axis=TENSOR, transposed_heads=True)
    return Decoder(part, compute=compute)


def vocab_axis(model: Decoder, mesh: AnyMesh) -> str | None:
    """The axis that splits the vocabulary; None where it does not divide."""
    return None if model.cfg.vocab_size % mesh.shape[TENSOR] else TENSOR


def weight_specs(model: Decoder, mesh: AnyMesh) -> Any:
    """A PartitionSpec for each of the weights that `for_decoding` gives."""

    def spec(path: tuple[Any, ...], _: Any) -> Spec:
        axes = list(tensor_only(table_spec(path)))
        if path[0].key in ("embed", "head") and vocab_axis(model, mesh) is None:
            axes = []
        if _gives_heads(path):  # [L, D, N, H] or [L, N, H]
            axes = [axes[0], axes[-2], None] if path[-1].key == "kernel" else axes[:2]
        return Spec(*(axes[1:] if path[0].key == "layers" else axes))

    specs = jax.tree_util.tree_map_with_path(spec, jax.eval_shape(model.init, jax.random.key(0)))
    return {**specs, "layers": [specs["layers"]] * model.cfg.num_layers}


@functools.partial(jax.jit, static_argnames=("model", "mesh"))
def for_decoding(model: Decoder, mesh: Mesh, params: Params) -> Any:
    """The weights as decoding wants them: rounded once, layers in a list, split by tensor alone.

    The kernels of q, k and v lie [N * H, D], their biases [N * H].
    """
    repeats = num_kv_heads(model, mesh) // model.cfg.num_kv_heads

    def turned(path: tuple[Any, ...], x: jax.Array) -> jax.Array:
        if not _gives_heads(path):
            return x
        if path[-2].key != "q" and repeats > 1:
            x = jnp.repeat(x, repeats, axis=-2)
        x = x.reshape(*x.shape[:-2], -1)
        return x.swapaxes(-1, -2) if path[-1].key == "kernel" else x

    params = jax.tree_util.tree_map_with_path(turned, cast_matrices(params, model.compute.dtype))
    params = {**params, "layers": unstack_layers(params, model.cfg.num_layers)}
    return jax.tree.map(
        lambda x, spec: lax.with_sharding_constraint(x, NamedSharding(mesh, spec)),
        params, weight_specs(model, mesh), is_leaf=lambda x: isinstance(x, jax.Array),
    )  # fmt: skip


def _gives_heads(path: tuple[Any, ...]) -> bool:
    """Whether a weight, or its bias, ends in heads and their width."""
    return len(path) > 1 and path[-2].key in HEADS


def readable(mesh: Mesh, tree: Any) -> Any:
    """What a program hands to the hosts: each has to see all of it, so that all decide the same."""
    if not mesh.is_multi_process:
        return tree
    return lax.with_sharding_constraint(tree, NamedSharding(mesh, EVERYWHERE))


def embed(
    model: Decoder, params: Any, tokens: Int[Array, "*shape"], axis: str | None
) -> Float[Array, "*shape D"]:
    """The embeddings of tokens, from a part of the vocabulary on each place of `axis`."""
    if axis is None:
        return model.embed(params, tokens)
    size = params["embed"].shape[0]
    place = tokens - lax.axis_index(axis) * size
    mine = (place >= 0) & (place < size)
    x = model.embed(params, jnp.where(mine, place, 0))
    return lax.psum(jnp.where(mine[..., None], x, 0), axis)
