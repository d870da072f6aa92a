"""How single tokens move the policy's entropy."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Real

from vinejax.rl.masked import masked_mean


@jax.jit
def covariance(
    logprobs: Real[Array, "B T"], advantages: Real[Array, "B T"], mask: Bool[Array, "B T"]
) -> Float32[Array, "B T"]:
    """Each token's part of the covariance of log-probability and advantage, 0 off the mask.

        c_t = (A_t - mean A)·(logπ_t - mean logπ)

    Their sum is about what an update takes from the entropy: likely tokens that pay grow likelier.

    Source: https://arxiv.org/abs/2505.22617; PRIME-RL/Entropy-Mechanism-of-RL, `core_algos.py`.
    """
    advantages, logprobs = (jnp.float32(x) - masked_mean(x, mask) for x in (advantages, logprobs))
    return jnp.where(mask, advantages * logprobs, 0.0)
