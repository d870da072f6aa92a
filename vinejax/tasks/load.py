"""Rows of a task's data: from files of one's own, or from a `datasets` data set."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from vinejax.errors import DataError
from vinejax.tasks.base import check_fields, check_text, read_jsonl
from vinejax.types import Problem

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
HUB = "pip install 'vinejax[hub]'"  # brings datasets and pyarrow


class Rows(NamedTuple):
    """Rows of a file or data set, at least one, each with its line (or its number), from 1."""

    file: str
    numbered: list[tuple[int, dict[str, Any]]]


def read_split(path: str, source: str, fields: tuple[str, ...], config: str | None = None) -> Rows:
    """Rows of the file <path>/<source> with one of SUFFIXES, or, where no such path exists, of
    the split `source` of the data set `path` in its configuration `config`.

    Every row has a string under every name in `fields`. Raises DataError where there are no such
    rows, naming the file and the line.
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
    """Rows of one file, by its name a Parquet file or JSON Lines; as `read_split` otherwise."""
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
    return _checked(rows, fields, str(file))


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
    return _checked(rows, fields, f"{path} {source}")


def _checked(rows: list[Any], fields: tuple[str, ...], file: str) -> Rows:
    if not rows:
        raise DataError(file, None, "no rows")
    for number, row in enumerate(rows, start=1):
        check_fields(row, fields, file, number)
    return Rows(file, list(enumerate(rows, start=1)))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def problems_of(
    rows: Rows, problem: Callable[[int, dict[str, Any]], Problem], places: dict[str, str]
) -> list[Problem]:
    """What `problem(i, row)` makes of every row, i from 0; it raises ValueError for a bad one.

    `places` says where the ids that are taken came from, and is added to. Raises DataError, naming
    the file and the line, for a bad row, an empty answer, an id that is taken, or what is no text.
    """
    found = []
    for i, (line, row) in enumerate(rows.numbered):
        try:
            made = problem(i, row)
        except ValueError as error:
            raise DataError(rows.file, line, str(error)) from None
        for what in ("id", "question", "answer"):
            check_text(getattr(made, what), f"the {what}", rows.file, line)
        if not made.answer.strip():
            raise DataError(rows.file, line, "the answer is empty")
        if made.id in places:
            message = f"the id {made.id!r} is that of {places[made.id]} too"
            raise DataError(rows.file, line, message)
        places[made.id] = f"{rows.file}:{line}"
        found.append(made)
    return found


def check_left(problems: list[Problem], place: str) -> None:
    """DataError for a train split of which validation took the only row."""
    if not problems:
        message = "one row, and validation takes at least one; training needs another"
        raise DataError(place, None, message)


def mixed(problems: list[Problem]) -> list[Problem]:
    """The problems in an order that looks random and never changes: what splits are cut from."""
    # Sorted by a hash and not shuffled by a library, whose stream may change with its version.
    return sorted(problems, key=lambda p: hashlib.blake2b(p.id.encode()).digest())
