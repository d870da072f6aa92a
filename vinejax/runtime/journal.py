"""The journal of a run: the results of stages that have finished since the newest checkpoint.

A process that is started again makes the same calls as the one before it; the result of a call that
had finished then is read here instead of computed anew. An entry is one file,
`<place>/<kind>.<number>.npz`, written completely or not at all and with a digest of itself. Only
the same call is given it: at the same place of the run, with the same number among the calls of its
kind, with the same weights and the same key. An entry also has the time at which it was kept, so
that the seconds of stages are those of all processes that computed them.
"""

import contextlib
import hashlib
import io
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from etils import epath

from vinejax.core.errors import WorkdirError
from vinejax.runtime.distributed import exchange, is_writer
from vinejax.runtime.remedies import MAKE_ROOM
from vinejax.runtime.workdir import write_atomic

FOLDER = "journal"  # of the workdir
Arrays = dict[str, np.ndarray]
DIGEST = 16  # bytes before the content of a file


class Kept(NamedTuple):
    """The content of an entry."""

    facts: Any  # as in JSON
    arrays: Arrays
    at: float  # when it was kept: seconds after its place was opened, on the journal's clock


class Journal:
    """The entries of a run, by place; without a folder it keeps and gives nothing.

    Every process of a run makes every call. The writer writes, and all read: an entry is given if
    all of them find it whole, so that none computes what another does not.
    """

    def __init__(self, folder: epath.Path | None = None):
        self._folder = folder
        self._place = ""
        self._weights = ""
        self._names: set[str] = set()  # of entries that are there, at the place
        self._numbers: Counter[str] = Counter()  # of entries so far, at the place
        self.given = 0  # entries, at the place
        self._opened = 0.0  # when the place was, on the journal's clock
        self._earlier_s = 0.0  # of other processes, for what was given

    def __bool__(self) -> bool:
        """Whether anything is kept."""
        return self._folder is not None

    def open(self, place: str, weights: str) -> None:
        """Goes to a place: an iteration, '7', or an evaluation after it, '8.validation'.

        `weights` identifies the policy's weights there. An entry of other weights is never given.
        """
        self._place, self._weights, self.given = place, weights, 0
        self._opened = self.clock()
        self._numbers.clear()
        names: list[str] = []
        if self._folder is not None and (self._folder / place).exists():
            names = [path.name for path in (self._folder / place).iterdir()]
        self._names = set.intersection(*map(set, exchange(names))) if self else set()

    def entry(self, kind: str, key: str) -> "Entry":
        """The next entry of a kind; `key` tells what its content is made from."""
        name = f"{kind}.{self._numbers[kind]}.npz"
        self._numbers[kind] += 1
        if self._folder is None:
            return Entry(None, "", None, self._seconds)
        file, key = self._folder / self._place / name, f"{self._weights} {key}"
        kept = _read(file, key) if name in self._names else None
        if name in self._names and not all(exchange(kept is not None)):
            kept = None
        if kept is not None:
            self.given += 1
            self._earlier_s += max(kept.at - self._seconds(), 0.0)
        return Entry(file, key, kept, self._seconds)

    def clock(self) -> float:
        """Seconds, among them those in which other processes computed what was given."""
        return time.monotonic() + self._earlier_s

    def _seconds(self) -> float:
        return self.clock() - self._opened

    def once(self, kind: str, key: str, compute: Callable[[], Arrays]) -> Arrays:
        """The arrays of the next entry of a kind; `compute` gives them if it has none."""
        entry = self.entry(kind, key)
        if entry.kept is not None:
            return entry.kept.arrays
        arrays = compute()
        entry.keep(None, **arrays)
        return arrays

    def forget(self, done: int) -> None:
        """Removes the entries of iterations, and of evaluations, before iteration `done`."""
        if self._folder is None or not is_writer() or not self._folder.exists():
            return
        for place in self._folder.iterdir():
            number = place.name.partition(".")[0]
            if number.isdecimal() and int(number) < done:
                _remove(place)

    def clear(self) -> None:
        """Removes all entries, when the run has ended."""
        if self._folder is not None and is_writer() and self._folder.exists():
            _remove(self._folder)


class Entry:
    """The place of one result; `kept` is the content, None if it has to be computed."""

    def __init__(
        self,
        file: epath.Path | None,
        key: str,
        kept: Kept | None,
        seconds: Callable[[], float],
    ):
        self._file, self._key, self._seconds = file, key, seconds
        self.kept = kept

    def keep(self, facts: Any, **arrays: np.ndarray) -> None:
        """Writes the content. Raises WorkdirError if that fails."""
        if self._file is None or not is_writer():
            return
        content = _encode(self._key, Kept(facts, arrays, self._seconds()))
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._file, content)
        except OSError as error:
            raise WorkdirError(f"{self._file}: cannot be written ({error}); {MAKE_ROOM}") from error


def _encode(key: str, kept: Kept) -> bytes:
    text = json.dumps([key, kept.facts, kept.at]).encode()
    content = io.BytesIO()
    np.savez(content, facts=np.frombuffer(text, np.uint8), **cast(Any, kept.arrays))
    return _digest(content.getvalue()) + content.getvalue()


def _read(file: epath.Path, key: str) -> Kept | None:
    """The content of a file; None if it is of another key, or not as it was written."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    if _digest(content[DIGEST:]) != content[:DIGEST]:
        return None
    with np.load(io.BytesIO(content[DIGEST:])) as found:
        arrays = dict(found)
    its_key, facts, at = json.loads(arrays.pop("facts").tobytes())
    return Kept(facts, arrays, at) if its_key == key else None


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST).digest()


def _remove(folder: epath.Path) -> None:
    with contextlib.suppress(OSError):  # what stays is of other weights, and never given
        folder.rmtree()
