"""Scaf-GRPO: a problem that no solution gets right is tried again with hints.

    A = (r - mean r) / (std r + 1e-8)
    all wrong: a right solution with a hint of the lowest tier replaces one

Hints are a column of the data: tiers from vague to plain, each a list of hints in growing parts.
Without a column the lines of the data's solution are one tier, the last line left out. The hint
stays in the prompt of the solution that replaces another.

Source: https://arxiv.org/abs/2510.19807; dvlab-research/Scaf-GRPO at 1085db5.

Departs: std of the population, there of the sample; from the start, there after 50 steps.
"""

import dataclasses
from collections.abc import Sequence

from vinejax.contrib.methods.settings import ScafConfig
from vinejax.contrib.methods.solution_groups import members_of
from vinejax.core.errors import DataError
from vinejax.core.plugins import listed
from vinejax.core.seeds import row_seed
from vinejax.core.types import Episode, Problem, PromptedProblem, RunState, is_correct
from vinejax.methods.base import Method
from vinejax.methods.baselines import standardised
from vinejax.methods.stages import solutions
from vinejax.rollout.sampler import Start
from vinejax.session.iteration import Iteration, Solutions
from vinejax.tasks.base import Task
from vinejax.tasks.prompts import encode_prompt, template_variables


def scaffolded(iteration: Iteration, state: RunState, drawn: list[PromptedProblem]) -> Solutions:
    """Solutions, and in groups that are all wrong one that a hint made right, if any did."""
    sampled, own = solutions(iteration, state, drawn), ScafConfig.of(iteration.cfg)
    episodes, problems = list(sampled.episodes), {p.id: p for p, _ in sampled.problems}
    hopeless = [
        group
        for group in members_of(episodes)
        if not any(is_correct(episodes[i].reward) for i in group) and iteration.number >= own.after
    ]
    starts: list[Start] = []
    owners: list[tuple[int, int]] = []  # of each start: the number of its group, and its tier
    for n, group in enumerate(hopeless):
        hints = hinted(iteration, problems[episodes[group[0]].problem_id])
        owners += [(n, tier) for tier, _ in hints]
        starts += [start for _, start in hints]
    tried = (
        iteration.sampler.episodes(iteration.session.weights(state.policy.params), starts)
        if starts
        else []
    )
    replaced = 0
    for n, group in enumerate(hopeless):
        mine = [i for i, (owner, _) in enumerate(owners) if owner == n]
        best = first_right([owners[i][1] for i in mine], [tried[i] for i in mine])
        if best is not None:
            episodes[group[-1]] = tried[mine[best]]
            replaced += 1
    iteration.metrics |= {"scaf/tried": len(hopeless), "scaf/replaced": replaced}
    return Solutions(sampled.problems, episodes, sampled.sampled)


def first_right(tiers: Sequence[int], tried: Sequence[Episode]) -> int | None:
    """The first right one of the lowest tier that has any; None if all are wrong."""
    right = [(tier, i) for i, tier in enumerate(tiers) if is_correct(tried[i].reward)]
    return min(right)[1] if right else None


def hinted(iteration: Iteration, problem: Problem) -> list[tuple[int, Start]]:
    """(tier, start) of each hint of a problem; one whose prompt is too long is left out."""
    cfg, session, own = iteration.cfg, iteration.session, ScafConfig.of(iteration.cfg)
    variables = template_variables(session.tokenizer, cfg.data)
    found: list[tuple[int, Start]] = []
    for k, (tier, hint) in enumerate(hints_of(session.task, problem, own.column)):
        asked = problem.question + own.text.replace("{hint}", hint)
        text = session.task.prompt(dataclasses.replace(problem, question=asked))
        given = session.tokenizer, text, cfg.data.chat_template, problem.context, variables
        prompt = encode_prompt(*given)
        if len(prompt) <= cfg.data.max_prompt_tokens:
            seed = row_seed(cfg.seed, iteration.number, f"hint {problem.id}", k)
            found.append((tier, Start(problem, prompt, [], [seed])))
    return found


def hints_of(task: Task, problem: Problem, column: str) -> list[tuple[int, str]]:
    """(tier, hint) of a problem, the vague ones first. Raises DataError for a column without."""
    if not column:
        lines = task.solution(problem).strip().splitlines()
        return [(0, "\n".join(lines[:n])) for n in range(1, len(lines))]
    tiers = listed(problem.columns.get(column))
    if tiers is None:
        rule = f"column {column!r}, which scaf.column names, must be a list of tiers, each a list"
        raise DataError(f"{task.name} problem {problem.id}", None, f"{rule} of hints")
    parts = [[tier] if isinstance(tier, str) else listed(tier) or [] for tier in tiers]
    return [(tier, str(hint)) for tier, hints in enumerate(parts) for hint in hints]


METHOD = Method(
    standardised,
    sample=scaffolded,
    settings=ScafConfig,
    flags={"groups"},
    about=__doc__ or "",
)
