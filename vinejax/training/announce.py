"""Makes the lines that a run prints at its beginning and its end."""

import os
from typing import Any

import jax
from etils import epath

from vinejax.core.settings import Config
from vinejax.model.decoder import Params
from vinejax.records.read import read_run
from vinejax.runtime.compiles import Compiles
from vinejax.runtime.display import format_duration
from vinejax.session.budget import RunTotals, groups_left
from vinejax.session.session import Session

SPLITS = {"validation": "eval/pass_at_1", "test": "test/pass_at_1"}
EXPORT = "next: the same command with --mode=export makes a Hugging Face folder of the best policy"


def head_line(session: Session, params: Params) -> str:
    """A line with the method, the task, the model and its size, the devices and the workdir.

    If `rollout.slots` is None, the line has the number of slots.
    """
    cfg = session.cfg
    trees = params, session.start
    trained, of_model = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in trees)
    devices = jax.devices()
    kind = devices[0].device_kind if devices[0].platform != "cpu" else "CPU"
    model = f"{cfg.model.path or 'a new model'}, {of_model:,} parameters"
    if session.base is not None:
        model += f" and {trained:,} of adapters, which are trained"
    slots = f", {session.slots:,} slots" if cfg.rollout.slots is None else ""
    return (
        f"{cfg.method} on {cfg.data.task}: {model}, {len(devices)} x {kind}{slots}; "
        f"{os.fspath(session.workdir)}"
    )


def start_line(cfg: Config, done: int, spent: RunTotals) -> str:
    """A line with the iteration at which this process begins, and why its start is slow.

    For a run that has ended, it has the settings with which the run would go on.
    """
    slow = "programs are compiled when they are first needed"
    if done == 0:
        return f"begins: {cfg.iterations} iterations; {slow}"
    limits = []
    if done >= cfg.iterations:
        limits.append(f"iterations above {done}")
    if groups_left(cfg, spent) < 1:
        limits.append(f"budget.episodes of at least {spent.episodes + cfg.rollout.per_prompt}")
    if limits:
        return f"ended after iteration {done}; with {' and '.join(limits)} it would go on"
    return f"resumes after iteration {done} of {cfg.iterations}, from checkpoints/{done}; {slow}"


def programs_line(compiles: Compiles) -> str:
    """A line on the programs that were compiled, or found in the compile cache, up to now.

    `compiles` are those since the run began, until its first iteration ended. The line has the
    numbers of programs, the time that they took, and the folder of the cache.
    """
    if not compiles.programs:
        return "programs: none compiled; this process has those of an earlier run"
    folder = jax.config.values["jax_compilation_cache_dir"]
    compiled = compiles.programs - compiles.loaded
    seconds = format_duration(compiles.seconds)
    if not folder:
        message = "not kept for the next start (compile_cache)"
        return f"programs: {compiled} compiled in {seconds}, {message}"
    if not compiles.loaded:
        return f"programs: {compiled} compiled in {seconds}, kept for the next start in {folder}"
    found = f"{compiles.loaded} of {compiles.programs} found in {folder}"
    return f"programs: {found}, {compiled} compiled, {seconds} together"


def end_lines(workdir: epath.Path) -> list[str]:
    """Lines for a run that has ended: accuracies at its start and end, and the next command."""
    records, parts = read_run(workdir).records, []
    for split, name in SPLITS.items():
        accuracies: list[Any] = [r.values[name] for r in records if name in r.values]
        if len(accuracies) > 1:
            parts.append(f"{split} pass@1 {accuracies[0]:.3f} to {accuracies[-1]:.3f}")
    has_trained = any(r.stage in ("eval", "test") and r.position > 0 for r in records)
    lines = [", ".join(parts)] if parts else []
    return [*lines, EXPORT] if has_trained else lines
