"""A play: an episode in an environment while it is sampled, with its outcome and its steps."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from vinejax.core.text import Tokenizer
from vinejax.core.types import Problem, Turn, is_unobserved
from vinejax.tasks.environment import Environment
from vinejax.tasks.graded import GradedTask

T = TypeVar("T")


@dataclasses.dataclass(eq=False)
class Play:
    """An episode, or a continuation of one, while it is sampled."""

    problem: Problem
    prompt: list[int]
    seed: int  # seed of the play's draws
    tokens_left: int  # tokens that the policy may still draw
    observed_left: int  # tokens that observations may still have
    turns_left: int
    environment: Environment | None  # None: another host has it
    response: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)  # 0 for tokens not drawn
    turns: list[Turn] = dataclasses.field(default_factory=list)  # turns that have ended
    turn_text: str = ""  # text of the turn under way
    finish: str = ""  # 'stop' | 'length'; "" while the play goes on

    @property
    def start(self) -> int:
        """The number of response tokens before the turn under way."""
        return self.turns[-1].end if self.turns else 0

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.response


class BranchTrunks(NamedTuple):
    """Token sequences (trunks) that branches continue, and which trunk each branch continues."""

    trunks: list[list[int]]
    trunk_of_branch: list[int]  # trunk numbers, in the order of the branches


def outcome(play: Play, truncated: float | None) -> float:
    """The reward of the outcome, which is the reward of the action that ended the episode.

    If the episode ran out of tokens or turns, the outcome has the reward `truncated` instead. If
    `truncated` is None, it has the reward of the last action, or 0 if tokens ran out within a turn.
    """
    if _is_outcome_the_last(play, truncated):
        return play.turns[-1].reward
    return truncated or 0.0


def play_steps(
    graded: GradedTask, tokenizer: Tokenizer, play: Play, truncated: float | None
) -> tuple[list[int], list[float]]:
    """(ends of the C steps, rewards of the C steps without the outcome's reward).

    The task's `split` divides each turn into steps. The last step of a turn includes the
    observation.
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
    """Whether the last action's reward counts as the outcome's reward and not as a step's.

    It does not if a turn is under way, nor if the episode ran out of tokens or turns and has the
    reward `truncated` for that.
    """
    is_over = play.finish != "length" or truncated is None
    return is_over and bool(play.turns) and play.start == len(play.response)


def play_trunks(plays: Sequence[Play]) -> BranchTrunks:
    """The trunks of branches that continue these plays. Plays with equal tokens share a trunk."""
    numbers: dict[tuple[int, ...], int] = {}
    trunk_of_branch = [numbers.setdefault(tuple(play.tokens), len(numbers)) for play in plays]
    return BranchTrunks([list(tokens) for tokens in numbers], trunk_of_branch)


def num_drawn(play: Play) -> int:
    """The number of response tokens that are not tokens of an observation."""
    return len(play.response) - sum(turn.end - turn.drawn for turn in play.turns)


def without_observations(play: Play, of_tokens: list[T]) -> list[T]:
    """The entries of `of_tokens` for response tokens that are not tokens of an observation.

    `of_tokens` has an entry for each response token.
    """
    return list(itertools.compress(of_tokens, is_unobserved(play.turns, len(of_tokens))))
