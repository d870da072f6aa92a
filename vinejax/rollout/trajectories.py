"""Solutions of an iteration's problems, and of a test set: branches at prompts' ends."""

import itertools
from typing import NamedTuple

import numpy as np

from vinejax.model.decoder import Params
from vinejax.rollout.branches import Branch, Grown
from vinejax.rollout.engine import Engine
from vinejax.runtime.distributed import is_mine, shared_work
from vinejax.seeds import row_seed
from vinejax.settings import Config
from vinejax.tasks.graded import BackgroundGrading, GradedTask
from vinejax.tasks.steps import step_ends
from vinejax.text import Tokenizer
from vinejax.types import Episode, Problem, PromptedProblem


class Solution(NamedTuple):
    """A whole response to a problem."""

    problem: Problem
    prompt: list[int]
    response: list[int]
    text: str  # as graded: it may end before what `response` decodes to


def sample_solutions(
    engine: Engine,
    params: Params,
    graded: GradedTask,
    problems: list[PromptedProblem],
    per_problem: int,
    seed: int,
    iteration: int,
    truncated: float | None = None,
) -> tuple[list[list[Grown]], np.ndarray]:
    """(`per_problem` responses to each problem, in their order; f32[problems, n] their rewards).

    The host that detokenises a response grades it while the devices go on with the others. A
    response that the budget cut gets the reward `truncated` instead, unless that is None.
    """
    trunks = [prompt for _, prompt in problems]
    branches = [
        Branch(i, len(prompt), row_seed(seed, iteration, problem.id, rollout))
        for i, (problem, prompt) in enumerate(problems)
        for rollout in range(per_problem)
    ]
    responses: dict[int, Grown] = {}
    with BackgroundGrading(graded) as background:
        for i, grown in engine.stream(params, trunks, branches):
            responses[i] = grown
            if is_mine(i) and is_graded(grown, truncated):
                background.add(i, problems[i // per_problem][0], grown.text)
        outcomes = shared_work(background.results())
    rewards = [outcomes.get(i, truncated or 0.0) for i in range(len(branches))]
    drawn = [responses[i] for i in range(len(branches))]
    groups = [drawn[i : i + per_problem] for i in range(0, len(drawn), per_problem)]
    return groups, np.array(rewards, np.float32).reshape(len(problems), per_problem)


def is_graded(grown: Grown, truncated: float | None) -> bool:
    """Whether a response is graded: always, unless the budget cut it and `truncated` is set."""
    return truncated is None or grown.finish != "length"


def split_solution(
    graded: GradedTask, tokenizer: Tokenizer, solution: Solution
) -> tuple[list[int], list[float] | None]:
    """([C] step ends, [C] the steps' own rewards, None if the task has none) of a solution.

    A step's end is the index of the response token after it. Steps that end inside the same token
    become one step, with the sum of their rewards.
    """
    problem, prompt, response, text = solution
    ends = graded.step_ends(tokenizer, prompt, response, text)
    if not graded.has_steps:
        return ends, None
    if not ends:
        return ends, []
    boundaries = graded.task.split(text)
    steps = [text[start:end] for start, end in itertools.pairwise(boundaries)]
    rewards = graded.step_rewards(problem, steps)
    if len(rewards) == len(ends):
        return ends, rewards
    inner = [
        step_ends(tokenizer, prompt, response, [0, boundary, len(text)], text)[0]
        for boundary in boundaries[1:-1]
    ]
    totals = dict.fromkeys(ends, 0.0)
    for end, reward in zip([*inner, ends[-1]], rewards, strict=True):
        totals[end] += reward
    return ends, list(totals.values())


def sample_episodes(
    engine: Engine,
    params: Params,
    graded: GradedTask,
    problems: list[PromptedProblem],
    cfg: Config,
    iteration: int,
) -> list[Episode]:
    """Graded episodes with their steps, `rollout.per_prompt` per problem; values come later."""
    per_problem, truncated = cfg.rollout.per_prompt, cfg.reward.truncated
    groups, rewards = sample_solutions(
        engine, params, graded, problems, per_problem, cfg.seed, iteration, truncated
    )
    drawn = [
        (Solution(problem, prompt, grown.tokens, grown.text), grown)
        for (problem, prompt), group in zip(problems, groups, strict=True)
        for grown in group
    ]
    mine = {
        i: split_solution(graded, engine.tokenizer, solution)
        for i, (solution, _) in enumerate(drawn)
        if is_mine(i)
    }
    steps = shared_work(mine)
    return [
        Episode(
            problem_id=solution.problem.id,
            prompt=solution.prompt,
            response=solution.response,
            logprobs=grown.logprobs,
            text=solution.text,
            finished=grown.finish != "length",
            reward=float(rewards.flat[i]),
            step_ends=steps[i][0],
            step_rewards=steps[i][1],
        )
        for i, (solution, grown) in enumerate(drawn)
    ]
