"""Low-rank adapters (LoRA, https://arxiv.org/abs/2106.09685), trained instead of the weights.

A projection with kernel W computes x W + s (x A) B, where s = alpha / rank, A has `rank` columns
and B has `rank` rows. The adapters of a model are a separate tree, {layers {q {lora_a, lora_b},
...}}. `with_adapters` puts this tree into the model's parameters, and `merge_adapters` adds the
products of the adapters to the kernels.
"""

import functools
import math
from collections.abc import Collection

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from vinejax.core.settings import PROJECTIONS, ModelConfig
from vinejax.model.decoder import LORA_A, LORA_B, Decoder, Params
from vinejax.model.sharding import param_shardings


@functools.partial(jax.jit, static_argnames=("model", "mesh", "rank", "targets", "seed"))
def fresh_adapters(
    model: Decoder, mesh: Mesh, rank: int, targets: tuple[str, ...], seed: int = 0
) -> Params:
    """New float32 adapters {layers {target {lora_a, lora_b}}}, which do not change the outputs yet.

    lora_a [L, inputs..., rank] is uniform in +-1/sqrt(inputs), as in PEFT, and lora_b
    [L, rank, outputs...] is 0. Adapters are laid out over the mesh by `sharding.PARAM_SPECS`.
    """
    tree = _draw(model, rank, targets, seed)
    return jax.lax.with_sharding_constraint(tree, param_shardings(mesh, tree))


def abstract_adapters(model: Decoder, settings: ModelConfig) -> Params:
    """The float32 ShapeDtypeStructs of the adapters that the settings ask for."""
    return jax.eval_shape(lambda: _draw(model, settings.lora_rank, settings.lora_targets, 0))


def _draw(model: Decoder, rank: int, targets: Collection[str], seed: int) -> Params:
    shapes, layers = kernel_shapes(model), model.cfg.num_layers
    adapters: dict[str, Params] = {}
    for number, name in enumerate(PROJECTIONS):
        if name not in targets or name not in shapes:
            continue
        inputs, outputs = shapes[name]
        key = jax.random.fold_in(jax.random.key(seed), number)
        bound = math.prod(inputs) ** -0.5
        shape_a = (layers, *inputs, rank)
        adapters[name] = {
            LORA_A: jax.random.uniform(key, shape_a, minval=-bound, maxval=bound),
            LORA_B: jnp.zeros((layers, rank, *outputs)),
        }
    return {"layers": adapters}


def kernel_shapes(model: Decoder) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Projection -> (sizes of input axes, of output axes) of its kernel; none of the experts'."""
    cfg = model.cfg
    heads, kv_heads = (cfg.num_heads, cfg.head_dim), (cfg.num_kv_heads, cfg.head_dim)
    width, ffn = (cfg.width,), (cfg.ffn,)
    shapes = {
        "q": (width, heads),
        "k": (width, kv_heads),
        "v": (width, kv_heads),
        "out": (heads, width),
    }
    if cfg.experts is None:
        shapes |= {"gate": (width, ffn), "up": (width, ffn), "down": (ffn, width)}
    return shapes


def with_adapters(params: Params, adapters: Params) -> Params:
    """The tree `params` with each projection's adapter added beside its kernel.

    No array is copied or changed.
    """
    layers = {
        name: {**weights, **adapters["layers"].get(name, {})}
        for name, weights in params["layers"].items()
    }
    return {**params, "layers": layers}


def weights_of(trained: Params, base: Params | None) -> Params:
    """All weights of a model, which are `trained` if `base` is None.

    Otherwise, `trained` are adapters, and the result is `base` with these adapters.
    """
    return trained if base is None else with_adapters(base, trained)


def merge_adapters(params: Params, scale: float) -> Params:
    """The parameters without adapters, with each kernel W replaced by W + scale A B.

    The result has the dtype of W. Product and sum are computed in float32. Projections without an
    adapter do not change.
    """

    def merge(weights: Params) -> Params:
        if LORA_A not in weights:
            return weights
        kernel, a, b = (weights[name] for name in ("kernel", LORA_A, LORA_B))
        matrix = (*a.shape[:1], -1, a.shape[-1])
        change = jnp.matmul(
            a.reshape(matrix), b.reshape(*b.shape[:2], -1), precision=jax.lax.Precision.HIGHEST
        )
        others = {name: x for name, x in weights.items() if name not in (LORA_A, LORA_B)}
        summed = kernel.astype(jnp.float32) + scale * change.reshape(kernel.shape)
        return {**others, "kernel": summed.astype(kernel.dtype)}

    return {**params, "layers": {name: merge(x) for name, x in params["layers"].items()}}
