"""Shares of the policy gradient, for training on solutions and on their continuations at once.

Beyond a state s that weight W reaches, n samples go on: the solutions of which s is a state, and
those of its continuations of which s is one, too. All of them are draws of the policy at s under
that condition, so each may stand for what follows s:

    w = W / n    for the tokens of every one of them, as far as its next state

A solution begins with W = 1. The n weights add up to W, and a sample's own tokens after s decide
of nothing but whether it is among the n; so the expected gradient is that of training on solutions
alone. (Often the next token decides whether s is a state: the line break that ends a step. Without
the condition that token would be drawn too rarely.) Allocations that look at returns, and
`values.spread`, let weights depend on more: biased.

W falls by n at every state: late steps are trained on in the continuations of early states, which
go on to the end and have one advantage each, rather than in the solutions' own steps. No paper
describes it; the paper's method draws the continuations and trains on none.
"""

from collections.abc import Sequence
from typing import NamedTuple


class SampledState(NamedTuple):
    """A state with the samples that go on from it."""

    used: int  # response tokens before it
    visits: Sequence[tuple[int, int]]  # (i, c): it is the c-th state of solution i
    continuations: int  # of which it is a state


def shares(
    states: Sequence[SampledState], num_states: Sequence[int]
) -> tuple[list[float], list[list[float]]]:
    """(the weight of each continuation of a state, the weights of solutions after their states).

    `num_states` has the number of states of each solution, and so has the second result. Solutions
    that visit a state together visit the same states before it (`values.dedup`).
    """
    reached = [1.0] * len(num_states)
    of_states = [0.0] * len(states)
    after = [[0.0] * count for count in num_states]
    for s in sorted(range(len(states)), key=lambda s: states[s].used):
        _, visits, continuations = states[s]
        weight = sum(reached[i] for i, _ in visits) / (len(visits) + continuations)
        of_states[s] = weight
        for i, c in visits:
            reached[i] = after[i][c] = weight
    return of_states, after
