"""Writes checksums of the files of a checkpoint, and compares them before a restore.

Orbax stores arrays without checksums, so a flipped bit would be restored as another weight. A
complete checkpoint has files `checksums.<i>-of-<n>.json`, one from each of the n processes that
saved it. Each file has the BLAKE2b digests of every n-th file of the folder, a digest of its own
content, and the iteration. The iteration shows whether the folder was renamed or copied.
"""

import hashlib
import json
import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from etils import epath

from vinejax.runtime.workdir import write_atomic

NAME = re.compile(r"checksums\.(\d+)-of-(\d+)\.json")
CHUNK = 1 << 22  # bytes read at once
THREADS = 8  # files that are read in parallel before a restore; hashing releases Python's lock
DIGEST = 16  # bytes of a digest; enough to detect accidental changes, but not forgeries


class ChecksumRecord(NamedTuple):
    """The content of all checksum files of a checkpoint."""

    iteration: int
    files: dict[str, str]  # path from the checkpoint's folder -> digest


def write_checksums(folder: epath.Path, iteration: int, part: int = 0, parts: int = 1) -> None:
    """Writes the checksum file of process `part` of `parts` for a complete checkpoint.

    Every process calls the function. Raises OSError if a file cannot be read or written.
    """
    names = sorted(_files(folder))[part::parts]
    files = {name: _digest(folder / name) for name in names}
    _write_record(folder / f"checksums.{part}-of-{parts}.json", iteration, files)


def replace_file(folder: epath.Path, name: str, content: str) -> None:
    """Replaces the file `name` of a complete checkpoint, and its digest.

    One process calls the function. While it runs, the checksum file that has the digest is absent,
    so if the process dies, the checkpoint has no checksums and is not damaged. Raises OSError if a
    file cannot be read or written, and ValueError if a checksum file is damaged.
    """
    paths = [path for path in folder.iterdir() if NAME.fullmatch(path.name)]
    records = {path: json.loads(path.read_bytes()) for path in paths}
    stale = {path: record for path, record in records.items() if name in record["files"]}
    for path in stale:
        path.unlink()
    write_atomic(folder / name, content)
    for path, record in stale.items():
        _write_record(path, record["iteration"], record["files"] | {name: _digest(folder / name)})


def read_checksums(folder: epath.Path) -> ChecksumRecord | None:
    """All digests of a checkpoint; None if the checksum file of any process is missing.

    Raises ValueError if a checksum file is damaged, or if the files are of several iterations.
    """
    paths = {path.name: path for path in folder.iterdir() if NAME.fullmatch(path.name)}
    matches = [match for name in paths if (match := NAME.fullmatch(name))]
    parts = max((int(match[2]) for match in matches), default=0)
    names = [f"checksums.{part}-of-{parts}.json" for part in range(parts)]
    if not names or any(name not in paths for name in names):
        return None
    iterations, files = set(), {}
    for name in names:
        try:
            record = json.loads(paths[name].read_bytes())
            is_whole = record["digest"] == _own_digest(record["iteration"], record["files"])
        except (ValueError, KeyError, TypeError, RecursionError):
            is_whole = False
        if not is_whole:
            raise ValueError(f"{name} is not as it was written")
        iterations.add(record["iteration"])
        files |= record["files"]
    if len(iterations) > 1:
        raise ValueError(f"{names[0]} and others are of several iterations")
    return ChecksumRecord(iterations.pop(), files)


def find_damage(
    folder: epath.Path,
    recorded: ChecksumRecord,
    items: Collection[str],
    part: int = 0,
    parts: int = 1,
) -> str | None:
    """A description of the first damage in a checkpoint; None if there is no damage.

    Args:
      folder: the checkpoint.
      recorded: the content of its checksum files.
      items: the items that will be read; files of other items are not compared.
      part: the number of the calling process.
      parts: the number of processes, each of which compares a part of the files.
    """
    if str(recorded.iteration) != folder.name:
        return f"it was saved as {recorded.iteration}"
    names = [name for name in sorted(recorded.files) if "/" not in name or _item(name) in items]

    def compare(name: str) -> str | None:
        try:
            digest = _digest(folder / name)
        except OSError as error:
            return f"{name}: {error.strerror or 'cannot be read'}"
        return None if digest == recorded.files[name] else f"{name} is not as it was saved"

    with ThreadPoolExecutor(THREADS) as pool:
        return next((damage for damage in pool.map(compare, names[part::parts]) if damage), None)


def _item(name: str) -> str:
    return name.partition("/")[0]


def _files(folder: epath.Path, prefix: str = "") -> list[str]:
    """The relative paths, with slashes, of all files below a folder except checksum files."""
    names = []
    for path in folder.iterdir():
        if path.is_dir():
            names += _files(path, f"{prefix}{path.name}/")
        elif prefix or not path.name.startswith("checksums."):
            names.append(prefix + path.name)
    return names


def _digest(path: epath.Path) -> str:
    digest = hashlib.blake2b(digest_size=DIGEST)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _write_record(path: epath.Path, iteration: int, files: dict[str, str]) -> None:
    record = {"iteration": iteration, "files": files, "digest": _own_digest(iteration, files)}
    write_atomic(path, json.dumps(record, indent=0))


def _own_digest(iteration: int, files: dict[str, str]) -> str:
    """The digest of `iteration` and `files`; a checksum file contains all three."""
    text = json.dumps([iteration, files], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST).hexdigest()
