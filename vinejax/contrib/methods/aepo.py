"""AEPO: ARPO with a budget for branches, a penalty on branches in a row, and credit by entropy.

    branches if (u + w·(H - H_1))·(1 - c·l) ≥ τ    l: waves in a row with branches
    A = `grpo`'s·(1 + α·(H_t - mean) / std)
    loss: clipped, with a gradient above 1 + ε_high

A first solution is sampled alone. H_1 is the entropy of its first turn, and mean H the mean of its
later turns. Then n·σ(β·(H_1 - mean H)) of the problem's n solutions begin at the prompt, and the
rest branch off these. Nothing branches off the first solution. l counts the last waves of turns
without a gap after which the problem branched.

Source: https://arxiv.org/abs/2510.14545; its code, RUC-NLPIR/ARPO, `verl_aepo_entropy`.

Departs: H is estimated as in `arpo`, and H_t is that of π_old; there is no dual clip of 3.
"""

import math
from collections.abc import Sequence

import jax
import numpy as np

from vinejax.contrib.methods.branching import branching_solutions
from vinejax.contrib.methods.equations.entropy_weights import (
    clip_with_gradient,
    uncertain_advantages,
)
from vinejax.contrib.methods.hapo import Entropies
from vinejax.contrib.methods.sampling.turn_trees import TurnGrowth, TurnPlace
from vinejax.contrib.methods.settings import AEPOConfig
from vinejax.core.settings import Config
from vinejax.core.types import Batch, Rollout
from vinejax.credit.assign import Credit, against_group
from vinejax.learner.policy import PolicyLoss, PolicyObjective
from vinejax.methods.base import OF_GROUPS, OF_RETURNS, Method
from vinejax.rl.losses import is_clipped


def share_from_prompt(root: float, tools: float, beta: float) -> float:
    """The share of a problem's solutions that begin at the prompt, σ(`beta`·(`root` - `tools`)).

    `root` is H_1, the entropy of the first solution's first turn. `tools` is mean H, the mean
    entropy of its later turns, which follow answers of tools.
    """
    return 1 / (1 + math.exp(-beta * (root - tools)))


def score(u: float, rise: float, streak: int, settings: AEPOConfig) -> float:
    """The score max(1 - c·l, 0)·(u + w·(H - H_1)) of a branch, which is made if the score is ≥ τ.

    `rise` is H - H_1, and `streak` is l. `settings` has c and w, as `penalty` and `weight`.
    """
    return (u + settings.weight * rise) * max(1 - settings.penalty * streak, 0.0)


def growth(cfg: Config) -> TurnGrowth:
    """The rule in the module's docstring that says which episodes branch."""
    settings, wanted = AEPOConfig.of(cfg), cfg.rollout.per_prompt

    def roots(entropies: Sequence[list[float]]) -> int:
        if len(entropies) != 1:
            return wanted if entropies else 1
        root, *later = entropies[0] or [0.0]
        share = share_from_prompt(root, float(np.mean(later or [root])), settings.beta)
        return int(wanted * share)  # does not count the first solution

    def branches(place: TurnPlace, rng: np.random.Generator) -> int:
        if place.solutions == 1:
            return 0
        rise = place.entropies[-1] - place.entropies[0]
        scores = [score(u, rise, place.streak, settings) for u in rng.random(settings.branches)]
        return sum(bool(x >= settings.threshold) for x in scores)

    return TurnGrowth(roots, branches, settings.tokens)


def entropy_credit(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring."""
    assert rollout.entropy is not None, "the scoring pass keeps entropies for this method"
    credit, mask = against_group(rollout, "grpo", cfg), np.asarray(rollout.batch.mask)
    advantages = uncertain_advantages(
        np.asarray(credit.advantages), rollout.entropy, mask, weight=AEPOConfig.of(cfg).alpha
    )
    return Credit(advantages)


def loss(logprobs: jax.Array, batch: Batch, objective: PolicyObjective) -> PolicyLoss:
    """The loss of `clip_with_gradient`, which keeps a gradient above the clip."""
    old, advantages, clip = batch.old_logprobs, batch.advantages, objective.clip
    return PolicyLoss(
        loss=clip_with_gradient(logprobs, old, advantages, clip),
        clipped=is_clipped(logprobs, old, advantages, clip),
    )


METHOD = Method(
    entropy_credit,
    sample=branching_solutions(growth),
    loss=loss,
    state=Entropies(),
    settings=AEPOConfig,
    reads=OF_GROUPS,
    ignores=OF_RETURNS,
    defaults={"reward.scale": "group"},
    flags={"groups", "trees", "turns", "unmeasured"},
)
