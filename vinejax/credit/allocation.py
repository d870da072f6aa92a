"""Allocation rules: how many continuations are drawn at each state, in waves.

A rule takes (number of the wave from 0, Seen, ValuesConfig). It returns the number of new
continuations at each state of one solution, or None to stop. Every wave is one call of the engine.
`bisection.py` has a second rule.
"""

from collections.abc import Callable
from typing import NamedTuple

from vinejax.core.settings import ValuesConfig


class Seen(NamedTuple):
    """The returns at the S states of one solution before a wave."""

    # [S] returns of the state's continuations and, with `values.reuse`, of other samples
    returns: list[list[float]]
    earned: list[float]  # [S] the solution's own rewards before each state; 0 without step rewards
    total: float  # sum of the solution's rewards

    def totals(self, c: int) -> list[float]:
        """The total reward of each sample that has a return at state c.

        For c = S, the end of the solution, the list has only the solution's own total reward.
        """
        if c == len(self.returns):
            return [self.total]
        return [self.earned[c] + x for x in self.returns[c]]


AllocationRule = Callable[[int, Seen, ValuesConfig], list[int] | None]


def uniform(wave: int, seen: Seen, values: ValuesConfig) -> list[int] | None:
    """Draws K = `values.k` continuations at every state, in one wave.

    Source: the paper, section 4.
    """
    return None if wave else [values.k for _ in seen.returns]
