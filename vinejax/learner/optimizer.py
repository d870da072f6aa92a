"""AdamW with warm-up and linear decay, from optax."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from vinejax.settings import OptimizerConfig


def learning_rate(cfg: OptimizerConfig, num_updates: int) -> Callable[[ArrayLike], jax.Array]:
    """Warm-up over `warmup_fraction` of all updates, then linear decay to 0.

    Update n (from 1) of the W warm-up updates uses the peak rate times n / W for 'linear', times
    min(1, log(n + 1) / log(max(W, 2))) for 'log' (DeepSpeed's default, used by VinePPO's code).
    """
    warmup = max(1, math.ceil(cfg.warmup_fraction * num_updates))

    def schedule(count: ArrayLike) -> jax.Array:
        n = jnp.asarray(count, jnp.float32) + 1
        ramp = jnp.log(n + 1) / jnp.log(max(warmup, 2)) if cfg.warmup == "log" else n / warmup
        decay = (num_updates - n + 1) / max(num_updates - warmup, 1)
        return cfg.learning_rate * jnp.clip(jnp.minimum(ramp, decay), 0.0, 1.0)

    return schedule


@functools.cache  # equal settings, the same object: a step compiled with it is found again
def make_optimizer(cfg: OptimizerConfig, num_updates: int) -> optax.GradientTransformation:
    """Clipping by the global norm, then AdamW, without weight decay of norms and biases."""

    def decayed(params: optax.Params) -> optax.Params:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: path[-1].key not in ("scale", "bias"), params
        )

    return optax.chain(
        optax.clip_by_global_norm(cfg.max_grad_norm),
        optax.adamw(
            learning_rate(cfg, num_updates),
            b1=cfg.b1, b2=cfg.b2, eps=cfg.eps, weight_decay=cfg.weight_decay, mask=decayed,
        ),
    )  # fmt: skip
