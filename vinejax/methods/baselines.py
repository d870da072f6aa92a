"""Baselines without values of states: GRPO, RLOO, Dr. GRPO, DAPO and REINFORCE++.

Each baseline is a credit function and a record, whose `about` has the equation and the source.
"""

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, against_group, token_estimates
from vinejax.methods.base import OF_GROUPS, OF_RETURNS, OF_TOKENS, Method


def standardised(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages (r - mean r) / (std r + 1e-8), over the problem's solutions."""
    return against_group(rollout, "grpo", cfg)


def leave_one_out(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages r - (mean of r over the problem's other solutions)."""
    return against_group(rollout, "rloo", cfg)


def less_mean(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages r - (mean of r over the problem's solutions)."""
    return against_group(rollout, "mean", cfg)


def return_to_go(rollout: Rollout, cfg: Config) -> Credit:
    """The discounted sum of the rewards of each token and all later tokens, not yet whitened."""
    no_values = np.zeros(rollout.batch.mask.shape, np.float32)
    advantages, _ = token_estimates(rollout, cfg, no_values, 1.0)
    return Credit(advantages)


GRPO = Method(
    standardised,
    defaults={"reward.scale": "group"},
    flags={"groups"},
    reads=OF_GROUPS,
    ignores=OF_RETURNS,
    about="""GRPO: a solution's reward, standardised among the solutions of its problem.

    A = (r - mean r) / (std r + 1e-8)

Source: https://arxiv.org/abs/2402.03300, section 4.1.

Departs: the loss is a mean over tokens; the paper's is `ppo.reduction='sequence'`.
""",
)
RLOO = Method(
    leave_one_out,
    defaults={"reward.scale": "none"},
    flags={"groups"},
    reads=OF_GROUPS,
    ignores=OF_RETURNS,
    about="""RLOO: a solution's reward less the mean of the problem's other solutions.

    A = r - mean of the others' r

Source: https://arxiv.org/abs/2402.14740.

Departs: ratios of tokens are clipped, in TRL those of solutions.
""",
)
DR_GRPO = Method(
    less_mean,
    defaults={"ppo.reduction": "budget", "reward.scale": "none"},
    flags={"groups"},
    reads=OF_GROUPS,
    ignores=OF_RETURNS,
    about="""Dr. GRPO: GRPO without division by the standard deviation or by lengths.

    A = r - mean r    loss: Σ tokens / (`sample.max_tokens` · solutions)

Source: https://arxiv.org/abs/2503.20783.
""",
)
# Three parts of DAPO are options of all methods. DAPO sets their defaults: `rollout.zero_variance`
# (group_filter.py), `reward.overlong` (rollout/overlong.py) and `ppo.clip_high`.
DAPO = Method(
    standardised,
    defaults={
        "ppo.clip_high": 0.28,
        "rollout.zero_variance": "resample",
        "reward.overlong": 0.2,
        "reward.scale": "group",
    },
    flags={"groups"},
    reads=OF_GROUPS,
    ignores=OF_RETURNS,
    about="""DAPO: GRPO on groups with spread, a higher upper clip, a penalty on overlong solutions.

    A: `grpo`'s, of r less up to ½ over the last `reward.overlong` of `sample.max_tokens`

Source: https://arxiv.org/abs/2503.14476, section 3.

Departs: the penalty is halved, because rewards are 0 and 1, in the paper -1 and 1; the number of
rounds is bounded.
""",
)
REINFORCE_PP = Method(
    return_to_go,
    defaults={"ppo.whiten": "iteration", "kl.place": "reward"},
    reads=OF_TOKENS,
    about="""REINFORCE++: the sum of the later rewards, less the KL to the reference model.

    A_t = Σ_{i≥t} γ^(i-t)·(r_i - `kl.coef`·log(π_old/π_ref)_i)

The KL is in the reward alone.

Source: https://arxiv.org/abs/2501.03262.
""",
)
