"""Groups of solutions whose rewards are all equal: kept, dropped, or sampled again."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.applied import applied, stand_in

from vinejax.core.types import Episode, Problem, PromptedProblem, RunState
from vinejax.methods import group_filter
from vinejax.methods.base import Method
from vinejax.methods.group_filter import NoGroupLeft, resampled
from vinejax.session.iteration import Iteration, Solutions

PROBLEMS: list[PromptedProblem] = [(Problem(f"p{i}", "", ""), [0]) for i in range(10)]


def solution(problem: str, reward: float, **fields: Any) -> Episode:
    return cases.episode([0, 5], [7, 8, 1], problem_id=problem, reward=reward, **fields)


class Draws:
    """Samples two solutions of each of the next problems; those named have unequal rewards."""

    def __init__(self, with_spread: str, size: int = 4):
        self.left, self.size, self.calls = list(PROBLEMS), size, 0
        self.with_spread = with_spread

    def __call__(self) -> Solutions:
        chosen, self.left = self.left[: self.size], self.left[self.size :]
        self.calls += 1
        episodes = [
            solution(p.id, float(k and p.id[1] in self.with_spread))
            for p, _ in chosen
            for k in (0, 1)
        ]
        return Solutions(chosen, episodes, sampled=episodes * 2)


@pytest.mark.parametrize(
    ("with_spread", "rounds", "kept", "sampled"),
    [
        ("0123456789", 4, "0123", 4),  # enough at once
        ("03456789", 4, "0345", 8),  # a second round
        ("9", 2, "0123", 8),  # the bound, before problem 9: groups without spread fill up
        ("", 9, "0123", 10),  # the end of the problems
    ],
)
def test_groups_are_sampled_again(with_spread: str, rounds: int, kept: str, sampled: int):
    draws = Draws(with_spread)
    found = resampled(draws(), draws, rounds, lambda: bool(draws.left))
    assert sorted({e.problem_id for e in found.episodes}) == [f"p{x}" for x in kept]
    assert len(found.episodes) == 8 and len(found.sampled) == 4 * sampled
    assert [p.id for p, _ in found.problems] == [f"p{i}" for i in range(sampled)]
    for group in (found.episodes[i : i + 2] for i in range(0, 8, 2)):
        assert group[0].problem_id == group[1].problem_id


def filtered(found: Callable[..., Solutions], **rollout: Any) -> tuple[Solutions, dict[str, Any]]:
    """What a run with these settings keeps of the solutions that `found` gives, and its metrics."""
    cfg = applied(methods.config("grpo", rollout=rollout))
    method = group_filter.composed(Method(None, sample=lambda *_: found()), cfg)
    made = stand_in(Iteration, cfg=cfg, metrics={}, can_draw=True, record_sampling=lambda _: None)
    return method.sample(made, stand_in(RunState), PROBLEMS), made.metrics


def test_groups_are_dropped_or_kept():
    draws = Draws("13")
    found, metrics = filtered(draws, zero_variance="drop")
    assert draws.calls == 1 and [e.problem_id for e in found.episodes] == ["p1", "p1", "p3", "p3"]
    assert len(found.sampled) == 16 and metrics == {"rollout/discarded": 12}
    with pytest.raises(NoGroupLeft):
        filtered(Draws(""), zero_variance="drop")
    found, metrics = filtered(Draws("13"))
    assert len(found.episodes) == 8 and not metrics


def test_spread_is_of_outcome_and_steps_together():
    """Groups of equal outcomes whose steps were paid differently teach something."""

    def sample() -> Solutions:
        episodes = [
            solution(f"p{i}", 1.0, step_rewards=[0.5 * k * (i == 5)])
            for i in (4, 5)
            for k in (0, 1)
        ]
        return Solutions(PROBLEMS[4:6], episodes, episodes)

    found, _ = filtered(sample, zero_variance="drop")
    assert {e.problem_id for e in found.episodes} == {"p5"}


def test_leaves_of_a_tree_are_one_group_whatever_is_given():
    leaves = [
        dataclasses.replace(solution("p0", float(i == 0)), nodes=[0, i + 1], given=i)
        for i in (0, 1, 2)
    ]
    found, _ = filtered(lambda: Solutions(PROBLEMS[:1], leaves, leaves), zero_variance="drop")
    assert found.episodes == leaves
    resets = [dataclasses.replace(leaf, nodes=None) for leaf in leaves]
    with pytest.raises(NoGroupLeft):  # three groups of one
        filtered(lambda: Solutions(PROBLEMS[:1], resets, resets), zero_variance="drop")
