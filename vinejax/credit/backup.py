"""Backed-up values: a sample counts with the value of the next state that it reaches.

    V(s) = 1/m · Σ_j (R_j(s) - R_j(s') + V(s'))    j = 1..m the samples that pass through s

s' is the state that sample j reaches next, among the states of all solutions of the problem. R_j
is the sample's return from a state on. A sample that reaches no further state counts with R_j(s)
itself. Samples drawn at s' thus serve all states before it. If every sample at s goes on to s',
V(s) = V(s') without noise, so a step that the policy always takes has no advantage.

Backed-up values are unbiased if positions do not look ahead, because which s' a sample reaches is
then decided before s'. If a token decides whether a state stands before it, as with lines as steps,
the value is biased (docs/credit.md has an example). For the values of a solution's own states, the
solution itself does not count as a sample.

Source: Monte Carlo returns replaced by values one step later, as in the certainty-equivalent
estimate of Sutton and Barto, "Reinforcement Learning", 2nd edition, section 6.3, on the tree of
token prefixes. γ must be 1.
"""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Visit = tuple[int, int]  # (i, c): the c-th state of solution i


class PassingSample(NamedTuple):
    """A sample, and the states that it passes through, ordered by the states' solutions."""

    solution: int | None  # number of the solution; None: a continuation
    visits: list[Visit]
    returns: list[float]  # return from each visit on


class _Passage(NamedTuple):
    """The part of one sample between two states that follow each other on its way."""

    following: Visit | None  # next state; None: the sample reaches no further state
    gain: float  # return between the two states
    solution: int | None  # number of the solution; None: a continuation


def backed_up_values(
    samples: Sequence[PassingSample], positions: Sequence[Sequence[int]]
) -> list[list[float]]:
    """[solutions][S] V of the states that come after `positions` response tokens.

    V is 0 for a state through which no sample passes except the state's own solution.
    """
    passages: dict[Visit, list[_Passage]] = {}
    # For each solution the nodes on its way, which may be states of other solutions alone.
    nodes_of: dict[int, dict[int, Visit]] = {}
    for solution, visits, returns in samples:
        if not visits:  # such as a confident solution, with states at tokens of low probability
            continue
        # Visits with equal prefixes are one node, which the first of them stands for.
        by_position: dict[int, tuple[Visit, float]] = {}
        for (i, c), later in zip(visits, returns, strict=True):
            by_position.setdefault(positions[i][c], ((i, c), later))
        reached = [by_position[position] for position in sorted(by_position)]
        for (node, here), (after, there) in zip(reached, [*reached[1:], (None, 0.0)], strict=True):
            passages.setdefault(node, []).append(_Passage(after, here - there, solution))
        if solution is not None:
            nodes_of[solution] = {position: by_position[position][0] for position in by_position}

    def mean(node: Visit, values: Mapping[Visit, float], left_out: int | None) -> float:
        counted = [p for p in passages[node] if left_out is None or p.solution != left_out]
        total = sum(p.gain + (values[p.following] if p.following else 0.0) for p in counted)
        return total / max(len(counted), 1)

    of_all_samples: dict[Visit, float] = {}
    for i, c in sorted(passages, key=lambda node: -positions[node[0]][node[1]]):
        of_all_samples[i, c] = mean((i, c), of_all_samples, None)
    values = [[0.0] * len(of_solution) for of_solution in positions]
    for i, nodes in nodes_of.items():
        without_solution: ChainMap[Visit, float] = ChainMap({}, of_all_samples)
        for position in sorted(nodes, reverse=True):
            node = nodes[position]
            without_solution[node] = mean(node, without_solution, i)
        values[i] = [without_solution[nodes[position]] for position in positions[i]]
    return values
