"""Rows of one data file: JSON, JSON Lines, Parquet, Arrow, CSV, TSV.

All files except JSON are read row by row: rows that are not kept take no memory. A number that is
not finite is a missing value, None. Every fault raises DataError with the file and, where possible,
the line, or the row in a file without lines.
"""

import csv
import gzip
import json
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vinejax.core.errors import DataError

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet", ".csv", ".tsv", ".arrow")
STATE = "state.json"  # file in the folder of a split that `save_to_disk` of `datasets` wrote
MAX_DIGITS = 4000  # limit for reading integers; by default Python prints none much longer

# (line of a file, or row of a data set, counted from 1; the row)
NumberedRows = list[tuple[int, dict[str, Any]]]
Keep = Callable[[dict[str, Any]], bool]  # whether to keep a row


class LongInteger(str):
    """The digits of a JSON number that is an integer of more than MAX_DIGITS digits."""


class FileRows(NamedTuple):
    """The numbered rows, at least one, of the file or data set called `file`."""

    file: str
    numbered: NumberedRows
    files: Sequence[str] = ()  # file of each row, if there are several files

    def place(self, i: int) -> tuple[str, int]:
        """(file, line) of row `i`."""
        return self.files[i] if self.files else self.file, self.numbered[i][0]


def is_file(path: Path) -> bool:
    """Whether `read_file` can read the path: a file, or the folder of one saved data set."""
    return path.is_file() or (path / STATE).is_file()


def read_file(file: Path, fields: tuple[str, ...] = (), keep: Keep | None = None) -> FileRows:
    """The rows of a file with one of SUFFIXES, or of the folder of one saved data set.

    Every row must have strings under all of `fields`. Rows for which `keep` is false are left out.
    """
    return nonempty(str(file), rows_in(file, fields, keep))


def nonempty(file: str, numbered: NumberedRows, files: Sequence[str] = ()) -> FileRows:
    """The rows as `FileRows`. Raises DataError if there are no rows.

    `files` has the file of each row, if the rows are from several files.
    """
    if not numbered:
        raise DataError(file, None, "no rows")
    return FileRows(file, numbered, files)


def rows_in(file: Path, fields: tuple[str, ...], keep: Keep | None) -> NumberedRows:
    """The rows that `read_file` would return, but no error if there are none."""
    suffix = file.suffix.lower()
    if file.is_dir():
        rows = _saved_rows(file)
    elif suffix in (".parquet", ".arrow"):
        rows = _arrow_rows([file])
    elif suffix in (".csv", ".tsv"):
        rows = _csv_rows(str(file))
    elif suffix == ".json":
        rows = _json_rows(str(file))
    else:
        rows = _jsonl_rows(str(file))
    return checked_rows(rows, fields, str(file), keep)


def _saved_rows(folder: Path) -> Iterator[tuple[int, Any]]:
    """The rows of the data files that are listed in the state file of a saved data set."""
    file = str(folder / STATE)
    try:
        names = [part["filename"] for part in _whole_json(file)["_data_files"]]
    except (KeyError, TypeError):
        raise DataError(file, None, "names no files of a data set") from None
    return _arrow_rows([folder / name for name in names])


def _arrow_rows(files: Sequence[Path]) -> Iterator[tuple[int, Any]]:
    """The rows of Parquet files or Arrow streams, file by file."""
    from pyarrow import ArrowException, ipc, parquet  # importing takes half a second

    number = 0
    for file in files:
        kind = "Parquet" if file.suffix.lower() == ".parquet" else "Arrow"
        try:
            with open(file, "rb") as content:
                if kind == "Parquet":
                    batches = parquet.ParquetFile(content).iter_batches()
                else:
                    batches = ipc.open_stream(content)
                for batch in batches:
                    names = batch.schema.names
                    _check_names(names, "columns", str(file), None)
                    columns = [_values(batch[name], name, str(file)) for name in names]
                    for values in zip(*columns, strict=True):
                        number += 1
                        yield number, finite_or_none(dict(zip(names, values, strict=True)))
        except (ArrowException, OSError, ValueError) as error:
            raise DataError(str(file), None, f"not {kind}: {one_line(error)}") from None


def _values(column: Any, name: str, file: str) -> list[Any]:
    """The values of an array of pyarrow, as objects of Python.

    Raises DataError if Python has no object for one, such as for a time after the year 9999.
    """
    try:
        return column.to_pylist()
    except (OverflowError, ValueError, TypeError, LookupError, NotImplementedError) as error:
        message = f"a value of column {name!r} cannot be read ({one_line(error)}); drop the column"
        raise DataError(file, None, message) from None


def finite_or_none(value: Any) -> Any:
    """The value, in which every float that is not finite is replaced by None."""
    if isinstance(value, dict):
        return {name: finite_or_none(part) for name, part in value.items()}
    if isinstance(value, list):
        return [finite_or_none(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_names(names: Sequence[str], what: str, file: str, line: int | None) -> None:
    """Raises DataError if two of the names are equal."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(file, line, f"two {what} are called {twice!r}; rename one")


def _csv_rows(file: str) -> Iterator[tuple[int, Any]]:
    """The rows of a CSV or TSV file, each numbered by its last line.

    The file's first line names the columns. A field may have any length, whereas Python's reader
    allows 128 KiB by default.
    """
    csv.field_size_limit(sys.maxsize)
    kind, delimiter = ("TSV", "\t") if file.lower().endswith(".tsv") else ("CSV", ",")
    try:
        with open(file, encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
            try:
                _check_names(reader.fieldnames or (), "columns", file, 1)
                for row in reader:
                    if None in row or None in row.values():
                        width = len(reader.fieldnames or ())
                        message = f"not {width} fields, as many as the first line names"
                        raise DataError(file, reader.line_num, message)
                    yield reader.line_num, row
            except csv.Error as error:  # `line_num` is the last line of the row before
                raise DataError(file, reader.line_num + 1, f"not {kind} ({error})") from None
    except OSError as error:
        raise DataError(file, None, error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        raise DataError(file, None, f"not UTF-8 text ({error.reason})") from None


def _json_rows(file: str) -> Iterator[tuple[int, Any]]:
    """The rows of a JSON file, numbered from 1, or by line if the file has a row per line.

    The file holds a list of objects; or an object with such a list, alone or under 'data'; or an
    object with a list per column; or one object, which is the only row.
    """
    lines_with_text = (line for _, line in _lines(file) if line.strip())
    first = next(lines_with_text, b"")
    try:
        is_lines = isinstance(_parse(first, file, 1), dict) and any(lines_with_text)
    except DataError:
        is_lines = False
    return _jsonl_rows(file) if is_lines else enumerate(_rows_of(_whole_json(file), file), start=1)


def _whole_json(file: str) -> Any:
    return _parse(b"".join(line for _, line in _lines(file)), file, 1)


def _rows_of(whole: Any, file: str) -> Sequence[Any]:
    """The rows in `whole`, the parsed contents of the JSON file `file`."""
    if not isinstance(whole, dict):
        return whole if isinstance(whole, list) else [whole]
    lists = {name: part for name, part in whole.items() if isinstance(part, list) and part}
    row_lists = [name for name, part in lists.items() if isinstance(part[0], dict)]
    if "data" in row_lists or len(row_lists) == len(whole) == 1:
        return whole["data" if "data" in row_lists else row_lists[0]]
    columns = list(whole.values())
    if not all(isinstance(column, list) for column in columns):
        return [whole]
    if len(row_lists) == len(whole) or len(set(map(len, columns))) > 1:
        names = ", ".join(map(repr, whole))
        raise DataError(file, None, f"the lists {names} are not columns; put each in its own file")
    return [dict(zip(whole, values, strict=True)) for values in zip(*columns, strict=True)]


def _jsonl_rows(file: str) -> Iterator[tuple[int, Any]]:
    lines = ((number, line) for number, line in _lines(file) if line.strip())
    return ((number, _parse(line, file, number)) for number, line in lines)


def _lines(file: str) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers; only a newline ends a line."""
    open_bytes = gzip.open if file.lower().endswith(".gz") else open
    try:
        with open_bytes(file, "rb") as lines:
            yield from enumerate(lines, start=1)
    except OSError as error:
        raise DataError(file, None, error.strerror or str(error)) from None
    except (EOFError, zlib.error) as error:
        raise DataError(file, None, f"damaged: {error}") from None


def _parse(text: bytes, file: str, line: int) -> Any:
    """The value of a JSON text that begins on line `line`; very long integers become texts."""
    is_one_line = text.find(b"\n", 0, -1) < 0
    known_line = line if is_one_line else None  # of faults whose place in the text is unknown

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _check_names([name for name, _ in pairs], "fields", file, known_line)
        return dict(pairs)

    try:
        return json.loads(
            text.decode("utf-8-sig" if line == 1 else "utf-8").rstrip(),
            object_pairs_hook=unique,
            parse_int=lambda x: int(x) if len(x) <= MAX_DIGITS else LongInteger(x),
            parse_float=lambda number: finite_or_none(float(number)),
            parse_constant=lambda name: None,  # NaN, Infinity and -Infinity
        )
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text ({error.reason}){_known_suffixes(file)}"
        line += error.object.count(b"\n", 0, error.start)
        raise DataError(file, line, message) from None
    except json.JSONDecodeError as error:
        message = f"not JSON ({error.msg}, column {error.colno}){_known_suffixes(file)}"
        raise DataError(file, line + error.lineno - 1, message) from None
    except RecursionError:
        raise DataError(file, known_line, "JSON that is nested too deeply to be read") from None


def _known_suffixes(file: str) -> str:
    """The suffixes, for a file that is read as JSON Lines because its name ends in none of them."""
    if file.lower().endswith(SUFFIXES):
        return ""
    return f"; names of data files end in {', '.join(SUFFIXES)}"


def checked_rows(
    rows: Iterable[tuple[int, Any]],
    fields: tuple[str, ...],
    file: str,
    keep: Keep | None = None,
) -> NumberedRows:
    """The rows that `keep` selects. Raises DataError if one lacks a text under any of `fields`."""
    numbered = []
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
            check_text(row[field], f"field {field!r}", file, number)
        numbered.append((number, row))
    return numbered


def check_text(text: str, what: str, file: str, number: int | None) -> None:
    """Raises DataError for a lone surrogate, such as JSON's `"\\ud800"`, which UTF-8 lacks."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        message = f"{what} holds {half!r}, half a character, which no UTF-8 text has"
        raise DataError(file, number, message) from None


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())
