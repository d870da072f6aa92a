"""The edge of failure: the length of a prefix at which the pass rate crosses a target.

Let f(j) be the pass rate of continuations after the first j of a solution's n tokens. For a right
solution of a problem that mostly fails, f rises from f(0) < target to f(n) = 1. For a wrong
solution of a problem that mostly passes, f falls from f(0) > target to f(n) = 0. A bisection of
0 .. n finds two neighbouring lengths between which f crosses the target, from at most ⌈log2 n⌉ pass
rates:

    while high - low > 1:  m = ⌊(low + high) / 2⌋
                           high = m where f(m) is beyond the target, else low = m

Beyond means above for a right solution and below for a wrong one. A rate that equals the target
ends the search. If f crosses the target several times, the search finds one of the crossings. If f
does not cross it, the search ends at 0 or n.

Source: BASS (OpenReview r2D0XuzX63, without code) has the binary search over prefixes of a right
solution. OmegaPRM (https://arxiv.org/abs/2406.06592) finds the first error of a wrong solution in
the same way. Both make training data from the result. Here the policy continues from the length
that the search finds, and the method trains on these continuations.
"""

from collections.abc import Mapping


def next_probe(rates: Mapping[int, float], length: int, target: float, rises: bool) -> int | None:
    """The prefix length j, 0 < j < `length`, to measure next; None if the search has ended.

    `rates` maps the lengths measured so far to their pass rates. `length` is the solution's number
    of tokens, and `rises` is True for a right solution.
    """
    low, high = _bracket(rates, length, target, rises)
    return (low + high) // 2 if high - low > 1 else None


def edge(rates: Mapping[int, float], length: int, target: float, rises: bool) -> int:
    """The length that a finished search has found.

    Of the two neighbouring lengths, this is the length whose rate is nearer to the target. At equal
    distances it is the shorter length, which leaves more tokens to the policy. The result is never
    0, as no tokens would then be given, and never `length`, as none would be left to draw.
    """
    ends = {j for j in _bracket(rates, length, target, rises) if 0 < j < length}
    return min(ends, key=lambda j: (abs(rates[j] - target), j))


def _bracket(
    rates: Mapping[int, float], length: int, target: float, rises: bool
) -> tuple[int, int]:
    """(low, high), between which the bisection would go on after these `rates`.

    Both are the length whose rate equals `target`, if the bisection has met such a length.
    """
    low, high = 0, length
    while high - low > 1:
        middle = (low + high) // 2
        rate = rates.get(middle)
        if rate is None:
            break
        if rate == target:
            return middle, middle
        if (rate > target) == rises:
            high = middle
        else:
            low = middle
    return low, high
