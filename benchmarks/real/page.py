"""Makes docs/real_model.md and its figure from the records of runs on a pretrained model.

    pip install -e '.[bench]'
    python benchmarks/real/page.py

The records are controls.jsonl, which controls.py writes, and runs.jsonl, which has the runs that
were made before it. What people wrote about them is in page.md.j2, where results of the controls
are expressions, so that they cannot differ from the tables.

A line of runs.jsonl is a run of configs/alice.py: method, seed, solutions of an iteration and of a
problem, the median seconds of an iteration (of machines that differ), validation accuracy by
iteration, and test accuracy by iteration where it was measured. The runs of seed 1 had rows of 128
tokens.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
import matplotlib

matplotlib.use("Agg")

from controls import (  # noqa: E402
    CONTROLS,
    ITERATIONS,
    RECORDS,
    SEEDS,
    SETS,
    Control,
    chance,
    final_test,
    markdown,
    read_records,
    table,
)
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.ticker import PercentFormatter  # noqa: E402

FOLDER = Path(__file__).parent
FIRST = FOLDER / "runs.jsonl"
DOCS = FOLDER.parents[1] / "docs"
PICTURE = DOCS / "results/curves_real.png"
STYLES = {
    "vineppo": ("#0b3d24", "-", "o"),
    "no_steps": ("#3b78b5", "-", "s"),
    "grpo": ("#b0580f", "-", "x"),
    "grpo_resample": ("#8e44ad", "-", "^"),
    "rloo": ("#d98d3d", "--", "+"),
    "rloo_whitened": ("#d98d3d", ":", "d"),
}
LABELS = {
    "no_steps": "vineppo without step credit",
    "grpo_resample": "grpo, groups of equal rewards replaced",
    "rloo_whitened": "rloo, whitened",
}
USUAL = 8  # solutions of a problem

Run = dict[str, Any]  # a line of records
Names = str | Sequence[str]  # of one control, or of several whose runs are taken together


@dataclasses.dataclass(frozen=True)
class Records:
    """The records, and the texts that page.md.j2 makes from them. `name` is that of a set."""

    controls: list[Run]
    first: list[Run]  # of runs.jsonl

    def tests(self, name: str, control: str) -> str:
        """The test accuracies of a control by seed, such as '44%, 38% and 45%'."""
        return percents(map(final_test, self._runs(name, control)))

    def least(self, name: str) -> str:
        """The lowest test accuracy of a set's runs."""
        return percents([min(map(final_test, self._runs(name, SETS[name].controls)))])

    def most(self, name: str) -> str:
        """The highest test accuracy of a set's runs."""
        return percents([max(map(final_test, self._runs(name, SETS[name].controls)))])

    def mean(self, name: str, control: str) -> str:
        """The mean test accuracy of a control."""
        return percents([statistics.fmean(map(final_test, self._runs(name, control)))])

    def better(self, name: str, others: Names, own: Names = "vineppo", first: bool = False) -> str:
        """The probability that a run of `own` is better on the test split than one of `others`.

        `first` adds the runs of runs.jsonl that went as far as the controls.
        """
        groups = (
            [*self._runs(name, names), *(self._first_runs(names) if first else ())]
            for names in (own, others)
        )
        return chance(*([final_test(run) for run in runs] for runs in groups))

    def better_after(
        self, iterations: int, name: str, others: Names, own: Names = "vineppo"
    ) -> str:
        """As `better`, on the validation split after so many iterations."""
        groups = (self._runs(name, names) for names in (own, others))
        return chance(*([run["validation"][str(iterations)] for run in runs] for runs in groups))

    def first_tests(self, method: str) -> str:
        """The test accuracies of the runs of runs.jsonl that went as far as the controls."""
        return percents(map(final_test, self._first_runs(method)))

    def starts(self, name: str) -> str:
        """The test accuracies of the start by seed."""
        return percents(x["test"]["0"] for x in self._runs(name, "vineppo"))

    def thousands(self, name: str, control: str) -> str:
        """The thousands of tokens that the runs of a control sampled, by seed."""
        return listed(f"{x['tokens'] / 1000:.0f}" for x in self._runs(name, control))

    def seconds(self, name: str, control: str) -> str:
        """The seconds of an iteration, from the fastest run of a control to the slowest."""
        found = [x["seconds"] for x in self._runs(name, control)]
        return f"{min(found):.0f} to {max(found):.0f}"

    def ended(self, name: str) -> int:
        """How many of the planned runs of a set have ended."""
        return len(self._runs(name, SETS[name].controls))

    def planned(self, name: str) -> int:
        """How many runs of a set are planned."""
        return len(SETS[name].controls) * len(SEEDS)

    def compared(self) -> int:
        """How many comparisons with VinePPO the tables of the sets have."""
        names = ((name, x) for name in SETS for x in SETS[name].controls if x != "vineppo")
        return sum(bool(self._runs(*pair)) for pair in names)

    def summary(self, name: str) -> str:
        """A row for every control of a set that has a run."""
        return markdown(
            ["control", "what is run", "what it shows", "test by seed", "P", "thousands of tokens"],
            self._summary_rows(name),
        )

    def _summary_rows(self, name: str) -> Iterator[list[str]]:
        for control in SETS[name].controls:
            if self._runs(name, control):
                yield [
                    control,
                    settings(CONTROLS[control]),
                    CONTROLS[control].asks,
                    self.tests(name, control),
                    "" if control == "vineppo" else self.better(name, control),
                    self.thousands(name, control),
                ]

    def all_runs(self, name: str) -> str:
        """A row for every run of a set."""
        return table(self.controls, name)

    def first_table(self) -> str:
        """A row for every run of runs.jsonl."""
        iterations = [str(n) for n in range(0, 70, 10)]
        head = ["method", "solutions a problem", "seed", *iterations, "test", "after", "seconds"]
        rows = []
        for run in sorted(self.first, key=lambda x: (x["method"], x["per_prompt"], x["seed"])):
            accuracy = [run["validation"].get(n) for n in iterations]
            accuracy += [run["test"]["0"], final_test(run) if len(run["test"]) > 1 else None]
            cells = ["" if x is None else f"{100 * x:.0f}" for x in accuracy]
            own = [run["method"], str(run["per_prompt"]), str(run["seed"])]
            rows.append([*own, *cells, f"{run['seconds']:.0f}"])
        return markdown(head, rows)

    def _runs(self, name: str, controls: Names) -> list[Run]:
        """The runs of controls that have ended, by control and seed."""
        names = [controls] if isinstance(controls, str) else list(controls)
        chosen = [x for x in self.controls if x["set"] == name and x["control"] in names]
        return sorted(chosen, key=lambda x: (names.index(x["control"]), x["seed"]))

    def _first_runs(self, method: Names) -> list[Run]:
        return [
            run
            for run in sorted(self.first, key=lambda x: x["seed"])
            if (run["method"], run["per_prompt"]) == (method, USUAL)
            and max(map(int, run["validation"])) >= ITERATIONS
        ]


def listed(items: Iterable[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def percents(values: Iterable[float]) -> str:
    return listed(f"{100 * x:.0f}%" for x in values)


def settings(control: Control) -> str:
    """The method of a control and the fields that it changes."""
    changed = "".join(f", `{name}={value!r}`" for name, value in control.overrides.items())
    return f"`{control.method}`{changed}"


def page(records: Records) -> str:
    """The text of docs/real_model.md. Raises jinja2.UndefinedError for an unknown name."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.md.j2").render(records=records)


def draw(records: Records, picture: Path) -> None:
    """Validation accuracy over iterations: a panel for a set, a line for a run of `STYLES`."""
    figure, panels = plt.subplots(1, len(SETS), figsize=(10, 4.3), layout="constrained")
    for panel, name in zip(panels, SETS, strict=True):
        draw_set(panel, [x for x in records.controls if x["set"] == name])
        panel.set(title=name, xlabel="iterations of 64 solutions")
    panels[0].set_ylabel("validation accuracy")
    lines = {line.get_label(): line for panel in panels for line in panel.get_lines()}
    labels = [LABELS.get(control, control) for control in STYLES]
    known = [label for label in labels if label in lines]
    figure.legend(
        [lines[label] for label in known], known, loc="outside lower center", ncols=3, frameon=False
    )
    figure.savefig(picture, dpi=120)
    plt.close(figure)


def draw_set(panel: Axes, runs: list[Run]) -> None:
    """A line for every run whose control is in `STYLES`, alike for all seeds."""
    for run in (x for x in runs if x["control"] in STYLES):
        colour, dash, marker = STYLES[run["control"]]
        panel.plot(
            [int(iteration) for iteration in run["validation"]],
            [*run["validation"].values()],
            color=colour,
            linestyle=dash,
            marker=marker,
            markersize=4,
            linewidth=1,
            label=LABELS.get(run["control"], run["control"]),
        )
    panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.3)


def main() -> None:
    records = Records(read_records(RECORDS), read_records(FIRST))
    text = page(records)
    draw(records, PICTURE)
    (DOCS / "real_model.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
