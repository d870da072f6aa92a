"""Importance weights of the policy loss, which correct for differences between sampler and learner.

Weights are constants of the rollout. The host computes them before it divides the rollout into
minibatches, so that minibatches, packing and devices cannot change them.
"""

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Batch, Episode
from vinejax.learner.batch import token_rows
from vinejax.rl.corrections import correction_weights


def with_corrections(
    batch: Batch, is_sampled: np.ndarray, episodes: list[Episode], cfg: Config
) -> tuple[Batch, dict[str, float]]:
    """(the batch with importance weights that `ppo.correction` chooses, metrics of these weights).

    `is_sampled`, bool [B, T], selects the tokens that the sampler drew for each row. The weight of
    a whole solution depends on all these tokens, even if the batch's mask excludes some of them.
    Tokens that were given as the beginning of a response are not selected, because the sampler did
    not draw them and their log-probabilities are not known.
    """
    ppo, metrics = cfg.ppo, {}
    if ppo.correction != "none":
        sampler_logprobs = token_rows(
            is_sampled.shape, episodes, [episode.logprobs for episode in episodes]
        )
        per, _, outside = ppo.correction.partition("_")
        low, high = ppo.correction_min or 0.0, ppo.correction_max or np.inf
        weights = np.asarray(
            correction_weights(
                batch.old_logprobs, sampler_logprobs, is_sampled, per, outside, low, high
            )
        )
        # If all weights are 1, the update can use the program without weights. Results are equal.
        if (weights[is_sampled] != 1).any():
            batch = batch._replace(weights=weights)
        token_weights = weights[is_sampled] if is_sampled.any() else np.ones(1)
        metrics["rollout/weight"] = float(np.mean(token_weights, dtype=np.float64))
        metrics["rollout/masked"] = float(np.mean(token_weights == 0))
    return batch, metrics
