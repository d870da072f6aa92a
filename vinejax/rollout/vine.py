"""The values of an episode's states, from Monte Carlo continuations of each.

V(s) is the mean return of `values.k` continuations sampled from the policy at s. The states
are s_0, the prompt's end, and the step boundaries short of the last: V(s_C) = 0 needs no sample.
The return is the reward of the outcome; of a task that rewards steps it is what the steps after
the state bring, discounted, the outcome's reward coming with the last of them.
An episode is one trunk, its states are positions on it, so a value costs no prefill of its own.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from vinejax.model.decoder import Params
from vinejax.rl.values import mc_values
from vinejax.rollout.branches import Branch, Grown, OnGrown
from vinejax.rollout.engine import Engine
from vinejax.rollout.trajectories import graded_as_grown, rewarded_steps
from vinejax.runtime.distributed import is_mine, shared_work
from vinejax.seeds import row_seed
from vinejax.settings import Config
from vinejax.shapes import bucket
from vinejax.tasks.graded import GradedTask
from vinejax.text import UNFINISHED, Tokenizer, continuation_text, decode
from vinejax.types import Continuation, Episode, Problem, PromptedProblem


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
    rewards: GradedTask,
    problems: list[PromptedProblem],
    episodes: list[Episode],
    cfg: Config,
    iteration: int,
) -> list[Episode]:
    """The episodes with `values`, `value_counts` and `continuations`, and `scored` where it can be.

    A continuation is graded as the whole solution that it completes, while others are sampled.

    States past `values.max_states` are back-filled with what follows them, so that the advantages
    there are 0 (count 0). Source: math_episode_generator_with_mc_advantages.py:667-732.
    """
    states, visits = _plan(episodes, cfg)
    branches, budgets = _branches(states, episodes, cfg, iteration)
    by_id = {problem.id: problem for problem, _ in problems}
    problem_of = [by_id[episode.problem_id] for episode in episodes]
    so_far = [_text(engine.tokenizer, episodes[state.episode], state) for state in states]
    scored: list[np.ndarray] = []

    def response_of(i: int, one: Grown) -> tuple[Problem, str]:
        text = so_far[i // cfg.values.k]
        return problem_of[branches[i].trunk], text[: len(text) - one.overlap] + one.text

    def grow(on_grown: OnGrown) -> list[Grown]:
        trunks = [episode.tokens for episode in episodes]
        if not engine.scores_as_learner:
            return engine.grow(params, trunks, branches, budgets, on_grown)
        grown, logprobs = engine.grow_scored(params, trunks, branches, budgets, on_grown)
        scored.extend(logprobs)
        return grown

    grown, returns = graded_as_grown(grow, rewards, response_of, cfg.reward.truncated)
    if rewards.has_steps:
        own: dict[int, float] = {}
        for i, one in enumerate(grown):
            if is_mine(i):
                state, (problem, text) = states[i // cfg.values.k], response_of(i, one)
                later = _later(rewards, engine.tokenizer, problem, episodes[state.episode], state,
                               one.tokens, text)  # fmt: skip
                own[i] = _discounted(later, returns[i], cfg.ppo.gamma)
        everywhere = shared_work(own)
        returns = [everywhere[i] for i in range(len(grown))]
    values = _means(returns, len(states), cfg.values.k)
    made = [Continuation(g.text, r, g.finish) for g, r in zip(grown, returns, strict=True)]
    groups = [tuple(made[i : i + cfg.values.k]) for i in range(0, len(made), cfg.values.k)]
    filled = [
        _filled(episode, [groups[s] for s in visited], values[visited], cfg.ppo.gamma)
        for episode, visited in zip(episodes, visits, strict=True)
    ]
    if not scored:
        return filled
    return [
        dataclasses.replace(e, scored=own[len(e.prompt) :].tolist())
        for e, own in zip(filled, scored, strict=True)
    ]


def _branches(
    states: list[_State], episodes: list[Episode], cfg: Config, iteration: int
) -> tuple[list[Branch], list[int]]:
    """`values.k` branches a state, and their budgets."""
    rollout_of = _rollout_numbers(episodes)
    branches, budgets = [], []
    for state in states:
        episode = episodes[state.episode]
        for k in range(cfg.values.k):
            # State 0 of `row_seed` is the solution itself: s_0 must not replay it.
            place = (episode.problem_id, rollout_of[state.episode], state.step + 1, k)
            seed = row_seed(cfg.seed, iteration, *place)
            start = len(episode.prompt)
            branches.append(Branch(state.episode, state.position, seed, start))
            budgets.append(_budget(state, episode, cfg))
    return branches, budgets


def _means(returns: list[float], num_states: int, k: int) -> np.ndarray:
    """f32[num_states] the mean return of each state's k continuations."""
    # A bucket's size, so that the number of states, which changes, compiles nothing.
    padded = np.zeros((1, bucket(num_states), k), np.float32)
    padded[0, :num_states] = np.reshape(np.array(returns, np.float32), (num_states, k))
    counts = np.full(padded.shape[:2], k, np.int32)
    return np.asarray(mc_values(padded, counts))[0]


def _rollout_numbers(episodes: list[Episode]) -> list[int]:
    """Which rollout of its problem each episode is."""
    seen: dict[str, int] = {}
    numbers = []
    for episode in episodes:
        numbers.append(seen.get(episode.problem_id, 0))
        seen[episode.problem_id] = numbers[-1] + 1
    return numbers


def _text(tokenizer: Tokenizer, episode: Episode, state: _State) -> str:
    """The response as far as the state; the text of a continuation begins where it ends."""
    prompt_text = decode(tokenizer, episode.prompt)
    before = episode.tokens[len(episode.prompt) : state.position]
    text = continuation_text(tokenizer, episode.prompt, prompt_text, before)
    return text.rstrip(UNFINISHED)


def _later(
    rewards: GradedTask,
    tokenizer: Tokenizer,
    problem: Problem,
    episode: Episode,
    state: _State,
    tokens: list[int],
    text: str,
) -> list[float]:
    """The own rewards of the steps that end after the state, in the solution that `tokens` make.

    `text` is the whole response; how it divides may depend on what came after the state.
    """
    used = state.position - len(episode.prompt)
    response = episode.response[:used] + tokens
    ends, own = rewarded_steps(rewards, tokenizer, problem, episode.prompt, response, text)
    return [reward for end, reward in zip(ends, own or [], strict=True) if end > used]


def _discounted(rewards: list[float], outcome: float, gamma: float) -> float:
    """r_0 + γ·r_1 + γ²·r_2 + ..., the outcome's reward coming with the last."""
    own = sum(gamma**i * reward for i, reward in enumerate(rewards))
    return own + gamma ** max(len(rewards) - 1, 0) * outcome


def _filled(
    episode: Episode,
    continuations: list[tuple[Continuation, ...]],
    values: np.ndarray,
    gamma: float,
) -> Episode:
    """The episode with its sampled values, and the rest such that r + gamma V' - V = 0."""
    num_steps, sampled = len(episode.step_ends), len(continuations)
    # In the advantages' own precision and order, or rounding would leave something of them.
    rewards, after = np.asarray(episode.rewards, np.float32), np.float32(0)
    filled = np.zeros(num_steps, np.float32)
    for c in reversed(range(num_steps)):
        after = filled[c] = rewards[c] + np.float32(gamma) * after
    filled[:sampled] = values
    counts = np.zeros(num_steps, np.int32)
    counts[:sampled] = [len(group) for group in continuations]
    none = ((),) * (num_steps - sampled)
    return dataclasses.replace(
        episode, values=filled, value_counts=counts, continuations=(*continuations, *none)
    )
