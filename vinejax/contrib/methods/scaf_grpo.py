"""Scaf-GRPO: a problem that no solution gets right is tried again with hints.

    A = (r - mean r) / (std r + 1e-8)
    all wrong: one solution is replaced by a right one with a hint of the lowest possible tier

Hints are a column of the data, a list of tiers from vague to plain. Each tier is a list of hints in
which later hints say more. Without a column there is one tier, which has the data's solution cut
after each line but the last. The hint stays in the prompt of the solution that replaces another.

Source: https://arxiv.org/abs/2510.19807; dvlab-research/Scaf-GRPO at 1085db5.

Departs: the std is that of the population; the code takes that of the sample. Hints are tried from
the start; the code tries them after 50 steps.
"""

import dataclasses
from collections.abc import Sequence

from vinejax.contrib.methods.settings import ScafConfig, hints_of
from vinejax.contrib.methods.solution_groups import members_of
from vinejax.core.seeds import row_seed
from vinejax.core.types import Episode, Problem, PromptedProblem, RunState, is_correct
from vinejax.methods.base import OF_RETURNS, Method
from vinejax.methods.baselines import standardised
from vinejax.methods.stages import solutions
from vinejax.rollout.sampler import Start
from vinejax.session.iteration import Iteration, Solutions
from vinejax.tasks.prompts import encode_prompt, template_variables, tools_of


def solutions_with_hints(
    iteration: Iteration, state: RunState, drawn: list[PromptedProblem]
) -> Solutions:
    """The sampled solutions, some of which are replaced by solutions with a hint.

    In a group without a right solution, the last solution is replaced by a right one that was
    sampled with a hint, if there is any.
    """
    sampled, settings = solutions(iteration, state, drawn), ScafConfig.of(iteration.cfg)
    episodes, problems = list(sampled.episodes), {p.id: p for p, _ in sampled.problems}
    wrong_groups = [
        group
        for group in members_of(episodes)
        if not any(is_correct(episodes[i].reward) for i in group)
        and iteration.number >= settings.after
    ]
    starts: list[Start] = []
    owners: list[tuple[int, int]] = []  # (number of the group, tier) of each start
    for n, group in enumerate(wrong_groups):
        hints = hint_starts(iteration, problems[episodes[group[0]].problem_id])
        owners += [(n, tier) for tier, _ in hints]
        starts += [start for _, start in hints]
    tried = (
        iteration.sampler.episodes(iteration.session.weights(state.policy.params), starts)
        if starts
        else []
    )
    replaced = 0
    for n, group in enumerate(wrong_groups):
        places = [i for i, (owner, _) in enumerate(owners) if owner == n]
        best = first_right([owners[i][1] for i in places], [tried[i] for i in places])
        if best is not None:
            episodes[group[-1]] = tried[places[best]]
            replaced += 1
    # Added up, because `rollout.zero_variance` = 'resample' samples in several rounds.
    for name, count in (("scaf/tried", len(wrong_groups)), ("scaf/replaced", replaced)):
        iteration.metrics[name] = iteration.metrics.get(name, 0) + count
    return Solutions(sampled.problems, episodes, sampled.sampled)


def first_right(tiers: Sequence[int], tried: Sequence[Episode]) -> int | None:
    """Index of the first right episode in the lowest tier that has one; None if all are wrong."""
    right = [(tier, i) for i, tier in enumerate(tiers) if is_correct(tried[i].reward)]
    return min(right)[1] if right else None


def hint_starts(iteration: Iteration, problem: Problem) -> list[tuple[int, Start]]:
    """(tier, start) for each hint of a problem, except hints with which the prompt is too long."""
    cfg, session, settings = iteration.cfg, iteration.session, ScafConfig.of(iteration.cfg)
    variables = template_variables(session.tokenizer, cfg.data, tools_of(session.task))
    starts: list[tuple[int, Start]] = []
    for k, (tier, hint) in enumerate(hints_of(session.task, problem, settings.column)):
        question = problem.question + settings.text.replace("{hint}", hint)
        text = session.task.prompt(dataclasses.replace(problem, question=question))
        prompt = encode_prompt(
            session.tokenizer,
            text,
            chat_template=cfg.data.chat_template,
            context=problem.context,
            variables=variables,
        )
        if len(prompt) <= cfg.data.max_prompt_tokens:
            seed = row_seed(cfg.seed, iteration.number, f"hint {problem.id}", k)
            starts.append((tier, Start(problem, prompt, [], [seed])))
    return starts


METHOD = Method(
    standardised,
    sample=solutions_with_hints,
    settings=ScafConfig,
    ignores=OF_RETURNS,
    flags={"groups"},
)
