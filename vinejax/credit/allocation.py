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
    """K = `values.k` at every state. Source: the paper, section 4.

    With W = `values.waves` > 1 every W-th state is drawn in one wave, state c in wave c mod W, and
    a state draws max(0, K - m), m of whose samples passed through it in earlier waves: mostly
    those of the state before it. Both c and m depend on the tokens before the state alone, so that
    the mean of all stays unbiased. (Waves that divide a solution evenly are not: its length
    depends on what comes after the state.)
    """
    if wave >= values.waves:
        return None
    if values.waves == 1:
        return [values.k for _ in seen.returns]
    return [
        max(0, values.k - len(returns)) if c % values.waves == wave else 0
        for c, returns in enumerate(seen.returns)
    ]
