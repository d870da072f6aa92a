"""Allocation rules: how many continuations are drawn at each state, in waves.

A rule takes (number of the wave from 0, Seen, ValuesConfig) and gives the new continuations at each
state of one solution, or None once it wants no more. Every wave is one call of the engine.
`bisection.py` has one more.
"""

from collections.abc import Callable
from typing import NamedTuple

from vinejax.core.settings import ValuesConfig


class Seen(NamedTuple):
    """What is known of the S states of one solution before a wave."""

    returns: list[list[float]]  # [S] of the state's continuations and, with `values.reuse`, others
    earned: list[float]  # [S] the solution's own rewards before each state; 0 without step rewards
    total: float  # all rewards of the solution

    def totals(self, c: int) -> list[float]:
        """All rewards of the solutions seen at state c; c = S is the end, with the solution's."""
        if c == len(self.returns):
            return [self.total]
        return [self.earned[c] + x for x in self.returns[c]]


AllocationRule = Callable[[int, Seen, ValuesConfig], list[int] | None]


def uniform(wave: int, seen: Seen, values: ValuesConfig) -> list[int] | None:
    """K = `values.k` at every state, in one wave. Source: the paper, section 4."""
    return None if wave else [values.k for _ in seen.returns]
