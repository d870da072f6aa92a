"""TEMPO: GRPO's advantage plus the change of V where the solutions of a problem part.

    A_t = (r - mean r + V(s_{t+1}) - V(s_t)) / (std r + 1e-8)
    V(s): mean r of the solutions that begin with s

`equations/shared_starts.py` computes the differences. The method samples only the solutions.

Source: https://arxiv.org/abs/2509.18314; fatebreaker/tempo at 0a1c273, verl with this advantage.

Departs: the std is that of the population; the code has that of the sample + 1e-6, and ε_high 0.28.
"""

import numpy as np

from vinejax.contrib.methods.equations.shared_starts import fork_differences
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, group_numbers, rewards_with_kl, scale_of
from vinejax.methods.base import OF_GROUPS, OF_RETURNS, Method
from vinejax.rl.advantages import group_advantages


def prefix_differences(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring, where s_t is the first t tokens of a solution."""
    episodes, mask = rollout.episodes, rollout.batch.mask
    rewards, groups = rewards_with_kl(rollout, cfg), group_numbers(episodes)
    by = scale_of(cfg) or "group"
    outcomes = np.asarray(group_advantages(rewards, groups, "grpo", scale=by))
    advantages = np.zeros(mask.shape, np.float32)
    for group in range(groups.max() + 1):
        rows = np.flatnonzero(groups == group)
        scaled = rewards[rows] if by == "group" else rewards
        scale = 1.0 if by == "none" else scaled.std() + 1e-8
        responses = [episodes[row].response for row in rows]
        differences = fork_differences(responses, rewards[rows].tolist())
        for row, of_tokens in zip(rows, differences, strict=True):
            drawn = np.array(of_tokens, np.float32)[episodes[row].is_drawn]
            advantages[row, mask[row]] = outcomes[row] + drawn / scale
    return Credit(advantages)


METHOD = Method(
    prefix_differences,
    reads=OF_GROUPS,
    ignores=OF_RETURNS,
    defaults={"reward.scale": "group"},
    flags={"groups"},
)
