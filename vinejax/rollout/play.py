"""An episode in an environment while it is sampled: a play of turns, its outcome and its steps."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from vinejax.core.text import Tokenizer
from vinejax.core.types import Problem, Turn
from vinejax.tasks.environment import Environment
from vinejax.tasks.graded import GradedTask


@dataclasses.dataclass(eq=False)
class Play:
    """An episode, or a continuation of one, while it is sampled."""

    problem: Problem
    prompt: list[int]
    seed: int  # of its draws
    tokens_left: int  # that it may draw
    observed_left: int  # tokens of observations
    turns_left: int
    environment: Environment | None  # None: another host has it
    response: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)  # 0 where not drawn
    turns: list[Turn] = dataclasses.field(default_factory=list)
    turn_text: str = ""  # the text of the turn that is not over
    finish: str = ""  # 'stop' | 'length'; "": it is not over

    @property
    def start(self) -> int:
        """Response tokens before the turn that is not over."""
        return self.turns[-1].end if self.turns else 0

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.response


class BranchTrunks(NamedTuple):
    """Trunks, and for each branch the number of its trunk."""

    trunks: list[list[int]]
    of_branches: list[int]


def outcome(play: Play, truncated: float | None) -> float:
    """The reward of the action that ended an episode; `truncated` where it ran out of something."""
    if _is_outcome_the_last(play, truncated):
        return play.turns[-1].reward
    return truncated or 0.0


def play_steps(
    graded: GradedTask, tokenizer: Tokenizer, play: Play, truncated: float | None
) -> tuple[list[int], list[float]]:
    """([C] step ends, [C] rewards of steps beside the outcome's).

    Steps are those of the task's `split` within each turn, whose last one has the observation.
    """
    ends: list[int] = []
    rewards: list[float] = []
    start = 0
    pieces = [(turn.drawn, turn.end, turn.action, turn.reward) for turn in play.turns]
    if play.start < len(play.response):
        pieces.append((len(play.response), len(play.response), play.turn_text, 0.0))
    for drawn, end, text, reward in pieces:
        before = play.prompt + play.response[:start]
        inner = graded.step_ends(tokenizer, before, play.response[start:drawn], text)[:-1]
        ends += [start + i for i in inner] + [end]
        rewards += [0.0] * len(inner) + [reward]
        start = end
    if _is_outcome_the_last(play, truncated):
        rewards[-1] = 0.0
    return ends, rewards


def _is_outcome_the_last(play: Play, truncated: float | None) -> bool:
    """Whether the outcome's reward is that of the last action, which then is none of a step's."""
    is_over = play.finish != "length" or truncated is None
    return is_over and bool(play.turns) and play.start == len(play.response)


def play_trunks(plays: Sequence[Play]) -> BranchTrunks:
    """The plays' tokens as trunks, equal ones once."""
    numbers: dict[tuple[int, ...], int] = {}
    of_branches = [numbers.setdefault(tuple(play.tokens), len(numbers)) for play in plays]
    return BranchTrunks([list(tokens) for tokens in numbers], of_branches)


def num_drawn(play: Play) -> int:
    return len(play.response) - sum(turn.end - turn.drawn for turn in play.turns)
