"""TRPA: a preference loss over all pairs of a problem's solutions whose levels differ.

    A = -N·∂L/∂ℓ    loss: -A·logπ, mean per solution    N: solutions
    L = mean of -logσ(β·a_i·(ℓ_i - ℓ_j)) over pairs, i preferred    ℓ: mean of log(π/π_ref)
    a_i = `trpa.anisotropy` where i is right, else 1

The levels of preference are right solutions, then finished ones by their reward, then ones that
were cut off.

Source: https://arxiv.org/abs/2504.04524; XueruiSu/Trust-Region-Preference-Approximation at f372585.

Departs: ℓ is that of π_old; pairs are of an iteration, in the code of a microbatch; the KL is to
π_ref, there to π_old.
"""

import numpy as np

from vinejax.contrib.methods.asymre import loss
from vinejax.contrib.methods.equations.group_weights import preference_weights
from vinejax.contrib.methods.settings import TRPAConfig
from vinejax.contrib.methods.solution_groups import token_means
from vinejax.core.settings import Config
from vinejax.core.types import Episode, Rollout, is_correct
from vinejax.credit.assign import Credit, group_numbers, per_solution
from vinejax.methods.base import OF_RATIO, Method


def levels_of(episodes: list[Episode]) -> np.ndarray:
    """The level of each solution, i64[episodes]: 1 is right, and a worse level has a higher number.

    A level means the same in all problems.
    """
    keys = [(0, 0.0) if is_correct(e.reward) else (2 - e.finished, -e.reward) for e in episodes]
    numbers = {key: level for level, key in enumerate(sorted({*keys, (0, 0.0)}), start=1)}
    return np.array([numbers[key] for key in keys])


def preference_credit(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring."""
    settings, episodes, batch = TRPAConfig.of(cfg), rollout.episodes, rollout.batch
    ratios = token_means(rollout, np.asarray(batch.old_logprobs) - np.asarray(batch.ref_logprobs))
    weights = preference_weights(
        levels_of(episodes),
        group_numbers(episodes),
        ratios,
        beta=settings.beta,
        anisotropy=settings.anisotropy,
    )
    return per_solution(rollout, len(episodes) * weights)


METHOD = Method(
    preference_credit,
    loss=loss,
    settings=TRPAConfig,
    ignores=OF_RATIO,
    defaults={"ppo.reduction": "sequence"},
    flags={"groups", "logprobs"},
)
