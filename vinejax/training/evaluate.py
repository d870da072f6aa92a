"""Evaluations during a run, and `--mode=eval`."""

import json
import os
from typing import Any

from etils import epath

from vinejax.core.settings import Config
from vinejax.core.types import TrainState
from vinejax.runtime.checkpoint import find_policy, restore_policy
from vinejax.runtime.distributed import barrier, is_writer
from vinejax.runtime.log import RunLog
from vinejax.runtime.workdir import write_atomic
from vinejax.session.evaluation import SolvedProblems, metrics_of, solve
from vinejax.session.session import Session
from vinejax.tasks.base import Split
from vinejax.training.startup import open_session

PREFIXES = {"validation": "eval", "test": "test"}  # split -> prefix of its metrics' names


def evaluate(session: Session, policy: TrainState, split: Split, done: int, log: RunLog) -> float:
    """Evaluates the policy after `done` iterations and records the metrics; returns pass@1."""
    name = PREFIXES[split]
    session.set_progress(done)
    with log.stage(name):
        solved = solve(session, session.weights(policy.params), split)
    metrics = metrics_of(session, solved)
    named = {f"{name}/{key}": value for key, value in metrics.items()}
    log.metrics(done, int(policy.step), name, named | log.timings)
    return metrics["pass_at_1"]


def evaluate_run(cfg: Config, path: str | os.PathLike) -> dict[str, Any]:
    """`--mode=eval`: evaluates, on the test split, the policy that validation chose.

    Prints the metrics, and writes the metrics and every response to `<workdir>/eval/`.
    """
    with open_session(cfg, path, splits=("test",)) as session:
        workdir = session.workdir
        checkpoint = find_policy(workdir, "best")
        if checkpoint is None:
            params, source = session.load_reference(), "the start"
        else:
            folder, done = checkpoint
            trained, source = restore_policy(workdir / folder, session.fresh_params())
            session.set_progress(done)
            params = session.weights(trained)
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


def _write_evaluation(workdir: epath.Path, solved: SolvedProblems, record: dict[str, Any]) -> None:
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
    width = max(map(len, record))
    for name, value in record.items():
        if isinstance(value, float):
            print(f"  {name:<{width}} {value:.4f}")
