"""Sums, means and whitening over the entries that a mask selects.

Every function first replaces the entries that the mask does not select, so that a NaN among them
reaches neither the result nor a gradient.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Shaped

from vinejax.core.arguments import library


@jax.jit(static_argnames="axis")
def masked_sum(
    x: Shaped[Array, "..."], mask: Bool[Array, "..."], axis: int | None = None
) -> Float32[Array, "..."]:
    """Σ x over the entries where `mask` is True; `x` and `mask` broadcast against each other."""
    return jnp.sum(jnp.where(mask, jnp.float32(x), 0.0), axis=axis)


@jax.jit(static_argnames="axis")
def masked_mean(
    x: Shaped[Array, "..."], mask: Bool[Array, "..."], axis: int | None = None
) -> Float32[Array, "..."]:
    """Mean of `x` over the entries where `mask` is True; 0 if there are none.

    The mask must have the full shape, to which `x` broadcasts.
    """
    count = jnp.sum(mask, axis=axis)
    return masked_sum(x, mask, axis) / jnp.maximum(count, 1)


@library()
@jax.jit(static_argnames="shift_mean")
def whiten(
    x: Shaped[Array, "*shape"],
    mask: Bool[Array, "*shape"],
    shift_mean: bool = True,
) -> Float32[Array, "*shape"]:
    """Scales the selected entries to unit variance and, by default, shifts them to zero mean.

        y = (x - μ) / √(σ² + 1e-8)    μ = Σ x / n    σ² = Σ (x - μ)² / (n - 1)

    Args:
      x: [B, T] of any real dtype, usually advantages.
      mask: bool [B, T], the n selected entries, which share one mean and one variance.
      shift_mean: whether to subtract μ. Without it y = x / √(σ² + 1e-8), so that 0 stays 0.

    Returns:
      float32 [B, T], 0 outside the mask.

    Source: VinePPO's code, `trainers/utils.py:266-283`, called per minibatch in
    `trainers/ppo_trainer.py:742-759`; `shift_mean=False` is its `grayen_advantages`. For a single
    entry σ² is 0 here, whereas that code divides 0 by 0.

    Example:
      >>> vinejax.whiten([[1.0, 3.0, 9.0]], mask=[[True, True, False]])
      Array([[-0.70710677,  0.70710677,  0.        ]], dtype=float32)
    """
    x = jnp.where(mask, jnp.float32(x), 0.0)
    centred = x - masked_mean(x, mask)
    variance = masked_sum(centred**2, mask) / jnp.maximum(jnp.sum(mask) - 1, 1)
    scaled = (centred if shift_mean else x) / jnp.sqrt(variance + 1e-8)
    return jnp.where(mask, scaled, 0.0)
