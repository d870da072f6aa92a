"""The next steps that a policy could take at states, and rollouts after each of them.

    Q(s, a) = r(a) + γ · V(s after a), or r(a) + the outcome's reward if a ends the response

Here a is a step from state s. In shapes, S is the number of states, and A is the number of next
steps at a state. `ranking.py` scores predictions of Q. The source is the 1-of-5 ranking of VinePPO
(`action_ranking_analyzer.py`); docs/credit_bench.md lists the differences.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from vinejax.core.types import Episode, Problem, PromptedProblem
from vinejax.model.decoder import Params
from vinejax.rollout.sampler import DrawnContinuation, Sampler, ValuedState
from vinejax.tools.bench.truth import SolutionState, draw_returns, for_purpose

DRAWS = 5  # continuations of a state whose next steps are compared


class NextStep(NamedTuple):
    """A step that the policy took at a state."""

    tokens: list[int]  # response tokens up to the step's end
    reward: float  # the step's own reward, plus the outcome's if the step ends the response
    is_last: bool  # whether the step ends the response


@dataclasses.dataclass(frozen=True)
class NextStepChoice:
    """A state and the different next steps that were drawn there, in the order of drawing."""

    state: SolutionState
    problem: Problem
    prompt: list[int]
    steps: list[NextStep]


class NextSteps(NamedTuple):
    """The states with next steps to compare, and numbers of states tried and of states left out."""

    choices: list[NextStepChoice]
    tried: int  # states with sampled continuations
    few: int  # states left out because they have fewer than `least` different next steps
    decided: int  # states left out because every next step ends the response


def sample_next_steps(
    sampler: Sampler,
    params: Params,
    problems: Sequence[PromptedProblem],
    episodes: list[Episode],
    states: Sequence[SolutionState],
    draws: int = DRAWS,
    least: int = 2,
) -> NextSteps:
    """The different next steps in `draws` continuations of each state.

    The next step of a continuation is its first step after the state. Steps are equal if their
    tokens are equal. States with fewer than `least` different next steps are left out, and also
    states where every next step ends the response.
    """
    by_id = {problem.id: problem for problem, _ in problems}
    sampled_states = [
        ValuedState(by_id[episodes[i].problem_id], i, episodes[i], i, c, used, visits=[])
        for i, c, used in states
    ]
    counts = [draws] * len(sampled_states)
    seeded = for_purpose(sampler, "next steps")
    seeded.continuations(params, episodes, sampled_states, counts, with_steps=True)
    choices, few, decided = [], 0, 0
    for visited, state in zip(states, sampled_states, strict=True):
        steps: dict[tuple[int, ...], NextStep] = {}
        for drawn in state.continuations:
            step = _next_step(drawn, state.used)
            steps.setdefault(tuple(step.tokens), step)
        if len(steps) < least:
            few += 1
        elif all(step.is_last for step in steps.values()):
            decided += 1
        else:
            different = list(steps.values())
            choices.append(NextStepChoice(visited, state.problem, state.episode.prompt, different))
    return NextSteps(choices, len(sampled_states), few, decided)


def step_returns(
    sampler: Sampler, params: Params, choices: Sequence[NextStepChoice], count: int, purpose: str
) -> list[np.ndarray]:
    """For each choice, f64[A, count]: r + γ · return, for `count` rollouts after each next step.

    Here r is the reward of the next step itself. Rollouts for different purposes, such as 'truth'
    and 'prediction', share no random number. For a step that ends the response, all entries are r.
    """
    episodes: list[Episode] = []
    states_after: list[ValuedState] = []
    for choice in choices:
        for step in choice.steps:
            if not step.is_last:
                episode, used = partial_solution(choice, step.tokens), len(step.tokens)
                number = len(states_after)
                states_after.append(
                    ValuedState(choice.problem, number, episode, number, 0, used, visits=[])
                )
                episodes.append(episode)
    seeded = for_purpose(sampler, f"rollouts after next steps, {purpose}")
    rows = iter(draw_returns(seeded, params, episodes, states_after, count))
    returns = []
    for choice in choices:
        later = [np.zeros(count) if step.is_last else next(rows) for step in choice.steps]
        returns.append(np.array(step_values(choice, later, sampler.cfg.ppo.gamma)))
    return returns


def step_values(
    choice: NextStepChoice, values_after: Sequence[ArrayLike], gamma: float
) -> np.ndarray:
    """f64[A, ...]: r + γ · `values_after` for each next step, where r is the step's own reward.

    `values_after` [A][...] are values of the states after the steps, or returns from these states.
    For a step that ends the response, all entries are r.
    """
    rows = []
    for step, values in zip(choice.steps, values_after, strict=True):
        later = np.asarray(values, np.float64)
        rows.append(step.reward + (np.zeros_like(later) if step.is_last else gamma * later))
    return np.array(rows)


def _next_step(drawn: DrawnContinuation, used: int) -> NextStep:
    """The first step of a continuation that starts after `used` response tokens."""
    sample, num_tokens = drawn.sample, len(drawn.sample.tokens)
    first = next((i for i, end in enumerate(sample.ends) if end > used), None)
    if first is None or sample.ends[first] == num_tokens:
        return NextStep(sample.tokens.tolist(), drawn.continuation.reward, True)
    end = sample.ends[first]
    return NextStep(sample.tokens[:end].tolist(), sample.rewards[first], False)


def partial_solution(choice: NextStepChoice, tokens: list[int]) -> Episode:
    """An unfinished solution of the choice's problem, with `tokens` as a response of one step."""
    return Episode(
        problem_id=choice.problem.id,
        prompt=choice.prompt,
        response=tokens,
        logprobs=[0.0] * len(tokens),
        text="",  # not read: each rollout has a text of its own
        finished=False,
        reward=0.0,
        step_ends=[len(tokens)],
    )
