"""Solutions of an iteration's problems, and of a test set: the same branches at prompts' ends."""

from vinejax.config import Config
from vinejax.model.decoder import Params
from vinejax.rollout.engine import Branch, Engine, Grown
from vinejax.tasks.base import Task
from vinejax.tasks.steps import step_ends
from vinejax.types import Episode, Problem, row_seed

PromptedProblem = tuple[Problem, list[int]]  # a problem and the ids of its prompt


def sample_solutions(
    engine: Engine,
    params: Params,
    problems: list[PromptedProblem],
    per_problem: int,
    seed: int,
    iteration: int,
) -> list[list[Grown]]:
    """`per_problem` responses to each problem, in the problems' order."""
    trunks = [prompt for _, prompt in problems]
    branches = [
        Branch(i, len(prompt), row_seed(seed, iteration, problem.id, rollout))
        for i, (problem, prompt) in enumerate(problems)
        for rollout in range(per_problem)
    ]
    grown = engine.grow(params, trunks, branches)
    return [grown[i : i + per_problem] for i in range(0, len(grown), per_problem)]


def graded(task: Task, problem: Problem, response: str, finish: str, truncated: float) -> float:
    """The return of a response; one that the budget cut gets `truncated` whatever it says."""
    return truncated if finish == "length" else float(task.reward(problem, response))


def sample_episodes(
    engine: Engine,
    params: Params,
    task: Task,
    problems: list[PromptedProblem],
    cfg: Config,
    iteration: int,
) -> list[Episode]:
    """Graded episodes with their steps, `rollout.per_prompt` a problem; values come later."""
    solutions = sample_solutions(
        engine, params, problems, cfg.rollout.per_prompt, cfg.seed, iteration
    )
    episodes = []
    for (problem, prompt), responses in zip(problems, solutions, strict=True):
        for grown in responses:
            boundaries = task.split(grown.text)
            ends = step_ends(engine.tokenizer, prompt, grown.tokens, boundaries, grown.text)
            episodes.append(
                Episode(
                    problem_id=problem.id,
                    prompt=prompt,
                    response=grown.tokens,
                    logprobs=grown.logprobs,
                    text=grown.text,
                    finished=grown.finish != "length",
                    reward=graded(task, problem, grown.text, grown.finish, cfg.reward.truncated),
                    step_ends=ends,
                )
            )
    return episodes
