"""Reads the steps of an episode's row leniently; docs/metrics.md describes the fields.

A field that is not a number counts as missing.
"""

import itertools
import math
from typing import NamedTuple

from vinejax.records.read import JsonObject, finite_number


class StepRow(NamedTuple):
    """The numbers of one step; None where the row has none.

    `start` and `end` are the expected return before and after the step: the rewards of the steps
    so far plus V(s). An advantage r + V(after) - V(before) is the distance between them.
    """

    raw: JsonObject
    value: float | None
    advantage: float | None
    reward: float  # the step's own reward, or 0
    start: float | None
    end: float | None
    error: float | None  # standard error of `value`; None where no sample gave it
    after_error: float | None  # standard error of V after the step; 0 after the last step
    certainty: float  # |advantage| in standard errors of a chance difference; 0: unknown

    @property
    def advantage_error(self) -> float | None:
        """√(error² + after_error²), as in the metric values/advantage_error; None if unknown.

        It is too large where the two states share samples (`values.reuse`).
        """
        if self.error is None or self.after_error is None:
            return None
        return math.hypot(self.error, self.after_error)


class SampledValue(NamedTuple):
    """A mean of `count` returns and its standard error."""

    count: float
    error: float


def read_steps(episode: JsonObject) -> list[StepRow]:
    """The steps in the row of an episode, in order."""
    raw = steps_of(episode)
    rewards = [finite_number(step.get("reward")) or 0.0 for step in raw]
    so_far = [round(total, 9) for total in itertools.accumulate(rewards, initial=0.0)]
    values_after = [finite_number(step.get("value_after")) for step in raw[:-1]]
    values_after.append(finite_number(episode.get("reward")))
    samples_before = [_sampled(step) for step in raw]
    samples_after = [*samples_before[1:], SampledValue(1.0, 0.0)]  # the outcome is one return
    errors = [None if sample is None else sample.error for sample in samples_before]
    return [
        StepRow(
            raw=step,
            value=(value := finite_number(step.get("value"))),
            advantage=(advantage := finite_number(step.get("advantage"))),
            reward=rewards[c],
            start=_plus(value, so_far[c]),
            end=_plus(values_after[c], so_far[c + 1]),
            error=errors[c],
            after_error=0.0 if c + 1 == len(raw) else errors[c + 1],
            certainty=_certainty(advantage, samples_before[c], samples_after[c]),
        )
        for c, step in enumerate(raw)
    ]


def failed_test_of(episode: JsonObject) -> list[tuple[str, object]]:
    """Names and values of the parts of the test that a program failed; [] if the row has none."""
    failed = episode.get("failed_test")
    return list(failed.items()) if isinstance(failed, dict) else []


def steps_of(episode: JsonObject) -> list[JsonObject]:
    return _objects(episode.get("steps"))


def continuations_of(step: JsonObject) -> list[JsonObject]:
    return _objects(step.get("continuations"))


def range_of(value: object) -> tuple[int, int] | None:
    """The range (first, end) in the row of a step; None for a value that is no such range."""
    if not isinstance(value, list) or len(value) != 2:
        return None
    first, end = value
    is_range = isinstance(first, int) and isinstance(end, int) and 0 <= first <= end
    return (first, end) if is_range else None


def advantages_of(episode: JsonObject) -> list[float]:
    """The advantages of an episode's steps, without those that are missing."""
    advantages = (finite_number(step.get("advantage")) for step in steps_of(episode))
    return [advantage for advantage in advantages if advantage is not None]


def width_of(episode: JsonObject) -> float:
    """The largest advantage of an episode less its smallest; -1 if it has no advantages."""
    advantages = advantages_of(episode)
    return max(advantages) - min(advantages) if advantages else -1.0


def certainty_of(episode: JsonObject) -> float:
    """The largest certainty of an episode's steps; 0 if it has none."""
    return max((step.certainty for step in read_steps(episode)), default=0.0)


def unfolds(episode: JsonObject) -> bool:
    """Whether the continuations of some state were kept."""
    return any(map(continuations_of, steps_of(episode)))


def identity_of(episode: JsonObject) -> str:
    """A key that is equal for equal responses to one problem with equal advantages."""
    return repr((episode.get("problem_id"), episode.get("response"), advantages_of(episode)))


def values_by(episode: JsonObject) -> str:
    """The source of V(s) of an episode: 'continuations', 'critic', or '' if no step has a V(s)."""
    if episode.get("values_by") == "critic":
        return "critic"
    is_valued = any(finite_number(step.get("value")) is not None for step in steps_of(episode))
    return "continuations" if is_valued else ""


def _sampled(step: JsonObject) -> SampledValue | None:
    """V(s) with its count and error; None if it was not sampled here or the row has no errors."""
    count, error = finite_number(step.get("count")) or 0.0, finite_number(step.get("error"))
    return SampledValue(count, max(0.0, error)) if count > 0 and error is not None else None


def _certainty(
    advantage: float | None, before: SampledValue | None, after: SampledValue | None
) -> float:
    """|A| in standard errors of the difference of two means whose true values are equal.

        z = |A| / √(s² (1/n + 1/m))    s² = (n² e² + m² f²) / (n + m) + n m A² / (n + m)²

    n and m are the counts, e and f the errors before and after the step, and s² the variance of all
    returns taken together. The errors e and f alone understate luck: where all returns of a state
    happen to be equal, a difference by chance has an error near 0. The outcome counts as one
    return, so that the last step is not certain just because its end is known.
    """
    if advantage is None or before is None or after is None:
        return 0.0
    n, m = before.count, after.count
    within = ((n * before.error) ** 2 + (m * after.error) ** 2) / (n + m)
    pooled = within + n * m * (advantage / (n + m)) ** 2
    return abs(advantage) / math.sqrt(pooled * (1 / n + 1 / m)) if pooled > 0 else 0.0


def _plus(value: float | None, so_far: float) -> float | None:
    return None if value is None else so_far + value


def _objects(value: object) -> list[JsonObject]:
    return [x for x in value if isinstance(x, dict)] if isinstance(value, list) else []
