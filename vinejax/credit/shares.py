"""Shares of the policy gradient, for training on solutions and on their continuations at once.

Beyond a state s that weight W reaches, n samples go on: the solutions that pass through s, and its
continuations. All of them are draws of the policy at s, so each may stand for what follows s:

    w = W / n    for the tokens of every one of them, as far as its next state

A solution begins with W = 1. n is known before any of the n is drawn, and the n weights add up to
W, so the expected gradient is that of training on solutions alone, and every sampled token counts.
(Allocations that look at returns, and `values.spread`, know n only afterwards: biased.) No paper
describes it; the paper's method draws the continuations and trains on none.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Fork(NamedTuple):
    """A state with its samples."""

    used: int  # response tokens before it
    visits: Sequence[tuple[int, int]]  # (i, c): it is the c-th state of solution i
    drawn: int  # its continuations


def shares(
    forks: Sequence[Fork], num_states: Sequence[int]
) -> tuple[list[float], list[list[float]]]:
    """(the weight of each continuation of a fork, the weights of solutions after their states).

    `num_states` has the number of states of each solution, and so has the second result. Solutions
    that visit a state together visit the same states before it (`values.dedup`).
    """
    reached = [1.0] * len(num_states)
    of_forks = [0.0] * len(forks)
    after = [[0.0] * count for count in num_states]
    for f in sorted(range(len(forks)), key=lambda f: forks[f].used):
        _, visits, drawn = forks[f]
        weight = sum(reached[i] for i, _ in visits) / (len(visits) + drawn)
        of_forks[f] = weight
        for i, c in visits:
            reached[i] = after[i][c] = weight
    return of_forks, after
