"""Controls of the comparison on a pretrained model: which part of VinePPO's settings does it.

    python benchmarks/real/controls.py --list
    taskset -c 1 python benchmarks/real/controls.py --minutes=60     # the next slice, on one core
    python benchmarks/real/controls.py --table

Each control is a run of a config file of `SETS` with a few fields changed, for the seeds 1 to 3.
A run is stopped after 40 iterations of its schedule, and its best checkpoint by validation is
evaluated on the test split. A slice that ends within a run stops it as a signal stops any run, and
the next slice resumes it. Inputs are made once, as the config file says.

A line of controls.jsonl is a run that has ended: set, control, seed, overrides, seconds of an
iteration (median), sampled tokens, validation accuracy by iteration, test accuracy at the start and
of the chosen checkpoint, correct test samples by kind of problem, and by iteration the mean reward,
`actor/grad_norm` and `frac_reward_zero_std`.
"""

import argparse
import datetime
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import vinejax
from vinejax.tools.report.interquartile import improvement_interval

RECORDS = Path(__file__).parent / "controls.jsonl"
FOLDER = Path("runs/controls")  # of the workdirs
SEEDS = (1, 2, 3)
ITERATIONS = 40  # of each run
POLL_S = 5.0
LEAST_S = 120.0  # of a slice's time that must be left for a run to begin or go on

Fields = Mapping[str, Any]


class Control(NamedTuple):
    """What a run changes: the method, which is the config file's argument, and fields."""

    method: str
    overrides: Fields
    asks: str  # what the control would show


CONTROLS = {
    "vineppo": Control("vineppo", {}, "the claim"),
    "grpo": Control("grpo", {}, "its baseline"),
    "rloo": Control("rloo", {}, "another baseline"),
    "no_steps": Control(
        "vineppo",
        {"values.merge": 1000, "values.num_states": None},
        "VinePPO without step credit: one state, the prompt; probe and whitening are kept",
    ),
    "rloo_whitened": Control("rloo", {"ppo.whiten": "iteration"}, "whitening alone"),
    "grpo_whitened": Control("grpo", {"ppo.whiten": "iteration"}, "whitening alone"),
    "unwhitened": Control("vineppo", {"ppo.whiten": "none"}, "VinePPO without whitening"),
    "no_probe": Control("vineppo", {"values.prior": ""}, "VinePPO without the learned baseline"),
    "ppo_probe": Control("ppo_probe", {}, "the learned baseline alone, without continuations"),
    "grpo_half": Control("grpo", {"optimizer.learning_rate": 1.5e-4}, "the rate"),
    "grpo_double": Control("grpo", {"optimizer.learning_rate": 6e-4}, "the rate"),
    "vineppo_half": Control("vineppo", {"optimizer.learning_rate": 1.5e-4}, "the rate"),
    "vineppo_double": Control("vineppo", {"optimizer.learning_rate": 6e-4}, "the rate"),
    "grpo_resample": Control(
        "grpo",
        {"rollout.zero_variance": "resample"},
        "groups of equal rewards replaced, as in DAPO",
    ),
    "grpo_14": Control(
        "grpo",
        {"rollout.prompts": 14, "ppo.minibatch": 112},
        "as many sampled tokens as VinePPO: 112 solutions an iteration",
    ),
    "labels": Control(
        "vineppo",
        {
            "values.positions": "tokens",
            "values.every": 10,
            "values.num_states": None,
            "values.reuse": True,
            "credit.lambda_": 0.5,
            "credit.baseline_lambda": 0.5,
            "credit.labels": "blend",
        },
        "labels, with a state at every tenth token",
    ),
}


class Set(NamedTuple):
    """A set of problems: its config file, its controls, and a problem's kind by its question."""

    config: str
    controls: tuple[str, ...]
    kind_of: Callable[[str], str] | None = None


def sisters_first(question: str) -> str:
    """'first' if the question names sisters before brothers, 'second' if after, or 'friends'."""
    sisters, brothers = question.find("sisters"), question.find("brothers")
    if min(sisters, brothers) < 0:
        return "friends"
    return "first" if sisters < brothers else "second"


SETS = {
    "alice": Set("configs/alice.py", tuple(CONTROLS), sisters_first),
    # Chosen, with these controls, before any run of it: docs/decisions.md.
    "legs": Set("configs/legs.py", ("vineppo", "grpo", "rloo", "no_steps", "rloo_whitened")),
}


class Planned(NamedTuple):
    """A run that the plan asks for."""

    name: str  # of its set
    control: str
    seed: int

    @property
    def workdir(self) -> Path:
        return FOLDER / self.name / f"{self.control}_{self.seed}"

    def command(self, *more: str) -> list[str]:
        """The command line of the run."""
        control = CONTROLS[self.control]
        fields = {**control.overrides, "seed": self.seed, "log.vines": 0}
        return [
            *(sys.executable, "-m", "vinejax.main"),
            f"--config={SETS[self.name].config}:{control.method}",
            f"--workdir={self.workdir}",
            *(f"--config.{name}={value}" for name, value in fields.items()),
            *more,
        ]


def read_records(file: Path = RECORDS) -> list[dict[str, Any]]:
    """All runs that have ended, in the order in which they did."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def planned(names: Sequence[str], controls: Sequence[str]) -> Iterator[Planned]:
    """Seed by seed, so that every control has a run before one has two."""
    for seed in SEEDS:
        for name in names:
            for control in SETS[name].controls:
                if control in controls:
                    yield Planned(name, control, seed)


def missing(runs: Iterator[Planned], records: list[dict[str, Any]]) -> list[Planned]:
    """The planned runs that have no record."""
    ended = {(x["set"], x["control"], x["seed"]) for x in records}
    return [run for run in runs if run not in ended]


def validated(workdir: Path) -> int:
    """The last iteration after which a run evaluated its policy on the validation split."""
    file = workdir / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]  # the last may be cut
    return max((x["iteration"] for x in records if x["stage"] == "eval"), default=0)


def advance(run: Planned, deadline: float) -> bool:
    """Starts or resumes a run until it has its iterations or the time is over; whether it has."""
    if validated(run.workdir) >= ITERATIONS:
        return True
    run.workdir.mkdir(parents=True, exist_ok=True)
    with (run.workdir / "output.log").open("ab") as log:
        process = subprocess.Popen(run.command(), stdout=log, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                time.sleep(POLL_S)
                if time.monotonic() > deadline or validated(run.workdir) >= ITERATIONS:
                    break
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)  # the run saves and ends
            process.wait()
    if validated(run.workdir) >= ITERATIONS:
        return True
    if time.monotonic() <= deadline:
        sys.exit(f"{run.workdir}/output.log: the run ended after too few iterations; read why")
    return False


def record_of(run: Planned) -> dict[str, Any]:
    """The line of a run that has ended; evaluates its best checkpoint."""
    evaluation = run.workdir / "eval/test.json"
    if not evaluation.exists():
        subprocess.run(run.command("--mode=eval"), check=True, stdout=subprocess.DEVNULL)
    metrics = [x for x in vinejax.run(run.workdir).metrics if x["iteration"] <= ITERATIONS]
    trained = [x for x in metrics if x["stage"] == "train"]

    def by_iteration(stage: str, name: str) -> dict[int, float]:
        chosen = [x for x in metrics if x["stage"] == stage]
        return {x["iteration"]: round(x[name], 4) for x in chosen}

    stages = ("rollout", "value", "score", "train")
    seconds = [sum(x.get(f"timing_s/{stage}", 0.0) for stage in stages) for x in trained]
    found = json.loads(evaluation.read_text(encoding="utf-8"))
    curves = {
        name: [round(x.get(key, float("nan")), 4) for x in trained]
        for name, key in (
            ("reward", "reward/mean"),
            ("grad_norm", "actor/grad_norm"),
            ("flat", "frac_reward_zero_std"),
        )
    }
    return {
        "set": run.name,
        "control": run.control,
        "seed": run.seed,
        "method": CONTROLS[run.control].method,
        "overrides": dict(CONTROLS[run.control].overrides),
        "date": datetime.date.today().isoformat(),
        "iterations": len(trained),
        "seconds": round(statistics.median(seconds), 1),
        "tokens": trained[-1]["total/tokens"],
        "validation": by_iteration("eval", "eval/pass_at_1"),
        "test": by_iteration("test", "test/pass_at_1")
        | {int(found["source"].rpartition("/")[2]): round(found["pass_at_1"], 4)},
        "kinds": correct_by_kind(run),
        **curves,
    }


def correct_by_kind(run: Planned) -> dict[str, tuple[int, int]]:
    """Kind of test problem -> correct samples, samples; empty for a set without kinds."""
    kind_of = SETS[run.name].kind_of
    if kind_of is None:
        return {}
    kinds: dict[str, tuple[int, int]] = {}
    for line in (run.workdir / "eval/test.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rewards = [response["reward"] for response in row["responses"]]
        kind = kind_of(row["question"])
        correct, samples = kinds.get(kind, (0, 0))
        kinds[kind] = correct + sum(x == 1 for x in rewards), samples + len(rewards)
    return kinds


def work(runs: list[Planned], minutes: float) -> int:
    """Does runs in their order until the time is over; returns how many are left."""
    deadline = time.monotonic() + 60 * minutes
    for n, run in enumerate(runs):
        if time.monotonic() > deadline - LEAST_S or not advance(run, deadline):
            return len(runs) - n
        record = record_of(run)
        with RECORDS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        last = max(record["test"])
        print(f"{run.name} {run.control} seed {run.seed}: {record['test'][last]:.1%}", flush=True)
    return 0


def table(records: list[dict[str, Any]], name: str) -> str:
    """All runs of a set, in the order of `CONTROLS`, as a table of Markdown.

    P is the chance that a run of VinePPO is better on the test split than one of the control, with
    its interval. A run has died if it ends below its start on the validation split.
    """
    ours = [x for x in records if x["set"] == name]
    kinds = sorted({kind for x in ours for kind in x["kinds"]})
    columns = ["control", "seed", *map(str, range(0, ITERATIONS + 1, 10)), "test", *kinds]
    columns += ["seconds", "tokens", "gradient, first and last 5", "flat groups, the same", "P"]
    rows = []
    tests = {
        control: [final_test(x) for x in ours if x["control"] == control] for control in CONTROLS
    }
    for control in CONTROLS:
        runs = sorted((x for x in ours if x["control"] == control), key=lambda x: x["seed"])
        for run in runs:
            better = ""
            if run is runs[0] and control != "vineppo" and tests["vineppo"]:
                better = chance(tests["vineppo"], tests[control])
            rows.append([*row_of(run, kinds), better])
    return markdown(columns, rows)


def chance(own: Sequence[float], other: Sequence[float]) -> str:
    """The probability of improvement with its interval, such as '0.78 (0.32 to 0.96)'."""
    return "{:.2f} ({:.2f} to {:.2f})".format(*improvement_interval([own], [other]))


def markdown(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table of Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def row_of(run: dict[str, Any], kinds: list[str]) -> list[str]:
    """The cells of a run, but for the last."""
    validation = {int(n): value for n, value in run["validation"].items()}
    cells = [run["control"], str(run["seed"])]
    for iteration in range(0, ITERATIONS + 1, 10):
        cells.append(f"{100 * validation[iteration]:.0f}" if iteration in validation else "")
    if validation[max(validation)] < validation[0]:
        cells[0] += " (died)"
    cells.append(f"{100 * final_test(run):.0f}")
    for kind in kinds:
        correct, samples = run["kinds"].get(kind, (0, 0))
        cells.append(f"{100 * correct / samples:.0f}" if samples else "")
    cells += [f"{run['seconds']:.0f}", f"{run['tokens']:,.0f}"]
    for name in ("grad_norm", "flat"):
        first, last = (statistics.fmean(run[name][part]) for part in (slice(5), slice(-5, None)))
        cells.append(f"{first:.2f}, {last:.2f}")
    return cells


def final_test(run: dict[str, Any]) -> float:
    """Test accuracy of the checkpoint that validation chose."""
    return run["test"][max(run["test"], key=int)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--set", choices=SETS, help="one set of problems; default: all")
    parser.add_argument("--controls", nargs="+", choices=CONTROLS, default=list(CONTROLS))
    parser.add_argument("--minutes", type=float, default=60.0, help="after which the slice ends")
    parser.add_argument("--list", action="store_true", help="print the runs that are left")
    parser.add_argument("--table", action="store_true", help="print the runs that have ended")
    options = parser.parse_args()
    names = [options.set] if options.set else list(SETS)
    records = read_records()
    if options.table:
        print("\n\n".join(f"## {name}\n\n{table(records, name)}" for name in names))
        return
    left = missing(planned(names, options.controls), records)
    if options.list:
        for run in left:
            print(f"{run.name} {run.control} seed {run.seed}: {validated(run.workdir)} iterations")
        return
    print(f"{work(left, options.minutes)} runs are left")


if __name__ == "__main__":
    main()
