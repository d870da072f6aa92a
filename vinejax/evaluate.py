"""Accuracy of a policy on a split: pass@1, pass@k, maj@k, with bootstrap intervals."""

import json
import os
from typing import Any

import jax
import numpy as np
from etils import epath

from vinejax.analysis.accuracy import accuracy_metrics
from vinejax.model.decoder import Params
from vinejax.rollout.branches import Grown
from vinejax.rollout.engine import Engine
from vinejax.rollout.trajectories import sample_solutions
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.distributed import barrier, is_writer
from vinejax.runtime.log import RunLog
from vinejax.runtime.workdir import write_atomic
from vinejax.session import Session, open_session
from vinejax.settings import Config
from vinejax.tasks.base import Split
from vinejax.types import PromptedProblem

PREFIXES = {"validation": "eval", "test": "test"}  # of the metrics' names
SAME_DRAWS = -1  # for row_seed's iteration: every evaluation draws the same random numbers


def solve(
    session: Session, engine: Engine, params: Params, split: Split
) -> tuple[list[PromptedProblem], list[list[Grown]], np.ndarray]:
    """(problems, their `eval.samples` responses, rewards [P, n]) of a split.

    A response that the budget cut is graded like any other, as the reference's evaluation does.
    """
    cfg = session.cfg
    problems = session.problems[split][: cfg.eval.problems]
    solutions, rewards = sample_solutions(
        engine, params, session.rewards, problems, cfg.eval.samples, cfg.seed, SAME_DRAWS
    )
    engine.release()
    return problems, solutions, rewards


def metrics_of(
    session: Session, solutions: list[list[Grown]], rewards: np.ndarray
) -> dict[str, float]:
    """pass_at_1 and the rest, with the mean response length and the share that was cut."""
    answers = [[session.task.answer(grown.text) for grown in group] for group in solutions]
    everything = [grown for group in solutions for grown in group]
    return accuracy_metrics(rewards, answers, session.cfg.seed) | {
        "response_length": float(np.mean([len(grown.tokens) for grown in everything])),
        "clip_ratio": float(np.mean([grown.finish == "length" for grown in everything])),
    }


def accuracy_of(session: Session, engine: Engine, params: Params, split: Split) -> float:
    """pass@1 of a split, which is not recorded."""
    _, _, rewards = solve(session, engine, params, split)
    return float(rewards.mean(axis=1).mean())


def evaluate(
    session: Session,
    engine: Engine,
    params: Params,
    split: Split,
    done: int,
    step: int,
    log: RunLog,
) -> float:
    """Evaluate after `done` iterations and record it; returns pass@1."""
    name = PREFIXES[split]
    with log.stage(name):
        _, solutions, rewards = solve(session, engine, params, split)
    found = metrics_of(session, solutions, rewards)
    values = {f"{name}/{key}": value for key, value in found.items()}
    log.metrics(done, step, name, values | log.timings)
    return found["pass_at_1"]


def evaluate_run(cfg: Config, path: str | os.PathLike) -> dict[str, Any]:
    """`--mode=eval`: the best policy of the workdir, else its newest, else the start, on the test
    split. Prints the figures; writes them, and every response, to `<workdir>/eval/`."""
    with open_session(cfg, path, splits=("test",)) as session:
        workdir = session.workdir
        params, source = newest_params(session, workdir)
        problems, solutions, rewards = solve(session, session.evaluator, params, "test")
        found = metrics_of(session, solutions, rewards)
    record = {"source": source, "problems": len(problems), "samples": cfg.eval.samples, **found}
    if is_writer():
        _write_evaluation(workdir, problems, solutions, rewards, record)
    barrier("the end")
    return record


def _write_evaluation(
    workdir: epath.Path,
    problems: list[PromptedProblem],
    solutions: list[list[Grown]],
    rewards: np.ndarray,
    record: dict[str, Any],
) -> None:
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


def newest_params(session: Session, workdir: epath.Path) -> tuple[Params, str]:
    """Weights to evaluate and where they come from."""
    start = session.reference
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), start
    )
    for name in ("best", "checkpoints"):
        if (workdir / name).exists():
            with Checkpoints(workdir / name, keep=1) as checkpoints:
                if (step := checkpoints.latest()) is not None:
                    return checkpoints.restore_params(step, like)[0], f"{name}/{step}"
    return start, "the start"
