"""Solutions of an iteration's problems, and of a test set: the same branches at prompts' ends."""

import itertools
from collections.abc import Callable

import numpy as np

from vinejax.model.decoder import Params
from vinejax.rollout.branches import Branch, Grown, OnGrown
from vinejax.rollout.engine import Engine
from vinejax.runtime.distributed import is_mine, shared_work
from vinejax.seeds import row_seed
from vinejax.settings import Config
from vinejax.tasks.graded import BackgroundGrading, GradedTask
from vinejax.tasks.steps import step_ends
from vinejax.text import Tokenizer
from vinejax.types import Episode, Problem, PromptedProblem


def sample_solutions(
    engine: Engine,
    params: Params,
    rewards: GradedTask,
    problems: list[PromptedProblem],
    per_problem: int,
    seed: int,
    iteration: int,
    truncated: float | None = None,
) -> tuple[list[list[Grown]], np.ndarray]:
    """(`per_problem` responses to each of P problems, in their order; f32[P, n] their rewards).

    A response that the budget cut gets `truncated`, whatever it says; None: it is graded too.
    """
    trunks = [prompt for _, prompt in problems]
    branches = [
        Branch(i, len(prompt), row_seed(seed, iteration, problem.id, rollout))
        for i, (problem, prompt) in enumerate(problems)
        for rollout in range(per_problem)
    ]

    def response_of(i: int, grown: Grown) -> tuple[Problem, str]:
        return problems[i // per_problem][0], grown.text

    def grow(on_grown: OnGrown) -> list[Grown]:
        return engine.grow(params, trunks, branches, on_grown=on_grown)

    grown, outcomes = graded_as_grown(grow, rewards, response_of, truncated)
    groups = [grown[i : i + per_problem] for i in range(0, len(grown), per_problem)]
    return groups, np.array(outcomes, np.float32).reshape(len(problems), per_problem)


def graded_as_grown(
    grow: Callable[[OnGrown], list[Grown]],
    rewards: GradedTask,
    response_of: Callable[[int, Grown], tuple[Problem, str]],
    truncated: float | None,
) -> tuple[list[Grown], list[float]]:
    """(what grew, the rewards), each response graded while the devices go on with the others.

    `response_of(i, grown)` is the problem and the whole response that branch i makes. Each host
    grades the branches that it reads.
    """
    with BackgroundGrading(rewards) as background:

        def on_grown(i: int, one: Grown) -> None:
            if truncated is None or one.finish != "length":
                background.add(i, *response_of(i, one))

        grown = grow(on_grown)
        found = shared_work(background.results())
    cut = truncated or 0.0
    return grown, [found.get(i, cut) for i in range(len(grown))]


def rewarded_steps(
    rewards: GradedTask,
    tokenizer: Tokenizer,
    problem: Problem,
    prompt: list[int],
    response: list[int],
    text: str,
) -> tuple[list[int], list[float] | None]:
    """([C] step ends, [C] the steps' own rewards) of a response; None if the task rewards none.

    The rewards of steps that end inside one token add up, as these steps are one.
    """
    ends = rewards.step_ends(tokenizer, prompt, response, text)
    if not rewards.has_steps or not ends:
        return ends, [] if rewards.has_steps else None
    boundaries = rewards.task.split(text)
    steps = [text[start:end] for start, end in itertools.pairwise(boundaries)]
    own = rewards.step_rewards(problem, steps)
    if len(own) == len(ends):
        return ends, own
    total = dict.fromkeys(ends, 0.0)
    for reward, boundary in zip(own[:-1], boundaries[1:], strict=False):
        end, *_ = step_ends(tokenizer, prompt, response, [0, boundary, len(text)], text)
        total[end] += reward
    total[ends[-1]] += own[-1]
    return ends, list(total.values())


def sample_episodes(
    engine: Engine,
    params: Params,
    rewards: GradedTask,
    problems: list[PromptedProblem],
    cfg: Config,
    iteration: int,
) -> list[Episode]:
    """Graded episodes with their steps, `rollout.per_prompt` a problem; values come later."""
    solutions, outcomes = sample_solutions(
        engine, params, rewards, problems, cfg.rollout.per_prompt, cfg.seed, iteration,
        cfg.reward.truncated,
    )  # fmt: skip
    drawn = [
        (problem, prompt, grown)
        for (problem, prompt), responses in zip(problems, solutions, strict=True)
        for grown in responses
    ]
    tokenizer = engine.tokenizer
    steps = shared_work(
        {
            i: list(rewarded_steps(rewards, tokenizer, problem, prompt, g.tokens, g.text))
            for i, (problem, prompt, g) in enumerate(drawn)
            if is_mine(i)
        }
    )
    episodes = []
    for i, (problem, prompt, grown) in enumerate(drawn):
        ends, own = steps[i]
        episodes.append(
            Episode(
                problem_id=problem.id,
                prompt=prompt,
                response=grown.tokens,
                logprobs=grown.logprobs,
                text=grown.text,
                finished=grown.finish != "length",
                reward=float(outcomes.flat[i]),
                step_ends=ends,
                step_rewards=own,
            )
        )
    return episodes
