"""The edge of failure: how much of a solution must be given for the pass rate to cross a target.

Let f(j) be the pass rate of continuations after the first j of a solution's n tokens. Of a right
solution of a problem that mostly fails, f rises from f(0) < target to f(n) = 1; of a wrong solution
of a problem that mostly passes, it falls from f(0) > target to f(n) = 0. A bisection of 0 .. n
finds two neighbouring lengths between which f crosses the target, in at most ⌈log2 n⌉ rates:

    while high - low > 1:  m = ⌊(low + high) / 2⌋
                           high = m where f(m) is beyond the target, else low = m

Beyond is above for a right solution, below for a wrong one; a rate that equals the target ends the
search. Where f crosses the target several times, one of the crossings is found; where
it does not cross it at all, one end.

Source: binary search over prefixes of a right solution is BASS (OpenReview r2D0XuzX63, no code);
OmegaPRM (https://arxiv.org/abs/2406.06592) finds the first error of a wrong one so. Both search to
make training data; here the length found is where solutions begin that are trained on.
"""

from collections.abc import Mapping


def next_probe(rates: Mapping[int, float], length: int, target: float, rises: bool) -> int | None:
    """The length j, 1 <= j < `length`, whose pass rate the search needs next; None: it is over.

    `rates` are the pass rates seen so far, by length, and `length` is n >= 2 of the docstring
    above; `rises` for a right solution.
    """
    low, high = _bracket(rates, length, target, rises)
    return (low + high) // 2 if high - low > 1 else None


def edge(rates: Mapping[int, float], length: int, target: float, rises: bool) -> int:
    """The length that a search which is over has found.

    Of the two neighbouring lengths that is the one whose rate is nearer to the target, or the
    shorter, which leaves more to the policy. 0 and `length` do not count: there nothing is given,
    or nothing left.
    """
    ends = {j for j in _bracket(rates, length, target, rises) if 0 < j < length}
    return min(ends, key=lambda j: (abs(rates[j] - target), j))


def _bracket(
    rates: Mapping[int, float], length: int, target: float, rises: bool
) -> tuple[int, int]:
    """(low, high) of the bisection as far as the rates go; equal where a rate is the target."""
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
