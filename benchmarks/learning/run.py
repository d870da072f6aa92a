"""Runs the comparison in slices: what is not done yet, until the time is over.

    python benchmarks/learning/run.py --list                  # the plan, and its hours
    python benchmarks/learning/run.py --part=seconds          # alone on a quiet machine
    python benchmarks/learning/run.py --minutes=20 --jobs=2   # the next slice of the rest
    python benchmarks/learning/run.py --experiment=cheap      # another table of runs
    python benchmarks/learning/run.py --experiment=quick      # the same code in five minutes

Each run is an ordinary training run in a process of its own, bound to one core: the models are so
small that a second core makes none of them faster. A run adds one line to `results.jsonl` when it
ends (`seconds.jsonl` for the part 'seconds'); a run that is stopped leaves nothing, and the next
slice begins it anew. Runs that would not end in time are not begun. `variants.py` has the tables.
"""

import argparse
import collections
import datetime
import fcntl
import json
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from planning import PARTS, Planned, missing, plan
from run_records import RESULTS, SECONDS, Record, append_line, folder_of, read_lines, reused
from variants import EXPERIMENTS, LONGER, TASKS, VARIANTS, Experiment

from vinejax.runtime.workdir import PACKAGES, package_versions

FOLDER = Path(__file__).parent
REPO = FOLDER.parents[1]
GUESS_S = 60.0  # of a run of which nothing is known yet
MARGIN = 1.25  # a run is begun if so many times its expected seconds are left
POLL_S = 0.2


class Files(NamedTuple):
    """Where measurements go."""

    results: Path
    seconds: Path
    reused: list[Record]  # runs of other experiments

    @classmethod
    def under(cls, folder: Path, experiment: Experiment) -> "Files":
        return cls(folder / RESULTS, folder / SECONDS, reused(experiment.reuses))

    def of(self, part: str) -> Path:
        return self.seconds if part == "seconds" else self.results

    def read(self) -> list[Record]:
        return [*read_lines(self.seconds), *self.reused, *read_lines(self.results)]


class Started(NamedTuple):
    """A run in progress."""

    run: Planned
    process: subprocess.Popen
    core: int
    began: float
    output: Path
    load: float


class Slice:
    """One call of the program: starts runs, collects what they measured, ends in time."""

    def __init__(self, files: Files, experiment: Experiment, options: argparse.Namespace):
        self.files = files
        self.experiment = experiment
        self.options = options
        self.deadline = time.monotonic() + 60 * options.minutes
        self.cores = sorted(os.sched_getaffinity(0))[: options.jobs]
        self.active: list[Started] = []
        self.failed: set[str] = set()  # keys of runs that are not tried again in this slice
        self.about = {"commit": commit(), "command": command(), "machine": machine()}

    def work(self, folder: Path) -> int:
        """Runs until nothing is left or the time is over; returns how many runs failed."""
        try:
            self.start_all(folder)
            while self.active and time.monotonic() < self.deadline:
                time.sleep(POLL_S)
                ended = [started for started in self.active if started.process.poll() is not None]
                for started in ended:
                    self.active.remove(started)
                    self.collect(started)
                if ended:  # not at every poll: planning would disturb what is measured
                    self.start_all(folder)
        finally:
            for started in self.active:
                started.process.kill()
                started.process.wait()
        return len(self.failed)

    def start_all(self, folder: Path) -> None:
        """Starts a run on every free core; those that measure seconds have the machine alone."""
        records = self.files.read()
        while len(self.active) < len(self.cores):
            chosen = self.next_run(records)
            if chosen is None or "seconds" in {x.run.part for x in self.active}:
                break
            if chosen.part == "seconds" and self.active:
                break
            self.start(chosen, folder)

    def next_run(self, records: list[Record]) -> Planned | None:
        """The first run of the plan that is neither done nor begun and can end in time."""
        begun = {started.run.key for started in self.active} | self.failed
        left_s = self.deadline - time.monotonic()
        for run in wanted(self.experiment, records, self.options):
            if run.overrides is None or run.key in begun:
                continue
            if MARGIN * expected_s(run, records) <= left_s:
                return run
        return None

    def start(self, run: Planned, folder: Path) -> None:
        core = next(core for core in self.cores if core not in {x.core for x in self.active})
        output = folder / f"{time.monotonic_ns()}.json"
        request = {
            "run": run._asdict(),
            "core": core,
            "cache": os.path.abspath(self.options.cache),
            "test_problems": self.experiment.test_problems,
        }
        arguments = [sys.executable, str(FOLDER / "one_run.py"), json.dumps(request), str(output)]
        environment = os.environ | {"PYTHONPATH": str(REPO)}
        with output.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(
                arguments, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        load = os.getloadavg()[0]
        self.active.append(Started(run, process, core, time.monotonic(), output, load))

    def collect(self, started: Started) -> None:
        """Adds the line of a run that ended, or says why there is none."""
        run = started.run
        clock_s = time.monotonic() - started.began
        title = f"{run.part} {run.config} {run.variant} seed {run.seed}"
        if started.process.returncode != 0:
            log = started.output.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
            print(f"{title}: failed\n{log[-2000:]}", file=sys.stderr)
            self.failed.add(run.key)
            return
        measured = json.loads(started.output.read_text())
        now = datetime.datetime.now(datetime.UTC)
        record: Record = {**run._asdict(), **measured, "clock_s": round(clock_s, 1), **self.about}
        record["date"] = now.isoformat(timespec="seconds")
        if run.part == "seconds":
            record["load"] = round(started.load, 2)
            result = f"{measured['seconds']:.3f} s an iteration"
        else:
            result = f"{measured['test']['accuracy']:.1%}"
        append_line(self.files.of(run.part), record)
        print(f"{title}: {result}, {clock_s:.0f} s", flush=True)


def wanted(
    experiment: Experiment, records: list[Record], options: argparse.Namespace
) -> list[Planned]:
    """The runs of the plan, or of a part, a task or variants of it, that are not done."""
    chosen = [
        run
        for run in plan(experiment, records)
        if options.part in (None, run.part)
        and options.task in (None, run.task)
        and (options.variants is None or run.variant in options.variants)
    ]
    return missing(chosen, records)


def expected_s(run: Planned, records: list[Record]) -> float:
    """Seconds that a run will take: the median of the runs that are most like it.

    For a longer variant or a try whose runs are not known, those of its base in proportion to
    iterations.
    """
    base = LONGER[run.variant].base if run.variant in LONGER else run.variant.partition("/")[0]
    kinds = [(run.part, run.config, run.variant), (None, run.config, run.variant)]
    if base != run.variant and run.overrides is not None:
        kinds.append((None, run.config, base))
    kinds += [(None, None, run.variant), (None, run.config, None), (None, None, None)]
    for part, config, variant in kinds:
        alike = [
            x
            for x in records
            if part in (None, x["part"])
            and config in (None, x["config"])
            and variant in (None, x["variant"])
        ]
        if alike:
            scale = 1.0
            if base != run.variant and run.overrides is not None and variant == base:
                scale = run.overrides["iterations"] / alike[0]["iterations"]
            return scale * statistics.median(x["clock_s"] for x in alike)
    return GUESS_S


def listing(experiment: Experiment, records: list[Record]) -> str:
    """The plan by part, task and variant: runs, those done, and hours of one core for the rest."""
    planned = plan(experiment, records)
    left = {run.key for run in missing(planned, records)}
    rows: dict[tuple[str, str, str], list[float]] = collections.defaultdict(lambda: [0, 0, 0.0])
    for run in planned:
        row = rows[run.part, run.config, run.variant]
        row[0] += 1
        row[1] += run.key not in left
        row[2] += expected_s(run, records) / 3600 * (run.key in left)
    lines = ["part        config               variant                    runs   done   hours left"]
    for (part, config, variant), (runs, done, hours) in rows.items():
        lines.append(f"{part:<11} {config:<20} {variant:<26} {runs:4} {done:6} {hours:12.2f}")
    runs, done, hours = (sum(column) for column in zip(*rows.values(), strict=True))
    lines.append(f"{'all':<59} {runs:4} {done:6} {hours:12.2f}  (of one core)")
    return "\n".join(lines)


def commit() -> str:
    """The commit that is checked out, with `-dirty` if files other than measurements differ."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(REPO), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!*.jsonl")
        return git("rev-parse", "HEAD") + ("-dirty" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def command() -> str:
    """The command line of this program, from the root of the repository."""
    return shlex.join(["python", "benchmarks/learning/run.py", *sys.argv[1:]])


def machine() -> dict[str, Any]:
    """What a reader needs to know about the machine."""
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text(encoding="utf-8").splitlines()
        cpu = next((x.partition(": ")[2] for x in lines if x.startswith("model name")), cpu)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = {"python": platform.python_version()} | package_versions(PACKAGES)
    named = {name: versions[name] for name in ("python", "jax", "jaxlib", "numpy")}
    return {"cpu": cpu, "cores": os.cpu_count(), "memory_gib": round(memory, 1), **named}


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Keeps a second call of the program out of the files of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"{folder}: another run.py is at work there; wait for its end")
        yield
    finally:
        os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--experiment", choices=EXPERIMENTS, default="full", help="in variants.py")
    parser.add_argument("--part", choices=PARTS, help="one part of the plan; default: all")
    parser.add_argument("--task", choices=TASKS, help="one task of the plan; default: all")
    parser.add_argument("--variants", nargs="+", choices=[*VARIANTS, *LONGER], metavar="VARIANT")
    parser.add_argument("--minutes", type=float, default=20.0, help="after which the slice ends")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--list", action="store_true", help="print the plan, run nothing")
    parser.add_argument("--out", type=Path, help="folder of the two files of measurements")
    parser.add_argument("--cache", default="runs/learning_cache", help="of compiled programs")
    options = parser.parse_args()
    experiment = EXPERIMENTS[options.experiment]
    folder = options.out or folder_of(options.experiment)
    files = Files.under(folder, experiment)
    if options.list:
        print(listing(experiment, files.read()))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that runs in progress end as well
    with only_one(folder), tempfile.TemporaryDirectory() as scratch:
        one = Slice(files, experiment, options)
        failed = one.work(Path(scratch))
    left = wanted(experiment, files.read(), options)
    print(f"{len(left)} runs are left{f', {failed} failed' if failed else ''}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
