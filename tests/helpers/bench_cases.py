"""A chain of letters and measures without gaps, for the tests of the credit bench."""

import numpy as np

from helpers.chain_cases import Chain
from vinejax.bench.intervals import Measure

# Letters that are better and worse, none of them without hope; the reward is 0 or 1.
FAIR = Chain(
    moves=np.array([[0.4, 0.3, 0.2, 0.1]] * 2 + [[0.1, 0.2, 0.3, 0.4]] * 2 + [[0.25] * 4]),
    rewards=np.array([1.0, 1.0, 0.0, 0.0]),
    length=4,
)


def number(x: float | None) -> float:
    """A number that may not be missing."""
    assert x is not None
    return x


def interval(measure: Measure) -> tuple[float, float]:
    """The ends of an interval that may not be missing."""
    return number(measure.low), number(measure.high)
