"""The allocation rule `neighbours` where there are few neighbours."""

import pytest

from vinejax.credit.allocation import Seen, adaptive, neighbours
from vinejax.settings import ValuesConfig

VALUES = ValuesConfig(k=9, k_first=3)


def test_the_only_state_of_a_solution_draws_all():
    """Around it is the solution's own reward alone, which cannot differ from another."""
    for total in (0.0, 1.0):
        seen = Seen([[total] * 3], [0.0], total)
        assert neighbours(1, seen, VALUES) == [6]
        assert adaptive(1, seen, VALUES) == [0]


@pytest.mark.parametrize("own", [[0.0, 0.0, 0.0], [1.0, 0.0, 1.0]])
def test_own_returns_decide_nothing(own):
    assert neighbours(1, Seen([own, [1.0] * 3], [0.0] * 2, 1.0), VALUES) == [
        0,
        6 if len(set([*own, 1.0])) > 1 else 0,
    ]
