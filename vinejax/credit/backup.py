"""Backed-up values: a sample counts with the value of the next state that it reaches.

    V(s) = 1/m · Σ_j (R_j(s) - R_j(s') + V(s'))    j = 1..m the samples that pass through s

s' is the next state on the way of sample j, of any solution of the problem, and R_j its return from
a state on; a sample that reaches no further state counts with R_j(s) itself. What was sampled at s'
thus serves all states before it. If every sample at s goes on to s', V(s) = V(s') without noise:
a step that the policy is sure to take has no advantage.

Unbiased where positions do not look ahead: which s' a sample reaches is then decided before s'.
Where a token decides whether a state stands before it, as with lines as steps, the value is biased
(docs/credit.md has an example). A solution's own rest is left out at all of its states.

Source: Monte Carlo returns replaced by values one step later, as in the certainty-equivalent
estimate of Sutton and Barto, "Reinforcement Learning", 2nd edition, section 6.3, on the tree of
token prefixes. γ must be 1.
"""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Visit = tuple[int, int]  # (i, c): the c-th state of solution i


class PassingSample(NamedTuple):
    """A sample, with the states that it passes through in the order of solutions."""

    own: int | None  # its number, if it is a solution
    visits: list[Visit]
    returns: list[float]  # from each of them on


def backed_up(
    passed: Sequence[PassingSample], positions: Sequence[Sequence[int]]
) -> list[list[float]]:
    """[solutions][S] V of the states after `positions` tokens; 0 where no other sample passes."""
    # Equal prefixes are one node: the first of the visits at a position.
    through: dict[Visit, list[tuple[Visit | None, float, int | None]]] = {}
    ways: dict[int, list[Visit]] = {}
    for own, visits, returns in passed:
        way: dict[int, tuple[Visit, float]] = {}
        for (i, c), later in zip(visits, returns, strict=True):
            way.setdefault(positions[i][c], ((i, c), later))
        reached = [way[position] for position in sorted(way)]
        for (node, here), (after, there) in zip(reached, [*reached[1:], (None, 0.0)], strict=True):
            through.setdefault(node, []).append((after, here - there, own))
        if own is not None:
            ways[own] = [way[position][0] for position in positions[own]]

    def mean(node: Visit, known: Mapping[Visit, float], left_out: int | None) -> float:
        samples = [sample for sample in through[node] if left_out is None or sample[2] != left_out]
        return sum(gain + (known[s] if s else 0.0) for s, gain, _ in samples) / max(len(samples), 1)

    everyone: dict[Visit, float] = {}
    for i, c in sorted(through, key=lambda node: -positions[node[0]][node[1]]):
        everyone[i, c] = mean((i, c), everyone, None)
    values = [[0.0] * len(of_one) for of_one in positions]
    for i, nodes in ways.items():
        known: ChainMap[Visit, float] = ChainMap({}, everyone)
        for c in reversed(range(len(nodes))):
            known[nodes[c]] = values[i][c] = mean(nodes[c], known, i)
    return values
