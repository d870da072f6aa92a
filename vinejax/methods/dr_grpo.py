"""Dr. GRPO: GRPO without the division by the standard deviation, and without a length bias.

    A = r - mean r    loss: Σ tokens / (`sample.max_tokens` · solutions)

Source: https://arxiv.org/abs/2503.20783.
"""

from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, against_group
from vinejax.methods.base import OF_GROUPS, Method


def less_mean(rollout: Rollout, cfg: Config) -> Credit:
    """r - mean of the problem's solutions."""
    return against_group(rollout, "mean", cfg)


METHOD = Method(less_mean, reduction="budget", scale="none", needs_groups=True, reads=OF_GROUPS)
