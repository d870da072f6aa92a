"""ARPO: GRPO on episodes that branch after the answer to an uncertain turn.

    branches if u - w·(H - H_1) ≤ τ    u: uniform; H, H_1: entropy of the last, the first turn
    A as in `grpo`    w, τ: `arpo.weight` and `arpo.threshold`

Half of the solutions begin at the prompt, and the others branch off this half. If there are too few
branches in the end, the missing solutions begin at the prompt, too.

Source: https://arxiv.org/abs/2507.19849; RUC-NLPIR/ARPO, `vllm_rollout_with_tools.py`.

Departs: H is the mean of -logπ over a turn's first tokens, divided by log V; the code sums over the
ten likeliest tokens.
"""

import dataclasses
import math

import numpy as np

from vinejax.contrib.methods.branching import branching_solutions
from vinejax.contrib.methods.sampling.turn_trees import TurnGrowth, TurnPlace
from vinejax.contrib.methods.settings import ARPOConfig
from vinejax.core.settings import Config
from vinejax.methods.baselines import GRPO


def score(u: float, entropy: float, first: float, weight: float) -> float:
    """The score u - w·(H - H_1) of a branch, which is made if the score is at most τ.

    `entropy` is H, `first` is H_1, and `weight` is w.
    """
    return u - weight * (entropy - first)


def growth(cfg: Config) -> TurnGrowth:
    """The rule in the module's docstring that says which episodes branch."""
    settings, wanted = ARPOConfig.of(cfg), cfg.rollout.per_prompt

    def branches(place: TurnPlace, rng: np.random.Generator) -> int:
        last, first = place.entropies[-1], place.entropies[0]
        scores = [score(u, last, first, settings.weight) for u in rng.random(settings.branches)]
        return sum(bool(x <= settings.threshold) for x in scores)

    def roots(entropies: object) -> int:
        return wanted if entropies else math.ceil(settings.initial * wanted)

    return TurnGrowth(roots, branches, settings.tokens)


METHOD = dataclasses.replace(
    GRPO,
    sample=branching_solutions(growth),
    settings=ARPOConfig,
    flags=GRPO.flags | {"trees", "turns"},
)
