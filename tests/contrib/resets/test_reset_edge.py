"""The search for the edge of failure, on known curves."""

import math
from collections.abc import Callable

import pytest

from vinejax.contrib.resets.edge import edge, next_probe


def search(
    curve: Callable[[int], float], length: int, target: float = 0.5, rises: bool = True
) -> tuple[int, list[int]]:
    """(edge, lengths that the search probed, in order)."""
    rates: dict[int, float] = {}
    while (probe := next_probe(rates, length, target, rises)) is not None:
        assert 0 < probe < length and probe not in rates
        rates[probe] = curve(probe)
    return edge(rates, length, target, rises), list(rates)


def test_worked_numbers():
    # 16 tokens, and the right solution is safe from the 11th on.
    assert search(lambda j: 0.9 if j >= 11 else 0.2, 16) == (10, [8, 12, 10, 11])
    assert search(lambda j: 0.7 if j >= 11 else 0.1, 16) == (11, [8, 12, 10, 11])
    # The wrong solution is lost from the 3rd on: the same search on a curve that falls.
    assert search(lambda j: 0.3 if j >= 3 else 1.0, 16, rises=False) == (3, [8, 4, 2, 3])
    # A rate equal to the target ends the search.
    assert search(lambda j: 0.5, 16) == (8, [8])
    assert search(lambda j: j / 8, 8, target=0.75) == (6, [4, 6])
    # At equal distances the shorter length wins, which leaves more to the policy.
    assert search(lambda j: float(j >= 5), 8) == (4, [4, 6, 5])


def test_something_is_given_and_something_is_left():
    for length in (2, 3, 4, 7, 8, 100):
        for rises in (True, False):
            # Rates that never cross the target: the crossing is at one of the ends.
            assert search(lambda j: 0.0, length, rises=rises)[0] == (length - 1 if rises else 1)
            assert search(lambda j: 1.0, length, rises=rises)[0] == (1 if rises else length - 1)


@pytest.mark.parametrize("rises", [True, False])
def test_every_edge_of_every_length_is_found_in_logarithmic_time(rises: bool):
    for length in range(2, 40):
        for crossing in range(1, length + 1):

            def curve(j: int, crossing: int = crossing) -> float:
                return 0.9 if (j >= crossing) == rises else 0.0

            found, probes = search(curve, length, rises=rises)
            # 0.9 is nearer to 0.5 than 0.0 is, so the edge is on the side of 0.9.
            expected = crossing if rises else crossing - 1
            assert found == min(max(expected, 1), length - 1)
            assert len(probes) <= math.ceil(math.log2(length))


def test_where_the_target_is_crossed_often_one_crossing_is_found():
    """The curve fails at 1 to 4, passes at 5 and 6, fails at 7 to 11, and passes from 12 on."""

    def curve(j: int) -> float:
        return 1.0 if j in (5, 6) or j >= 12 else 0.0

    crossings = {4, 5, 11, 12}
    for length in (13, 14, 16, 20, 23):
        found, _ = search(curve, length)
        assert found in crossings, length
    assert search(curve, 10)[0] == 4  # 5 passes first, so the search does not look behind it
