"""The optimizer: AdamW or Adafactor of optax, with warm-up and decay of the learning rate."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import KeyPath
from jax.typing import ArrayLike

from vinejax.core.settings import OptimizerConfig

# Adafactor factors a matrix whose two longest sides have at least this length. For a
# projection to heads they are the model's width and a head's width. The axis of layers is no side.
LEAST_SIDE = 32


class Duration(NamedTuple):
    """The length of a training in updates, on which its learning rates depend."""

    updates: ArrayLike  # number of all updates
    warmup: ArrayLike  # number of updates of the warm-up, at least 1, and 2 for `warmup` 'log'
    decay: ArrayLike  # number of updates after those that `warmup_fraction` counts, at least 1


def duration_of(cfg: OptimizerConfig, num_updates: int) -> Duration:
    """The duration of a training of `num_updates` updates; `warmup_fraction` of them warm up."""
    warmup = max(1, math.ceil(cfg.warmup_fraction * num_updates))
    decay = max(num_updates - warmup, 1)
    return Duration(num_updates, max(warmup, 2) if cfg.warmup == "log" else warmup, decay)


def learning_rate(cfg: OptimizerConfig, duration: Duration) -> Callable[[ArrayLike], jax.Array]:
    """A function from the number of earlier updates to the learning rate of the next update.

    Updates are counted from 1. In update n of the warm-up, which has W updates, the factor on the
    peak rate is n / W for `warmup` 'linear', and min(1, log(n + 1) / log(W)) for 'log', which is
    the default of DeepSpeed and of VinePPO's code.

    After the warm-up, x = (duration.updates - n + 1) / duration.decay is the fraction of updates
    that remain before update n. The factor on the peak rate is x for `schedule` 'linear',
    (1 - cos πx) / 2 for 'cosine' (https://arxiv.org/abs/1608.03983, without restarts) and 1 for
    'constant'.
    """
    num_updates, warmup, num_decaying = duration

    def schedule(count: ArrayLike) -> jax.Array:
        n = jnp.asarray(count, jnp.float32) + 1
        ramp = jnp.log(n + 1) / jnp.log(warmup) if cfg.warmup == "log" else n / warmup
        decay = (num_updates - n + 1) / num_decaying
        if cfg.schedule == "cosine":
            decay = (1 - jnp.cos(jnp.pi * jnp.clip(decay, 0.0, 1.0))) / 2
        elif cfg.schedule == "constant":
            decay = 1.0
        return cfg.learning_rate * jnp.clip(jnp.minimum(ramp, decay), 0.0, 1.0)

    return schedule


@functools.partial(jax.jit, static_argnames=("cfg", "num_updates"))
def rate_of_last(cfg: OptimizerConfig, num_updates: int, step: jax.Array) -> jax.Array:
    """f32[]: the learning rate of update number `step`, which is i32[] and counts from 1.

    One compiled program computes the rate for every `step`.
    """
    return learning_rate(cfg, duration_of(cfg, num_updates))(step - 1)


@functools.cache  # one object for equal settings, so that jit finds the compiled step again
def make_optimizer(cfg: OptimizerConfig, num_updates: int) -> optax.GradientTransformation:
    """AdamW or Adafactor after clipping by the global norm, for `num_updates` updates.

    Weight decay does not apply to norms and biases.
    """
    return _with_rate(cfg, learning_rate(cfg, duration_of(cfg, num_updates)))


@functools.cache
def lasting_optimizer(cfg: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """The optimizer of `make_optimizer` for trainings whose numbers of updates differ.

    Its `update` takes the `Duration` of the training as the argument `duration`, so one compiled
    program makes the updates of all these trainings.
    """

    def update(updates: Any, state: Any, params: Any = None, **more: Any) -> Any:
        optimizer = _with_rate(cfg, learning_rate(cfg, more["duration"]))
        return optimizer.update(updates, state, params)

    return optax.GradientTransformationExtraArgs(make_optimizer(cfg, 1).init, update)


def _with_rate(
    cfg: OptimizerConfig, rate: Callable[[ArrayLike], jax.Array]
) -> optax.GradientTransformation:
    clip = optax.clip_by_global_norm(cfg.max_grad_norm)
    if cfg.name == "adafactor":
        decay = optax.add_decayed_weights(cfg.weight_decay, _decays)
        return optax.chain(clip, scale_by_adafactor(), decay, optax.scale_by_learning_rate(rate))
    adamw = optax.adamw(
        rate, b1=cfg.b1, b2=cfg.b2, eps=cfg.eps, weight_decay=cfg.weight_decay, mask=_decays
    )
    return optax.chain(clip, adamw)


def scale_by_adafactor() -> optax.GradientTransformation:
    """Adafactor without a first moment. The second moments of a matrix are an outer product.

    Source: Shazeer and Stern (2018), algorithms 4 and 5. The moments decay by 1 - t^-0.8. An update
    whose root mean square exceeds 1 is divided by its root mean square.

    Differences from the paper:

    - The step is not multiplied by the size of the weights, so that learning rates mean the same as
      for AdamW. transformers' Trainer does not multiply either.
    - Weights are stacked over layers, so the root mean square is over all layers of a matrix.
    - Adapters are small, so their second moments are not factored.
    """
    unfactored = optax.scale_by_factored_rms(factored=False)
    return optax.chain(
        optax.partition({True: scale_by_factors(), False: unfactored}, _is_matrix),
        optax.clip_by_block_rms(1.0),
    )


def scale_by_factors() -> optax.GradientTransformation:
    """`optax.scale_by_factored_rms`, applied to each matrix of a stack over layers separately.

    optax factors over the two longest axes of an array. If the axis of layers would be one of the
    two, the function is mapped over layers. For other arrays, mapping would not change the result.
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
    """(axes of `params`, axes of the state, axis size) for `jax.vmap` in `scale_by_factors`.

    An axis is 0 for an array that is mapped over layers, and None for any other array. The size is
    the number of layers, or 1 if no array is mapped.
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
    """A tree like `params`, whose leaf for a parameter is is_chosen(last name of its path)."""
    return jax.tree_util.tree_map_with_path(lambda path, _: is_chosen(path[-1].key), params)
