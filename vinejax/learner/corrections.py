"""What an update reads beside advantages: weights of the policy loss, and penalties of tokens.

All of it is a constant of the rollout, made on the host before it is divided into minibatches, so
that minibatches, packing and devices cannot change it. Nothing is made that is not configured.
"""

import numpy as np

from vinejax.core.seeds import host_rng
from vinejax.core.settings import Config, EntropyConfig
from vinejax.core.types import Batch, Episode
from vinejax.learner.batch import in_rows
from vinejax.rl.corrections import correction_weights
from vinejax.rl.entropy import covariance


def with_corrections(
    batch: Batch, sampled: np.ndarray, episodes: list[Episode], cfg: Config, iteration: int
) -> tuple[Batch, dict[str, float]]:
    """(a batch as it is trained on, with what is configured in `ppo` and `entropy`; metrics).

    A weight of a whole solution is over all tokens that were drawn for its row, `sampled`, bool
    [B, T], whatever the batch's mask leaves out of training. Given tokens were not drawn for it,
    and their log-probabilities are not known.
    """
    ppo, metrics = cfg.ppo, {}
    drawn = in_rows(sampled.shape, episodes, [episode.logprobs for episode in episodes])
    if ppo.off_policy_mask is not None:
        batch = batch._replace(sampler_logprobs=drawn)
    if ppo.correction != "none":
        per, _, outside = ppo.correction.partition("_")
        low, high = ppo.correction_min or 0.0, ppo.correction_max or np.inf
        found = correction_weights(batch.old_logprobs, drawn, sampled, per, outside, low, high)
        weights = np.asarray(found)
        if (weights[sampled] != 1).any():  # else the program, and its bits, are those without
            batch = batch._replace(weights=weights)
        of_tokens = weights[sampled] if sampled.any() else np.ones(1)
        metrics["rollout/weight"] = float(np.mean(of_tokens, dtype=np.float64))
        metrics["rollout/masked"] = float(np.mean(of_tokens == 0))
    if cfg.entropy.covariance != "none":
        rng = host_rng(cfg.seed, iteration, "covariance")
        chosen = _lowering(batch, cfg.entropy, rng)
        metrics["actor/covariance_tokens"] = float(chosen.sum())
        if cfg.entropy.covariance == "clip":
            weights = np.ones_like(batch.advantages) if batch.weights is None else batch.weights
            batch = batch._replace(weights=np.where(chosen, np.float32(0), weights))
        else:
            batch = batch._replace(penalties=chosen * np.float32(cfg.entropy.covariance_penalty))
    return batch, metrics


def _lowering(batch: Batch, entropy: EntropyConfig, rng: np.random.Generator) -> np.ndarray:
    """bool[B, T] the tokens that `entropy.covariance` treats, `covariance_share` of all or one.

    'kl': those of largest covariance; 'clip': drawn from those with one between the bounds.

    Source: Clip-Cov and KL-Cov, https://arxiv.org/abs/2505.22617.
    """
    mask = np.asarray(batch.mask)
    found = np.asarray(covariance(batch.old_logprobs, batch.advantages, mask))
    count = max(int(entropy.covariance_share * mask.sum()), 1)
    if entropy.covariance == "clip":
        among = np.flatnonzero(
            mask & (found > entropy.covariance_min) & (found < entropy.covariance_max)
        )
        places = rng.permutation(among)[:count]
    else:
        tokens = np.flatnonzero(mask)
        places = tokens[np.argsort(-found.reshape(-1)[tokens], kind="stable")[:count]]
    chosen = np.zeros(mask.size, bool)
    chosen[places] = True
    return chosen.reshape(mask.shape)
