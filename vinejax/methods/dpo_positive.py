"""DPO-Positive: learning from pairs of a right and a wrong solution of the same problem.

    loss of a pair: -logσ(β·z)    z = (w - l) - (w_ref - l_ref) - λ·max(0, w_ref - w)
    w, l: log-probability of the right, the wrong solution

There are at most `dpo.pairs` pairs per problem. λ is `dpo.penalty`.

Source: https://arxiv.org/abs/2402.13228, and VinePPO's code, `trainers/dpo_positive_trainer.py`.
"""

import jax
import jax.numpy as jnp

from vinejax.methods.pairs import pair_method
from vinejax.methods.settings import DPOConfig
from vinejax.rl.losses import dpo_positive


def loss(chosen: jax.Array, rejected: jax.Array, own: DPOConfig) -> jax.Array:
    """The loss of each pair, f32[pairs]. `chosen` and `rejected` are log(π/π_ref) in nats."""
    zero = jnp.zeros_like(chosen)
    return dpo_positive(chosen, rejected, zero, zero, own.beta, own.penalty)


METHOD = pair_method(loss, __doc__ or "")
