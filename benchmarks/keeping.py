"""What keeping costs: checkpoints beside the time of an iteration; and growth.

    python benchmarks/keeping.py [--rounds=12] [--output=FILE.json]
    python benchmarks/keeping.py --growth=200

Three runs of VinePPO (configs/tiny.py with ten times its parameters, from one start, whose learning
rate is too small to change a token) take turns in one process: a round is one iteration of each
with all that the loop does around it. One keeps nothing, the others a checkpoint every tenth
iteration and in every iteration. A round in which a program was compiled is left out. Ratios are
medians over rounds of (time of the run / time of the one that keeps nothing). Beside them is the
time that the main thread spends in keeping, as a share.

`--growth` trains configs/tiny.py in small for so many iterations, with a checkpoint in each, and
prints memory and open files at the ends of the quarters.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax

from vinejax.config.load import from_dict, from_file
from vinejax.core.settings import Config
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.compiles import compiles, num_compiles
from vinejax.runtime.log import RunLog
from vinejax.tools.report.live import LivePage
from vinejax.training import loop
from vinejax.training.startup import open_session
from vinejax.training.warmup import warm_up

CONFIGS = Path(__file__).parents[1] / "configs"
TEN_TIMES: dict[str, Any] = {"num_layers": 4, "width": 192, "num_heads": 6, "num_kv_heads": 3}
NEVER = 10**6  # iterations between two checkpoints
RUNS = {"nothing": NEVER, "every 10th": 10, "every iteration": 1}  # name -> checkpoint.every
SMALL = {"prompts": 4, "per_prompt": 4, "slots": 32}


class Turn(NamedTuple):
    """One iteration of one run."""

    seconds: float
    keeping_s: float  # of them in calls that keep something
    compiled: int  # programs


class Clock:
    """Seconds that the main thread spends in calls that keep something."""

    def __init__(self):
        self.seconds = 0.0
        for owner, name in ((Checkpoints, "save"), (loop, "host_copy")):
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **settings: Any) -> Any:
            start = time.monotonic()
            try:
                return function(*args, **settings)
            finally:
                self.seconds += time.monotonic() - start

        return timed


class Contender:
    """A run whose iterations are made one by one, as `TrainingRun.run` makes them."""

    def __init__(self, cfg: Config, workdir: Path, stack: ExitStack):
        session = stack.enter_context(open_session(cfg, workdir, trains=True))
        checkpoints = stack.enter_context(Checkpoints(session.workdir / "checkpoints", keep=2))
        best = stack.enter_context(Checkpoints(session.workdir / "best", keep=1))
        state, at = loop.resume(session, checkpoints)
        log = RunLog(session.workdir, cfg.log, cfg.iterations, True, resumed_at=0)
        page = stack.enter_context(LivePage(session.workdir, NEVER, 0, print, is_writer=False))
        compiled = compiles()
        self._run = loop.TrainingRun(session, log, checkpoints, best, page, state, at, compiled)

    def turn(self, clock: Clock) -> Turn:
        start, keeping, programs = time.monotonic(), clock.seconds, num_compiles()
        self._run._train_iteration()  # pyright: ignore[reportPrivateUsage]
        self._run._finish_iteration()  # pyright: ignore[reportPrivateUsage]
        seconds = time.monotonic() - start
        return Turn(seconds, clock.seconds - keeping, num_compiles() - programs)


def config_of(folder: Path, start: str, every: int) -> Config:
    fields: Any = from_file(str(CONFIGS / "tiny.py"), "tiny.py")
    fields.optimizer.learning_rate = 1e-12
    fields.iterations, fields.eval.every = NEVER, 0
    fields.model.path = start
    fields.rollout.prompts = 8
    for name, value in TEN_TIMES.items():
        fields.model[name] = value
    fields.model.ffn = 576
    fields.checkpoint.every = every
    if not start:
        fields.sft.steps, fields.sft.learning_rate = 300, 2e-3
    return from_dict(fields)


def measure(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """A row for each of `RUNS`."""
    start = str(warm_up(config_of(folder, "", NEVER), folder / "start"))
    clock, turns = Clock(), defaultdict(list)
    with ExitStack() as stack:
        runs = {
            name: Contender(config_of(folder, start, every), folder / str(n), stack)
            for n, (name, every) in enumerate(RUNS.items())
        }
        for number in range(4 * rounds):
            made = {name: run.turn(clock) for name, run in runs.items()}
            is_clean = not any(turn.compiled for turn in made.values())
            print(f"round {number}: {'measured' if is_clean else 'compiled a program, left out'}")
            for name, turn in made.items():
                turns[name] += [turn] if is_clean else []
            if len(turns["nothing"]) == rounds:
                break
    return [row(name, turns) for name in RUNS]


def row(name: str, turns: dict[str, list[Turn]]) -> dict[str, Any]:
    ratios = [
        own.seconds / nothing.seconds
        for own, nothing in zip(turns[name], turns["nothing"], strict=True)
    ]
    shares = [turn.keeping_s / turn.seconds for turn in turns[name]]
    return {
        "keeps": name,
        "over nothing": round(statistics.median(ratios), 3),
        "range": [round(min(ratios), 3), round(max(ratios), 3)],
        "seconds": round(statistics.median(turn.seconds for turn in turns[name]), 3),
        "share in keeping": round(statistics.median(shares), 4),
        "largest share": round(max(shares), 4),
    }


def growth(folder: Path, iterations: int) -> list[dict[str, Any]]:
    """Memory, in MiB, and open files of this process after each quarter of the iterations."""
    fields: Any = from_file(str(CONFIGS / "tiny.py"), "tiny.py")
    fields.iterations, fields.eval.every, fields.checkpoint.every = iterations, 10, 1
    for name, value in SMALL.items():
        fields.rollout[name] = value
    fields.eval.problems, fields.ppo.minibatch = 16, 16
    found: list[dict[str, Any]] = []
    record = loop.Iteration.record

    def noted(self: Any, step: int) -> Any:
        if (self.number + 1) % (iterations // 4) == 0:
            files = len(os.listdir("/proc/self/fd"))
            memory = resident_mib()
            found.append({"iterations": self.number + 1, "MiB": memory, "open files": files})
        return record(self, step)

    loop.Iteration.record = noted
    loop.train(from_dict(fields), folder / "growth")
    return found


def resident_mib() -> int:
    """The resident memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="What keeping costs.")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--growth", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.growth:
            rows = growth(Path(folder), options.growth)
        else:
            rows = measure(Path(folder), options.rounds)
    for one in rows:
        print(json.dumps(one))
    if options.output:
        options.output.write_text(json.dumps({"jax": jax.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
