"""Solutions of an iteration's problems, and of a test set: branches where they start.

That is the end of the prompt, or for `resets.py` further on, after the first tokens of a response.
"""

import bisect
import itertools
from typing import NamedTuple

import numpy as np

from vinejax.core.seeds import row_seed
from vinejax.core.settings import Config
from vinejax.core.text import Tokenizer, response_text
from vinejax.core.types import Episode, Problem, PromptedProblem
from vinejax.engine.branches import Branch, Grown
from vinejax.engine.engine import Engine
from vinejax.model.decoder import Params
from vinejax.runtime.distributed import is_mine, shared_work
from vinejax.tasks.graded import BackgroundGrading, GradedTask
from vinejax.tasks.steps import step_ends


class Solution(NamedTuple):
    """A whole response to a problem."""

    problem: Problem
    prompt: list[int]
    response: list[int]
    text: str  # as graded: it may end before what `response` decodes to


class Sampled(NamedTuple):
    """What was drawn at each start; `parts` are those of reward functions, None of no grading."""

    groups: list[list[Grown]]  # [starts][n]
    rewards: np.ndarray  # f32[starts, n]
    parts: list[list[dict[str, float] | None]]  # [starts][n]


class Start(NamedTuple):
    """Where solutions of a problem begin: after the prompt and the given tokens of a response."""

    problem: Problem
    prompt: list[int]
    given: list[int]
    seeds: list[int]  # one per solution


def sample_solutions(
    engine: Engine,
    params: Params,
    graded: GradedTask,
    problems: list[PromptedProblem],
    per_problem: int,
    seed: int,
    iteration: int,
    truncated: float | None = None,
) -> Sampled:
    """`per_problem` responses to each problem, in their order, with their rewards.

    A response that the budget cut gets the reward `truncated` unless that is None.
    """
    starts = prompt_starts(problems, per_problem, seed, iteration)
    return sample_from(engine, params, graded, starts, None, truncated)


def prompt_starts(
    problems: list[PromptedProblem], per_problem: int, seed: int, iteration: int
) -> list[Start]:
    """The prompts' ends, with `per_problem` seeds each."""
    return [
        Start(
            problem,
            prompt,
            [],
            [row_seed(seed, iteration, problem.id, i) for i in range(per_problem)],
        )
        for problem, prompt in problems
    ]


def sample_from(
    engine: Engine,
    params: Params,
    graded: GradedTask,
    starts: list[Start],
    max_tokens: int | None,
    truncated: float | None,
) -> Sampled:
    """What was drawn at each start, with the rewards of the whole responses.

    All starts have n seeds. A response has `max_tokens` tokens at most, the given ones included;
    None: the engine's own number for what is drawn.

    The host that detokenises a response grades it while the devices go on with the others. A
    response that the budget cut gets the reward `truncated` instead, unless that is None.
    """
    trunks = [start.prompt + start.given for start in starts]
    wanted = [i for i, start in enumerate(starts) for _ in start.seeds]
    seeds = [seed for start in starts for seed in start.seeds]
    branches = [
        Branch(i, len(trunks[i]), seed, len(starts[i].prompt))
        for i, seed in zip(wanted, seeds, strict=True)
    ]
    budgets = None if max_tokens is None else [max_tokens - len(starts[i].given) for i in wanted]
    texts = [response_text(engine.tokenizer, start.prompt, start.given) for start in starts]
    responses: dict[int, Grown] = {}
    with BackgroundGrading(graded) as background:
        for i, grown in engine.stream(params, trunks, branches, budgets):
            responses[i] = grown
            if is_mine(i) and is_graded(grown, truncated):
                start = wanted[i]
                background.add(i, starts[start].problem, whole_text(texts[start], grown))
        outcomes = background.rewards()
    rewards = [outcomes.get(i, truncated or 0.0) for i in range(len(branches))]
    drawn = [responses[i] for i in range(len(branches))]
    size = len(starts[0].seeds) if starts else 0
    parts = [background.parts.get(i) for i in range(len(branches))]
    rows = [slice(i * size, (i + 1) * size) for i in range(len(starts))]
    return Sampled(
        [drawn[row] for row in rows],
        np.array(rewards, np.float32).reshape(len(starts), size),
        [parts[row] for row in rows],
    )


def whole_text(before: str, grown: Grown) -> str:
    """The text of a response that begins with `before` and ends with what was drawn."""
    return before[: len(before) - grown.overlap] + grown.text


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
    starts = prompt_starts(problems, cfg.rollout.per_prompt, cfg.seed, iteration)
    return episodes_from(engine, params, graded, starts, cfg)


def episodes_from(
    engine: Engine, params: Params, graded: GradedTask, starts: list[Start], cfg: Config
) -> list[Episode]:
    """Graded episodes with their steps, one for each seed of each start.

    A response is graded and split as a whole; steps that end within what is given are dropped,
    with their rewards.
    """
    groups, rewards, of_functions = sample_from(
        engine, params, graded, starts, cfg.sample.max_tokens, cfg.reward.truncated
    )
    tokenizer = engine.tokenizer
    drawn: list[tuple[Solution, int, Grown]] = []
    for (problem, prompt, given, _), group in zip(starts, groups, strict=True):
        before = response_text(tokenizer, prompt, given)
        for grown in group:
            text = whole_text(before, grown)
            solution = Solution(problem, prompt, given + grown.tokens, text)
            drawn.append((solution, len(given), grown))
    mine = {
        i: _steps_after(given, *split_solution(graded, tokenizer, solution))
        for i, (solution, given, _) in enumerate(drawn)
        if is_mine(i)
    }
    steps = shared_work(mine)
    parts = list(itertools.chain.from_iterable(of_functions))
    return [
        Episode(
            problem_id=solution.problem.id,
            prompt=solution.prompt,
            response=solution.response,
            logprobs=[0.0] * given + grown.logprobs,
            text=solution.text,
            finished=grown.finish != "length",
            reward=float(rewards.flat[i]),
            step_ends=steps[i][0],
            step_rewards=steps[i][1],
            reward_parts=parts[i],
            given=given,
        )
        for i, (solution, given, grown) in enumerate(drawn)
    ]


def _steps_after(
    given: int, ends: list[int], rewards: list[float] | None
) -> tuple[list[int], list[float] | None]:
    """The ends and rewards of the steps that end after the first `given` response tokens."""
    first = bisect.bisect_right(ends, given)
    return ends[first:], None if rewards is None else rewards[first:]
