"""Importance weights of the policy loss, which correct for differences between sampler and learner.

Weights are constants of the rollout. The host computes them before it divides the rollout into
minibatches, so that minibatches, packing and devices cannot change them.
"""

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Batch, Episode, Labels
from vinejax.learner.batch import token_rows
from vinejax.rl.corrections import correction_weights


def with_corrections(
    batch: Batch, is_sampled: np.ndarray, episodes: list[Episode], cfg: Config
) -> tuple[Batch, dict[str, float]]:
    """(the batch with importance weights that `ppo.correction` chooses, metrics of these weights).

    `is_sampled`, bool [B, T], selects the tokens that the sampler drew for each row. The weight of
    a whole solution depends on all these tokens, even if the batch's mask excludes some of them.
    Tokens that were given as the beginning of a response are not selected, because the sampler did
    not draw them and their log-probabilities are not known. If weights are per token, a label has a
    weight of its own. If they are per sequence, it has the weight of the solution in its row. The
    metrics do not count labels.
    """
    ppo, labels = cfg.ppo, batch.labels
    if ppo.correction == "none":
        return batch if labels is None else batch._replace(labels=_for_update(labels, None)), {}
    per, _, outside = ppo.correction.partition("_")

    def weights_of(old: np.ndarray, sampler: np.ndarray | None, mask: np.ndarray) -> np.ndarray:
        low, high = ppo.correction_min or 0.0, ppo.correction_max or np.inf
        return np.asarray(correction_weights(old, sampler, mask, per, outside, low, high))

    sampler_logprobs = token_rows(
        is_sampled.shape, episodes, [episode.logprobs for episode in episodes]
    )
    weights = weights_of(batch.old_logprobs, sampler_logprobs, is_sampled)
    if labels is not None:
        is_label = labels.position > 0
        if per == "token":
            of_labels = weights_of(labels.old_logprobs, labels.sampler_logprobs, is_label)
        else:
            of_labels = np.take_along_axis(weights, labels.position, axis=1)
        batch = batch._replace(labels=_for_update(labels, _unless_one(of_labels, is_label)))
    batch = batch._replace(weights=_unless_one(weights, is_sampled))
    token_weights = weights[is_sampled] if is_sampled.any() else np.ones(1)
    return batch, {
        "rollout/weight": float(np.mean(token_weights, dtype=np.float64)),
        "rollout/masked": float(np.mean(token_weights == 0)),
    }


def _unless_one(weights: np.ndarray, mask: np.ndarray) -> np.ndarray | None:
    """The weights; None if all that the mask selects are 1.

    The update can then use the program without weights. Results are equal.
    """
    return weights if (weights[mask] != 1).any() else None


def _for_update(labels: Labels, weights: np.ndarray | None) -> Labels:
    """The labels with importance weights, and without the sampler's log-probabilities."""
    return labels._replace(sampler_logprobs=None, weights=weights)
