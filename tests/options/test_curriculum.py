"""Problems drawn by their pass rates: CLPO's levels, and what a draw counts."""

from collections import Counter

import numpy as np
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.applied import stand_in

from vinejax.core.types import Problem
from vinejax.options.curriculum import EASY, HARD, MEDIUM, NEVER, Curriculum, counted, level_of
from vinejax.rollout.problems import draw
from vinejax.session.iteration import Iteration

NAMES = ["a", "b", "c", "d"]


def test_levels_are_those_of_the_paper():
    accuracy = np.array([0.0, 0.25, 0.5, 0.75, 1.0], np.float32)
    kinds = [HARD, HARD, MEDIUM, EASY, EASY]
    assert level_of(accuracy, (0.3, 0.7)).tolist() == kinds
    edges = np.array([3 / 10, 7 / 10, NEVER], np.float32)  # a bound belongs to what is below it
    assert level_of(edges, (0.3, 0.7)).tolist() == [HARD, MEDIUM, MEDIUM]


def solutions(problem: str, rewards: list[float], given: int = 0) -> list:
    fields = {"problem_id": problem, "given": given}
    return [cases.episode([0], [5, 6, 1], reward=r, **fields) for r in rewards]


def test_pass_rates_are_those_of_the_last_draw():
    before = np.array([0.5, NEVER, 1.0, NEVER], np.float32)
    episodes = solutions("a", [1.0, 0.9, 0.0, 2.0]) + solutions("d", [0.0, 0.0])
    episodes += solutions("c", [0.0, 0.0], given=1)  # a reset
    after = counted(before, NAMES, episodes)
    np.testing.assert_array_equal(after, np.array([0.5, NEVER, 1.0, 0.0], np.float32))
    assert before[3] == NEVER  # a checkpoint may still be reading it
    leaves = [e for e in solutions("b", [1.0, 0.0])]
    leaves = [
        e.__class__(**(vars(e) | {"nodes": [0, i], "given": i})) for i, e in enumerate(leaves)
    ]
    assert counted(before, NAMES, leaves)[1] == 0.5


def test_weights_of_a_draw():
    cfg = methods.config("grpo", rollout={"curriculum": (1.0, 2.0, 0.5)})
    it = stand_in(Iteration, cfg=cfg, metrics={}, weights=None)
    rates = np.array([0.2, NEVER, 0.9, 0.5], np.float32)
    assert Curriculum().begin(it, rates, {}) is rates
    assert it.weights is not None and it.weights.tolist() == [1.0, 2.0, 0.5, 2.0]
    assert it.metrics == {f"curriculum/{x}": 0.25 for x in ("hard", "medium", "easy")}
    problems = [(Problem(name, "", ""), [0]) for name in NAMES]
    first = Counter(draw(problems, 1, 0, n, it.weights)[0][0].id for n in range(2000))
    shares = np.array([first[name] for name in NAMES]) / 2000
    np.testing.assert_allclose(shares, it.weights / it.weights.sum(), atol=0.04)
