"""Training on the tokens of continuations: rows beside those of the solutions.

A solution has the states s_0, s_1, ..., and state c has K continuations, drawn under positions that
do not look ahead. Step j are the tokens from the position of s_j to that of s_{j+1}; positions go
on behind the solution's end as far as a continuation needs them. A prefix with a continuation is a
draw of the policy from its state on. So the gradient is unbiased for all weights of rows that
depend on j alone and add up to 1 over the 1 + K·(j + 1) rows that can reach step j, whether they
do or have ended before:

    all:    every row that can reach step j weighs 1 / (1 + K·(j + 1))
    first:  a continuation is trained on its first step alone; the solution and the K continuations
            of s_j weigh 1 / (K + 1) each

The solution keeps the advantages of its credit. Continuation k of s_c has at all its tokens the
advantage R_k less the mean of the returns from s_c of the solution and the other continuations.

    fork:   one state u per solution, uniform over the first `values.every` tokens; none if the
            solution ends before u. Let v be the mean return of the solution and its K
            continuations: tokens before u have v less the mean v of the problem's other solutions;
            each row after u weighs 1 / (K + 1), with its return less the mean of the other K rows'.

Were u uniform over the solution's own tokens, the gradient would be biased: where a solution is
divided would depend on how long it becomes.

A continuation whose advantage is 0 is not trained on. Source: ours; trees of this shape are those
of Tree-GRPO, https://arxiv.org/abs/2509.21240, which weighs all leaves equally.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vinejax.core.settings import Config, ValuesConfig
from vinejax.core.types import Episode, Rollout
from vinejax.credit.assign import group_numbers
from vinejax.credit.positions import TextOf
from vinejax.credit.samples import Sample
from vinejax.learner.batch import token_rows
from vinejax.rollout.vine import ProblemStates
from vinejax.tools.bench.settings import BenchConfig


class OwnStates(NamedTuple):
    """The states of a solution, and the samples drawn at each."""

    positions: list[int]  # [S] response tokens before each state
    samples: list[list[Sample]]  # [S][K]

    def value(self, episode: Episode) -> float:
        """The mean return of the solution and of the continuations of its first state, if any."""
        drawn = self.samples[0] if self.samples else []
        return float(np.mean([episode.outcome, *(x.outcome for x in drawn)]))


class Branches(NamedTuple):
    """Rows of continuations to train on, and what the solutions' rows have in their place."""

    own: list[np.ndarray]  # per solution f64[response tokens]: the coefficients of its tokens
    solutions: list[int]  # per row the number of the solution whose state the row continues
    rows: list[Episode]  # continuations, with the tokens before their states as given ones
    coefficients: list[np.ndarray]  # per row f64[response tokens], 0 at given tokens

    @property
    def trained_tokens(self) -> int:
        """The number of trained tokens of all `rows`.

        The tokens before the rows' states are left out, as if all rows shared them.
        """
        return sum(int(np.count_nonzero(x)) for x in self.coefficients)


def with_branches(
    rollout: Rollout, advantages: np.ndarray, states: Sequence[ProblemStates], cfg: Config
) -> tuple[np.ndarray, Branches]:
    """(f32[B, T] the coefficients of the solutions' own tokens, the rows of continuations)."""
    own_states: dict[int, OwnStates] = {}
    for problem_states in states:
        found = itertools.starmap(OwnStates, problem_states.own_samples())
        own_states |= zip(problem_states.numbers, found, strict=True)
    episodes = rollout.episodes
    by_solution = [
        advantages[i, len(e.prompt) : len(e.tokens)].astype(np.float64)
        for i, e in enumerate(episodes)
    ]
    in_order = [own_states[i] for i in range(len(episodes))]
    made = branches(BenchConfig.of(cfg).branches, episodes, by_solution, in_order, cfg.values.every)
    return token_rows(advantages.shape, episodes, [x.tolist() for x in made.own]), made


def uniform_position(episode: Episode, text_of: TextOf, values: ValuesConfig) -> list[int]:
    """A positions rule: one position, uniform over `values.every` tokens, by a hash of the tokens.

    There is none if the response ends before it. The position is as good as random where a problem
    has many different responses: equal responses have equal positions.
    """
    tokens = np.array([*episode.prompt, *episode.response], np.int32).tobytes()
    draw = int.from_bytes(hashlib.blake2b(tokens, digest_size=8).digest(), "little")
    position = draw % values.every
    return [position] if position < len(episode.response) else []


def branches(
    kind: str,
    episodes: Sequence[Episode],
    advantages: Sequence[np.ndarray],
    states: Sequence[OwnStates],
    every: int,
) -> Branches:
    """The rows of 'first', 'all' or 'fork'.

    Args:
      kind: 'first', 'all' or 'fork'.
      episodes: the solutions, of a task whose steps have no rewards of their own.
      advantages: per solution f64[response tokens], by its credit; 'fork' does not read them.
      states: the states of each solution.
      every: `values.every`: for 'first' and 'all' the distance of neighbouring positions.
    """
    result = Branches([], [], [], [])
    baselines = _fork_baselines(episodes, states) if kind == "fork" else None
    for i, (episode, own) in enumerate(zip(episodes, states, strict=True)):
        length, k = len(episode.response), len(own.samples[0]) if own.samples else 0
        if baselines is not None:
            coefficients = np.full(length, own.value(episode) - baselines[i])
            for position, samples in zip(own.positions, own.samples, strict=True):
                returns = [episode.outcome, *(x.outcome for x in samples)]
                coefficients[position:] = (returns - _others(returns))[0] / (k + 1)
        else:
            coefficients = advantages[i] * _weights(kind, length, every, k)
        result.own.append(coefficients)
        for position, samples in zip(own.positions, own.samples, strict=True):
            returns = [episode.outcome, *(x.outcome for x in samples)]
            of_rows = (returns - _others(returns))[1:]
            for sample, advantage in zip(samples, of_rows.tolist(), strict=True):
                if not advantage:
                    continue
                weights = _weights(kind, len(sample.tokens), every, k)
                end = position + every if kind == "first" else len(sample.tokens)
                coefficients = np.zeros(len(sample.tokens))
                coefficients[position:end] = advantage * weights[position:end]
                result.solutions.append(i)
                result.rows.append(_row(episode, sample, position))
                result.coefficients.append(coefficients)
    return result


def _weights(kind: str, length: int, every: int, k: int) -> np.ndarray:
    """f64[length]: the weight of a row at each of its tokens."""
    if kind == "all":
        return 1 / (1 + k * (np.arange(length) // every + 1))
    return np.full(length, 1 / (k + 1))


def _row(episode: Episode, sample: Sample, position: int) -> Episode:
    """The sample as a row for the learner; its tokens before `position` are given ones."""
    return dataclasses.replace(
        episode,
        response=sample.tokens.tolist(),
        logprobs=[0.0] * len(sample.tokens),
        given=position,
        step_ends=[len(sample.tokens)],
    )


def _others(returns: Sequence[float] | np.ndarray) -> np.ndarray:
    """f64[n]: for each of n returns the mean of the others."""
    array = np.asarray(returns, np.float64)
    return (array.sum() - array) / (len(array) - 1)


def _fork_baselines(episodes: Sequence[Episode], states: Sequence[OwnStates]) -> np.ndarray:
    """f64[solutions]: the mean v of the problem's other solutions, for 'fork'."""
    groups = group_numbers(list(episodes))
    v = np.array([own.value(episode) for episode, own in zip(episodes, states, strict=True)])
    baselines = np.zeros(len(v))
    for group in range(groups.max() + 1):
        members = groups == group
        baselines[members] = _others(v[members])
    return baselines
