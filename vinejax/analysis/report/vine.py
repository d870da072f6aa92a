"""Sampled solutions as vines: where each stands in V(s) before and after every step, and why.

A solution's stem runs downwards and its horizontal place is V(s); the state before a step is a
node, and the continuations sampled there are what the step unfolds into.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from vinejax.analysis.report import text
from vinejax.analysis.report.read import number

HALF = 0.5  # from this reward on, a solution counts as correct


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much of a run is shown; the page is rendered with the first that fits its size."""

    episodes: int  # an iteration
    steps: int  # an episode
    continuations: int  # a step
    step_characters: int  # also of problems and answers
    continuation_characters: int


LIMITS = (
    Limits(24, 60, 32, 6000, 4000),
    Limits(24, 60, 16, 3000, 1000),
    Limits(24, 40, 9, 1500, 400),
    Limits(16, 30, 9, 800, 240),
    Limits(8, 16, 4, 200, 120),
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`kind` is correct, wrong or cut: a class of the template, and the word that is shown."""

    kind: str
    mark: str
    reward: str


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One continuation of the state before a step."""

    verdict: Verdict
    text: text.Clipped
    finish: str


@dataclasses.dataclass(frozen=True)
class Step:
    """One reasoning step. `start` and `end` are places of the stem in percent of the axis."""

    number: int
    text: text.Clipped
    value: str
    after: str
    is_last: bool
    count: int
    advantage: str
    side: str  # pos, neg or zero
    strength: float  # |advantage| on the page's scale, 0 to 1
    start: float | None
    end: float | None
    leaves: list[Leaf]
    hidden_leaves: int

    @property
    def num_correct(self) -> int:
        return sum(leaf.verdict.kind == "correct" for leaf in self.leaves)


@dataclasses.dataclass(frozen=True)
class Solution:
    """One episode; `low` and `high` are its smallest and its largest advantage."""

    problem_id: str
    question: text.Clipped
    answer: text.Clipped
    prompt: text.Clipped
    response: text.Clipped
    verdict: Verdict
    steps: list[Step]
    hidden_steps: int
    low: str
    high: str
    end: float | None


@dataclasses.dataclass(frozen=True)
class Scale:
    """The axis of V(s), and the advantage that is drawn in full colour."""

    low: float
    high: float
    advantage: float

    def place(self, value: float | None) -> float | None:
        if value is None:
            return None
        return round((value - self.low) / (self.high - self.low) * 100, 1)


@dataclasses.dataclass(frozen=True)
class Iteration:
    """One tab: the chosen solutions of an iteration and what they were chosen from."""

    iteration: int
    solutions: list[Solution]
    num_episodes: int
    mean_reward: float | None


@dataclasses.dataclass(frozen=True)
class Vine:
    iterations: list[Iteration]
    scale: Scale


def vine(episodes: dict[int, list[dict[str, Any]]], limits: Limits) -> Vine | None:
    """The vine view of some iterations, or None where no episode was kept."""
    chosen = {i: choose(found, limits.episodes) for i, found in episodes.items()}
    if not any(chosen.values()):
        return None
    scale = _scale(episode for found in chosen.values() for episode in found)
    iterations = []
    for i, found in chosen.items():
        rewards = [r for e in episodes[i] if (r := number(e.get("reward"))) is not None]
        mean = sum(rewards) / len(rewards) if rewards else None
        solutions = [_solution(episode, scale, limits) for episode in found]
        iterations.append(Iteration(i, solutions, len(episodes[i]), mean))
    return Vine(iterations, scale)


def choose(episodes: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The `count` episodes of the widest credit, widest first.

    Half of the places go to episodes whose continuations were kept, as those can be unfolded.
    """
    ranked = sorted(episodes, key=_width, reverse=True)
    unfold = [e for e in ranked if any(s.get("continuations") for s in _steps(e))]
    kept = {id(e) for e in unfold[: count // 2]}
    for episode in ranked:
        if len(kept) < count:
            kept.add(id(episode))
    return [e for e in ranked if id(e) in kept]


def least_size(episodes: list[dict[str, Any]], limits: Limits) -> int:
    """Characters of the steps and continuations that would be shown: no page can be smaller."""
    size = 0
    for episode in choose(episodes, limits.episodes):
        for step in _steps(episode)[: limits.steps]:
            size += min(len(str(step.get("text"))), limits.step_characters)
            for leaf in _continuations(step)[: limits.continuations]:
                size += min(len(str(leaf.get("text"))), limits.continuation_characters)
    return size


def verdict(reward: float | None, is_cut: bool) -> Verdict:
    shown = text.short(reward)
    if reward is not None and reward >= HALF:
        return Verdict("correct", "✓", shown)
    return Verdict("cut", "✂", shown) if is_cut else Verdict("wrong", "✗", shown)


def _steps(episode: dict[str, Any]) -> list[dict[str, Any]]:
    return _objects(episode.get("steps"))


def _continuations(step: dict[str, Any]) -> list[dict[str, Any]]:
    return _objects(step.get("continuations"))


def _objects(found: object) -> list[dict[str, Any]]:
    return [o for o in found if isinstance(o, dict)] if isinstance(found, list) else []


def _advantages(episode: dict[str, Any]) -> list[float]:
    found = (number(step.get("advantage")) for step in _steps(episode))
    return [advantage for advantage in found if advantage is not None]


def _width(episode: dict[str, Any]) -> float:
    advantages = _advantages(episode)
    return max(advantages) - min(advantages) if advantages else -1.0


def _scale(episodes: Iterable[dict[str, Any]]) -> Scale:
    """The smallest axis that holds [0, 1] and every value and reward shown."""
    places, advantages = [0.0, 1.0], [0.0]
    for episode in episodes:
        raw = [number(step.get("value")) for step in _steps(episode)]
        places += [v for v in [*raw, number(episode.get("reward"))] if v is not None]
        advantages += [abs(a) for a in _advantages(episode)]
    return Scale(min(places), max(places), max(advantages) or 1.0)


def _solution(episode: dict[str, Any], scale: Scale, limits: Limits) -> Solution:
    raw, reward = _steps(episode), number(episode.get("reward"))
    shown = raw[: limits.steps]
    steps = [
        _step(i, step, reward if i + 1 == len(raw) else None, i + 1 == len(raw), scale, limits)
        for i, step in enumerate(shown)
    ]
    advantages = _advantages(episode)
    question, prompt = episode.get("question"), episode.get("prompt")
    return Solution(
        problem_id=text.clip(episode.get("problem_id"), 80).text,
        question=text.clip(question, limits.step_characters),
        answer=text.clip(episode.get("answer"), limits.step_characters),
        prompt=text.clip(None if prompt == question else prompt, limits.step_characters),
        response=text.clip(None if raw else episode.get("response"), limits.step_characters),
        verdict=verdict(reward, episode.get("finished") is False),
        steps=steps,
        hidden_steps=len(raw) - len(shown),
        low=text.fixed(min(advantages, default=None), signed=True),
        high=text.fixed(max(advantages, default=None), signed=True),
        end=scale.place(reward),
    )


def _step(
    index: int,
    raw: dict[str, Any],
    reward: float | None,
    is_last: bool,
    scale: Scale,
    limits: Limits,
) -> Step:
    value, advantage = number(raw.get("value")), number(raw.get("advantage"))
    after = reward if is_last else number(raw.get("value_after"))
    found = _continuations(raw)
    return Step(
        number=index + 1,
        text=text.clip(raw.get("text"), limits.step_characters),
        value=text.fixed(value),
        after=text.short(after) if is_last else text.fixed(after),
        is_last=is_last,
        count=int(number(raw.get("count")) or 0),
        advantage=text.fixed(advantage, signed=True),
        side="pos" if (advantage or 0) > 0 else "neg" if (advantage or 0) < 0 else "zero",
        strength=round(min(1.0, abs(advantage or 0.0) / scale.advantage), 3),
        start=scale.place(value),
        end=scale.place(after),
        leaves=[_leaf(c, limits) for c in found[: limits.continuations]],
        hidden_leaves=max(0, len(found) - limits.continuations),
    )


def _leaf(raw: dict[str, Any], limits: Limits) -> Leaf:
    finish = text.clip(raw.get("finish"), 20).text
    return Leaf(
        verdict=verdict(number(raw.get("reward")), finish == "length"),
        text=text.clip(raw.get("text"), limits.continuation_characters),
        finish=finish,
    )
