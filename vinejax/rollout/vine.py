"""The values of an episode's states, from Monte Carlo continuations of each.

V(s) is the mean graded return of `values.k` continuations sampled from the policy at s. The states
are s_0, the prompt's end, and the step boundaries short of the last: V(s_C) = 0 needs no sample.
An episode is one trunk, its states are positions on it, so a value costs no prefill of its own.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from vinejax.config import Config
from vinejax.model.decoder import Params
from vinejax.rl.values import mc_values
from vinejax.rollout.engine import Branch, Engine, Grown, bucket
from vinejax.rollout.trajectories import PromptedProblem, graded
from vinejax.tasks.base import Task
from vinejax.tasks.text import continuation_text, decode
from vinejax.types import Continuation, Episode, Problem, row_seed


class _State(NamedTuple):
    """A state to be valued; `episode` is the first that visits it."""

    episode: int
    step: int  # c of s_c
    position: int  # on the episode's tokens


def _plan(episodes: list[Episode], cfg: Config) -> tuple[list[_State], list[list[int]]]:
    """The states to sample from, and for each episode the index of each of its states among them.

    Equal token prefixes of a problem are one state: the rollouts of a prompt share s_0.
    """
    states: list[_State] = []
    known: dict[tuple[object, ...], int] = {}
    visits: list[list[int]] = []
    for i, episode in enumerate(episodes):
        visits.append([])
        for c in range(_num_valued(episode, cfg.values.max_states)):
            position = len(episode.prompt) + (episode.step_ends[c - 1] if c else 0)
            prefix = (episode.problem_id, *episode.tokens[:position])
            key = prefix if cfg.values.dedup else (i, c)
            if key not in known:
                known[key] = len(states)
                states.append(_State(i, c, position))
            visits[-1].append(known[key])
    return states, visits


def _num_valued(episode: Episode, max_states: int | None) -> int:
    """s_0 and the first `max_states` step ends, of C states at most."""
    num_steps = len(episode.step_ends)
    return num_steps if max_states is None else min(num_steps, max_states + 1)


def _budget(state: _State, episode: Episode, cfg: Config) -> int:
    """Tokens a continuation may take. 'left': what the trajectory had left at that state, so that
    value and policy share a horizon; 'fresh': the whole budget again, as the reference."""
    used = state.position - len(episode.prompt) if cfg.values.budget == "left" else 0
    return cfg.sample.max_tokens - used


def fill_values(
    engine: Engine,
    params: Params,
    task: Task,
    problems: list[PromptedProblem],
    episodes: list[Episode],
    cfg: Config,
    iteration: int,
) -> list[Episode]:
    """The episodes with `values`, `value_counts` and `continuations`.

    States past `values.max_states` are back-filled with what follows them, so that the advantages
    there are 0 (count 0). Source: math_episode_generator_with_mc_advantages.py:667-732.
    """
    by_id = {problem.id: problem for problem, _ in problems}
    states, visits = _plan(episodes, cfg)
    rollout_of = _rollout_numbers(episodes)
    branches, budgets = [], []
    for state in states:
        episode = episodes[state.episode]
        for k in range(cfg.values.k):
            # State 0 of `row_seed` is the solution itself: s_0 must not replay it.
            place = (episode.problem_id, rollout_of[state.episode], state.step + 1, k)
            branches.append(
                Branch(state.episode, state.position, row_seed(cfg.seed, iteration, *place))
            )
            budgets.append(_budget(state, episode, cfg))
    grown = engine.grow(params, [e.tokens for e in episodes], branches, budgets)

    found = []
    for i, state in enumerate(states):
        episode = episodes[state.episode]
        own = grown[i * cfg.values.k : (i + 1) * cfg.values.k]
        found.append(_grade(engine, task, by_id[episode.problem_id], episode, state, own, cfg))
    # A bucket's size, so that the number of states, which changes, compiles nothing.
    returns = np.zeros((1, bucket(len(found)), cfg.values.k), np.float32)
    counts = np.zeros(returns.shape[:2], np.int32)
    for i, group in enumerate(found):
        returns[0, i], counts[0, i] = [c.reward for c in group], cfg.values.k
    values = np.asarray(mc_values(returns, counts))[0]
    return [
        _filled(episode, [found[s] for s in visited], values[visited], cfg.ppo.gamma)
        for episode, visited in zip(episodes, visits, strict=True)
    ]


def _rollout_numbers(episodes: list[Episode]) -> list[int]:
    """Which rollout of its problem each episode is."""
    seen: dict[str, int] = {}
    numbers = []
    for episode in episodes:
        numbers.append(seen.get(episode.problem_id, 0))
        seen[episode.problem_id] = numbers[-1] + 1
    return numbers


def _grade(
    engine: Engine,
    task: Task,
    problem: Problem,
    episode: Episode,
    state: _State,
    grown: list[Grown],
    cfg: Config,
) -> tuple[Continuation, ...]:
    """A state's continuations, each graded as the whole solution that it completes."""
    prompt_text = decode(engine.tokenizer, episode.prompt)
    before = episode.tokens[len(episode.prompt) : state.position]
    so_far = continuation_text(engine.tokenizer, episode.prompt, prompt_text, before)
    return tuple(
        Continuation(
            g.text,
            graded(task, problem, so_far + g.text, g.finish, cfg.reward.truncated),
            g.finish,
        )
        for g in grown
    )


def _filled(
    episode: Episode,
    continuations: list[tuple[Continuation, ...]],
    values: np.ndarray,
    gamma: float,
) -> Episode:
    """The episode with its sampled values, and the rest such that r + gamma V' - V = 0."""
    num_steps, sampled = len(episode.step_ends), len(continuations)
    steps_to_go = np.arange(num_steps)[::-1]
    filled = (episode.reward * gamma**steps_to_go).astype(np.float32)
    filled[:sampled] = values
    counts = np.zeros(num_steps, np.int32)
    counts[:sampled] = [len(group) for group in continuations]
    none = ((),) * (num_steps - sampled)
    return dataclasses.replace(
        episode, values=filled, value_counts=counts, continuations=(*continuations, *none)
    )
