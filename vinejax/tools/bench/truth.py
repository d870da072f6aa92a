"""Estimates the true values of states of solutions as mean returns of independent rollouts.

The rollouts have their own seed, which is derived from the run's seed and a purpose. So they share
no random number with the solutions and continuations from which estimators compute credit. In
shapes, S is the number of states.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from vinejax.core.seeds import host_rng, row_seed
from vinejax.core.settings import Config
from vinejax.core.types import Episode, PromptedProblem
from vinejax.model.decoder import Params
from vinejax.rollout.sampler import Sampler, ValuedState
from vinejax.tools.bench.value_error import NUM_PARTS

MAX_BRANCHES = 1 << 14  # continuations in one call of the engine, to bound the host's memory

Item = TypeVar("Item")


class SolutionState(NamedTuple):
    """A state that a solution visits."""

    episode: int  # number of the solution
    step: int  # number c of the step that begins at the state s_c
    used: int  # response tokens before the state


def solution_states(episodes: Sequence[Episode]) -> list[SolutionState]:
    """The states at the beginnings of all steps of all episodes: s_0 .. s_{C-1} for C steps."""
    return [
        SolutionState(i, c, used)
        for i, episode in enumerate(episodes)
        for c, used in enumerate([episode.given, *episode.step_ends][:-1])
    ]


def choose_states(
    episodes: Sequence[Episode], count: int, seed: int, with_last: bool = True
) -> list[SolutionState]:
    """At most `count` different states of the episodes, spread over problems and positions.

    Problems take turns, and within a problem NUM_PARTS equal ranges of position take turns.
    Otherwise the choice is random, and `seed` determines it. Equal token prefixes of a problem are
    one state. Unless `with_last`, the state before the last step of each solution is left out. The
    result is in the order of `solution_states`.
    """
    different = {}
    for state in solution_states(episodes):
        episode = episodes[state.episode]
        if with_last or state.step + 1 < len(episode.step_ends):
            different.setdefault(_prefix(episode, state.used), state)
    states = list(different.values())
    order = host_rng(seed, 0, "states of the credit bench").permutation(len(states))

    def problem_of(state: SolutionState) -> str:
        return episodes[state.episode].problem_id

    def part_of(state: SolutionState) -> tuple[str, int]:
        response = episodes[state.episode].response
        return problem_of(state), state.used * NUM_PARTS // len(response)

    shuffled = [states[i] for i in order]
    return sorted(_in_turns(_in_turns(shuffled, part_of), problem_of)[:count])


def positions_of_states(
    episodes: Sequence[Episode], states: Sequence[SolutionState]
) -> tuple[np.ndarray, list[str]]:
    """For each state, the share of response tokens before it, f64[S], and its problem's id, [S]."""
    shares = [state.used / len(episodes[state.episode].response) for state in states]
    return np.array(shares), [episodes[state.episode].problem_id for state in states]


def values_at(
    episodes: Sequence[Episode], states: Sequence[SolutionState], max_states: int | None = None
) -> np.ndarray:
    """f64[S]: the values that an estimator gave to the states; nan for a state without a value.

    `episodes` are the solutions of the states, with the estimator's `values`. A state is found by
    its number of tokens, because the estimator's steps may differ from those of `states`; if no
    step of the estimator begins at a state, the state has no value. Between two sampled states,
    `values` are interpolated linearly, as in training. States before the first sampled state of an
    episode have no value. If `max_states` is a number c, states after s_c have no value either:
    their entries of `values` serve only to make advantages 0. Raises ValueError for an episode
    without values.
    """
    values = np.full(len(states), np.nan)
    for s, state in enumerate(states):
        episode = episodes[state.episode]
        if episode.values is None:
            raise ValueError(f"episode {state.episode} of problem {episode.problem_id}: no values")
        places = [episode.given, *episode.step_ends][:-1]
        if state.used not in places:
            continue
        c, first = places.index(state.used), 0
        if episode.value_counts is not None:
            first = np.flatnonzero([*episode.value_counts, 1])[0]
        if c >= first and (max_states is None or c <= max_states):
            values[s] = episode.values[c]
    return values


def true_returns(
    sampler: Sampler,
    params: Params,
    problems: Sequence[PromptedProblem],
    episodes: list[Episode],
    states: Sequence[SolutionState],
    count: int,
) -> np.ndarray:
    """f64[S, count]: returns of `count` rollouts from each state.

    States of a problem with equal token prefixes share their rollouts.
    """
    by_id = {problem.id: problem for problem, _ in problems}
    rollouts: Counter[str] = Counter()
    numbers = []
    for episode in episodes:
        numbers.append(rollouts[episode.problem_id])
        rollouts[episode.problem_id] += 1
    rows: dict[Hashable, int] = {}
    different: list[ValuedState] = []
    row_of = []
    for i, c, used in states:
        episode = episodes[i]
        row = rows.setdefault(_prefix(episode, used), len(different))
        if row == len(different):
            problem = by_id[episode.problem_id]
            different.append(ValuedState(problem, i, episode, numbers[i], c, used, visits=[]))
        row_of.append(row)
    seeded = for_purpose(sampler, "true values")
    returns = draw_returns(seeded, params, episodes, different, count)
    return returns[np.array(row_of, int)]


def with_own_seed(cfg: Config, purpose: str) -> Config:
    """The configuration with a seed for one purpose of the bench, and with `values.budget` 'left'.

    With this budget, a rollout may have as many tokens as its solution had left at the state, even
    if the estimators use another budget.
    """
    values = dataclasses.replace(cfg.values, budget="left")
    seed = row_seed(cfg.seed, 0, f"credit bench, {purpose}")
    return dataclasses.replace(cfg, seed=seed, values=values)


def for_purpose(sampler: Sampler, purpose: str) -> Sampler:
    """The sampler with the configuration that `with_own_seed` returns for `purpose`."""
    cfg = with_own_seed(sampler.cfg, purpose)
    return Sampler(sampler.engine, sampler.graded, cfg, sampler.iteration)


def draw_returns(
    sampler: Sampler, params: Params, episodes: list[Episode], states: list[ValuedState], count: int
) -> np.ndarray:
    """f64[S, count]: returns of `count` continuations of each state."""
    returns = np.zeros((len(states), count))
    size = max(1, MAX_BRANCHES // count)
    for start in range(0, len(states), size):
        part = states[start : start + size]
        counts = [count] * len(part)
        sampler.continuations(params, episodes, part, counts)
        for row, state in enumerate(part, start):
            returns[row] = [drawn.continuation.reward for drawn in state.continuations]
            state.continuations.clear()
    return returns


def _prefix(episode: Episode, used: int) -> Hashable:
    return episode.problem_id, tuple(episode.prompt), tuple(episode.response[:used])


def _in_turns(items: Sequence[Item], group_of: Callable[[Item], Hashable]) -> list[Item]:
    """The items reordered: the first item of each group, then the second of each, and so on."""
    seen: Counter[Hashable] = Counter()
    turns = []
    for item in items:
        group = group_of(item)
        turns.append(seen[group])
        seen[group] += 1
    return [items[i] for i in np.argsort(turns, kind="stable")]
