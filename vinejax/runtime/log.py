"""Records a run in metrics.jsonl, TensorBoard events, W&B and files of episodes, and shows it."""

import contextlib
import importlib
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from etils import epath

from vinejax.core.errors import ConfigError
from vinejax.core.settings import LogConfig
from vinejax.runtime.display import Display
from vinejax.runtime.distributed import exchange
from vinejax.runtime.events import Events
from vinejax.runtime.watchdog import sign
from vinejax.runtime.workdir import is_remote, write_atomic

LISTED = 8  # maximum number of line numbers in a message

# Stages of a run, each with records of its own. 'train' is an iteration of the method. 'sft' is
# supervised training, which has no iterations. 'eval' and 'test' are evaluations.


def number_field(stage: str) -> str:
    """The field that numbers the records of a stage: 'step' for 'sft', otherwise 'iteration'."""
    return "step" if stage == "sft" else "iteration"


def is_training(stage: str) -> bool:
    """Whether the stage trains the policy. A resumed run repeats the records of such a stage."""
    return stage in ("train", "sft")


class RunLog:
    """A context manager that writes and shows the measurements of a run.

    Only the process with `is_writer` writes and shows anything.

    `timings` has `timing_s/<stage>`, the seconds spent in each stage since the last record, which
    the caller adds to the next record. JAX calls return before their results are computed. So the
    time of a stage is only meaningful if the stage fetches a result.
    """

    def __init__(
        self,
        workdir: epath.Path,
        cfg: LogConfig,
        total_iterations: int,
        is_writer: bool = True,
        resumed_at: int | None = None,
    ):
        """Starts the W&B run, if `cfg` asks for one, and repairs the files of earlier processes.

        The method drops unreadable lines of metrics.jsonl and prints the line numbers. Unless only
        the last line was cut off, it copies the old file to metrics.jsonl.damaged. It also reports
        the iterations before `resumed_at` that have no record, and files of episodes that were cut
        off within a line.

        All hosts of a run make a log. Raises ConfigError on all of them if `cfg.wandb` is set and
        W&B does not start on the host that writes.

        Args:
          workdir: the folder of the run.
          cfg: settings of the log.
          total_iterations: the number of iterations of the whole run.
          is_writer: whether this process writes and shows.
          resumed_at: the first iteration that this process will train, 0 for a new run. If earlier
            processes wrote records or episodes of this iteration or later ones, these are dropped,
            because the iterations will be repeated. None: the process does not train, and drops
            nothing of them.
        """
        self.timings: dict[str, float] = {}
        self._workdir = workdir
        self._is_writer = is_writer
        self._resumed_at = resumed_at
        self._display = Display(total_iterations, finished=resumed_at or 0)
        self._stages: list[str] = []
        self._events: dict[str, Events] = {}
        self._wandb = _wandb_of_writer(workdir, cfg, is_writer) if cfg.wandb else None
        if is_writer:
            self._metrics = _MetricsFile(workdir / "metrics.jsonl", resumed_at)
            _drop_episodes(workdir / "episodes", resumed_at)
            for line in (*self._metrics.remarks, *_cut_episodes(workdir / "episodes", resumed_at)):
                self._display.message(line)

    def __enter__(self) -> "RunLog":
        if self._is_writer:
            self._display.open()
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._is_writer:
            return
        self._display.close()
        for events in self._events.values():
            # The error that ends the run says more than an error of its last events.
            with contextlib.suppress(OSError) if exception[0] else contextlib.nullcontext():
                events.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=int(exception[0] is not None))

    def metrics(self, iteration: int, step: int, stage: str, values: Mapping[str, object]) -> None:
        """Records numbers in metrics.jsonl, TensorBoard and W&B, and shows some of them.

        Args:
          iteration: for 'train', the index of the iteration, from 0; for other stages, the number
            of finished iterations.
          step: the number of optimizer updates so far.
          stage: 'train', 'eval', 'test' or 'sft'.
          values: numbers, or NumPy or JAX scalars; numbers that are not finite become null.
        """
        self.timings = {}
        if not self._is_writer:
            return
        plain = {name: np.asarray(value).item() for name, value in values.items()}
        line = {"iteration": iteration, "step": step, "stage": stage} | plain
        self._metrics.append(line)
        _, at = _place(line)
        self._events_of(stage, at).add(plain, at)
        if self._wandb is not None:
            self._wandb.log({"iteration": iteration, "step": step} | plain)
        self._display.record(iteration, step, stage, plain)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Shows `name` as the current stage; adds the duration of the context to `timings`."""
        start = time.monotonic()
        self._stages.append(name)
        self._display.stage(name)
        sign(name)
        try:
            yield
        finally:
            self._stages.pop()
            self._display.stage(self._stages[-1] if self._stages else "")
            key = f"timing_s/{name}"
            self.timings[key] = self.timings.get(key, 0.0) + time.monotonic() - start

    def progress(self, done: int, total: int) -> None:
        """Shows in a terminal that `done` of the `total` items of the stage are finished."""
        self._display.progress(done, total)

    def episodes(self, iteration: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes the rows to episodes/<iteration>.jsonl, one per line, in one atomic operation."""
        if not self._is_writer:
            return
        folder = self._workdir / "episodes"
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(_strict(row), allow_nan=False) + "\n" for row in rows)
        write_atomic(folder / f"{iteration}.jsonl", text)

    def message(self, text: str) -> None:
        """Shows a text on the display."""
        if self._is_writer:
            self._display.message(text)

    def _events_of(self, stage: str, at: int) -> Events:
        """The TensorBoard file of a stage, which the first call makes for events from `at` on."""
        if stage not in self._events:
            # TensorBoard forgets what an earlier process wrote from `purge` on: see `_MetricsFile`.
            purge = at if number_field(stage) == "step" else self._resumed_at
            if purge is not None and not is_training(stage):
                purge += 1
            # File names have the time in seconds, and another process may start in the same one.
            suffix = f".{uuid.uuid4().hex[:8]}"
            folder = self._workdir / "tensorboard" / stage
            self._events[stage] = Events(folder, purge, suffix)
        return self._events[stage]


class _MetricsFile:
    """The file metrics.jsonl, which contains each record only once, even if a run is resumed."""

    def __init__(self, path: epath.Path, resumed_at: int | None):
        self._path = path
        self._earlier: set[tuple[str, int]] = set()  # places of records by earlier processes
        self.remarks: list[str] = []  # lines for people about missing or damaged records

        def comes_again(stage: str, at: int) -> bool:
            if resumed_at is None or number_field(stage) == "step":
                return False
            # The evaluation before iteration `resumed_at` may or may not be repeated: see `append`.
            return at >= resumed_at if is_training(stage) else at > resumed_at

        if path.exists():
            self._repair()
            again = {place for place in self._drop(comes_again) if place[0] == "train"}
            if again:
                message = f"iterations on record without a checkpoint, done again: {len(again)}"
                self.remarks.append(f"{path}: {message}")
            self._earlier = {_place(json.loads(line)) for line in self._lines()}
        missing = {("train", i) for i in range(resumed_at or 0)} - self._earlier
        if missing:
            first, last = min(missing)[1], max(missing)[1]
            message = (
                f"iterations that are done without a record: {len(missing)}, {first} to {last}"
            )
            self.remarks.append(f"{path}: {message}")

    def append(self, line: dict[str, object]) -> None:
        """Writes a record, in place of an earlier process's record of the same stage and number."""
        stage, at = _place(line)
        if (stage, at) in self._earlier:
            in_order = is_training(stage)  # all later records of the stage will come again too

            def is_stale(other: str, x: int) -> bool:
                return other == stage and (x >= at if in_order else x == at)

            self._earlier -= self._drop(is_stale)
        text = json.dumps(_strict(line), allow_nan=False) + "\n"
        if is_remote(self._path):
            before = self._path.read_text() if self._path.exists() else ""
            self._path.write_text(before + text)
        else:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)

    def _lines(self) -> list[bytes]:
        """The lines of the file, each with its '\\n'. Other line separators do not split lines."""
        return self._path.read_bytes().splitlines(keepends=True)

    def _repair(self) -> None:
        """Removes lines that are not records, such as a last line that a crash cut off."""
        lines = self._lines()
        bad = [i for i, line in enumerate(lines) if not _is_record(line)]
        if not bad:
            return
        kept = b"".join(line for i, line in enumerate(lines) if i not in set(bad))
        if bad == [len(lines) - 1] and not lines[-1].endswith(b"\n"):
            self.remarks.append(f"{self._path}: the last line was cut off and is dropped")
        else:
            copy = self._path.with_name(self._path.name + ".damaged")
            copy.write_bytes(b"".join(lines))
            numbers = ", ".join(str(i + 1) for i in bad[:LISTED]) + (", ..." * (len(bad) > LISTED))
            message = f"{len(bad)} of {len(lines)} lines cannot be read and are dropped ({numbers})"
            self.remarks.append(f"{self._path}: {message}; as it was: {copy.name}")
        write_atomic(self._path, kept.decode())

    def _drop(self, is_stale: Callable[[str, int], bool]) -> set[tuple[str, int]]:
        """Removes the records for which `is_stale(stage, number)` is True; returns their places.

        The place of a record is (stage, number), the result of `_place`.
        """
        lines = self._lines()
        places = [_place(json.loads(line)) for line in lines]
        stale = {place for place in places if is_stale(*place)}
        if stale:
            kept = (line for line, place in zip(lines, places, strict=True) if place not in stale)
            write_atomic(self._path, b"".join(kept).decode())
        return stale


def _is_record(line: bytes) -> bool:
    """Whether a line of metrics.jsonl is complete, with its '\\n', and has a stage and a number."""
    try:
        stage, at = _place(json.loads(line.decode()))
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return line.endswith(b"\n") and isinstance(stage, str) and isinstance(at, int)


def _drop_episodes(folder: epath.Path, resumed_at: int | None) -> None:
    """Removes the files of iterations that earlier processes finished and that come again."""
    if resumed_at is None or not folder.exists():
        return
    for file in folder.glob("*.jsonl"):
        if file.stem.isdecimal() and int(file.stem) >= resumed_at:
            file.unlink()


def _cut_episodes(folder: epath.Path, resumed_at: int | None) -> list[str]:
    """A message for each finished iteration whose file of episodes ends within a line."""
    if is_remote(folder) or not resumed_at:
        return []
    files = [folder / f"{iteration}.jsonl" for iteration in range(resumed_at)]
    message = "ends in mid-line; the report leaves that line out"
    return [f"{file}: {message}" for file in files if file.exists() and _is_cut(file)]


def _is_cut(file: epath.Path) -> bool:
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(size - 1, 0))
        return opened.read(1) not in (b"", b"\n")


def _place(line: dict) -> tuple[str, int]:
    """The place of a record, which is (stage, iteration), or (stage, step) for stage 'sft'."""
    stage = line["stage"]
    return stage, line[number_field(stage)]


def _strict(value: object) -> object:
    """The value in a form that strict JSON can express.

    Arrays become lists or numbers; NaN and infinity become None. Raises TypeError for a value that
    JSON cannot express.
    """
    if isinstance(value, Mapping):
        return {name: _strict(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if not hasattr(value, "__array__"):
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")
    return _strict(np.asarray(value).tolist())


def _wandb_of_writer(workdir: epath.Path, cfg: LogConfig, is_writer: bool) -> Any:
    """The W&B run of the host that writes; None on the others. All hosts must call the function.

    Raises ConfigError on all hosts if `_start_wandb` raises it, so that none waits for another.
    """
    run, failure = None, None
    try:
        run = _start_wandb(workdir, cfg) if is_writer else None
    except ConfigError as error:
        failure = error
    if any(exchange(failure is not None)):
        message = "W&B does not start on the first host, which says why"
        raise failure or ConfigError("log.wandb", message, repr(cfg.wandb))
    return run


def _start_wandb(workdir: epath.Path, cfg: LogConfig) -> Any:
    """Starts a W&B run, or continues the W&B run that an earlier process started in `workdir`.

    Raises ConfigError if the package is not installed, or if W&B does not start a run, as without a
    key or without the network.
    """
    try:
        wandb = importlib.import_module("wandb")
    except ImportError as error:
        message = f"wandb cannot be imported ({error}): pip install 'vinejax[wandb]'"
        raise ConfigError("log.wandb", message, repr(cfg.wandb)) from error
    file = workdir / "wandb_id"
    if not file.exists():
        write_atomic(file, uuid.uuid4().hex[:8])
    record = workdir / "config.json"
    try:
        run = wandb.init(
            project=cfg.wandb,
            id=file.read_text(),
            name=cfg.wandb_name or workdir.name,
            group=cfg.wandb_group or None,
            dir=None if is_remote(workdir) else os.fspath(workdir),
            resume="allow",
            config=json.loads(record.read_text())["config"] if record.exists() else None,
        )
    except (wandb.Error, ValueError) as error:  # a ValueError for a key that can be none
        reason = " ".join(str(error).split())[:300]
        remedy = "log in (WANDB_API_KEY, or wandb login), or set WANDB_MODE=offline"
        message = f"W&B does not start ({reason}); {remedy}"
        raise ConfigError("log.wandb", message, repr(cfg.wandb)) from error
    # W&B's own step counter cannot go back, but a run that resumes at a checkpoint does.
    run.define_metric("*", step_metric="iteration")
    run.define_metric("sft/*", step_metric="step")
    return run
