"""`reward.overlong`: a penalty on responses that come near the token budget.

The published penalty goes from 0 to -1, with rewards of -1 and 1 for wrong and right solutions.
Rewards here are 0 and 1, half as far apart, so the penalty is halved. Source: DAPO,
https://arxiv.org/abs/2503.14476, section 3.4.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Episode
from vinejax.credit.assign import has_spread
from vinejax.rl.advantages import overlong_penalty

HALF = 0.5  # rewards of wrong and right solutions differ by 1 here, by 2 in the paper


def penalties(lengths: Sequence[int], cfg: Config) -> list[float]:
    """What to subtract, 0 to 0.5, from the reward of each response with a length of `lengths`."""
    budget = cfg.sample.max_tokens
    buffer = (cfg.reward.overlong or 0.0) * budget
    return (-HALF * overlong_penalty(np.array(lengths, np.int32), budget, buffer)).tolist()


def penalised_episodes(episodes: list[Episode], cfg: Config) -> list[Episode]:
    """The episodes with their penalties, if `reward.overlong` is above 0.

    Unless `rollout.zero_variance` is 'keep', groups of equal rewards get no penalty, because the
    penalty alone would make their rewards differ.
    """
    if not cfg.reward.overlong or not episodes:
        return episodes
    by_episode = penalties([episode.length for episode in episodes], cfg)
    is_penalised = [True] * len(episodes)
    if cfg.rollout.zero_variance != "keep":
        is_penalised = has_spread(episodes).tolist()
    return [
        dataclasses.replace(episode, penalty=penalty) if penalise else episode
        for episode, penalty, penalise in zip(episodes, by_episode, is_penalised, strict=True)
    ]
