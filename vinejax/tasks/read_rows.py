"""Reads the rows of a task's data, from local files or a `datasets` data set, and makes problems.

Every fault of the data raises DataError, which names the file and, where possible, the line.
"""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vinejax.core.errors import DataError
from vinejax.core.types import Problem
from vinejax.tasks.files import (
    STATE,
    SUFFIXES,
    FileRows,
    Keep,
    check_text,
    checked_rows,
    finite_or_none,
    nonempty,
    one_line,
    read_file,
    rows_in,
)

METADATA = "dataset_infos.json"  # of a clone of a hub data set; it has no rows


def read_split(
    path: str,
    source: str,
    fields: tuple[str, ...],
    config: str | None = None,
    keep: Keep | None = None,
) -> FileRows:
    """The rows of split `source` in the folder `path` (`split_files`), or in a data set.

    If no such path exists, `path` is the name of a `datasets` data set with the split `source` in
    its configuration `config`. Rows for which `keep` is false are left out. Raises DataError if a
    row lacks a string under one of `fields`, or if there are no rows.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        rows = _from_hub(path, "load_dataset", path, config, split=source)
        numbered = ((i, finite_or_none(dict(row))) for i, row in enumerate(rows, start=1))
        place = f"{path} {source}"
        return nonempty(place, checked_rows(numbered, fields, place, keep))
    if not folder.is_dir():
        raise DataError(path, None, f"a file; needed is a folder with {source}.jsonl")
    if not (files := split_files(folder, source, config)):
        suffixes = ", ".join(SUFFIXES[1:])
        message = f"no such file, nor one in {suffixes}, nor shards of one, nor a folder {source}"
        raise DataError(str(folder / f"{source}.jsonl"), None, message)
    if len(files) == 1:
        return read_file(files[0], fields, keep)
    parts = {str(file): rows_in(file, fields, keep) for file in files}
    numbered = [row for part in parts.values() for row in part]
    file_of_row = [name for name in parts for _ in parts[name]]
    return nonempty(f"{path} {source}", numbered, file_of_row)


def split_files(folder: Path, source: str, config: str | None = None) -> list[Path]:
    """The files of a split in a folder, in order; [] if the folder does not have the split.

    The files of a split are <source> with the first of SUFFIXES that exists; or its shards, such as
    <source>-00000-of-00002.parquet; or all files in a folder <source>. They are searched in
    `folder` and then in its child folder `data`. If `folder` has a child folder named by `config`,
    the search takes place in that child instead. If no files are found, the one child folder that
    has the split is taken as the configuration.

    Raises DataError for a missing shard, and if several configurations have the split.
    """
    if config and (folder / config).is_dir():
        folder = folder / config
    for place in (folder, folder / "data"):
        if files := _files_in(place, source):
            return files
    children = sorted(folder.iterdir())
    files = [child.name for child in children if child.is_file() and child.name != METADATA]
    if any(name.endswith(SUFFIXES) for name in files):
        return []  # a folder of files, and not of configurations
    by_config = {child: files for child in children if (files := _files_in(child, source))}
    if len(by_config) > 1:
        names, first = ", ".join(child.name for child in by_config), next(iter(by_config))
        message = f"has the configurations {names}; choose one: --config.data.path={first}"
        raise DataError(str(folder), None, message)
    return next(iter(by_config.values()), [])


def _files_in(folder: Path, source: str) -> list[Path]:
    """The files of split `source` in `folder` itself, or else in its child folder `source`.

    Hidden files and folders in the latter, such as .ipynb_checkpoints, are left out.
    """
    for suffix in SUFFIXES:
        if (file := folder / f"{source}{suffix}").is_file():
            return [file]
        shard = re.compile(rf"{re.escape(source)}-(\d+)-of-(\d+)(-[0-9a-f]+)?{re.escape(suffix)}")
        matches = (shard.fullmatch(file.name) for file in folder.glob(f"*-of-*{suffix}"))
        shards = sorted(filter(None, matches), key=lambda match: (int(match[1]), match[0]))
        expected = list(range(int(shards[0][2]))) if shards else []
        if [int(match[1]) for match in shards] != expected:
            listed = ", ".join(match[0] for match in shards)
            raise DataError(str(folder), None, f"shards are missing, or too many: {listed:.200}")
        if shards:
            return [folder / match[0] for match in shards]
    inside = folder / source
    if (inside / STATE).is_file():
        return [inside]
    files = (
        file
        for file in inside.rglob("*")
        if file.name.endswith(SUFFIXES)
        and not any(part.startswith(".") for part in file.relative_to(inside).parts)
    )
    return sorted(files, key=lambda file: (file.parts[:-1], len(file.name), file.name))


def _from_hub(path: str, function: str, *arguments: Any, **named: Any) -> Any:
    """The result of a function of the package `datasets`, called for the data set `path`.

    Raises DataError if the data set does not exist or needs a configuration.
    """
    import datasets  # importing takes seconds

    try:
        return getattr(datasets, function)(*arguments, **named)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: the data set runs code
        if names := re.search(r"(?:available configs|Available): (\[.*?\])", str(error)):
            message = (
                f"has the configurations {names[1]}; choose one: --config.data.subset=NAME,"
                " which task table reads"
            )
            raise DataError(path, None, message) from None
        reason = f"no such file or folder, and no such data set: {one_line(error)}"
        raise DataError(path, None, reason) from None


def has_split(path: str, source: str, config: str | None = None) -> bool:
    """Whether `read_split` would find a split in a folder or in a data set."""
    folder = Path(path).expanduser()
    if folder.exists():
        return folder.is_dir() and bool(split_files(folder, source, config))
    return source in _from_hub(path, "get_dataset_split_names", path, config)


def problems_of(
    rows: FileRows, problem: Callable[[int, dict[str, Any]], Problem], places: dict[str, str]
) -> list[Problem]:
    """The problems that `problem(i, row)` makes of the rows, i from 0.

    `problem` may raise ValueError with the fault of the row. `places` maps each id in use to its
    file and line; the ids of these rows are added to it. Raises DataError for a faulty row, an
    empty question or answer, an id in use, and a string with a lone surrogate.
    """
    problems = []
    for i, (_, row) in enumerate(rows.numbered):
        file, line = rows.place(i)
        try:
            new = problem(i, row)
        except ValueError as error:
            raise DataError(file, line, str(error)) from None
        for field in ("id", "question", "answer"):
            check_text(getattr(new, field), f"the {field}", file, line)
        for field in ("question", "answer"):
            if not getattr(new, field).strip():
                raise DataError(file, line, f"the {field} is empty")
        if new.id in places:
            message = f"the id {new.id!r} is in use by {places[new.id]}"
            raise DataError(file, line, message)
        places[new.id] = f"{file}:{line}"
        problems.append(new)
    return problems


def check_any_left(problems: list[Problem], place: str) -> None:
    """Raises DataError for a train split from which validation took the only row."""
    if not problems:
        message = "one row, and validation takes at least one; training needs another"
        raise DataError(place, None, message)


def hold_out(problems: list[Problem], portion: float) -> tuple[list[Problem], list[Problem]]:
    """(the held-out portion of the problems, at least one; the others), both in hash order."""
    shuffled = hash_shuffled(problems)
    size = max(1, round(len(shuffled) * portion))
    return shuffled[:size], shuffled[size:]


def hash_shuffled(problems: list[Problem]) -> list[Problem]:
    """The problems sorted by a hash of their ids, in the same order in every version of Python."""
    # A library's shuffle could change with its version.
    return sorted(problems, key=lambda p: hashlib.blake2b(p.id.encode()).digest())
