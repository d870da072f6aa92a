"""Accuracy of a policy on a split: pass@1, pass@k, maj@k, with bootstrap intervals."""

import itertools
from typing import NamedTuple

import numpy as np

from vinejax.core.types import PromptedProblem
from vinejax.engine.branches import Grown
from vinejax.model.decoder import Params
from vinejax.session.metrics import part_means
from vinejax.session.session import Session
from vinejax.statistics.accuracy import accuracy_metrics
from vinejax.tasks.base import Split

SAME_DRAWS = -1  # iteration number of all evaluations, which so draw the same random numbers


class SolvedProblems(NamedTuple):
    """Problems with n graded responses each."""

    problems: list[PromptedProblem]
    solutions: list[list[Grown]]  # [P][n]
    rewards: np.ndarray  # f32[P, n]
    parts: list[list[dict[str, float] | None]]  # [P][n] reward function -> its reward


def solve(session: Session, params: Params, split: Split) -> SolvedProblems:
    """The problems of a split, with `eval.samples` responses to each.

    A response cut at the token limit is graded like any other, as VinePPO's code grades it.
    """
    cfg, engine = session.cfg, session.evaluator
    problems = session.problems[split][: cfg.eval.problems]
    sampler = session.sampler_of(engine, cfg, SAME_DRAWS)
    sampled = sampler.responses(params, problems, cfg.eval.samples)
    engine.release()
    return SolvedProblems(problems, *sampled)


def metrics_of(session: Session, solved: SolvedProblems) -> dict[str, float]:
    """The accuracies, the mean response length and the fraction of responses that were cut.

    If the split has several data sets, the result also has the accuracies on each data set.
    """
    solutions = solved.solutions
    answers = [
        session.graded.answers([(problem, grown.text) for grown in group])
        for (problem, _), group in zip(solved.problems, solutions, strict=True)
    ]
    responses = [grown for group in solutions for grown in group]
    parts = itertools.chain.from_iterable(solved.parts)
    return accuracy_metrics(solved.rewards, answers, session.cfg.seed) | {
        "response_length": float(np.mean([len(grown.tokens) for grown in responses])),
        "clip_ratio": float(np.mean([grown.finish == "length" for grown in responses])),
        **part_means(parts),
        **metrics_by_source(session, solved, answers),
    }


def metrics_by_source(
    session: Session, solved: SolvedProblems, answers: list[list[str | None]]
) -> dict[str, float]:
    """The accuracies on each data set of a split, '<name>/pass_at_1'; {} for a single data set.

    As in verl, the column `data_source` of a problem names its data set. Without this column,
    the data set has the name of the task.
    """
    sets: dict[str, list[int]] = {}
    for i, (problem, _) in enumerate(solved.problems):
        source = str(problem.columns.get("data_source") or session.task.name)
        sets.setdefault(source, []).append(i)
    if len(sets) == 1:
        return {}
    metrics = {}
    for source, rows in sets.items():
        accuracies = accuracy_metrics(
            solved.rewards[rows], [answers[i] for i in rows], session.cfg.seed
        )
        metrics |= {f"{source}/{name}": value for name, value in accuracies.items()}
    return metrics
