"""RLOO: a solution's reward less the mean of the problem's other solutions.

    A = r - mean of the others' r

Source: https://arxiv.org/abs/2402.14740.

Departs: ratios of tokens; TRL clips those of solutions.
"""

from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, against_group
from vinejax.methods.base import OF_GROUPS, Method


def leave_one_out(rollout: Rollout, cfg: Config) -> Credit:
    """r - mean of the problem's other solutions."""
    return against_group(rollout, "rloo", cfg)


METHOD = Method(leave_one_out, scale="none", needs_groups=True, reads=OF_GROUPS)
