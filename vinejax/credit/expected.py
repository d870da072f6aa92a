"""How many states and continuations to expect, for `--mode=plan`, which samples nothing."""

import math
from typing import NamedTuple

from vinejax.core.settings import Config
from vinejax.credit.positions import thinned
from vinejax.credit.rules import chosen_rules


class ExpectedStates(NamedTuple):
    """The states to expect in one solution, and the continuations to expect from them."""

    positions: list[float]  # [S] position of each state, as a fraction of the response
    continuations: float  # mean number of continuations per state
    waves: int


def expected_states(cfg: Config, steps: int, tokens: float) -> ExpectedStates:
    """The expected states of a solution of `tokens` tokens in `steps` steps of equal length.

    Positions rules that read the text are assumed to give one state per step. A user's allocation
    rule is assumed to be uniform. Bisection is planned for a solution with one deciding step: of S
    states the first and ⌈log2 S⌉ others have K = `values.k` continuations.
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
        levels = math.ceil(math.log2(num_states))
        share = (1 + levels) / num_states
        return ExpectedStates(positions, values.k * share, levels + 1)
    return ExpectedStates(positions, float(values.k), 1)
