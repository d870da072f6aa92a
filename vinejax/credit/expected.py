"""What the rules are expected to sample, for `--mode=plan`, which has no solutions to look at."""

import math
from typing import NamedTuple

from vinejax.core.settings import Config
from vinejax.credit.positions import thinned
from vinejax.credit.rules import chosen_rules


class Expected(NamedTuple):
    """The states of one solution, and the continuations that they are expected to take."""

    positions: list[float]  # [S] of each state, as a fraction of the response
    continuations: float  # of one state, on average
    waves: int


def expected_states(cfg: Config, steps: int, tokens: float) -> Expected:
    """For a solution of `tokens` tokens in `steps` steps of equal length.

    Positions that depend on the text, other than every n tokens, are taken to be as many as the
    steps. An allocation of a user's is taken to be uniform. Bisection is taken for solutions with
    one step that decides: the first state and log2 of the states have K = `values.k`.
    """
    values, rules = cfg.values, chosen_rules(cfg)
    if rules["values.positions"] == "tokens":
        steps = max(1, math.ceil(tokens / values.every))
    states = [0, *thinned(list(range(1, steps)), values)]
    if values.max_states is not None:
        states = states[: values.max_states + 1]
    positions = [c / steps for c in states]
    num_states = len(positions)
    if rules["values.allocation"] == "bisection":
        levels = math.ceil(math.log2(num_states + 1))
        share = min(1.0, (1 + levels) / num_states)
        return Expected(positions, values.k * share, levels + 1)
    return Expected(positions, float(values.k), 1)
