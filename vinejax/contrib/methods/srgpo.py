"""SRGPO: GRPO, with the reward of each turn compared with rewards of random turns of the batch.

    A = (R - mean R) / (std R + 1e-8) + w·(r_t - mean r) / (std r + 1e-6)

R is the reward of the whole solution, with those of its turns, and is compared with the problem's
other solutions. r_t is the reward of turn t without the outcome. Its mean and std (of the sample)
are over a group of `srgpo.group` turns, drawn at random from all solutions of the iteration. So
rewards of turns must mean the same in every state, as those for a valid action do.

Source: https://arxiv.org/abs/2512.02631; WzcTHU/SeeNav-Agent at 86cad99,
`verl-agent/srgpo/core_srgpo.py`; w = 0.5 and groups of 16: its `run_ebnav.sh`.

Departs: in the problem's mean and std an episode counts once, in the code once per turn, and the
std there is that of the sample, with 1e-6 added.
"""

import itertools

import numpy as np

from vinejax.contrib.methods.equations.turn_returns import group_scores
from vinejax.contrib.methods.settings import SRGPOConfig
from vinejax.contrib.methods.turn_actions import moves_of, per_move
from vinejax.core.seeds import host_rng
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, against_group
from vinejax.methods.base import OF_GROUPS, OF_RETURNS, Method


def credit_of_random_groups(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring.

    The groups depend on `seed` and the texts of the episodes alone, so all hosts draw the same.
    """
    settings, episodes = SRGPOConfig.of(cfg), rollout.episodes
    by_episode = [[move.reward for move in moves_of(episode)] for episode in episodes]
    for rewards, episode in zip(by_episode, episodes, strict=True):
        if episode.step_ends:  # an empty response has no step that could have the outcome
            rewards[-1] -= episode.outcome
    rewards = np.concatenate(by_episode)
    texts = "\n".join(episode.text for episode in episodes)
    order = host_rng(cfg.seed, 0, f"srgpo {texts}").permutation(len(rewards))
    groups = np.empty(len(rewards), int)
    groups[order] = np.arange(len(rewards)) // settings.group
    scores = settings.weight * group_scores(rewards, groups.tolist())
    ends = list(itertools.accumulate(map(len, by_episode)))[:-1]
    of_turns = per_move(rollout, np.split(scores, ends))
    wholes = against_group(rollout, "grpo", cfg)
    return Credit(wholes.advantages + of_turns.advantages)


METHOD = Method(
    credit_of_random_groups,
    settings=SRGPOConfig,
    reads=OF_GROUPS,
    ignores=OF_RETURNS,
    defaults={"reward.scale": "group"},
    flags={"groups"},
)
