"""GRPO: a solution's reward, standardised among the solutions of its problem.

    A = (r - mean r) / (std r + 1e-8)

Source: https://arxiv.org/abs/2402.03300, section 4.1.

Departs: `ppo.reduction` 'sequence' is the paper's mean.
"""

from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, against_group
from vinejax.methods.base import OF_GROUPS, Method


def standardised(rollout: Rollout, cfg: Config) -> Credit:
    """(r - mean) / standard deviation of the problem's solutions."""
    return against_group(rollout, "grpo", cfg)


METHOD = Method(standardised, scale="group", needs_groups=True, reads=OF_GROUPS)
