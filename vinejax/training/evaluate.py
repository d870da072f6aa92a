"""Accuracy of a policy on a split: pass@1, pass@k, maj@k, with bootstrap intervals."""

import itertools
import json
import os
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from vinejax.core.settings import Config
from vinejax.core.types import PromptedProblem, TrainState
from vinejax.engine.branches import Grown
from vinejax.model.decoder import Params
from vinejax.rollout.trajectories import sample_solutions
from vinejax.runtime.checkpoint import find_policy, restore_policy
from vinejax.runtime.distributed import barrier, is_writer
from vinejax.runtime.log import RunLog
from vinejax.runtime.workdir import write_atomic
from vinejax.statistics.accuracy import accuracy_metrics, pass_at_1
from vinejax.tasks.base import Split
from vinejax.training.metrics import part_means
from vinejax.training.session import Session, open_session

PREFIXES = {"validation": "eval", "test": "test"}  # of the metrics' names
SAME_DRAWS = -1  # for row_seed's iteration: every evaluation draws the same random numbers


class Solved(NamedTuple):
    """Problems with their graded responses, n each."""

    problems: list[PromptedProblem]
    solutions: list[list[Grown]]  # [P][n]
    rewards: np.ndarray  # f32[P, n]
    parts: list[list[dict[str, float] | None]]  # [P][n] those of reward functions


def solve(session: Session, params: Params, split: Split) -> Solved:
    """The problems of a split, with `eval.samples` responses to each.

    A response that the budget cut is graded like any other, as in the evaluation of VinePPO's code.
    """
    cfg, engine = session.cfg, session.evaluator
    problems = session.problems[split][: cfg.eval.problems]
    sampled = sample_solutions(
        engine, params, session.graded, problems, cfg.eval.samples, cfg.seed, SAME_DRAWS
    )
    engine.release()
    return Solved(problems, *sampled)


def metrics_of(session: Session, solved: Solved) -> dict[str, float]:
    """The accuracies, the mean response length and the fraction of responses that were cut."""
    solutions = solved.solutions
    answers = [[session.task.answer(grown.text) for grown in group] for group in solutions]
    responses = [grown for group in solutions for grown in group]
    parts = itertools.chain.from_iterable(solved.parts)
    return accuracy_metrics(solved.rewards, answers, session.cfg.seed) | {
        "response_length": float(np.mean([len(grown.tokens) for grown in responses])),
        "clip_ratio": float(np.mean([grown.finish == "length" for grown in responses])),
        **part_means(parts),
    }


def accuracy_of(session: Session, params: Params, split: Split) -> float:
    """pass@1 of a split; nothing is recorded."""
    return pass_at_1(solve(session, params, split).rewards)


def evaluate(session: Session, policy: TrainState, split: Split, done: int, log: RunLog) -> float:
    """Evaluate the policy after `done` iterations and record it; returns pass@1."""
    name = PREFIXES[split]
    with log.stage(name):
        solved = solve(session, session.weights(policy.params), split)
    metrics = metrics_of(session, solved)
    named = {f"{name}/{key}": value for key, value in metrics.items()}
    log.metrics(done, int(policy.step), name, named | log.timings)
    return metrics["pass_at_1"]


def evaluate_run(cfg: Config, path: str | os.PathLike) -> dict[str, Any]:
    """`--mode=eval`: the policy of the workdir that validation chooses, on the test split.

    Prints the figures, and writes them and every response to `<workdir>/eval/`.
    """
    with open_session(cfg, path, splits=("test",)) as session:
        workdir = session.workdir
        params, source = best_params(session)
        if is_writer() and not (workdir / "checkpoints").exists():
            print(f"{workdir}: holds no run; evaluates the start")
        solved = solve(session, params, "test")
        metrics = metrics_of(session, solved)
    size = len(solved.problems)
    record = {"source": source, "problems": size, "samples": cfg.eval.samples, **metrics}
    if is_writer():
        _write_evaluation(workdir, solved, record)
    barrier("the end")
    return record


def _write_evaluation(workdir: epath.Path, solved: Solved, record: dict[str, Any]) -> None:
    problems, solutions, rewards, _ = solved
    folder = workdir / "eval"
    folder.mkdir(parents=True, exist_ok=True)
    rows = (
        {"problem_id": problem.id, "question": problem.question, "answer": problem.answer,
         "responses": [{"text": g.text, "finish": g.finish, "reward": float(r)}
                       for g, r in zip(group, row, strict=True)]}
        for (problem, _), group, row in zip(problems, solutions, rewards, strict=True)
    )  # fmt: skip
    write_atomic(folder / "test.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write_atomic(folder / "test.json", json.dumps(record, indent=2) + "\n")
    print(f"{record['source']} on {len(problems)} test problems, {record['samples']} samples each")
    for name, value in record.items():
        if isinstance(value, float):
            print(f"  {name:<16} {value:.4f}")


def best_params(session: Session) -> tuple[Params, str]:
    """(the weights that `find_policy` calls the best, where they come from)."""
    checkpoint = find_policy(session.workdir, "best")
    if checkpoint is None:
        return session.load_reference(), "the start"
    trained, source = restore_policy(session.workdir / checkpoint[0], session.fresh_params())
    return session.weights(trained), source
