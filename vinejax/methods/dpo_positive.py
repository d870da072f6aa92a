"""DPO-Positive: learning from pairs of a right and a wrong solution of the same problem.

    loss of a pair: -logσ(β·z)    z = (w - l) - (w_ref - l_ref) - λ·max(0, w_ref - w)
    w, l: log-probability of the right, the wrong solution

At most `dpo.pairs` per problem; λ is `dpo.penalty`.

Source: https://arxiv.org/abs/2402.13228, and VinePPO's code, `trainers/dpo_positive_trainer.py`.
"""

import jax
import jax.numpy as jnp

from vinejax.core.ranges import NotNegative, Positive
from vinejax.methods.pairs import PairConfig, pair_method
from vinejax.rl.losses import dpo_positive


class DPOConfig(PairConfig, section="dpo"):
    beta: Positive = 0.1
    penalty: NotNegative = 50.0  # λ: on a correct solution less likely than it was at the start


def loss(chosen: jax.Array, rejected: jax.Array, own: DPOConfig) -> jax.Array:
    """The loss of each pair, f32[pairs], from log-ratios to the reference model in nats."""
    zero = jnp.zeros_like(chosen)
    return dpo_positive(chosen, rejected, zero, zero, own.beta, own.penalty)


METHOD = pair_method(loss, DPOConfig)
