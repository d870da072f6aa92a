"""Kills runs at random moments and starts them again: is the end the same, and what was lost?

    python tests/faults/run.py [--methods=vineppo,ppo] [--kills=30] [--signal=KILL|TERM|INT]
    python tests/faults/run.py --full-disk [--methods=vineppo]

Of each method one run is left alone. Then, for each moment, a run is sent the signal there and
started again, and its metrics (but times) and its last weights are compared with those of the run
that was left alone. Moments are spread evenly over the stages of that run and are random within;
see child.py. The table has the tokens that were decoded twice, beside the most between two
checkpoints, and the seconds from a signal to the end of the process. The exit code is 1 if anything
differs.

Runs are in a temporary folder, or in `--root`, which may be a bucket. An emulator of Google's:

    pip install gcsfs gcp-storage-emulator
    gcp-storage-emulator start --port=9023 --in-memory --default-bucket=bucket &
    export STORAGE_EMULATOR_HOST=http://localhost:9023 GOOGLE_AUTH_TOKEN_FOR_TESTING=any
    TENSORSTORE_GCS_HTTP_URL=http://localhost:9023 python tests/faults/run.py --root=gs://bucket

With `--full-disk` nothing is killed: the disk is full from a moment on, the run has to end with one
line, and the next start has room again. It mounts a small file system, which only root may do.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from helpers import loop_cases as cases  # noqa: E402

from vinejax.model.hf.weights import load_pretrained  # noqa: E402
from vinejax.runtime.checkpoint import Checkpoints  # noqa: E402
from vinejax.training.warmup import warm_up  # noqa: E402

METHODS = ("vineppo", "ppo", "dapo")
MOST_DELAY_MS = 60
MOST_S = 20  # from SIGTERM or SIGINT to the end
DISK_MB = 64


@dataclasses.dataclass
class Child:
    """One process that has ended."""

    code: int
    events: list[tuple[str, int]]  # (stage, tokens decoded so far)
    leaving_s: float  # from the signal to the end; 0 without one
    errors: str

    @property
    def tokens(self) -> int:
        return self.events[-1][1] if self.events else 0


class Faults:
    """The runs of one call, in a folder."""

    def __init__(self, folder: Path, root: epath.Path, number: int):
        self._folder, self._root, self._signal = folder, root, number
        self.start = str(warm_up(cases.config(sft={"steps": 25}), folder / "start"))

    def whole(self, method: str) -> Child:
        """The run of a method that is left alone."""
        child = self.child(method, self._root / method)
        assert child.code == 0, child.errors
        return child

    def child(self, method: str, workdir: epath.Path, kill: str = "", fill: str = "") -> Child:
        """Runs the command line until its end, with the fault of `kill` or `fill`: see child.py."""
        events = self._folder / "events"
        events.unlink(missing_ok=True)
        paths = filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH")))
        given = {
            "FAULTS_START": self.start,
            "FAULTS_EVENTS": str(events),
            "FAULTS_KILL": kill,
            "FAULTS_FILL": fill,
            "PYTHONPATH": os.pathsep.join(paths),
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self._folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        command = [sys.executable, str(HERE / "child.py"), f"--workdir={workdir}"]
        command.append(f"--config={HERE / 'settings.py'}:{method}")
        done = subprocess.run(command, env=os.environ | given, capture_output=True, text=True)
        ended, sent = time.time(), None
        found = []
        for line in events.read_text().splitlines():
            stage, number = line.split()
            if stage == "signal":
                sent = float(number)
            else:
                found.append((stage, int(number)))
        return Child(done.returncode, found, ended - (sent or ended), done.stderr)

    def kill(self, method: str, moment: tuple[int, int], whole: Child) -> dict[str, Any]:
        """Sends a run the signal at a moment, starts it again, and says what came of it."""
        event, delay = moment
        workdir = self._root / f"{method}-{event}-{delay}"
        killed = self.child(method, workdir, f"{event} {delay} {int(self._signal)}")
        was_late = killed.code == 0  # it had ended before the signal came
        expected = -self._signal if self._signal == signal.SIGKILL else 128 + self._signal
        problems = []
        if killed.code != expected and not was_late:
            problems.append(f"the killed process ended with {killed.code}: {killed.errors[-500:]}")
        if self._signal != signal.SIGKILL and killed.leaving_s > MOST_S:
            problems.append(f"took {killed.leaving_s:.0f} s to end")
        return self.again(method, workdir, event, whole, killed, problems)

    def again(
        self,
        method: str,
        workdir: epath.Path,
        event: int,
        whole: Child,
        ended: Child,
        problems: list[str],
    ) -> dict[str, Any]:
        """Starts a run again that has `ended` after an event; `problems` are those so far."""
        again = self.child(method, workdir)
        if again.code != 0:
            problems.append(f"the next start ended with {again.code}: {again.errors[-500:]}")
        elif difference := self.difference(workdir, self._root / method):
            problems.append(difference)
        return {
            "stage": whole.events[event - 1][0],
            "late": ended.code == 0,
            "tokens": ended.tokens + again.tokens - whole.tokens,
            "leaving_s": ended.leaving_s,
            "problems": problems,
        }

    def full_disk(self, method: str, event: int, whole: Child, disk: Path) -> dict[str, Any]:
        """Fills the disk at an event, starts the run again with room, and says what came of it."""
        workdir, filler = epath.Path(disk / "run"), disk / "filler"
        failed = self.child(method, workdir, fill=f"{event} {filler}")
        filler.unlink()
        lines = [line for line in failed.errors.splitlines() if line.startswith("vinejax: error")]
        was_late = failed.code == 0  # it wrote nothing more
        problems = []
        if not was_late and (failed.code != 2 or len(lines) != 1):
            problems.append(f"ended with {failed.code}: {failed.errors[-1500:]}")
        if not was_late and lines and "No space left" not in lines[0]:
            problems.append(lines[0])
        if len(failed.errors.splitlines()) > 3:
            problems.append(f"says more than it should: {failed.errors[-1500:]}")
        found = self.again(method, workdir, event, whole, failed, problems)
        shutil.rmtree(workdir)
        return found

    def difference(self, found: epath.Path, expected: epath.Path) -> str:
        """What differs between two finished runs; '' if nothing does."""
        lines = []
        for workdir in (found, expected):
            read = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
            lines.append(cases.without_clock(list(read)))
        for n, (one, other) in enumerate(itertools.zip_longest(*lines), start=1):
            if one != other:
                names = [k for k in (one or {}) if one.get(k) != (other or {}).get(k)]
                return f"line {n} of metrics.jsonl differs in {', '.join(names) or 'being there'}"
        params = []
        for workdir in (found, expected):
            with Checkpoints(workdir / "checkpoints", keep=2) as checkpoints:
                newest, like = checkpoints.latest(), load_pretrained(self.start)[1]
                assert newest is not None
                params.append(checkpoints.restore_params(newest, like)[0])
        try:
            cases.assert_equal(*params)
        except AssertionError as error:
            return f"weights differ: {error}"
        return ""


def moments(events: list[tuple[str, int]], count: int, rng: random.Random) -> list[tuple[int, int]]:
    """`count` pairs (number of an event, delay in ms), spread evenly over the stages."""
    by_stage: dict[str, list[int]] = defaultdict(list)
    for number, (stage, _) in enumerate(events, start=1):
        by_stage[stage].append(number)
    stages = itertools.cycle(sorted(by_stage))
    return [
        (rng.choice(by_stage[next(stages)]), rng.randint(0, MOST_DELAY_MS)) for _ in range(count)
    ]


def most_between_saves(events: list[tuple[str, int]]) -> int:
    """The most tokens that were decoded between two checkpoints, or before the first."""
    at = [0, *(tokens for stage, tokens in events if stage == "save")]
    return max(after - before for before, after in itertools.pairwise(at))


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of `DISK_MB` MB."""
    disk = folder / "disk"
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--kills", type=int, default=30, help="of each method")
    parser.add_argument("--signal", default="KILL", choices=["KILL", "TERM", "INT"])
    parser.add_argument("--root", help="of the workdirs")
    parser.add_argument("--full-disk", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    number, failed = signal.Signals[f"SIG{options.signal}"], 0
    # A shell starts what runs in the background to ignore it, and children would do the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(
        "| method | moments | of stages | the same | tokens twice, most | between saves | leaving |"
    )
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        faults = Faults(Path(folder), epath.Path(options.root or folder), number)
        for method in options.methods.split(","):
            whole = faults.whole(method)
            rng = random.Random(f"{method} {options.seed}")
            chosen = moments(whole.events, options.kills, rng)
            if options.full_disk:
                with small_disk(Path(folder)) as disk:
                    found = [faults.full_disk(method, event, whole, disk) for event, _ in chosen]
            else:
                found = [faults.kill(method, moment, whole) for moment in chosen]
            stages = Counter(one["stage"] for one in found)
            same = sum(not one["problems"] for one in found)
            print(
                f"| {method} | {len(found)} ({sum(one['late'] for one in found)} after the end)"
                f" | {', '.join(f'{n} {name}' for name, n in sorted(stages.items()))}"
                f" | {same} | {max(one['tokens'] for one in found):,}"
                f" | {most_between_saves(whole.events):,}"
                f" | {max(one['leaving_s'] for one in found):.1f} s |",
                flush=True,
            )
            for one in found:
                for problem in one["problems"]:
                    failed += 1
                    print(f"  in {one['stage']}: {problem}", file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
