"""What the row of an episode says of its steps, read leniently; docs/metrics.md has the fields.

Rows of earlier versions lack some of them, and a field that is no number counts as not there.
"""

import itertools
import math
from typing import Any, NamedTuple

from vinejax.analysis.report.read import number

Row = dict[str, Any]


class StepRow(NamedTuple):
    """The numbers of a step; None where there is none.

    `start` and `end` are the return to expect before and after it: what the steps so far brought,
    and V(s). An advantage r + V(after) - V(before) is how far the step moves that.
    """

    raw: Row
    value: float | None
    after: float | None  # V, and after the last step the outcome's reward
    advantage: float | None
    reward: float  # what the step brings by itself
    start: float | None
    end: float | None


def read_steps(episode: Row) -> list[StepRow]:
    raw = steps_of(episode)
    own = [number(step.get("reward")) or 0.0 for step in raw]
    so_far = [round(total, 9) for total in itertools.accumulate(own, initial=0.0)]
    after = [number(step.get("value_after")) for step in raw[:-1]]
    after.append(number(episode.get("reward")))
    return [
        StepRow(
            raw=step,
            value=(value := number(step.get("value"))),
            after=after[c],
            advantage=number(step.get("advantage")),
            reward=own[c],
            start=_plus(value, so_far[c]),
            end=_plus(after[c], so_far[c + 1]),
        )
        for c, step in enumerate(raw)
    ]


def steps_of(episode: Row) -> list[Row]:
    return _objects(episode.get("steps"))


def continuations_of(step: Row) -> list[Row]:
    return _objects(step.get("continuations"))


def advantages_of(episode: Row) -> list[float]:
    """Those that are known."""
    found = (number(step.get("advantage")) for step in steps_of(episode))
    return [advantage for advantage in found if advantage is not None]


def width_of(episode: Row) -> float:
    """How far its advantages lie apart; -1 for an episode without any."""
    advantages = advantages_of(episode)
    return max(advantages) - min(advantages) if advantages else -1.0


def identity_of(episode: Row) -> str:
    """Equal for episodes that look the same: a problem's equal responses, with equal credit."""
    return repr((episode.get("problem_id"), episode.get("response"), advantages_of(episode)))


def has_step_rewards(episode: Row) -> bool:
    """Whether a step brings something by itself."""
    return any(number(step.get("reward")) for step in steps_of(episode))


def values_by(episode: Row) -> str:
    """Whose V(s) its steps carry: 'continuations', 'critic', or '' for nobody's."""
    if episode.get("values_by") == "critic":
        return "critic"
    is_valued = any(number(step.get("value")) is not None for step in steps_of(episode))
    return "continuations" if is_valued else ""


def total_reward(steps: list[StepRow]) -> float:
    """What the steps bring by themselves, the outcome left out."""
    return round(math.fsum(step.reward for step in steps), 9)


def _plus(value: float | None, so_far: float) -> float | None:
    return None if value is None else so_far + value


def _objects(found: object) -> list[Row]:
    return [o for o in found if isinstance(o, dict)] if isinstance(found, list) else []
