"""`--mode=eval --sets=...`: the start of a run against its result on named sets of problems."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from vinejax.config.sizes import check_answers
from vinejax.core.settings import Config
from vinejax.core.types import PromptedProblem
from vinejax.model.decoder import Params
from vinejax.runtime.checkpoint import find_trained, restore_policy
from vinejax.runtime.distributed import barrier, is_mine, is_writer, shared_work
from vinejax.runtime.workdir import write_atomic
from vinejax.session.evaluation import SAME_DRAWS, SolvedProblems, metrics_of
from vinejax.session.session import Session
from vinejax.tasks.graded import GradedTask
from vinejax.tasks.prompts import load_problems
from vinejax.tasks.spelling import warn_unspelled
from vinejax.tools.sets.set_table import (
    difference_of,
    markdown,
    rewards_by_problem,
    table_record,
)
from vinejax.tools.sets.set_tasks import SetTask, set_tasks
from vinejax.training.start_weights import WARM_UP
from vinejax.training.startup import open_session

FOLDER = "sets"  # in the folder `eval` of the workdir
DIGEST = "digest"  # field of a set's record


class Policies(NamedTuple):
    """The weights that are compared, and where they come from."""

    weights: dict[str, Params]  # 'start' and, if the run has a checkpoint, 'result'
    sources: dict[str, str | None]  # of 'start' and 'result'; None without a checkpoint


class PromptedSet(NamedTuple):
    """A set with the prompts of its problems as token ids."""

    source: SetTask
    problems: list[PromptedProblem]
    left_out: list[str]  # ids of problems with too long prompts
    digest: str  # of all that determines the set's record


def evaluate_sets(cfg: Config, path: str | os.PathLike, sets: str) -> dict[str, Any]:
    """Evaluates the start and the result of a run on sets, and writes and prints a table.

    The result is the best checkpoint by validation or, if there is none, the newest. Without a
    checkpoint only the start is evaluated. The record of a set is written when both are; a later
    call with the same settings, weights and problems uses it. Writes `eval/sets/NAME.json` and
    `NAME.jsonl` (responses), then `eval/sets.json` and `eval/sets.md`, into the workdir.

    Raises what `set_tasks` raises before a model is loaded.
    """
    tasks = set_tasks(cfg, sets)
    with open_session(cfg, path, splits=()) as session:
        policies = policies_of(session)
        prompted = [prompted_set(session, task, policies.sources) for task in tasks]
        folder = session.workdir / "eval"
        known = {each.source.name: known_record(folder, each) for each in prompted}
        barrier("sets")  # all hosts have read the records before one is written
        rows = {
            each.source.name: known[each.source.name] or evaluated(session, policies, each, folder)
            for each in prompted
        }
    record = table_record(policies.sources, rows)
    if is_writer():
        text = markdown(record)
        write_atomic(folder / "sets.json", json.dumps(record, indent=2) + "\n")
        write_atomic(folder / "sets.md", text)
        print(text, end="")
    barrier("the end")
    return record


def policies_of(session: Session) -> Policies:
    """The weights of the start and, if the run has a checkpoint, those of its result."""
    weights = {"start": session.load_reference()}
    sources: dict[str, str | None] = {"start": session.cfg.model.path or WARM_UP}
    checkpoint = find_trained(session.workdir, "best")
    if checkpoint is None:
        if is_writer():
            print(f"{session.workdir}: holds no checkpoint; evaluates the start")
        return Policies(weights, sources | {"result": None})
    trained, source = restore_policy(session.workdir / checkpoint[0], session.fresh_params())
    weights["result"] = session.weights(trained)
    return Policies(weights, sources | {"result": source})


def prompted_set(
    session: Session, source: SetTask, policies: Mapping[str, str | None]
) -> PromptedSet:
    """The first `eval.problems` problems of a set, for policies with these names.

    Raises ConfigError if this host cannot hold the answers; DataError if all prompts are too long.
    """
    cfg, tokenizer, task = session.cfg, session.tokenizer, source.task
    skip_special = cfg.sample.skip_special_tokens
    short, left_out = load_problems(task, tokenizer, "test", cfg.data, skip_special)
    problems = short[: cfg.eval.problems]
    warn_unspelled(tokenizer, [task.prompt(x) for x, _ in problems], f"{source.name} prompts")
    check_answers(cfg, {"test": problems})
    settings = [
        *(dataclasses.asdict(cfg.sample), cfg.eval.samples, cfg.eval.temperature, cfg.eval.top_p),
        # Answers and programs beyond these limits count as wrong.
        *(cfg.grader.mode, cfg.grader.timeout_s, cfg.grader.memory_mb),
        *(cfg.seed, cfg.model.compute_dtype, dict(policies)),
    ]
    rows = [(problem.id, problem.answer, ids) for problem, ids in problems]
    text = json.dumps([settings, rows, left_out])
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return PromptedSet(source, problems, left_out, digest)


def known_record(folder: epath.Path, prompted: PromptedSet) -> dict[str, Any] | None:
    """The record of an earlier call, if the set and all that determines it are the same."""
    file = folder / FOLDER / f"{prompted.source.name}.json"
    try:
        record = json.loads(file.read_text()) if file.exists() else {}
    except ValueError:  # somebody has changed the file
        return None
    if not isinstance(record, dict) or record.get(DIGEST) != prompted.digest:
        return None
    if is_writer():
        print(f"{prompted.source.name}: uses {file}", flush=True)
    return record


def evaluated(
    session: Session, policies: Policies, prompted: PromptedSet, folder: epath.Path
) -> dict[str, Any]:
    """Evaluates the policies on a set, and writes its record and all responses."""
    source, problems, cfg = prompted.source, prompted.problems, session.cfg
    ids = [problem.id for problem, _ in problems]
    if is_writer():
        print(f"{source.name}: {len(ids)} problems, {cfg.eval.samples} samples each", flush=True)
    solved, metrics = {}, {}
    with GradedTask(source.task, cfg.grader) as graded:
        of_set = dataclasses.replace(session, task=source.task, graded=graded)
        unreadable = unreadable_ids(graded, problems)
        for name, params in policies.weights.items():
            # The session's engine, so that all sets share compiled programs.
            sampler = of_set.sampler_of(session.evaluator, cfg, SAME_DRAWS)
            responses = sampler.responses(params, problems, cfg.eval.samples)
            session.evaluator.release()
            solved[name] = SolvedProblems(problems, *responses)
            metrics[name] = metrics_of(of_set, solved[name])
    rewards = {name: rewards_by_problem(ids, x.rewards) for name, x in solved.items()}
    has_result = "result" in rewards
    record = {
        "set": source.name,
        "data": source.path,
        "problems": len(ids),
        "samples": cfg.eval.samples,
        "start": metrics["start"],
        "result": metrics.get("result"),
        "difference": difference_of(rewards["start"], rewards["result"]) if has_result else None,
        "left_out": prompted.left_out,
        "unreadable": unreadable,
        DIGEST: prompted.digest,
    }
    if is_writer():
        _write_set(folder / FOLDER, problems, solved, record)
    return record


def unreadable_ids(graded: GradedTask, problems: list[PromptedProblem]) -> list[str]:
    """The ids of problems whose reference answer, or tests, the grader cannot read."""
    ids = [problem.id for problem, _ in problems]
    mine = [i for i in range(len(ids)) if is_mine(i)]
    found = graded.unreadable([problems[i][0] for i in mine])
    numbers = shared_work({i: True for i in mine if ids[i] in found})  # of all hosts
    return [ids[i] for i in sorted(numbers)]


def _write_set(
    folder: epath.Path,
    problems: list[PromptedProblem],
    solved: Mapping[str, SolvedProblems],
    record: Mapping[str, Any],
) -> None:
    """Writes the responses to a set's problems and then the record, which marks the set as done."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for i, (problem, _) in enumerate(problems):
        row: dict[str, Any] = {
            "problem_id": problem.id,
            "question": problem.question,
            "answer": problem.answer,
        }
        for name, found in solved.items():
            pairs = zip(found.solutions[i], found.rewards[i], strict=True)
            row[name] = [{"text": g.text, "finish": g.finish, "reward": float(r)} for g, r in pairs]
        lines.append(json.dumps(row) + "\n")
    write_atomic(folder / f"{record['set']}.jsonl", "".join(lines))
    write_atomic(folder / f"{record['set']}.json", json.dumps(record, indent=2) + "\n")
