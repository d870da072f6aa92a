"""The objective of supervised fine-tuning and RestEM: the likelihood of responses."""

import dataclasses

import jax
import jax.numpy as jnp

from vinejax.core.types import Batch
from vinejax.learner.policy import token_weights
from vinejax.learner.score import token_logprobs
from vinejax.learner.update import Loss, Objective
from vinejax.model.decoder import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Likelihood(Objective):
    """The mean negative log-likelihood of the response tokens, including EOS.

    An update reports only this mean. `reduction` is the argument of `token_weights`. VinePPO's code
    uses 'sequence' (`trainers/mle_trainer.py:621-645`).
    """

    reduction: str = "token"
    temperature: float = 1.0

    def loss_over(self, rows: Batch) -> tuple[tuple[Batch, jax.Array], Loss]:
        weights = token_weights(rows.mask, rows.segment_ids, self.reduction)

        def loss(params: Params, micro: tuple[Batch, jax.Array]) -> tuple[jax.Array, jax.Array]:
            batch, weights = micro
            logprobs, _ = token_logprobs(self.model, params, batch, self.temperature)
            mean = -jnp.sum(weights * jnp.where(batch.mask, logprobs, 0.0))
            return mean, mean

        return (rows, weights), loss
