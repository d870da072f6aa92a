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

HALF = 0.5  # the distance of wrong and right is 1 here, 2 in the paper


def penalties(lengths: Sequence[int], cfg: Config) -> list[float]:
    """What responses of these lengths, in tokens, lose: 0 to 0.5."""
    budget = cfg.sample.max_tokens
    buffer = (cfg.reward.overlong or 0.0) * budget
    return (-HALF * overlong_penalty(np.array(lengths, np.int32), budget, buffer)).tolist()


def penalised(episodes: list[Episode], cfg: Config) -> list[Episode]:
    """The episodes with their penalties, if `reward.overlong` is above 0.

    Where `rollout.zero_variance` leaves out groups without spread, groups of that kind that fill up
    the batch have no penalty, because they would differ by it alone.
    """
    if not cfg.reward.overlong or not episodes:
        return episodes
    lost = penalties([episode.length for episode in episodes], cfg)
    pays = [True] * len(episodes)
    if cfg.rollout.zero_variance != "keep":
        pays = has_spread(episodes).tolist()
    return [
        dataclasses.replace(episode, penalty=x) if is_paid else episode
        for episode, x, is_paid in zip(episodes, lost, pays, strict=True)
    ]
