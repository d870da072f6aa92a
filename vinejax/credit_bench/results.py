"""The result of the credit bench: one record, as JSON and as tables for the terminal."""

import dataclasses
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from vinejax.credit_bench.gradients import GradientError, error_draws, gradient_error, measure_of
from vinejax.credit_bench.intervals import Measure
from vinejax.credit_bench.measure import Repeats, Solutions, steady
from vinejax.credit_bench.price import Price
from vinejax.credit_bench.ranking import RankingScores
from vinejax.credit_bench.reference import Reference
from vinejax.credit_bench.value_error import ValueScores

BASELINE = "rloo"  # that the costs of others are compared with, if it is measured


@dataclasses.dataclass(frozen=True)
class Row:
    """An estimator: the error of its gradient, what it costs, and the errors of its values.

    Costs are those of the same error: error times tokens, or seconds, over the baseline's. An
    error falls as 1 / solutions, but for a bias. None where the baseline was not measured.
    """

    gradient: GradientError
    tokens: float  # generated per solution, continuations included
    seconds: float  # per solution: sampled, valued and trained on, by the critic too
    error_ratio: Measure | None  # error over the baseline's
    token_cost: Measure | None
    second_cost: Measure | None
    values: ValueScores | None = None


@dataclasses.dataclass(frozen=True)
class Result:
    """All that the bench measured, for one policy."""

    policy: str  # 'checkpoints/25', or 'the start'
    problems: int
    per_prompt: int
    reward: float  # mean over the reference's solutions
    reference_solutions: int
    reference_error: float  # relative, squared
    price: Price
    rows: dict[str, Row]
    ranking: dict[str, RankingScores]  # by what predicts: 'K = 9', or 'critic'
    ranked: dict[str, float]  # states that were tried, and why some were not kept; the margin


def rows_of(
    repeats: dict[str, Repeats],
    solutions: Solutions,
    reference: Reference,
    price: Price,
    values: dict[str, ValueScores],
    of_critics: dict[str, float],
) -> dict[str, Row]:
    """A row for each estimator; `of_critics` are the seconds per solution of training critics."""
    count = len(solutions.episodes)
    tokens = {name: solutions.tokens + np.mean(t.tokens) / count for name, t in repeats.items()}
    trained = price.trained * solutions.trained
    seconds = {
        name: solutions.seconds + steady(own.seconds) / count + trained + of_critics.get(name, 0.0)
        for name, own in repeats.items()
    }
    rows = {}
    for name, own in repeats.items():
        costs: tuple[Measure | None, ...] = (None, None, None)
        if BASELINE in repeats:
            ratio = _error_ratio(own, repeats[BASELINE], reference.product)
            factors = 1.0, tokens[name] / tokens[BASELINE], seconds[name] / seconds[BASELINE]
            costs = tuple(measure_of(ratio * factor) for factor in factors)
        rows[name] = Row(
            gradient_error(own.measured(), reference.product),
            float(tokens[name]),
            seconds[name],
            *costs,
            values=values.get(name),
        )
    return rows


def _error_ratio(own: Repeats, baseline: Repeats, g_squared: float) -> np.ndarray:
    """f64[draws] the error over the baseline's on the same repeats, and on draws of them."""
    repeats = len(own.squares)
    of_baseline = baseline.measured()
    paired = of_baseline._replace(
        squares=of_baseline.squares[:repeats], along=of_baseline.along[:repeats]
    )
    errors = error_draws(paired, g_squared)
    # The noise of the reference may put a small error below 0: there is no ratio to that.
    errors[errors <= 0] = np.nan
    return error_draws(own.measured(), g_squared) / errors


def as_json(result: Result) -> dict[str, Any]:
    """The record as JSON: dataclasses become objects; w is beside the seconds that make it."""
    record = dataclasses.asdict(result)
    return record | {"price": result.price._asdict() | {"w": result.price.w}}


def print_result(result: Result, console: Console) -> None:
    """The tables: gradients with costs, values, ranking."""
    solutions = result.problems * result.per_prompt
    console.print(
        f"{result.policy}: mean reward {result.reward:.3f}; gradients of {solutions} solutions of"
        f" {result.problems} problems against {result.reference_solutions:,} solutions, whose"
        f" squared error is {result.reference_error:.4f}; w = {result.price.w:.1f} sampled tokens"
        " per trained token"
    )
    console.print(_gradient_table(result))
    if any(row.values for row in result.rows.values()):
        console.print(_value_table(result))
    if result.ranking:
        console.print(_ranking_table(result))


def _gradient_table(result: Result) -> Table:
    table = _table("Error of the policy gradient, and the cost of an equal error over RLOO's")
    _columns(table, "estimator", "squared error", "cosine", "squared bias", "tokens", "seconds")
    _columns(table, "cost in tokens", "cost in seconds")
    for name, row in result.rows.items():
        bias = "-" if row.gradient.bias is None else f"{row.gradient.bias:.3f}"
        table.add_row(
            name,
            _shown(row.gradient.error),
            _shown(row.gradient.cosine),
            bias,
            f"{row.tokens:.0f}",
            f"{1000 * row.seconds:.1f} ms",
            _shown(row.token_cost),
            _shown(row.second_cost),
        )
    return table


def _value_table(result: Result) -> Table:
    table = _table("Error of values at states of the solutions")
    _columns(table, "estimator", "states", "MAE", "bias", "squared error", "rank correlation")
    for name, row in result.rows.items():
        if (scores := row.values) is not None:
            table.add_row(
                name,
                str(scores.states),
                _shown(scores.mae),
                _shown(scores.bias),
                _shown(scores.squared_error),
                _shown(scores.rank_correlation),
            )
    return table


def _ranking_table(result: Result) -> Table:
    table = _table("Which of the next steps is best")
    _columns(table, "predicted by", "states", "steps", "right", "chance", "pairs in order")
    for name, scores in result.ranking.items():
        table.add_row(
            name,
            str(scores.states),
            "-" if scores.alternatives is None else f"{scores.alternatives:.1f}",
            _shown(scores.top),
            _shown(scores.chance),
            _shown(scores.ordered),
        )
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold")


def _columns(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(name, justify="right" if table.columns else "left")


def _shown(measure: Measure | None) -> str:
    """'0.12 [0.10, 0.15]', with ∞ for an end that is open; '-' where it is not defined."""
    if measure is None or measure.value is None:
        return "-"
    if measure.low is None and measure.high is None:
        return f"{measure.value:.3g}"
    low, high = ("∞" if end is None else f"{end:.3g}" for end in (measure.low, measure.high))
    return f"{measure.value:.3g} [{low}, {high}]"
