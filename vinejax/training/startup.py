"""Starts a run: loads and checks its parts, then opens the workdir."""

import contextlib
import hashlib
import json
import os
from typing import Any

from etils import epath
from jax.sharding import Mesh

from vinejax.config.effect import without_effect
from vinejax.config.environments import check_environment, with_environment
from vinejax.config.sizes import (
    check_answers,
    check_sizes,
    most_branches,
    with_fitting_minibatch,
)
from vinejax.core.accessories import contributed_class
from vinejax.core.errors import ConfigError, DataError
from vinejax.core.settings import Config, as_tree
from vinejax.core.text import Tokenizer
from vinejax.core.types import Problem, PromptedProblem
from vinejax.engine.cache import use_kernel
from vinejax.learner.packing import with_sharing, with_single_rows
from vinejax.methods import sft
from vinejax.methods.base import Method
from vinejax.methods.compose import composed, method_of
from vinejax.model.decoder import Decoder, Params
from vinejax.model.hf.architecture import check_architecture
from vinejax.model.hf.weights import load_pretrained
from vinejax.model.sharding import check_rows, make_mesh, num_shards, platform_of
from vinejax.runtime.clock import CLOCK
from vinejax.runtime.compile_cache import use_compile_cache
from vinejax.runtime.devices import on_devices, with_dtype
from vinejax.runtime.distributed import barrier, exchange, is_mine, is_writer, shared_work
from vinejax.runtime.lock import WorkdirLock
from vinejax.runtime.offload import to_host
from vinejax.runtime.workdir import (
    check_shared,
    check_workdir,
    record_run,
    recorded_start,
    remove_unfinished,
    write_atomic,
)
from vinejax.session.session import Session
from vinejax.tasks.base import Split, Task, load_task
from vinejax.tasks.environment import MultiTurn
from vinejax.tasks.graded import GradedTask, configure
from vinejax.tasks.prompts import load_problems
from vinejax.tasks.spelling import warn_unspelled
from vinejax.training.start_weights import chosen_checkpoint, load_weights
from vinejax.training.warmup import check_start_is_read, warm_start

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
DROPPED = "dropped_problems.json"
LISTED = 5  # answers in a printed line


def open_session(
    cfg: Config,
    path: str | os.PathLike,
    splits: tuple[Split, ...] = SPLITS,
    trains: bool = False,
    records: bool = True,
) -> Session:
    """Loads all parts, then opens the workdir, so that a run that cannot start leaves no file.

    Without `model.path` a supervised warm-up trains a fresh model first. Only the problems of
    `splits` are loaded. Printed lines count the problems whose prompt is too long, or whose correct
    answer the grader cannot read; with `records`, dropped_problems.json lists them.

    With `trains` the process trains here and holds the workdir's lock. Otherwise the record of an
    existing run is not changed, and another process may train meanwhile. Without `records` no
    record is written at all.

    Raises ConfigError if the model's context has no room for the prompts or for the response;
    WorkdirError if the workdir cannot be used or, with `trains`, another process has its lock. With
    `trains` also raises what `check_start` raises.
    """
    method = method_of(cfg)
    cfg, workdir, task = checked_parts(cfg, method, path, trains)
    use_compile_cache(cfg.compile_cache, workdir)
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(WorkdirLock(workdir, is_writer()))
        if trains:
            lock.take(make=False)
        barrier("start", as_tree(cfg))  # all hosts have read the workdir, so it may be written
        CLOCK.pin(workdir)
        mesh = make_mesh(cfg.mesh)
        check_rows(mesh, rows_per_pass(cfg, method))
        as_set, cfg = cfg, with_environment(cfg, task)
        check_sizes(cfg, method)
        cfg = method.resolve(fitted(cfg, method, mesh, say=trains and is_writer()))
        check_environment(cfg, method, task)
        model, start, tokenizer = load_start(as_set, task, workdir, mesh, lock)
        loaded = method.state.load(cfg, task, model, tokenizer) if trains else None
        cfg = with_sharing(cfg, model, platform_of(mesh))
        if "paired_rows" not in method.flags:
            model = with_single_rows(model, cfg)
        graded = stack.enter_context(GradedTask(task, cfg.grader, cfg.reward))
        where = f": {DROPPED}" if records else ""
        problems, dropped = prompted_problems(cfg, method, graded, tokenizer, splits, where)
        if trains:
            print_notes(as_set, method, task, problems)
            lock.take()
        run = composed(method, cfg)
        session = Session(
            cfg, run, workdir, task, graded, mesh, model, start, tokenizer, problems, lock, loaded
        )
        if trains:
            check_start(session)
        if records:
            record_session(as_set, workdir, problems, dropped, anew=trains)
            barrier("workdir", problems)
            check_shared(workdir)
        stack.pop_all()  # from here on the session closes the parts
    return session


def check_start(session: Session) -> None:
    """Lets an accessory look at a run that is about to train, before the run is recorded.

    Without `vinejax.tools` nothing happens. Raises UserError, on all hosts, if the run cannot work.
    """
    if check := contributed_class("HOOKS", "start_check"):
        check(session)


def checked_parts(
    cfg: Config, method: Method, path: str | os.PathLike, trains: bool
) -> tuple[Config, epath.Path, Task]:
    """(configuration for the devices of this process, workdir, configured task).

    Raises WorkdirError, ConfigError or UserError if any part cannot be used. Writes nothing.
    """
    cfg = method.with_settings(cfg)
    cfg = with_dtype(cfg) if trains else cfg
    workdir, task = check_workdir(cfg, path), load_task(cfg.data)
    configure(task, cfg)
    if trains:
        check_start_is_read(cfg, workdir)
        method.state.check_loading(cfg)
    return on_devices(cfg), workdir, task


def fitted(cfg: Config, method: Method, mesh: Mesh, say: bool) -> Config:
    """The result of `with_fitting_minibatch`; with `say`, prints a line if that is not `cfg`."""
    fitting = with_fitting_minibatch(cfg, method, num_shards(mesh))
    rows, as_set = fitting.ppo.minibatch, cfg.ppo.minibatch
    if rows != as_set and say:
        count = cfg.rollout.prompts * cfg.rollout.per_prompt
        print(
            f"ppo.minibatch = {as_set}: an iteration has {count} solutions; it is taken as {rows}"
        )
    return fitting


def load_start(
    cfg: Config, task: Task, workdir: epath.Path, mesh: Mesh, lock: WorkdirLock
) -> tuple[Decoder, Params, Tokenizer]:
    """Model, weights and tokenizer that the policy starts from.

    Without `model.path` a warm-up makes them, unless the workdir already has a warm-up. Raises
    ConfigError if the model's context has no room for the prompts or responses of `cfg`, or if the
    model does not have the architecture of `model.architecture`.
    """
    dtype = cfg.model.dtype_on(platform_of(mesh)) if cfg.model.lora_rank else "float32"
    if cfg.model.path:
        model, start, tokenizer = load_weights(cfg.model.path, mesh, dtype)
    else:
        check_context(cfg, cfg.model.context)  # before the model is trained
        folder = warm_start(cfg, task, workdir, mesh, lock)
        model, start, tokenizer = load_pretrained(folder, dtype, mesh)
    check_context(cfg, model.cfg.context, model.cfg.context_reason)
    if max(cfg.sample.stop_ids, default=0) >= model.cfg.vocab_size:
        message = f"the model's token ids are below {model.cfg.vocab_size}"
        raise ConfigError("sample.stop_ids", message, repr(cfg.sample.stop_ids))
    if cfg.model.architecture:
        check_architecture(cfg.model.architecture, model)
    model = model.computing(cfg.model)
    device, head_dim = mesh.devices.flat[0], model.cfg.head_dim
    use_kernel(cfg.rollout.attention, platform_of(mesh), head_dim, device)  # or ConfigError
    if cfg.offload.reference and not cfg.model.lora_rank:  # else the policy needs it
        start = to_host(start)
    return model, start, tokenizer


def print_notes(
    cfg: Config, method: Method, task: Task, problems: dict[Split, list[PromptedProblem]]
) -> None:
    """Prints a line for each field that is set and has no effect; `cfg` is as the user set it."""
    if is_writer():
        most = most_branches(cfg, method, problems)
        for field, reason in without_effect(cfg, method, task, most):
            print(f"note: {field} has no effect: {reason}")


def record_session(
    cfg: Config,
    workdir: epath.Path,
    problems: dict[Split, list[PromptedProblem]],
    dropped: dict[Split, list[dict[str, Any]]],
    anew: bool,
) -> None:
    """Writes the record of this start, and the list of dropped problems if there are any.

    Without `anew`, an existing record of an earlier start stays as it is. Otherwise also removes
    the unfinished files of killed processes. All hosts call the function; the first one writes.
    """
    is_kept = not anew and exchange((workdir / "config.json").exists())[0]
    start = "" if is_kept else first_start(cfg.model.path, workdir)
    if not is_writer():
        return
    CLOCK.keep(workdir)
    if is_kept:
        return
    record_run(cfg, workdir, start, first_problems(problems, workdir))
    remove_unfinished(workdir)
    if any(dropped.values()):
        write_atomic(workdir / DROPPED, json.dumps(dropped, indent=1) + "\n")


def first_start(path: str, workdir: epath.Path) -> str:
    """The checkpoint of the run at `path` from which the run in `workdir` began; '' for no run.

    Prints a line if the run at `path` has chosen another checkpoint since. All hosts must call the
    function, because they read checkpoints together.
    """
    chosen = chosen_checkpoint(path)
    began = recorded_start(workdir)[0] if has_checkpoint(workdir) else ""
    if began and chosen != began and is_writer():
        print(
            f"warning: this run began from {began} of the run {path}, which has chosen"
            f" {chosen or 'none'} since: the KL's reference and the weights below adapters differ"
        )
    return began or chosen


def first_problems(
    problems: dict[Split, list[PromptedProblem]], workdir: epath.Path
) -> dict[str, str]:
    """The fingerprint of the problems of each split with which the run in `workdir` began.

    Prints a line for each split that has other problems now.
    """
    now: dict[str, str] = {split: fingerprint(part) for split, part in problems.items()}
    began = recorded_start(workdir)[1] if has_checkpoint(workdir) else {}
    for split in (split for split in now if began.get(split, now[split]) != now[split]):
        print(
            f"warning: this run began with other problems: {split} had {began[split]}, and now has"
            f" {now[split]}; to resume it as it was, put back the data, or the grader's settings if"
            " golds that it can read are missing"
        )
    return now | began


def fingerprint(problems: list[PromptedProblem]) -> str:
    """The number of problems, and a digest of their order, ids, questions, answers and prompts."""
    digest = hashlib.sha256()
    for problem, ids in problems:
        digest.update(repr((problem.id, problem.question, problem.answer, ids)).encode())
    return f"{len(problems):,} problems, sha256 {digest.hexdigest()[:16]}"


def has_checkpoint(workdir: epath.Path) -> bool:
    """Whether a run has saved a checkpoint in `workdir`, from which its next start resumes."""
    folder = workdir / "checkpoints"
    return folder.exists() and any(path.name.isdigit() for path in folder.iterdir())


def rows_per_pass(cfg: Config, method: Method) -> dict[str, int]:
    """Maps each setting that determines the rows of a pass to its number of rows.

    `check_rows` checks these numbers.
    """
    if cfg.ppo.microbatch is not None:
        return {"ppo.microbatch": cfg.ppo.microbatch}
    rows = {"ppo.minibatch": cfg.ppo.minibatch}
    if method is sft.METHOD or not cfg.model.path:
        rows["sft.batch"] = cfg.sft.batch
    return rows


def check_context(cfg: Config, context: int, why: str = "") -> None:
    """Raises ConfigError unless the model's context has room for prompts and for responses.

    `why` is the reason for a context that is shorter than the checkpoint claims.
    """
    for field, value in (
        ("data.max_prompt_tokens", cfg.data.max_prompt_tokens),
        ("sample.max_tokens", cfg.sample.max_tokens),
    ):
        below = f"set at most {context - 1}"
        if value >= context:
            raise ConfigError(field, f"the model's context is {context}{why}; {below}", str(value))


def prompted_problems(
    cfg: Config,
    method: Method,
    graded: GradedTask,
    tokenizer: Tokenizer,
    splits: tuple[Split, ...],
    where: str = "",
) -> tuple[dict[Split, list[PromptedProblem]], dict[Split, list[dict[str, Any]]]]:
    """The problems of each split with prompt ids, and records of problems left out or unreadable.

    Printed lines that count the latter end with `where`, which names the file of the records.
    Problems with too long prompts are left out of every split. Problems whose correct answer the
    grader cannot read are left out of train, unless `grader.unreadable` is 'keep'. Validation and
    test keep such problems, so that these splits have as many problems as the data.

    Raises ConfigError if an iteration draws more problems than there are to train on, if this host
    cannot hold the answers of an evaluation, or if a group of settings (`cfg.sections`) does not
    fit the task; DataError if no answer of a split can be read.
    """
    prompted: dict[Split, list[PromptedProblem]] = {}
    records: dict[Split, list[dict[str, Any]]] = {}
    for split in splits:
        problems, too_long = _short_prompts(cfg, graded.task, tokenizer, split, where)
        graded.check_functions(problems[0][0])
        method.state.check_problem(cfg, graded.task, problems[0][0])
        golds = _unreadable(graded, [problem for problem, _ in problems])
        leave_out = split == "train" and cfg.grader.unreadable == "drop"
        if golds and is_writer():
            _say_unreadable(split, golds, len(problems), leave_out, where)
        if leave_out:
            problems = [pair for pair in problems if pair[0].id not in golds]
        if not problems:
            message = f"none of the golds of its {len(golds)} problems can be read"
            raise DataError(f"{graded.task.name} {split}", None, message)
        reason = {"reason": "the gold cannot be read", "left_out": leave_out}
        unreadable = [{"id": name, "gold": gold} | reason for name, gold in golds.items()]
        prompted[split], records[split] = problems, too_long + unreadable
    if is_writer():
        _say_shared(graded.task, prompted)
    draws = "train" in splits and method is not sft.METHOD
    if draws and len(prompted["train"]) < cfg.rollout.prompts:
        few = f"the train split has only {len(prompted['train'])} problems; lower it"
        raise ConfigError("rollout.prompts", few, str(cfg.rollout.prompts))
    check_answers(cfg, prompted)
    for settings in cfg.sections.values():
        settings.check_task(graded.task, [problem for problem, _ in prompted.get("train", [])])
    return prompted, records


def _say_shared(task: Task, problems: dict[Split, list[PromptedProblem]]) -> None:
    """Warns of splits that share prompts with train.

    The accuracy on such a split also measures how well the policy remembers its training prompts.
    Problems of several turns may all have one prompt, and differ by what the environment says
    first. Of such problems nothing is said.
    """
    train = problems.get("train", [])
    trained = {tuple(ids) for _, ids in train}
    if isinstance(task, MultiTurn) and len(trained) < len(train):
        return
    for split, prompted in problems.items():
        shared = [problem.id for problem, ids in prompted if tuple(ids) in trained]
        if split != "train" and shared:
            some = ", ".join(shared[:LISTED]) + (", ..." if len(shared) > LISTED else "")
            message = f"{len(shared)} of {len(prompted)} prompts are in train, too"
            print(f"warning: {split}: {message}, so accuracy there is not that on new ones: {some}")


def _unreadable(graded: GradedTask, problems: list[Problem]) -> dict[str, str | None]:
    """The result of `GradedTask.unreadable`, in the order of `problems`; hosts share the work."""
    numbers = {problem.id: i for i, problem in enumerate(problems)}
    unreadable = graded.unreadable([problem for i, problem in enumerate(problems) if is_mine(i)])
    golds = shared_work({numbers[name]: gold for name, gold in unreadable.items()})
    return {problems[i].id: gold for i, gold in sorted(golds.items())}


def _short_prompts(
    cfg: Config, task: Task, tokenizer: Tokenizer, split: Split, where: str
) -> tuple[list[PromptedProblem], list[dict[str, Any]]]:
    """The problems whose prompts are not too long, and a record of each problem left out."""
    limit = cfg.data.max_prompt_tokens
    short, dropped = load_problems(task, tokenizer, split, cfg.data, cfg.sample.skip_special_tokens)
    warn_unspelled(tokenizer, [task.prompt(problem) for problem, _ in short], f"{split} prompts")
    length = f"more than data.max_prompt_tokens = {limit} tokens"
    if dropped and is_writer():
        total = len(short) + len(dropped)
        print(f"{split}: {len(dropped)} of {total} prompts have {length} and are left out{where}")
    reason = {"reason": f"the prompt has {length}", "left_out": True}
    return short, [{"id": name} | reason for name in dropped]


def _say_unreadable(
    split: Split, golds: dict[str, str | None], total: int, leave_out: bool, where: str
) -> None:
    first = [
        f"{name} {'without one' if gold is None else repr(gold[:40])}"
        for name, gold in golds.items()
    ]
    some = ", ".join(first[:LISTED]) + (", ..." if len(first) > LISTED else "")
    verdict = f"cannot be read and are {'left out' if leave_out else 'kept'}"
    print(f"{split}: {len(golds)} of {total} golds {verdict}: {some}{where}")
