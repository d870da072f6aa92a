"""Monte Carlo continuations of states: branches on the solutions, graded as whole solutions."""

import dataclasses
from typing import NamedTuple

import numpy as np

from vinejax.core.seeds import row_seed
from vinejax.core.settings import Config
from vinejax.core.text import response_text
from vinejax.core.types import Continuation, Episode, Problem
from vinejax.credit.samples import Sample
from vinejax.engine.branches import Branch, Grown, Stream
from vinejax.engine.engine import Engine
from vinejax.model.decoder import Params
from vinejax.rollout.trajectories import (
    Solution,
    is_graded,
    split_solution,
    whole_text,
)
from vinejax.runtime.distributed import is_mine, shared_work
from vinejax.tasks.graded import BackgroundGrading, GradedTask


class Drawn(NamedTuple):
    """A continuation, for people and as a sample of the policy."""

    continuation: Continuation
    sample: Sample


@dataclasses.dataclass
class State:
    """A state to be valued, on the first episode that visits it, and what was drawn there."""

    problem: Problem
    trunk: int  # number of the episode
    episode: Episode
    rollout: int  # number of the episode among those of its problem
    step: int  # c of s_c
    used: int  # response tokens before it
    visits: list[tuple[int, int]]  # (i, c): it is the c-th of the states of episode i
    drawn: list[Drawn] = dataclasses.field(default_factory=list)

    @property
    def position(self) -> int:
        """The index, in the episode's tokens, at which continuations begin."""
        return len(self.episode.prompt) + self.used


def draw_continuations(
    engine: Engine,
    params: Params,
    graded: GradedTask,
    episodes: list[Episode],
    states: list[State],
    counts: list[int],
    cfg: Config,
    iteration: int,
    scored: bool,
    with_steps: bool = False,
) -> list[np.ndarray]:
    """Adds `counts[s]` continuations to `states[s].drawn`.

    Each is graded while others are sampled, by the host that reads it. Returns the stream's
    `trunk_logprobs`: those of the episodes if `scored`, else none. Weights are of `values.dtype`.
    Continuations are split into steps if `with_steps`, or if their returns depend on these.
    """
    wanted = [state for state, count in zip(states, counts, strict=True) for _ in range(count)]
    branches, budgets = _branches(states, counts, cfg, iteration)
    trunks = [episode.tokens for episode in episodes]
    int8 = cfg.values.dtype == "int8"
    stream = engine.stream(params, trunks, branches, budgets, scored, int8)
    with_steps |= graded.has_steps or cfg.ppo.gamma != 1
    drawn = _graded(stream, engine, graded, wanted, cfg, with_steps)
    for state, continuation in zip(wanted, drawn, strict=True):
        state.drawn.append(continuation)
    return stream.trunk_logprobs


def _branches(
    states: list[State], counts: list[int], cfg: Config, iteration: int
) -> tuple[list[Branch], list[int]]:
    """The new branches of each state, and their budgets.

    With `values.budget` 'left' a continuation may take what the trajectory had left at the state,
    so that value and policy share a horizon; with 'fresh' the whole budget, as VinePPO's code does.
    """
    branches, budgets = [], []
    for state, count in zip(states, counts, strict=True):
        start = len(state.episode.prompt)
        used = state.used if cfg.values.budget == "left" else 0
        for k in range(len(state.drawn), len(state.drawn) + count):
            # State 0 of `row_seed` is the solution itself: s_0 must not replay it.
            place = (state.problem.id, state.rollout, state.step + 1, k)
            seed = row_seed(cfg.seed, iteration, *place)
            branches.append(Branch(state.trunk, state.position, seed, start))
            budgets.append(cfg.sample.max_tokens - used)
    return branches, budgets


def _graded(
    stream: Stream,
    engine: Engine,
    graded: GradedTask,
    wanted: list[State],
    cfg: Config,
    with_steps: bool,
) -> list[Drawn]:
    """The continuations of `stream`, branch i of which begins at `wanted[i]`, in order."""
    truncated, tokenizer = cfg.reward.truncated, engine.tokenizer
    texts = {
        id(state): response_text(
            tokenizer, state.episode.prompt, state.episode.response[: state.used]
        )
        for state in wanted
    }
    continuations: dict[int, Grown] = {}
    solutions: dict[int, Solution] = {}  # of this host's own
    with BackgroundGrading(graded) as background:
        for i, grown in stream:
            continuations[i] = grown
            if is_mine(i):
                solutions[i] = _completed(wanted[i], texts[id(wanted[i])], grown)
                if is_graded(grown, truncated):
                    background.add(i, solutions[i].problem, solutions[i].text)
        outcomes = background.rewards()
    steps = {}
    if with_steps:  # else a return is the reward of the outcome
        steps = shared_work(
            {i: split_solution(graded, tokenizer, one) for i, one in solutions.items()}
        )
    drawn = []
    for i, state in enumerate(wanted):
        grown, (ends, rewards) = continuations[i], steps.get(i, ([], None))
        sample = Sample(
            tokens=np.array(state.episode.response[: state.used] + grown.tokens, np.int32),
            start=state.used,
            ends=ends,
            rewards=rewards or [0.0] * len(ends),
            outcome=outcomes.get(i, truncated or 0.0),
        )
        reward = sample.return_from(state.used, cfg.ppo.gamma)
        continuation = Continuation(grown.text, reward, grown.finish)
        drawn.append(Drawn(continuation, sample))
    return drawn


def _completed(state: State, text: str, grown: Grown) -> Solution:
    """The solution that a continuation makes of the response so far, whose text is `text`."""
    response = state.episode.response[: state.used] + grown.tokens
    return Solution(state.problem, state.episode.prompt, response, whole_text(text, grown))
