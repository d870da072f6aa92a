"""The states and continuations that a plan expects of the rules."""

import pytest

from vinejax.config.load import from_dict
from vinejax.core.settings import Config
from vinejax.credit.expected import expected_states


def config(**values) -> Config:
    return from_dict({"values": values})


def test_the_paper_has_a_state_at_every_step():
    positions, continuations, waves = expected_states(Config(), steps=4, tokens=100)
    assert positions == [0, 0.25, 0.5, 0.75] and (continuations, waves) == (9, 1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"max_states": 1}, [0, 1 / 12]),
        ({"max_states": 0}, [0]),
        ({"num_states": 3}, [0, 3 / 12, 6 / 12, 9 / 12]),
        ({"merge": 5}, [0, 5 / 12, 10 / 12]),
        ({"positions": "tokens", "every": 25}, [0, 0.25, 0.5, 0.75]),
    ],
)
def test_fewer_states(values: dict, expected: list[float]):
    assert expected_states(config(**values), steps=12, tokens=100).positions == expected


@pytest.mark.parametrize(
    ("values", "continuations", "waves"),
    [
        # Of seven states: the first, and one on each of three levels.
        ({"allocation": "bisection"}, 9 * 4 / 7, 4),
        ({"reuse": True, "k": 3}, 3, 1),
    ],
)
def test_continuations_and_waves(values: dict, continuations: float, waves: int):
    found = expected_states(config(**values), steps=7, tokens=100)
    assert found.continuations == pytest.approx(continuations) and found.waves == waves
