"""States of solutions that are still under way: their continuations need not wait for the end.

With some positions rules (`credit.rules.DECIDED`) the tokens before a state tell that it is one. So
its continuations, of which 'uniform' allocation wants K in any case, begin as soon as the solution
has reached it, as offshoots of the solution (`engine/offshoots.py`). Seeds are those that the state
has in the end: where solutions share it, it is of the first that visits it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.text import token_text
from vinejax.core.types import Episode, PromptedProblem
from vinejax.credit.positions import positions_of
from vinejax.credit.rules import DECIDED, find_rule
from vinejax.rollout.sampler import Sampler, State


def are_possible(cfg: Config) -> bool:
    """Whether all that a state asks for is known as soon as a solution has reached it."""
    values = cfg.values
    is_sure = values.positions in DECIDED and values.spread is None and values.budget == "left"
    return is_sure and values.allocation == "uniform"


class Reached(NamedTuple):
    """A state that a solution has reached, and the seeds of its continuations."""

    solution: int
    used: int  # tokens of the solution before it
    seeds: list[int]


class EarlyStates:
    """The states of an iteration's solutions that were reached so far, each once."""

    def __init__(self, sampler: Sampler, problems: Sequence[PromptedProblem]):
        self._sampler, self._problems, self._cfg = sampler, problems, sampler.cfg
        self._size = self._cfg.rollout.per_prompt
        self._rule = find_rule("values.positions", self._cfg)
        self._text_of: Callable[[int], str] = token_text(sampler.engine.tokenizer)
        self._num_looked: dict[int, int] = {}  # of each solution: its first states that are settled

    def reached(
        self, drawn: Mapping[int, np.ndarray], ended: Mapping[int, list[int]]
    ) -> list[Reached]:
        """The new states of those solutions that have `drawn` tokens, i32[length].

        `ended` has the whole responses of all that have ended. A state waits while another solution
        may yet turn out to be the first that visits it.
        """
        found = []
        known = {i: tokens.tolist() for i, tokens in drawn.items()} | dict(ended)
        for i in drawn:
            for state in self._states(i, known[i])[self._num_looked.get(i, 0) :]:
                is_first = self._is_first(i, known[i][: state.used], known, ended)
                if is_first is None:
                    break
                self._num_looked[i] = self._num_looked.get(i, 0) + 1
                if is_first:
                    seeds = [self._sampler.seed_after(state, k) for k in range(self._cfg.values.k)]
                    found.append(Reached(i, state.used, seeds))
        return found

    def _states(self, i: int, response: list[int]) -> list[State]:
        """The states that a solution has in any case, given its first tokens."""
        problem, prompt = self._problems[i // self._size]
        facts: Any = (problem.id, prompt, response, [], "", False, 0.0, [])
        episode = Episode(*facts)
        places = positions_of(self._rule, episode, self._text_of, self._cfg.values)
        if self._cfg.values.max_states is not None:
            places = places[: self._cfg.values.max_states + 1]
        number = i % self._size
        return [State(problem, i, episode, number, c, x, []) for c, x in enumerate(places)]

    def _is_first(
        self,
        i: int,
        before: list[int],
        known: Mapping[int, list[int]],
        ended: Mapping[int, list[int]],
    ) -> bool | None:
        """Whether no solution before `i` visits the state after these tokens; None: not known."""
        if not self._cfg.values.dedup:
            return True
        for other in range(i - i % self._size, i):
            tokens = known.get(other, [])
            common = min(len(tokens), len(before))
            if tokens[:common] != before[:common]:
                continue
            if len(tokens) > len(before):
                return False
            if other not in ended:
                return None
        return True
