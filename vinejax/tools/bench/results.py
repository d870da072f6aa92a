"""The result of the credit bench, as a JSON record and as tables for the terminal."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from vinejax.tools.bench.estimators import EXACT
from vinejax.tools.bench.gradients import GradientError, error_draws, gradient_error, measure_of
from vinejax.tools.bench.intervals import Measure
from vinejax.tools.bench.measure import MeasuredRepeats, MeasuredSolutions, steady
from vinejax.tools.bench.price import Price
from vinejax.tools.bench.ranking import RankingScores
from vinejax.tools.bench.reference import Reference
from vinejax.tools.bench.value_error import ValueScores
from vinejax.tools.bench.worth import worth_of

# Prices of a sampled token in trained tokens, from a TPU's plan (0.05, 0.14) to a CPU's (0.4).
PRICES = (0.05, 0.14, 0.4)
BASELINE = "rloo"  # the estimator whose cost is 1, if it is measured


@dataclasses.dataclass(frozen=True)
class ResultRow:
    """An estimator's results: the error of its gradient, its costs, and the errors of its values.

    The cost to reach a given error is proportional to error times tokens, or error times seconds,
    if errors have no bias and fall as 1 / solutions. A cost here is this product divided by that of
    the baseline, estimator 'rloo'. The cost at a price p is error times trained + p·sampled tokens.
    `error_ratio` and both other costs are None if the baseline is not measured.
    """

    gradient: GradientError
    tokens: float  # generated tokens per solution, continuations included
    seconds: float  # time per solution to sample, assign credit and train, also a critic
    error_ratio: Measure | None  # error / the baseline's error
    token_cost: Measure | None
    second_cost: Measure | None
    values: ValueScores | None = None
    worth: Measure | None = None  # see `worth.py`; None without estimator 'exact'
    # The cost at each of PRICES; {} without the baseline.
    price_costs: dict[float, Measure] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class BenchResult:
    """All measurements of the bench for one policy."""

    policy: str  # 'checkpoints/25', or 'the start'
    problems: int
    per_prompt: int
    reward: float  # mean reward of the reference's solutions
    reference_solutions: int
    reference_error: float  # relative squared error of the reference gradient
    price: Price
    rows: dict[str, ResultRow]
    ranking: dict[str, RankingScores]  # by the source of predictions: 'K = 9', or 'critic'
    ranked: dict[str, float]  # counts of `NextSteps`, and the margin


def rows_of(
    repeats: dict[str, MeasuredRepeats],
    solutions: MeasuredSolutions,
    reference: Reference,
    price: Price,
    values: dict[str, ValueScores],
    critic_seconds: dict[str, float],
) -> dict[str, ResultRow]:
    """Maps each estimator to its row of results.

    `critic_seconds` maps estimators that train a critic to the seconds that this takes per
    solution.
    """
    count = len(solutions.episodes)
    tokens = {name: solutions.tokens + np.mean(t.tokens) / count for name, t in repeats.items()}
    trained = {
        name: solutions.trained_tokens + float(np.mean(t.trained)) / count
        for name, t in repeats.items()
    }
    seconds = {
        name: solutions.seconds
        + steady(repeat.seconds) / count
        + price.trained * trained[name]
        + critic_seconds.get(name, 0.0)
        for name, repeat in repeats.items()
    }
    rows = {}
    for name, repeat in repeats.items():
        error_ratio = token_cost = second_cost = None
        price_costs: dict[float, Measure] = {}
        if BASELINE in repeats:
            ratios = _error_ratio(repeat, repeats[BASELINE], reference.product)
            error_ratio = measure_of(ratios)
            token_cost = measure_of(ratios * (tokens[name] / tokens[BASELINE]))
            second_cost = measure_of(ratios * (seconds[name] / seconds[BASELINE]))
            for price_of in PRICES:
                costs = {x: trained[x] + price_of * tokens[x] for x in (name, BASELINE)}
                price_costs[price_of] = measure_of(ratios * (costs[name] / costs[BASELINE]))
        worth = None
        if solutions.truth is not None and name != EXACT and repeat.credit:
            worth = worth_of(np.concatenate(repeat.credit), solutions.truth)
        rows[name] = ResultRow(
            gradient=gradient_error(repeat.gradients(), reference.product),
            tokens=float(tokens[name]),
            seconds=seconds[name],
            error_ratio=error_ratio,
            token_cost=token_cost,
            second_cost=second_cost,
            price_costs=price_costs,
            values=values.get(name),
            worth=worth,
        )
    return rows


def _error_ratio(
    estimator: MeasuredRepeats, baseline: MeasuredRepeats, g_squared: float
) -> np.ndarray:
    """f64[1 + draws]: the error of `estimator` divided by the error of `baseline`.

    Entry 0 is for the sample itself, and each later entry is for one bootstrap draw. If `estimator`
    has fewer repeats than `baseline`, later repeats of `baseline` do not count.
    """
    repeats = len(estimator.squares)
    baseline_gradients = baseline.gradients()
    paired = baseline_gradients._replace(
        squares=baseline_gradients.squares[:repeats], products=baseline_gradients.products[:repeats]
    )
    errors = error_draws(paired, g_squared)
    # The noise of the reference may make a small error negative, which leaves no ratio.
    errors[errors <= 0] = np.nan
    return error_draws(estimator.gradients(), g_squared) / errors


def as_json(result: BenchResult) -> dict[str, Any]:
    """The result as a dict for JSON, in which the entry 'price' also has the ratio `Price.w`."""
    record = dataclasses.asdict(result)
    return record | {"price": result.price._asdict() | {"w": result.price.w}}


def print_result(result: BenchResult, console: Console) -> None:
    """Prints the tables of gradients, costs, values and ranking."""
    solutions = result.problems * result.per_prompt
    console.print(
        f"{result.policy}: mean reward {result.reward:.3f}; gradients of {solutions} solutions of"
        f" {result.problems} problems against {result.reference_solutions:,} solutions, whose"
        f" squared error is {result.reference_error:.4f}; w = {result.price.w:.1f} sampled tokens"
        " per trained token"
    )
    valued = {name: row.values for name, row in result.rows.items() if row.values is not None}
    _print(console, "Error of the policy gradient, and worth of the credit", result.rows, GRADIENTS)
    _print(console, "Per solution, and the cost of an equal error over RLOO's", result.rows, COSTS)
    prices = "The same cost, by the price of a sampled token in trained ones"
    _print(console, prices, result.rows, COSTS_AT_PRICES)
    _print(console, "Error of values at states of the solutions", valued, VALUES)
    _print(console, "Which of the next steps is best", result.ranking, RANKING)


def _print(
    console: Console, title: str, rows: Mapping[str, Any], columns: dict[str, Callable[[Any], str]]
) -> None:
    """Prints a table whose first column has the names of the rows; prints nothing without rows."""
    style = {"title_justify": "left", "title_style": "bold", "padding": 0}
    table = Table(title=title, box=box.SIMPLE, **style)  # fits 80 columns
    table.add_column("predicted by" if columns is RANKING else "estimator")
    for name in columns:
        table.add_column(name, justify="right")
    for name, row in rows.items():
        table.add_row(name, *(shown(row) for shown in columns.values()))
    if rows:
        console.print(table)


def _shown(measure: Measure | None) -> str:
    """'0.12' above '[0.10, 0.15]', with ∞ for an end that is None; '-' for an undefined measure."""
    if measure is None or measure.value is None:
        return "-"
    if measure.low is None and measure.high is None:
        return f"{measure.value:.3g}"
    low, high = ("∞" if end is None else f"{end:.2g}" for end in (measure.low, measure.high))
    return f"{measure.value:.3g}\n[{low}, {high}]"


def _cost_at(price: float, row: ResultRow) -> str:
    return _shown(row.price_costs.get(price))


# The columns of the tables beside the first, which has the names of the rows.
GRADIENTS: dict[str, Callable[[ResultRow], str]] = {
    "squared error": lambda row: _shown(row.gradient.error),
    "cosine": lambda row: _shown(row.gradient.cosine),
    "squared bias": lambda row: "-" if row.gradient.bias is None else f"{row.gradient.bias:.3f}",
    "worth": lambda row: _shown(row.worth),
}
COSTS: dict[str, Callable[[ResultRow], str]] = {
    "tokens": lambda row: f"{row.tokens:.0f}",
    "seconds": lambda row: f"{1000 * row.seconds:.1f} ms",
    "cost in tokens": lambda row: _shown(row.token_cost),
    "cost in seconds": lambda row: _shown(row.second_cost),
}
COSTS_AT_PRICES: dict[str, Callable[[ResultRow], str]] = {
    str(price): functools.partial(_cost_at, price) for price in PRICES
}
VALUES: dict[str, Callable[[ValueScores], str]] = {
    "states": lambda x: str(x.states),
    "MAE": lambda x: _shown(x.mae),
    "bias": lambda x: _shown(x.bias),
    "squared error": lambda x: _shown(x.squared_error),
    "rank correlation": lambda x: _shown(x.rank_correlation),
}
RANKING: dict[str, Callable[[RankingScores], str]] = {
    "states": lambda x: str(x.states),
    "steps": lambda x: "-" if x.alternatives is None else f"{x.alternatives:.1f}",
    "right": lambda x: _shown(x.top),
    "chance": lambda x: _shown(x.chance),
    "pairs in order": lambda x: _shown(x.ordered),
}
