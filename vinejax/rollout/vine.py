"""The values of an episode's states, from Monte Carlo continuations of each.

V(s) is the mean return of `values.k` continuations sampled from the policy at s. The states are
s_0, the prompt's end, and all step boundaries but the last: V(s_C) = 0 needs no sample. The return
is the sum of the rewards of the steps after the state, discounted by `ppo.gamma` per step: the
steps' own rewards, if the task gives any, and the outcome's reward at the last step.
An episode is one trunk and its states are positions on it, so states need no prefills of their own.
"""

import dataclasses
from collections import Counter
from typing import NamedTuple

import numpy as np

from vinejax.model.decoder import Params
from vinejax.rl.values import mc_values
from vinejax.rollout.branches import Branch, Grown, Stream
from vinejax.rollout.engine import Engine
from vinejax.rollout.trajectories import Solution, is_graded, split_solution
from vinejax.runtime.distributed import is_mine, shared_work
from vinejax.seeds import row_seed
from vinejax.settings import Config
from vinejax.shapes import bucket
from vinejax.tasks.graded import BackgroundGrading, GradedTask
from vinejax.text import UNFINISHED, Tokenizer, continuation_text, decode
from vinejax.types import Continuation, Episode, Problem, PromptedProblem


class _State(NamedTuple):
    """A state to be valued, on the first episode that visits it."""

    problem: Problem
    trunk: int  # number of the episode
    episode: Episode
    rollout: int  # number of the episode among those of its problem
    step: int  # c of s_c
    used: int  # response tokens before it

    @property
    def position(self) -> int:
        """The index, in the episode's tokens, at which the state's continuations begin."""
        return len(self.episode.prompt) + self.used


def fill_values(
    engine: Engine,
    params: Params,
    graded: GradedTask,
    problems: list[PromptedProblem],
    episodes: list[Episode],
    cfg: Config,
    iteration: int,
) -> list[Episode]:
    """The episodes with values, counts and continuations, and `scored` if the engine gives it.

    States after more than `values.max_states` steps are not sampled (count 0): their values are the
    discounted rewards that follow, so that the advantages there are 0. Source: VinePPO's code,
    math_episode_generator_with_mc_advantages.py:667-732.
    """
    k, gamma = cfg.values.k, cfg.ppo.gamma
    states, visits = _states(problems, episodes, cfg)
    branches, budgets = _branches(states, cfg, iteration)
    trunks = [episode.tokens for episode in episodes]
    stream = engine.stream(params, trunks, branches, budgets, engine.scores_as_learner)
    made = _continuations(stream, engine.tokenizer, graded, states, cfg)
    values = _means([continuation.reward for continuation in made], len(states), k)
    groups = [tuple(made[i : i + k]) for i in range(0, len(made), k)]
    filled = [
        _filled(episode, [groups[s] for s in visited], values[visited], gamma)
        for episode, visited in zip(episodes, visits, strict=True)
    ]
    if not stream.trunk_logprobs:
        return filled
    return [
        dataclasses.replace(episode, scored=logprobs[len(episode.prompt) :].tolist())
        for episode, logprobs in zip(filled, stream.trunk_logprobs, strict=True)
    ]


def _continuations(
    stream: Stream, tokenizer: Tokenizer, graded: GradedTask, states: list[_State], cfg: Config
) -> list[Continuation]:
    """`values.k` continuations per state, in the states' order.

    The host that detokenises a continuation grades the whole solution, while others are sampled.
    """
    k, truncated = cfg.values.k, cfg.reward.truncated
    texts = [_text(tokenizer, state) for state in states]
    continuations: dict[int, Grown] = {}
    solutions: dict[int, Solution] = {}  # of this host's own
    with BackgroundGrading(graded) as background:
        for i, grown in stream:
            continuations[i] = grown
            if is_mine(i):
                solutions[i] = _completed(states[i // k], texts[i // k], grown)
                if is_graded(grown, truncated):
                    background.add(i, solutions[i].problem, solutions[i].text)
        outcomes = shared_work(background.results())
    returns = {i: outcomes.get(i, truncated or 0.0) for i in continuations}
    if graded.has_steps or cfg.ppo.gamma != 1:  # else the return is the reward of the outcome
        discounted = {}
        for i, solution in solutions.items():
            ends, rewards = split_solution(graded, tokenizer, solution)
            used = states[i // k].used
            discounted[i] = _return(ends, rewards, used, returns[i], cfg.ppo.gamma)
        returns = shared_work(discounted)
    return [
        Continuation(grown.text, returns[i], grown.finish)
        for i, grown in sorted(continuations.items())
    ]


def _states(
    problems: list[PromptedProblem], episodes: list[Episode], cfg: Config
) -> tuple[list[_State], list[list[int]]]:
    """(the states to sample from, for each episode the numbers of its states among them).

    With `values.dedup` equal token prefixes of a problem are one state: solutions share s_0.
    """
    by_id = {problem.id: problem for problem, _ in problems}
    most = cfg.values.max_states
    num_valued = None if most is None else most + 1  # s_0, too
    rollouts: Counter[str] = Counter()
    states: list[_State] = []
    known: dict[tuple[object, ...], int] = {}
    visits: list[list[int]] = []
    for i, episode in enumerate(episodes):
        visits.append([])
        problem, rollout = by_id[episode.problem_id], rollouts[episode.problem_id]
        rollouts[episode.problem_id] += 1
        starts = [0, *episode.step_ends][:-1]  # the last step's end is terminal
        for c, used in enumerate(starts[:num_valued]):
            state = _State(problem, i, episode, rollout, c, used)
            prefix = (episode.problem_id, *episode.tokens[: state.position])
            key = prefix if cfg.values.dedup else (i, c)
            if key not in known:
                known[key] = len(states)
                states.append(state)
            visits[-1].append(known[key])
    return states, visits


def _branches(states: list[_State], cfg: Config, iteration: int) -> tuple[list[Branch], list[int]]:
    """`values.k` branches per state, and their budgets.

    With `values.budget` 'left' a continuation may draw as many tokens as its solution had left at
    the state, so that value and policy have the same horizon; with 'fresh' `sample.max_tokens`, as
    in VinePPO's code.
    """
    branches, budgets = [], []
    for state in states:
        start = len(state.episode.prompt)
        used = state.used if cfg.values.budget == "left" else 0
        for k in range(cfg.values.k):
            # State 0 of `row_seed` is the solution itself: s_0 must not replay it.
            place = (state.problem.id, state.rollout, state.step + 1, k)
            seed = row_seed(cfg.seed, iteration, *place)
            branches.append(Branch(state.trunk, state.position, seed, start))
            budgets.append(cfg.sample.max_tokens - used)
    return branches, budgets


def _text(tokenizer: Tokenizer, state: _State) -> str:
    """The text of the response up to the state; a continuation's text is added to it."""
    prompt = state.episode.prompt
    before = state.episode.response[: state.used]
    text = continuation_text(tokenizer, prompt, decode(tokenizer, prompt), before)
    return text.rstrip(UNFINISHED)


def _completed(state: _State, text: str, grown: Grown) -> Solution:
    """The solution made of the response up to the state, with text `text`, and `grown`."""
    response = state.episode.response[: state.used] + grown.tokens
    text = text[: len(text) - grown.overlap] + grown.text
    return Solution(state.problem, state.episode.prompt, response, text)


def _return(
    ends: list[int], rewards: list[float] | None, used: int, outcome: float, gamma: float
) -> float:
    """r_0 + γ·r_1 + γ²·r_2 + ... of the steps that end after the first `used` tokens.

    The outcome's reward is added to the last step's; the steps' own are 0 if the task has none
    (None). The steps are those of the whole solution, and can differ from the episode's.
    """
    by_step = zip(ends, rewards or [0.0] * len(ends), strict=True)
    later = [reward for end, reward in by_step if end > used]
    of_steps = sum(gamma**i * reward for i, reward in enumerate(later))
    return of_steps + gamma ** max(len(later) - 1, 0) * outcome


def _means(returns: list[float], num_states: int, k: int) -> np.ndarray:
    """f32[num_states] the mean return of each state's k continuations."""
    # Padded to a bucket's size, so that another number of states seldom compiles anything.
    padded = np.zeros((1, bucket(num_states), k), np.float32)
    padded[0, :num_states] = np.reshape(np.array(returns, np.float32), (num_states, k))
    counts = np.full(padded.shape[:2], k, np.int32)
    return np.asarray(mc_values(padded, counts))[0]


def _filled(
    episode: Episode,
    continuations: list[tuple[Continuation, ...]],
    values: np.ndarray,
    gamma: float,
) -> Episode:
    """The episode with its sampled values; later values are such that r + γ·V' - V = 0."""
    num_steps, sampled = len(episode.step_ends), len(continuations)
    # In the precision and order of the advantages, so that these are exactly 0.
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
