"""Rows of a task's data, from local files or from a `datasets` data set, and problems made of them.

Every fault of the data raises DataError, which names the file and, where possible, the line.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vinejax.errors import DataError
from vinejax.types import Problem

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
HUB = "pip install 'vinejax[hub]'"  # installs datasets and pyarrow

NumberedRows = list[tuple[int, dict[str, Any]]]  # from 1: lines of a file, or rows of a data set


class Rows(NamedTuple):
    """Numbered rows, at least one, of the file or data set called `file`."""

    file: str
    numbered: NumberedRows


def read_split(path: str, source: str, fields: tuple[str, ...], config: str | None = None) -> Rows:
    """Rows of the file <path>/<source> with one of SUFFIXES, or, where no such path exists, of
    the split `source` of the data set `path` in its configuration `config`.

    Every row has a string under every name in `fields`. Raises DataError otherwise, and if there
    are no rows.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        return _read_hub(path, source, fields, config)
    if not folder.is_dir():
        raise DataError(path, None, f"a file; needed is a folder with {source}.jsonl")
    for suffix in SUFFIXES:
        if (file := folder / f"{source}{suffix}").exists():
            return read_file(file, fields)
    others = " or ".join(SUFFIXES[1:])
    raise DataError(str(folder / f"{source}.jsonl"), None, f"no such file, nor one in {others}")


def read_file(file: Path, fields: tuple[str, ...] = ()) -> Rows:
    """The rows of a Parquet or JSON Lines file; each must have strings in all of `fields`."""
    if file.suffix != ".parquet":
        return Rows(str(file), read_jsonl(file, fields))
    try:
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise DataError(str(file), None, f"to read Parquet, {HUB}") from None
    try:
        rows = parquet.read_table(file).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these kinds
        raise DataError(str(file), None, f"not Parquet: {_one_line(error)}") from None
    return Rows(str(file), _checked(enumerate(rows, start=1), fields, str(file)))


def read_jsonl(path: str | Path, fields: tuple[str, ...] = ()) -> NumberedRows:
    """The objects of a JSON Lines file, each with the number of its line.

    Every object has a string under every name in `fields`. Blank lines are skipped; a file whose
    name ends in .gz is unpacked. Raises DataError for a file that is missing, empty or damaged, a
    line that is not UTF-8 or not a JSON object, and a field that is missing or not a string.
    """
    file = str(path)
    lines = ((number, line) for number, line in _lines(file) if line.strip())
    return _checked(((number, _parse(line, file, number)) for number, line in lines), fields, file)


def _lines(file: str) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers; a line ends at a newline and nowhere else."""
    open_bytes = gzip.open if file.endswith(".gz") else open
    try:
        with open_bytes(file, "rb") as lines:
            yield from enumerate(lines, start=1)
    except OSError as error:
        raise DataError(file, None, error.strerror or str(error)) from None
    except (EOFError, zlib.error) as error:
        raise DataError(file, None, f"damaged: {error}") from None


def _parse(line: bytes, file: str, number: int) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(file, number, f"not UTF-8 text ({error.reason})") from None
    except json.JSONDecodeError as error:
        message = f"not JSON ({error.msg}, column {error.colno})"
        raise DataError(file, number, message) from None


def _read_hub(path: str, source: str, fields: tuple[str, ...], config: str | None) -> Rows:
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        message = f"no such folder; to load it as a data set, {HUB}"
        raise DataError(path, None, message) from None
    try:
        rows = [dict(row) for row in datasets.load_dataset(path, config, split=source)]
    except (OSError, ValueError) as error:
        reason = f"no such folder, and no such data set: {_one_line(error)}"
        raise DataError(path, None, reason) from None
    file = f"{path} {source}"
    return Rows(file, _checked(enumerate(rows, start=1), fields, file))


def _checked(rows: Iterable[tuple[int, Any]], fields: tuple[str, ...], file: str) -> NumberedRows:
    """The rows, if there are any and each is an object with a text under every name in `fields`."""
    checked = []
    for number, row in rows:
        if not isinstance(row, dict):
            raise DataError(file, number, f"expected an object, found {type(row).__name__}")
        for field in fields:
            if field not in row:
                raise DataError(file, number, f"field {field!r} is missing")
            if not isinstance(row[field], str):
                kind = type(row[field]).__name__
                raise DataError(file, number, f"field {field!r} must be a string, not {kind}")
            _check_text(row[field], f"field {field!r}", file, number)
        checked.append((number, row))
    if not checked:
        raise DataError(file, None, "no rows")
    return checked


def _check_text(text: str, what: str, file: str, number: int) -> None:
    """Raises DataError for half a character, such as JSON's `"\\ud800"`, which UTF-8 lacks."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        message = f"{what} holds {half!r}, half a character, which no UTF-8 text has"
        raise DataError(file, number, message) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def problems_of(
    rows: Rows, problem: Callable[[int, dict[str, Any]], Problem], places: dict[str, str]
) -> list[Problem]:
    """The problems that `problem(i, row)` makes of the rows, i from 0.

    `problem` may raise ValueError with the fault of the row. `places` maps each id that is in use
    to its file and line; the ids of these rows are added. Raises DataError for a faulty row, an
    empty answer, an id that is in use, and a string with half a character.
    """
    problems = []
    for i, (line, row) in enumerate(rows.numbered):
        try:
            made = problem(i, row)
        except ValueError as error:
            raise DataError(rows.file, line, str(error)) from None
        for what in ("id", "question", "answer"):
            _check_text(getattr(made, what), f"the {what}", rows.file, line)
        if not made.answer.strip():
            raise DataError(rows.file, line, "the answer is empty")
        if made.id in places:
            message = f"the id {made.id!r} is that of {places[made.id]} too"
            raise DataError(rows.file, line, message)
        places[made.id] = f"{rows.file}:{line}"
        problems.append(made)
    return problems


def check_any_left(problems: list[Problem], place: str) -> None:
    """Raises DataError for a train split from which validation took the only row."""
    if not problems:
        message = "one row, and validation takes at least one; training needs another"
        raise DataError(place, None, message)


def hold_out(problems: list[Problem], portion: float) -> tuple[list[Problem], list[Problem]]:
    """(held-out portion of the problems, at least one; the rest), both in the order of a hash."""
    drawn = hash_shuffled(problems)
    size = max(1, round(len(drawn) * portion))
    return drawn[:size], drawn[size:]


def hash_shuffled(problems: list[Problem]) -> list[Problem]:
    """The problems in the order of a hash of their ids, the same in every version of Python."""
    # Sorted by a hash and not shuffled by a library, whose stream may change with its version.
    return sorted(problems, key=lambda p: hashlib.blake2b(p.id.encode()).digest())
