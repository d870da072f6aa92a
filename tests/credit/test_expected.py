"""The states and continuations that a plan expects of the rules."""

import pytest

from vinejax.config.load import from_dict
from vinejax.core.settings import Config
from vinejax.credit.allocation import Seen
from vinejax.credit.bisection import bisection
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


@pytest.mark.parametrize("num_states", [1, 2, 3, 4, 5, 8, 9, 16])
def test_bisection_needs_no_more_than_is_planned(num_states: int):
    """The rule itself, on solutions with one deciding step, needs as much at most and once so."""
    cfg, needed = config(allocation="bisection"), []
    for decided in range(1, num_states + 1):  # the first state with the value 1
        returns, waves = [[] for _ in range(num_states)], 0
        seen = Seen(returns, earned=[0.0] * num_states, total=1.0)
        while (counts := bisection(waves, seen, cfg.values)) is not None:
            waves += 1
            for c, count in enumerate(counts):
                returns[c] += [float(c >= decided)] * count
        needed.append((waves, sum(map(len, returns))))
    planned = expected_states(cfg, steps=num_states, tokens=100)
    assert max(needed) == (planned.waves, round(planned.continuations * num_states))
