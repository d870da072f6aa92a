"""Reads the steps of an episode from its JSON object, whose fields docs/metrics.md describes.

If a field that should be a number is not one, it counts as missing.
"""

import itertools
import math
from typing import NamedTuple

from vinejax.records.read import JsonObject, finite_number


class StepRow(NamedTuple):
    """The numbers of one step; None for a number that the episode lacks.

    `start` and `end` are the expected returns before and after the step, which are the sum of the
    rewards so far plus V(s). Without a discount, `end` - `start` is the step's advantage.
    """

    raw: JsonObject
    value: float | None
    advantage: float | None
    reward: float  # the step's own reward, or 0
    start: float | None
    end: float | None
    error: float | None  # standard error of `value`; None without samples, or if it is unknown
    after_error: float | None  # standard error of γ·V after the step; 0 after the last step
    certainty: float  # |advantage| over its standard error, see `_certainty`; 0 if unknown

    @property
    def advantage_error(self) -> float | None:
        """√(error² + after_error²), the standard error of `advantage`; None if unknown.

        This overestimates the error if the two states share samples (`values.reuse`).
        """
        if self.error is None or self.after_error is None:
            return None
        return math.hypot(self.error, self.after_error)


class DepartureRow(NamedTuple):
    """Where a continuation left its solution; numbers are None if the record lacks them.

    `character` is the number of characters of the continuation's text before `token`.
    """

    position: float | None  # number of response tokens before `token`
    character: int
    token: str
    returns: float | None  # return of the continuation from the state before `token`
    coefficient: float | None  # of the label that the token is, or is a part of


class SampledValue(NamedTuple):
    """The number of returns averaged to a value, and the standard error of this mean."""

    count: float
    error: float


def read_steps(episode: JsonObject, gamma: float = 1.0) -> list[StepRow]:
    """The steps of an episode, in order. `gamma` is the discount per step of its run."""
    raw = steps_of(episode)
    rewards = [finite_number(step.get("reward")) or 0.0 for step in raw]
    so_far = [round(total, 9) for total in itertools.accumulate(rewards, initial=0.0)]
    values_after = [finite_number(step.get("value_after")) for step in raw[:-1]]
    penalty = finite_number(episode.get("penalty")) or 0.0
    values_after.append(_plus(finite_number(episode.get("reward")), -penalty))
    samples_before = [_sampled(step) for step in raw]
    samples_after = [*samples_before[1:], SampledValue(1.0, 0.0)]  # the outcome is one return
    errors = [None if sample is None else sample.error for sample in samples_before]
    discounted = [None if error is None else gamma * error for error in errors]
    return [
        StepRow(
            raw=step,
            value=(value := finite_number(step.get("value"))),
            advantage=(advantage := finite_number(step.get("advantage"))),
            reward=rewards[c],
            start=_plus(value, so_far[c]),
            end=_plus(values_after[c], so_far[c + 1]),
            error=errors[c],
            after_error=0.0 if c + 1 == len(raw) else discounted[c + 1],
            certainty=_certainty(advantage, samples_before[c], samples_after[c]),
        )
        for c, step in enumerate(raw)
    ]


def failed_test_of(episode: JsonObject) -> list[tuple[str, object]]:
    """The test that a program failed, as (name, value) of its input, its expected output and so on.

    The list is empty if the episode has no record of such a test.
    """
    failed = episode.get("failed_test")
    return list(failed.items()) if isinstance(failed, dict) else []


def steps_of(episode: JsonObject) -> list[JsonObject]:
    return _objects(episode.get("steps"))


def continuations_of(step: JsonObject) -> list[JsonObject]:
    return _objects(step.get("continuations"))


def departure_of(continuation: JsonObject) -> DepartureRow | None:
    """Where the continuation left its solution; None if it did not, or if the run has no labels."""
    found = continuation.get("departure")
    if not isinstance(found, dict):
        return None
    position, character, returns, coefficient = (
        finite_number(found.get(name))
        for name in ("position", "character", "return", "coefficient")
    )
    character, token = max(0, int(character or 0)), found.get("token")
    token = token if isinstance(token, str) else ""
    return DepartureRow(position, character, token, returns, coefficient)


def range_of(value: object) -> tuple[int, int] | None:
    """The pair (first, end) from a list of two integers, 0 <= first <= end; else None."""
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
    """The largest `_certainty` of an episode's steps; 0 if the episode has no steps."""
    return max((step.certainty for step in read_steps(episode)), default=0.0)


def unfolds(episode: JsonObject) -> bool:
    """Whether the episode has the continuations of at least one state."""
    return any(map(continuations_of, steps_of(episode)))


def has_departures(episode: JsonObject) -> bool:
    """Whether the episode's continuations tell where they left it, as in a run with labels."""
    leaves = (leaf for step in steps_of(episode) for leaf in continuations_of(step))
    return any("departure" in leaf for leaf in leaves)


def identity_of(episode: JsonObject) -> str:
    """A key of an episode, made of its problem, response and advantages, to find repetitions."""
    return repr((episode.get("problem_id"), episode.get("response"), advantages_of(episode)))


def values_by(episode: JsonObject) -> str:
    """The source of an episode's values V(s): 'critic', 'continuations', or '' without values."""
    if episode.get("values_by") == "critic":
        return "critic"
    is_valued = any(finite_number(step.get("value")) is not None for step in steps_of(episode))
    return "continuations" if is_valued else ""


def _sampled(step: JsonObject) -> SampledValue | None:
    """Count and error of the value before a step; None if the step has no samples or no error."""
    count, error = finite_number(step.get("count")) or 0.0, finite_number(step.get("error"))
    return SampledValue(count, max(0.0, error)) if count > 0 and error is not None else None


def _certainty(
    advantage: float | None, before: SampledValue | None, after: SampledValue | None
) -> float:
    """|A| divided by its standard error under the hypothesis that the true advantage is 0.

        z = |A| / √(s² (1/n + 1/m))    s² = (n² e² + m² f²) / (n + m) + n m A² / (n + m)²

    n and m are the counts before and after the step, e and f the errors, and s² is the variance of
    the returns of both states together. We do not use √(e² + f²), because it is too small where all
    returns of a state happen to be equal. The outcome counts as one return, so that the last step
    is not certain only because the outcome is known.
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
