"""Hints of a problem, and the choice of the solution that replaces another."""

from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.applied import stand_in

from vinejax.contrib.methods import scaf_grpo
from vinejax.contrib.methods.scaf_grpo import first_right, hints_of
from vinejax.contrib.methods.settings import ScafConfig
from vinejax.core.errors import ConfigError, DataError
from vinejax.core.settings import Config
from vinejax.core.types import Problem, RunState
from vinejax.rl.advantages import group_advantages
from vinejax.session.iteration import Iteration, Solutions
from vinejax.tasks.arithmetic import Arithmetic

TIERS = [["know"], ["plan", "plan more"], "solve"]


def tried(rewards: list[Any]) -> list[Any]:
    return [cases.episode([1], [2], reward=float(reward)) for reward in rewards]


def test_the_first_right_one_of_the_lowest_tier():
    """The hints are the authors' twelve prompts, four per level."""
    right = [0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1]
    assert first_right([1] * 4 + [2] * 4 + [3] * 4, tried(right)) == 5
    assert first_right([3, 1, 1], tried([1, 0.5, 1])) == 2
    assert first_right([1, 2], tried([0, 0])) is None and first_right([], []) is None
    rewards = np.array([1.0] + [0.0] * 7, np.float32)
    found = group_advantages(rewards, np.zeros(8, np.int32), "grpo")
    np.testing.assert_allclose(found, [2.645751] + [-0.377964] * 7, atol=2e-6)


def test_the_metrics_count_the_groups_of_all_rounds(monkeypatch: pytest.MonkeyPatch):
    """As many rounds as groups of equal rewards ask for (`rollout.zero_variance`)."""
    wrong = [cases.episode([1], [2], reward=0.0, problem_id=x) for x in "aabb"]
    problems = [(Problem(x, "", ""), [1]) for x in "ab"]
    sampled = Solutions(problems, wrong, wrong)
    monkeypatch.setattr(scaf_grpo, "solutions", lambda *_: sampled)
    monkeypatch.setattr(scaf_grpo, "hint_starts", lambda *_: [])
    iteration = stand_in(Iteration, cfg=Config(method="scaf_grpo"), number=0, metrics={})
    for _ in range(3):
        scaf_grpo.solutions_with_hints(iteration, stand_in(RunState), problems)
    assert iteration.metrics == {"scaf/tried": 6, "scaf/replaced": 0}


def test_hints_of_a_column_and_of_a_solution():
    columns = Problem("p", "1+2+3", "#### 6", {"hints": TIERS, "one": ["a", "b"], "text": "x"})
    expected = [(0, "know"), (1, "plan"), (1, "plan more"), (2, "solve")]
    assert hints_of(Arithmetic(), columns, "hints") == expected
    assert hints_of(Arithmetic(), columns, "one") == [(0, "a"), (1, "b")]
    worked = Problem("q", "1+2", "1+2=3\n#### 3")
    assert hints_of(Arithmetic(), worked, "") in ([(0, "1+2=3")], [])
    for column in ("none", "text"):
        with pytest.raises(DataError, match=f"problem p: column '{column}', which scaf") as error:
            hints_of(Arithmetic(), columns, column)
        assert "\n" not in str(error.value)


def test_hints_are_read_before_the_run():
    """Otherwise a run would end at the first problem without hints that no solution gets right."""

    class Unworked(Arithmetic):
        def solution(self, problem: Problem) -> str:
            raise DataError("data", None, "has no worked solutions")

    problems = [Problem("p", "1+2", "#### 3", {"hints": TIERS}), Problem("q", "1+3", "#### 4")]
    ScafConfig().check_task(Arithmetic(), problems)
    ScafConfig(column="hints").check_task(Unworked(), problems[:1])
    with pytest.raises(DataError, match="problem q: column 'hints', which scaf.column names, must"):
        ScafConfig(column="hints").check_task(Arithmetic(), problems)
    with pytest.raises(ConfigError, match="name a column of hints.*no worked solutions") as error:
        ScafConfig().check_task(Unworked(), problems)
    assert error.value.field == "scaf.column" and "\n" not in str(error.value)
