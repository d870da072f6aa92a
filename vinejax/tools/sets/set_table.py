"""The record of an evaluation on sets, and its table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vinejax.records.formats import decimals
from vinejax.statistics.accuracy import paired_interval

HEAD = ("set", "problems", "samples per problem", "start, %", "result, %", "difference, points")
METRIC = "pass_at_1"


def difference_of(
    start: Mapping[str, Sequence[float]], result: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """pass@1 of the result minus that of the start, as 'difference' with 'low' and 'high'.

    Both arguments map a problem's id to the rewards of its samples. The 95% interval is paired and
    clustered, as Miller 2024 (arXiv 2411.00640) advises for models that answer the same questions
    several times: `paired_interval` draws problems with all samples of both policies.
    """
    return paired_interval(result, start)._asdict()


def rewards_by_problem(ids: Sequence[str], rewards: np.ndarray) -> dict[str, list[float]]:
    """Maps problems to the rewards of their samples, from f32[P, n]."""
    return {name: row.tolist() for name, row in zip(ids, rewards, strict=True)}


def table_record(sources: Mapping[str, str | None], rows: Mapping[str, Any]) -> dict[str, Any]:
    """The record of sets.json: `sources` of start and result, and the record of each set."""
    comparisons = sum(row["difference"] is not None for row in rows.values())
    return {**sources, "comparisons": comparisons, "sets": dict(rows)}


def markdown(record: Mapping[str, Any]) -> str:
    """The table of a record in Markdown, with its number of comparisons and further notes."""
    lines = [HEAD, ["---", *["---:"] * (len(HEAD) - 1)]]
    lines += [_cells(name, row) for name, row in record["sets"].items()]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    policies = f"Start: {record['start']}. Result: {record['result'] or 'there is no checkpoint'}."
    count = record["comparisons"]
    comparisons = f"{count} comparison{'s' * (count != 1)}"
    if count > 1:
        comparisons += ", each with its own 95% interval; none is corrected for the others"
    notes = [note for name, row in record["sets"].items() for note in _notes(name, row)]
    return "\n\n".join([table, f"{policies} {comparisons}.", *notes]) + "\n"


def _cells(name: str, row: Mapping[str, Any]) -> list[str]:
    cells = [name, f"{row['problems']:,}", str(row["samples"])]
    for metrics in (row["start"], row["result"]):
        cells.append(_interval(metrics, METRIC, f"{METRIC}_low", f"{METRIC}_high"))
    return [*cells, _interval(row["difference"], "difference", "low", "high", signed=True)]


def _interval(
    measures: Mapping[str, float] | None, value: str, low: str, high: str, signed: bool = False
) -> str:
    """A measure in hundredths with its interval, '36.2 (34.0 to 38.4)'; an en dash for None."""
    if measures is None:
        return "–"
    shown = [decimals(100 * measures[name], 1, signed) for name in (value, low, high)]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def _notes(name: str, row: Mapping[str, Any]) -> list[str]:
    """Sentences on problems of a set that are left out, or that nobody can solve."""
    notes = []
    if long := len(row["left_out"]):
        reason = "the prompt has more than `data.max_prompt_tokens` tokens"
        notes.append(f"{name}: left out, because {reason}: {long}.")
    if unreadable := len(row["unreadable"]):
        reason = "the reference answer or the tests cannot be read"
        notes.append(f"{name}: counted as wrong, because {reason}: {unreadable}.")
    return notes
