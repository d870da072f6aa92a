"""The report's section about the credit bench: errors and costs of each estimator.

It shows the record that `--mode=credit` writes to `credit/bench.json`. docs/credit_bench.md defines
the measures. Every field is checked where it is read, because the record may be damaged.
"""

import collections
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vinejax.records import formats
from vinejax.records.read import JsonObject, finite_number
from vinejax.tools.report import axes

MAX_ROWS = 40  # maximum number of estimators, and of sources of predictions in the ranking
MAX_BINS = 40  # bins of a calibration
MAX_CALIBRATIONS = 3
# Estimators whose calibration is shown first; the others follow in the record's order.
CALIBRATED_FIRST = ("run", "ppo", "vineppo_k9", "rloo", "vineppo_k1")
SQUARE = axes.Size(290.0, 262.0, 4, 4)
LARGEST_DOT = 8.0  # radius of the calibration's bin with the most states
# A logarithmic scale reaches at most this factor beyond its dots, however long intervals are.
WIDEST = 10.0
MEANINGS = {
    "run": "the settings of this run",
    "rloo": "reward, less the mean reward of the problem’s other solutions",
    "grpo": "reward, less the mean of the problem’s solutions, over their standard deviation",
    "ppo": "values by a critic",
    "vineppo_k1": "VinePPO: each state’s value is the return of 1 continuation",
    "vineppo_k3": "VinePPO with the mean of 3 continuations per state",
    "vineppo_k9": "VinePPO with the mean of 9 continuations per state",
    "spread": "vineppo_k9 at the prompt’s end and at most 4 other states, evenly spread",
    "bisection": "vineppo_k9 at more states only where neighbouring values differ",
    "reuse": "vineppo_k9, each value also of other samples that pass through its state",
    "bisection_reuse": "bisection and reuse together",
    "backup": "vineppo_k3 at the prompt’s end and at most 8 other states, with reuse and values"
    " of later states",
    "role_k1": "vineppo_k1 with values averaged by role: λ = 0.7, w = 0.3",
    "role_k3": "vineppo_k3 with values averaged by role: λ = 0.4, w = 0.3",
    "probe_k0": "the return less a value that the probe has learned",
    "probe_k1": "role_k1, its baselines mixed with values that the probe has learned",
    "probe_k3": "role_k3, its baselines mixed with values that the probe has learned",
    "labels_k1": "1 continuation every 10 tokens, values by role, and continuations as labels",
    "labels_k3": "labels_k1 with 3 continuations per state",
    "blend_k1": "labels every 5 tokens, with reuse and baselines mixed with the probe’s values",
    "blend_k3": "blend_k1 with 3 continuations every 10 tokens",
    "spo_chain": "SPO: states before unlikely tokens, and training on these tokens alone",
    "exact": "VinePPO with as many continuations per state as a true value is made of",
}


class MeasureCell(NamedTuple):
    """A measure with the ends of its 95% interval.

    `low` and `high` are None if the record has no interval, or one of width 0. `high` is infinite
    if the record has a lower end only.
    """

    value: float
    low: float | None = None
    high: float | None = None


class Dot(NamedTuple):
    """A row of a panel. `x`, `low` and `high` are places on the panel's scale in percent.

    `side` is 'pos' if the whole interval lies below the panel's line, 'neg' if it lies above, else
    ''. `is_below` marks a value that is not positive, which a logarithmic scale cannot show.
    """

    name: str
    value: str
    interval: str
    x: float | None
    low: float | None
    high: float | None
    side: str = ""
    chance: float | None = None  # the place of the chance level
    is_below: bool = False


class Panel(NamedTuple):
    """A figure whose rows show one measure on one scale; `line` is where a reference line is."""

    title: str
    note: str
    dots: list[Dot]
    scale: axes.Scale
    line: float | None = None


class Cell(NamedTuple):
    """A number in the table and its interval, both as text."""

    value: str
    interval: str


class TableRow(NamedTuple):
    """An estimator's numbers, in the order of `COLUMNS`."""

    name: str
    cells: list[Cell]


class Calibration(NamedTuple):
    """A plot of true over predicted values; a dot (x, y, radius, label) stands for one bin."""

    name: str
    frame: axes.Frame
    diagonal: str
    dots: list[tuple[float, float, float, str]]


class BenchView(NamedTuple):
    facts: dict[str, str]  # see `_facts`
    panels: list[Panel]
    meanings: list[tuple[str, str]]  # (estimator, its description)
    table: list[TableRow]
    calibrations: list[Calibration]
    ranking: list[Panel]
    ranking_note: str

    @property
    def columns(self) -> list[str]:
        return [column.title for column in COLUMNS]

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The groups of the table's columns, each with its number of columns."""
        return list(collections.Counter(column.group for column in COLUMNS).items())

    @property
    def has_costs(self) -> bool:
        return any(panel.line is not None for panel in self.panels)

    @property
    def has_below(self) -> bool:
        return any(dot.is_below for panel in self.panels for dot in panel.dots)


class EstimatorRow(NamedTuple):
    """The readable fields of one estimator's row in the record."""

    name: str
    measures: dict[str, MeasureCell]
    bins: list[JsonObject]


class Column(NamedTuple):
    """A column of the table; `path` leads to its measure in an estimator's row of the record.

    The measure times `factor` is shown with three decimals or, with `is_size`, with three
    significant digits.
    """

    title: str
    path: str
    group: str
    is_size: bool = False
    factor: float = 1.0


COLUMNS = (
    Column("squared error", "gradient/error", "Policy gradient"),
    Column("cosine", "gradient/cosine", "Policy gradient"),
    Column("squared bias", "gradient/bias", "Policy gradient"),
    Column("worth", "worth", "Policy gradient"),
    Column("tokens", "tokens", "Per solution", is_size=True),
    Column("milliseconds", "seconds", "Per solution", is_size=True, factor=1000.0),
    Column("MAE", "values/mae", "Values of states"),
    Column("bias", "values/bias", "Values of states"),
    Column("rank correlation", "values/rank_correlation", "Values of states"),
)
RANKINGS = (
    ("top", "Best next step found", "share of states; bar across: by chance"),
    ("ordered", "Two next steps in the right order", "share of pairs; bar across: by chance, 1/2"),
)
COSTS = {"second_cost": "in seconds", "token_cost": "in generated tokens"}

REPEATS = "gradient/repeats"
FACTS = ("problems", "per_prompt", "reward", "reference_solutions", "reference_error", "price/w")


def bench_view(record: JsonObject) -> BenchView | None:
    """The view of a record; None if no estimator in the record has a readable measure."""
    estimators = [estimator for estimator in _estimators(record) if estimator.measures]
    if not estimators:
        return None
    ranking, note = _ranking(record.get("ranking"))
    panels = (_error_panel(estimators), *_cost_panels(estimators))
    return BenchView(
        facts=_facts(record, estimators),
        panels=[panel for panel in panels if panel],
        meanings=[(e.name, MEANINGS[e.name]) for e in estimators if e.name in MEANINGS],
        table=[TableRow(e.name, [_cell(e, column) for column in COLUMNS]) for e in estimators],
        calibrations=_calibrations(estimators),
        ranking=ranking,
        ranking_note=note,
    )


def read_measure(raw: object) -> MeasureCell | None:
    """Reads a number, or an object with `value` and perhaps `low` and `high`; else returns None.

    An interval of width 0 is left out, such as that of RLOO's cost divided by RLOO's cost. If there
    is a lower end and `high` is null, the upper end is infinite.
    """
    fields = raw if isinstance(raw, dict) else {"value": raw}
    value, low, high = (finite_number(fields.get(key)) for key in ("value", "low", "high"))
    if value is None:
        return None
    if low is not None and fields.get("high", 0.0) is None:
        return MeasureCell(value, low, math.inf)
    if low is None or high is None or high - low <= 1e-9 * max(abs(low), abs(high)):
        return MeasureCell(value)
    return MeasureCell(value, low, high)


def _estimators(record: JsonObject) -> Iterator[EstimatorRow]:
    paths = [*(column.path for column in COLUMNS), *COSTS, REPEATS]
    for name, row in list(_mapping(record.get("rows")).items())[:MAX_ROWS]:
        read = {path: read_measure(_value_at(row, path)) for path in paths}
        bins = _value_at(row, "values/calibration")
        yield EstimatorRow(
            name=formats.clip(name, 40).text,
            measures={path: measure for path, measure in read.items() if measure is not None},
            bins=[b for b in bins[:MAX_BINS] if isinstance(b, dict)]
            if isinstance(bins, list)
            else [],
        )


def _facts(record: JsonObject, estimators: Sequence[EstimatorRow]) -> dict[str, str]:
    """Maps names of facts to texts for the sentences above the figures; '' for an unknown fact.

    'repeats' is the number of repeats of the estimator that has the most. 'fewer' lists the
    estimators with fewer, such as 'exact in 4' if the estimator named 'exact' has 4 repeats.
    """
    policy = record.get("policy")
    repeats = {e.name: m.value for e in estimators if (m := e.measures.get(REPEATS)) is not None}
    maximum = max(repeats.values(), default=None)
    numbers = {path.rpartition("/")[2]: finite_number(_value_at(record, path)) for path in FACTS}
    fewer = [f"{name} in {formats.three_digits(n)}" for name, n in repeats.items() if n != maximum]
    return {
        "policy": formats.clip(policy, 80).text if isinstance(policy, str) else "",
        "fewer": ", ".join(fewer),
    } | {
        name: "" if number is None else formats.three_digits(number)
        for name, number in (numbers | {"repeats": maximum}).items()
    }


def _error_panel(estimators: Sequence[EstimatorRow]) -> Panel | None:
    measures = {e.name: e.measures.get("gradient/error") for e in estimators}
    scale = _log_scale([m for m in measures.values() if m is not None])
    if scale is None:
        return None
    title, note = "Error of the policy gradient", "relative and squared: less is better"
    return Panel(title, note, [_dot(name, m, scale) for name, m in measures.items()], scale)


def _cost_panels(estimators: Sequence[EstimatorRow]) -> Iterator[Panel]:
    """The panels of costs, which share a scale so that seconds and tokens can be compared."""
    costs = [m for e in estimators for path in COSTS if (m := e.measures.get(path)) is not None]
    scale = _log_scale([*costs, MeasureCell(1.0)]) if costs else None
    if scale is None:
        return
    for path, unit in COSTS.items():
        measures = {e.name: e.measures.get(path) for e in estimators}
        if any(measures.values()):
            dots = [_dot(name, m, scale, line=1.0) for name, m in measures.items()]
            title = f"Cost {unit}"
            note = "for an equal error; RLOO’s is 1"
            yield Panel(title, note, dots, scale, scale.place(1.0))


def _log_scale(measures: Sequence[MeasureCell]) -> axes.Scale | None:
    """A logarithmic scale for the positive measures; None if no measure is positive."""
    values = [m.value for m in measures if m.value > axes.TINY]
    if not values:
        return None
    lowest, highest = min(values) / WIDEST, max(values) * WIDEST
    ends = [end for m in measures for end in (m.low, m.high) if end is not None and end > axes.TINY]
    return axes.fit_log_scale([*values, *(min(highest, max(lowest, end)) for end in ends)])


def _dot(
    name: str, measure: MeasureCell | None, scale: axes.Scale, line: float | None = None
) -> Dot:
    if measure is None:
        return Dot(name, "–", "", None, None, None)
    low, high, side = measure.low, measure.high, ""
    if line is not None and low is not None and high is not None:
        side = "pos" if high < line else "neg" if low > line else ""
    is_below = scale.log and measure.value <= axes.TINY
    return Dot(
        name=name,
        value=formats.three_digits(measure.value),
        interval=_interval(measure, formats.three_digits),
        x=None if is_below else scale.place(measure.value),
        low=None if low is None else scale.place(low),
        high=None if high is None else scale.place(high),
        side=side,
        is_below=is_below,
    )


def _cell(estimator: EstimatorRow, column: Column) -> Cell:
    measure = estimator.measures.get(column.path)
    if measure is None:
        return Cell("–", "")

    def show(value: float) -> str:
        write = formats.three_digits if column.is_size else formats.three_decimals
        return write(column.factor * value)

    return Cell(show(measure.value), _interval(measure, show))


def _interval(measure: MeasureCell, show: Callable[[float], str]) -> str:
    """The interval as text, such as '[0.44, 0.93]'; '' without an interval."""
    if measure.low is None or measure.high is None:
        return ""
    high = show(measure.high) if math.isfinite(measure.high) else "∞"
    return f"[{show(measure.low)}, {high}]"


def _calibrations(estimators: Sequence[EstimatorRow]) -> list[Calibration]:
    points_of = {e.name: points for e in estimators if (points := list(_points(e.bins)))}
    names = [name for name in CALIBRATED_FIRST if name in points_of]
    names += [name for name in points_of if name not in names]
    return [_calibration(name, points_of[name]) for name in names[:MAX_CALIBRATIONS]]


def _points(bins: Sequence[JsonObject]) -> Iterator[tuple[float, float, float]]:
    """Yields mean prediction, mean true value and number of states of each bin with states."""
    for raw in bins:
        x, y, states = (finite_number(raw.get(key)) for key in ("prediction", "truth", "states"))
        if x is not None and y is not None and states is not None and states > 0:
            yield x, y, states


def _calibration(name: str, points: Sequence[tuple[float, float, float]]) -> Calibration:
    frame = axes.fit_square([v for x, y, _ in points for v in (x, y)], SQUARE)
    max_states = max(states for _, _, states in points)
    low, high = frame.x_range
    dots = []
    for x, y, states in points:
        radius = round(max(2.5, LARGEST_DOT * (states / max_states) ** 0.5), 1)
        label = (
            f"predicted {formats.two_decimals(x)}, true {formats.two_decimals(y)},"
            f" {formats.three_digits(states)} states"
        )
        dots.append((frame.x(x), frame.y(y), radius, label))
    diagonal = axes.svg_path([(frame.x(low), frame.y(low)), (frame.x(high), frame.y(high))])
    return Calibration(name, frame, diagonal, dots)


def _ranking(raw: object) -> tuple[list[Panel], str]:
    """The panels of the ranking of next steps, and a note with the numbers of states and steps.

    Next steps are the different steps that the policy could take at one state. The credit bench
    measures how well predicted values rank them.
    """
    rows = {
        formats.clip(name, 40).text: scores
        for name, scores in list(_mapping(raw).items())[:MAX_ROWS]
    }
    scale = axes.share_scale()
    panels = []
    for key, title, note in RANKINGS:
        dots = []
        for name, scores in rows.items():
            chance = read_measure(_value_at(scores, "chance")) if key == "top" else MeasureCell(0.5)
            dot = _dot(name, read_measure(_value_at(scores, key)), scale)
            dots.append(dot._replace(chance=scale.place(chance.value) if chance else None))
        if any(dot.x is not None for dot in dots):
            panels.append(Panel(title, note, dots, scale))
    sizes = [
        [finite_number(_value_at(s, key)) for key in ("states", "alternatives")]
        for s in rows.values()
    ]
    states, steps = next((pair for pair in sizes if None not in pair), (None, None))
    if states is None:
        return panels, ""
    return (
        panels,
        f"{formats.three_digits(states)} states, {formats.three_digits(steps)} next steps at each",
    )


def _mapping(raw: object) -> Mapping[str, object]:
    return raw if isinstance(raw, dict) else {}


def _value_at(tree: object, path: str) -> object:
    """The value at a path such as 'values/mae' in a tree; None if the tree lacks the path."""
    for key in path.split("/"):
        tree = _mapping(tree).get(key)
    return tree
