"""AdamW or Adafactor with warm-up and decay, from optax's parts."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import KeyPath
from jax.typing import ArrayLike

from vinejax.core.settings import OptimizerConfig

# Adafactor factors a matrix whose two longest sides are at least so long: those of a projection to
# heads are the model's width and the width of a head. The axis of layers is no side.
LEAST_SIDE = 32


def learning_rate(cfg: OptimizerConfig, num_updates: int) -> Callable[[ArrayLike], jax.Array]:
    """Warm-up over `warmup_fraction` of all updates, then the decay of `schedule`.

    With x = (num_updates - n + 1) / (num_updates - W), the share of the updates after the warm-up
    that is left before update n, the peak rate is times x for 'linear', (1 - cos πx) / 2 for
    'cosine' (https://arxiv.org/abs/1608.03983, without restarts) and 1 for 'constant'.
    Update n (from 1) of the W warm-up updates uses the peak rate times n / W for 'linear', times
    min(1, log(n + 1) / log(max(W, 2))) for 'log' (DeepSpeed's default, used by VinePPO's code).
    """
    warmup = max(1, math.ceil(cfg.warmup_fraction * num_updates))

    def schedule(count: ArrayLike) -> jax.Array:
        n = jnp.asarray(count, jnp.float32) + 1
        ramp = jnp.log(n + 1) / jnp.log(max(warmup, 2)) if cfg.warmup == "log" else n / warmup
        decay = (num_updates - n + 1) / max(num_updates - warmup, 1)
        if cfg.schedule == "cosine":
            decay = (1 - jnp.cos(jnp.pi * jnp.clip(decay, 0.0, 1.0))) / 2
        elif cfg.schedule == "constant":
            decay = 1.0
        return cfg.learning_rate * jnp.clip(jnp.minimum(ramp, decay), 0.0, 1.0)

    return schedule


@functools.partial(jax.jit, static_argnames=("cfg", "num_updates"))
def rate_of_last(cfg: OptimizerConfig, num_updates: int, step: jax.Array) -> jax.Array:
    """The rate, f32[], of the update that made `step`, i32[]; in one program for all operations."""
    return learning_rate(cfg, num_updates)(step - 1)


@functools.cache  # equal settings, the same object: a step compiled with it is found again
def make_optimizer(cfg: OptimizerConfig, num_updates: int) -> optax.GradientTransformation:
    """Clipping by the global norm, then AdamW or Adafactor; norms and biases do not decay."""
    clip = optax.clip_by_global_norm(cfg.max_grad_norm)
    rate = learning_rate(cfg, num_updates)
    if cfg.name == "adafactor":
        decay = optax.add_decayed_weights(cfg.weight_decay, _decays)
        return optax.chain(clip, scale_by_adafactor(), decay, optax.scale_by_learning_rate(rate))
    adamw = optax.adamw(
        rate, b1=cfg.b1, b2=cfg.b2, eps=cfg.eps, weight_decay=cfg.weight_decay, mask=_decays
    )
    return optax.chain(clip, adamw)


def scale_by_adafactor() -> optax.GradientTransformation:
    """Adafactor without first moment: second moments of matrices as an outer product.

    Source: Shazeer and Stern (2018), algorithms 4 and 5: the moments decay by 1 - t^-0.8, and an
    update whose root mean square exceeds 1 is divided by it. Departures: the step is not multiplied
    by the size of the weights, so that learning rates mean what they mean for AdamW (as in
    transformers' Trainer); weights are stacked over layers, so that the root mean square is over
    all layers of a matrix; adapters keep moments of every number, because they are small.
    """
    unfactored = optax.scale_by_factored_rms(factored=False)
    return optax.chain(
        optax.partition({True: scale_by_factors(), False: unfactored}, _is_matrix),
        optax.clip_by_block_rms(1.0),
    )


def scale_by_factors() -> optax.GradientTransformation:
    """`optax.scale_by_factored_rms` of each matrix alone, where matrices are stacked over layers.

    optax factors the two longest axes of an array. Where layers would be one of them, it is mapped
    over layers; elsewhere the result is the same without.
    """
    factored = optax.scale_by_factored_rms(min_dim_size_to_factor=LEAST_SIDE)

    def init(params: Any) -> Any:
        axes, state_axes, size = _layer_axes(params)
        return jax.vmap(factored.init, (axes,), state_axes, axis_size=size)(params)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        axes, state_axes, size = _layer_axes(updates)
        by_layer = jax.vmap(
            factored.update, (axes, state_axes, axes), (axes, state_axes), axis_size=size
        )
        return by_layer(updates, state, params)

    return optax.GradientTransformation(init, update)


def _layer_axes(params: optax.Params) -> tuple[Any, Any, int]:
    """What `scale_by_factors` maps over layers: axes of `params` and of the state, and their size.

    The axis is 0, or None for what is not mapped; the size is 1 where nothing is.
    """

    def is_mapped(path: KeyPath, x: jax.Array) -> bool:
        if all(key.key != "layers" for key in path):
            return False
        return x.shape[0] >= max(sorted(x.shape[1:])[-2], LEAST_SIDE)

    def axis(path: KeyPath, x: jax.Array) -> int | None:
        return 0 if is_mapped(path, x) else None

    axes = jax.tree_util.tree_map_with_path(axis, params)
    state_axes = optax.FactoredState._make([None, axes, axes, axes])  # the count has no layers
    leaves = jax.tree_util.tree_leaves_with_path(params)
    size = max((x.shape[0] for path, x in leaves if is_mapped(path, x)), default=1)
    return axes, state_axes, size


def _decays(params: optax.Params) -> optax.Params:
    return _by_name(params, lambda name: name not in ("scale", "bias"))


def _is_matrix(params: optax.Params) -> optax.Params:
    return _by_name(params, lambda name: name in ("kernel", "embed", "head"))


def _by_name(params: optax.Params, is_chosen: Callable[[str], bool]) -> optax.Params:
    """A tree like `params` of `is_chosen(name)`, with the last name in each parameter's path."""
    return jax.tree_util.tree_map_with_path(lambda path, _: is_chosen(path[-1].key), params)
