"""Solutions of several turns that branch off one another after an observation.

Turns are drawn in waves, each with one turn of every episode that is not over. After a wave a
method's rule, which gets the entropies of the turns so far, says how many new episodes branch off
each episode. A new episode begins with copies of the turns and the environment of the old one.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from vinejax.core.seeds import host_rng
from vinejax.core.types import Episode, PromptedProblem
from vinejax.engine.branches import StreamInput
from vinejax.model.decoder import Params
from vinejax.rollout.play import Play
from vinejax.rollout.turns import Turns, TurnSampler


class TurnPlace(NamedTuple):
    """A place where new episodes may branch off an episode, after its last observation."""

    entropies: list[float]  # entropies of the episode's turns so far (function `entropies`)
    solutions: int  # number of solutions of the problem that have begun
    streak: int  # number of latest waves in a row after each of which the problem branched


class TurnGrowth(NamedTuple):
    """A method's rule for new solutions, of which a problem gets at most `rollout.per_prompt`."""

    # (turn entropies of each solution so far, all of which are over) -> number of new solutions
    # that begin at the prompt
    roots: Callable[[Sequence[list[float]]], int]
    # (place, random generator) -> number of new solutions that branch off at the place
    branches: Callable[[TurnPlace, np.random.Generator], int]
    tokens: int  # number of a turn's first tokens whose entropy counts


def entropies(play: Play, tokens: int, vocabulary: int) -> list[float]:
    """For each finished turn, the mean of -log π over its first `tokens` tokens, divided by log V.

    The mean is an unbiased estimate of the entropy of π at these tokens. V is `vocabulary`.
    """
    estimates, start = [], 0
    for turn in play.turns:
        first = play.logprobs[start : min(turn.drawn, start + tokens)]
        estimates.append(-sum(first) / max(len(first), 1) / math.log(vocabulary))
        start = turn.end
    return estimates


@dataclasses.dataclass(eq=False)
class BranchingSampler(TurnSampler):
    """A sampler of `rollout.per_prompt` solutions per problem, which may branch off one another."""

    growth: TurnGrowth

    def solutions(
        self, params: Params, problems: list[PromptedProblem], most_groups: int
    ) -> list[Episode]:
        """Episodes without values, divided into steps as by `TurnSampler.solutions`.

        The episodes of a problem are in the order in which they began. `most_groups` has no effect,
        because each problem has one group.
        """
        wanted = self.cfg.rollout.per_prompt
        first = range(min(self.growth.roots([]), wanted))
        plays = self.start_plays([(problem, first) for problem, _ in problems])
        self._play(params, plays)
        numbers = {problem.id: i for i, (problem, _) in enumerate(problems)}
        plays.sort(key=lambda play: numbers[play.problem.id])
        return [self.episode(play) for play in plays]

    def turns_of(self, plays: list[Play], executor: ThreadPoolExecutor) -> Turns:
        return _Waves(self, plays, executor)


class _Waves(Turns):
    """The episodes of a sampling phase, sampled wave by wave."""

    def __init__(self, sampler: BranchingSampler, plays: list[Play], executor: ThreadPoolExecutor):
        super().__init__(sampler, plays, executor)
        self._brancher, self._waves = sampler, 0
        self._wave: list[int] = [*range(len(plays))]  # plays of the current wave
        self._of_problems: dict[str, list[int]] = {}  # plays of each problem
        for i, play in enumerate(plays):
            self._of_problems.setdefault(play.problem.id, []).append(i)
        self._streaks = dict.fromkeys(self._of_problems, 0)
        self.max_plays = sampler.cfg.rollout.per_prompt * len(self._of_problems)

    def more(self) -> StreamInput | None:
        """The turns of the next wave, as `Turns.more` returns them.

        The input is empty while turns of the current wave are still being drawn.
        """
        if any(not (i in self._actions or self.plays[i].finish) for i in self._wave):
            return StreamInput([], [], [])
        return super().more()

    def next_plays(self, going_on: list[int]) -> list[int]:
        """The numbers of the next wave's episodes: `going_on`, and the episodes that begin now."""
        self._wave = [*going_on]
        for name, numbers in self._of_problems.items():
            active = [i for i in numbers if i in going_on]
            if active:
                self._branch(name, active)
            else:
                self._begin(numbers)
        self._waves += 1
        return self._wave

    def _branch(self, name: str, active: list[int]) -> None:
        """Adds episodes that branch off other episodes of the problem with id `name`.

        `active` are the numbers of the problem's episodes that are not over.
        """
        sampler, numbers, before = self._brancher, self._of_problems[name], len(self.plays)
        rng = host_rng(sampler.cfg.seed, sampler.iteration, f"branch {name}", self._waves)
        for i in active:
            place = TurnPlace(self._entropies(i), len(numbers), self._streaks[name])
            wanted = sampler.growth.branches(place, rng)
            for _ in range(min(wanted, self._lack(numbers))):
                play = self.plays[i]
                (seed,) = sampler.seeds(play.problem, [len(numbers)])
                new = dataclasses.replace(play, seed=seed, turns=[*play.turns])
                new.environment = sampler.copied_environment(play)
                self._add([new], numbers)
        self._streaks[name] = self._streaks[name] + 1 if len(self.plays) > before else 0

    def _begin(self, numbers: list[int]) -> None:
        """Adds episodes that begin at the prompt of a problem, if it lacks solutions.

        `numbers` are the problem's episodes so far, which are all over.
        """
        if lack := self._lack(numbers):
            wanted = self._brancher.growth.roots([self._entropies(i) for i in numbers])
            new = range(len(numbers), len(numbers) + min(max(wanted, 1), lack))
            self._add(self._brancher.start_plays([(self.plays[numbers[0]].problem, new)]), numbers)

    def _add(self, plays: list[Play], numbers: list[int]) -> None:
        new = range(len(self.plays), len(self.plays) + len(plays))
        self.plays += plays
        numbers += new
        self._wave += new

    def _lack(self, numbers: list[int]) -> int:
        return self._brancher.cfg.rollout.per_prompt - len(numbers)

    def _entropies(self, i: int) -> list[float]:
        vocabulary = self._brancher.engine.model.cfg.vocab_size
        return entropies(self.plays[i], self._brancher.growth.tokens, vocabulary)
