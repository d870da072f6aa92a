"""Allocation rules: how many continuations are drawn at each state, in waves.

A rule takes (number of the wave from 0, Seen, ValuesConfig) and gives the new continuations at each
state of one solution, or None once it wants no more. Every wave is one call of the engine.
`bisection.py` has one more rule.
"""

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


def adaptive(wave: int, seen: Seen, values: ValuesConfig) -> list[int] | None:
    """K₀ = `values.k_first` at every state, then K in total, unless all returns of the state and of
    its neighbours are equal.

    The last state's neighbour is the solution's end, with its own reward. Biased: a state stops at
    K₀ because of its own returns, and 0 of 3 stays 0 of 3. No paper describes it.
    """
    return _two_waves(wave, seen, values, with_own=True)


def neighbours(wave: int, seen: Seen, values: ValuesConfig) -> list[int] | None:
    """As `adaptive`, but a state's own returns do not decide how many more it draws.

    So every value is unbiased, as long as no return counts at two states (`values.reuse`). A state
    with a single return around it draws K, as nothing could differ: the only state of its solution.
    """
    return _two_waves(wave, seen, values, with_own=False)


def _two_waves(wave: int, seen: Seen, values: ValuesConfig, with_own: bool) -> list[int] | None:
    if wave > 1:
        return None
    if wave == 0:
        return [min(values.k_first, values.k) for _ in seen.returns]
    more = max(0, values.k - values.k_first)
    requests = []
    for c in range(len(seen.returns)):
        around = seen.totals(c + 1)
        around += seen.totals(c - 1) if c else []
        around += seen.totals(c) if with_own else []
        is_unanimous = len(around) > 1 and len(set(around)) == 1
        requests.append(0 if is_unanimous else more)
    return requests
