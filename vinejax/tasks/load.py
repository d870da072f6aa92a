"""Rows of a task's data, from local files or from a `datasets` data set, and problems made of them.

Files are read row by row, so that repeated rows take no memory. Every fault of the data raises
DataError, which names the file and, where possible, the line.
"""

import csv
import gzip
import hashlib
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vinejax.core.errors import DataError
from vinejax.core.types import Problem

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".csv")
INSTALL = "pip install datasets"  # which needs pyarrow

NumberedRows = list[tuple[int, dict[str, Any]]]  # (line of a file or row of a data set from 1, row)
Keep = Callable[[dict[str, Any]], bool]  # whether a row is kept


class Rows(NamedTuple):
    """Numbered rows, at least one, of the file or data set called `file`."""

    file: str
    numbered: NumberedRows


def read_split(
    path: str,
    source: str,
    fields: tuple[str, ...],
    config: str | None = None,
    keep: Keep | None = None,
) -> Rows:
    """Rows of the file <path>/<source> with one of SUFFIXES, or of a data set.

    Where no such path exists, `path` is the name of a data set with the split `source`, in its
    configuration `config`. Rows that `keep` refuses are left out. Raises DataError if a row lacks a
    string under one of `fields`, and if there are no rows.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        return _read_hub(path, source, fields, config, keep)
    if not folder.is_dir():
        raise DataError(path, None, f"a file; needed is a folder with {source}.jsonl")
    if file := find_file(folder, source):
        return read_file(file, fields, keep)
    suffixes = " or ".join(SUFFIXES[1:])
    raise DataError(str(folder / f"{source}.jsonl"), None, f"no such file, nor one in {suffixes}")


def find_file(folder: Path, source: str) -> Path | None:
    """The file <folder>/<source> with the first of SUFFIXES that exists."""
    files = (folder / f"{source}{suffix}" for suffix in SUFFIXES)
    return next((file for file in files if file.exists()), None)


def read_file(file: Path, fields: tuple[str, ...] = (), keep: Keep | None = None) -> Rows:
    """The rows of a file with one of SUFFIXES; each must have strings in all of `fields`."""
    if file.suffix == ".parquet":
        rows = _parquet_rows(file)
    elif file.suffix == ".csv":
        rows = _csv_rows(str(file))
    else:
        rows = _jsonl_rows(str(file))
    return Rows(str(file), _checked(rows, fields, str(file), keep))


def _parquet_rows(file: Path) -> Iterator[tuple[int, Any]]:
    try:
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise DataError(str(file), None, f"to read Parquet, {INSTALL}") from None
    number = 0
    try:
        with parquet.ParquetFile(file) as content:
            for batch in content.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these kinds
        raise DataError(str(file), None, f"not Parquet: {_one_line(error)}") from None


def _csv_rows(file: str) -> Iterator[tuple[int, Any]]:
    """The rows of a CSV file, whose first line names the columns; numbered by their last line.

    The length of a field has no limit: the default of Python's reader is 128 KiB.
    """
    csv.field_size_limit(sys.maxsize)
    try:
        with open(file, encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            for row in reader:
                if None in row or None in row.values():
                    width = len(reader.fieldnames or ())
                    message = f"not {width} fields, as many as the first line names"
                    raise DataError(file, reader.line_num, message)
                yield reader.line_num, row
    except OSError as error:
        raise DataError(file, None, error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        raise DataError(file, None, f"not UTF-8 text ({error.reason})") from None
    except csv.Error as error:
        raise DataError(file, None, f"not CSV ({error})") from None


def read_jsonl(path: str | Path, fields: tuple[str, ...] = ()) -> NumberedRows:
    """The objects of a JSON Lines file, each with the number of its line.

    Every object has a string under every name in `fields`. Blank lines are skipped; a file whose
    name ends in .gz is unpacked. Raises DataError for a file that is missing, empty or damaged, a
    line that is not UTF-8 or not a JSON object, and a field that is missing or not a string.
    """
    return _checked(_jsonl_rows(str(path)), fields, str(path))


def _jsonl_rows(file: str) -> Iterator[tuple[int, Any]]:
    lines = ((number, line) for number, line in _lines(file) if line.strip())
    return ((number, _parse(line, file, number)) for number, line in lines)


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
    except RecursionError:
        raise DataError(file, number, "JSON that is nested too deeply to be read") from None


def _read_hub(
    path: str, source: str, fields: tuple[str, ...], config: str | None, keep: Keep | None
) -> Rows:
    rows = _from_hub(path, "load_dataset", path, config, split=source)
    file = f"{path} {source}"
    numbered = ((number, dict(row)) for number, row in enumerate(rows, start=1))
    return Rows(file, _checked(numbered, fields, file, keep))


def _from_hub(path: str, function: str, *arguments: Any, **named: Any) -> Any:
    """The result of a function of `datasets`; DataError where there is no data set `path`."""
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        message = f"no such folder; to load it as a data set, {INSTALL}"
        raise DataError(path, None, message) from None
    try:
        return getattr(datasets, function)(*arguments, **named)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: the data set runs code
        reason = f"no such folder, and no such data set: {_one_line(error)}"
        raise DataError(path, None, reason) from None


def has_split(path: str, source: str, config: str | None = None) -> bool:
    """Whether `read_split` would find a split, of a folder or of a data set."""
    folder = Path(path).expanduser()
    if folder.exists():
        return folder.is_dir() and find_file(folder, source) is not None
    return source in _from_hub(path, "get_dataset_split_names", path, config)


def _checked(
    rows: Iterable[tuple[int, Any]],
    fields: tuple[str, ...],
    file: str,
    keep: Keep | None = None,
) -> NumberedRows:
    """The rows, if there are any and each is an object with a text under every name in `fields`."""
    checked = []
    for number, row in rows:
        if not isinstance(row, dict):
            raise DataError(file, number, f"expected an object, found {type(row).__name__}")
        if keep is not None and not keep(row):
            continue
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
    empty question or answer, an id that is in use, and a string with half a character.
    """
    problems = []
    for i, (line, row) in enumerate(rows.numbered):
        try:
            new = problem(i, row)
        except ValueError as error:
            raise DataError(rows.file, line, str(error)) from None
        for field in ("id", "question", "answer"):
            _check_text(getattr(new, field), f"the {field}", rows.file, line)
        for field in ("question", "answer"):
            if not getattr(new, field).strip():
                raise DataError(rows.file, line, f"the {field} is empty")
        if new.id in places:
            message = f"the id {new.id!r} is that of {places[new.id]} too"
            raise DataError(rows.file, line, message)
        places[new.id] = f"{rows.file}:{line}"
        problems.append(new)
    return problems


def check_any_left(problems: list[Problem], place: str) -> None:
    """Raises DataError for a train split from which validation took the only row."""
    if not problems:
        message = "one row, and validation takes at least one; training needs another"
        raise DataError(place, None, message)


def hold_out(problems: list[Problem], portion: float) -> tuple[list[Problem], list[Problem]]:
    """The held-out portion of the problems, at least one, and the rest; both in order of a hash."""
    drawn = hash_shuffled(problems)
    size = max(1, round(len(drawn) * portion))
    return drawn[:size], drawn[size:]


def hash_shuffled(problems: list[Problem]) -> list[Problem]:
    """The problems in the order of a hash of their ids, the same in every version of Python."""
    # Sorted by a hash and not shuffled by a library, whose stream may change with its version.
    return sorted(problems, key=lambda p: hashlib.blake2b(p.id.encode()).digest())
