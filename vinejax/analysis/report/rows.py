"""Reads the steps of an episode's row leniently; docs/metrics.md describes the fields.

Rows of earlier versions lack some fields, and a field that is not a number counts as missing.
"""

import itertools
import math
from typing import NamedTuple

from vinejax.analysis.report.read import JsonObject, finite_number


class StepRow(NamedTuple):
    """The numbers of one step; None where the row has none.

    `start` and `end` are the expected return before and after the step: the rewards of the steps
    so far plus V(s). An advantage r + V(after) - V(before) is the distance between them.
    """

    raw: JsonObject
    value: float | None
    after: float | None  # V after the step; after the last step the outcome's reward
    advantage: float | None
    reward: float  # the step's own, 0 where it has none
    start: float | None
    end: float | None


def read_steps(episode: JsonObject) -> list[StepRow]:
    """The steps in the row of an episode, in order."""
    raw = steps_of(episode)
    rewards = [finite_number(step.get("reward")) or 0.0 for step in raw]
    so_far = [round(total, 9) for total in itertools.accumulate(rewards, initial=0.0)]
    after = [finite_number(step.get("value_after")) for step in raw[:-1]]
    after.append(finite_number(episode.get("reward")))
    return [
        StepRow(
            raw=step,
            value=(value := finite_number(step.get("value"))),
            after=after[c],
            advantage=finite_number(step.get("advantage")),
            reward=rewards[c],
            start=_plus(value, so_far[c]),
            end=_plus(after[c], so_far[c + 1]),
        )
        for c, step in enumerate(raw)
    ]


def steps_of(episode: JsonObject) -> list[JsonObject]:
    return _objects(episode.get("steps"))


def continuations_of(step: JsonObject) -> list[JsonObject]:
    return _objects(step.get("continuations"))


def advantages_of(episode: JsonObject) -> list[float]:
    """The advantages of an episode's steps, without those that are missing."""
    advantages = (finite_number(step.get("advantage")) for step in steps_of(episode))
    return [advantage for advantage in advantages if advantage is not None]


def width_of(episode: JsonObject) -> float:
    """The largest advantage of an episode less its smallest; -1 if it has no advantages."""
    advantages = advantages_of(episode)
    return max(advantages) - min(advantages) if advantages else -1.0


def identity_of(episode: JsonObject) -> str:
    """A key that is equal for equal responses to one problem with equal advantages."""
    return repr((episode.get("problem_id"), episode.get("response"), advantages_of(episode)))


def has_step_rewards(episode: JsonObject) -> bool:
    """Whether some step has a reward of its own that is not 0."""
    return any(finite_number(step.get("reward")) for step in steps_of(episode))


def values_by(episode: JsonObject) -> str:
    """The source of V(s) of an episode: 'continuations', 'critic', or '' if no step has a V(s)."""
    if episode.get("values_by") == "critic":
        return "critic"
    is_valued = any(finite_number(step.get("value")) is not None for step in steps_of(episode))
    return "continuations" if is_valued else ""


def total_reward(steps: list[StepRow]) -> float:
    """The sum of the steps' own rewards, without the outcome reward."""
    return round(math.fsum(step.reward for step in steps), 9)


def _plus(value: float | None, so_far: float) -> float | None:
    return None if value is None else so_far + value


def _objects(value: object) -> list[JsonObject]:
    return [x for x in value if isinstance(x, dict)] if isinstance(value, list) else []
