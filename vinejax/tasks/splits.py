"""Train, validation and test splits of data that lack validation or test, and of drawn problems."""

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any

from vinejax.core.errors import DataError
from vinejax.core.types import Problem
from vinejax.runtime.distributed import is_writer
from vinejax.tasks.base import Split
from vinejax.tasks.read_rows import hash_shuffled

PORTION = 1 / 20  # share of the train rows that become a split which the data lacks
MAX_HELD_OUT = 500  # rows of such a split
DRAWN = 5000  # problems for training that are made of seeds, if `data.size` does not say
SEED_STEP = 10**8  # between the seeds of splits
# A question that two splits drew is in the first of them here, so `data.size` changes no test.
ORDER: tuple[Split, ...] = ("test", "validation", "train")


def seeds_of(split: Split, size: int | None) -> range:
    """The seeds of a split's problems, where each problem is made of one.

    There are `size` for training, and a tenth as many, at most 500, for each held-out split. Splits
    share no seed.
    """
    count, first = size or DRAWN, SEED_STEP * ORDER.index(split)
    if split != "train":
        count = min(MAX_HELD_OUT, max(1, count // 10))
    return range(first, first + count)


class HeldOut:
    """The three splits; validation or test, if the data lacks it, is held out of its train split.

    `read(source)` returns the problems of a split of the data, `has(source)` tells whether it
    exists. A held-out split is a twentieth of the train rows, at most 500, drawn by a hash of their
    ids: the same on every machine and in every version.
    """

    def __init__(self, read: Callable[[str], list[Problem]], has: Callable[[str], bool]):
        self._read = read
        self._has = has

    def load(self, split: Split, place: str) -> list[Problem]:
        """The problems of a split. Raises DataError, naming `place`, if none is left for it."""
        if split != "train" and split not in self._missing:
            return self._read(split)
        problems = self._parts[split]
        if not problems:
            rule = "too few rows: held out are at least one for validation and one for the test"
            raise DataError(place, None, rule)
        return problems

    @cached_property
    def _missing(self) -> list[Split]:
        splits: tuple[Split, ...] = ("validation", "test")
        return [split for split in splits if not self._has(split)]

    @cached_property
    def _parts(self) -> dict[Split, list[Problem]]:
        """What is left of the train split, in the order of the data, and the held-out splits."""
        problems = self._read("train")
        size = min(MAX_HELD_OUT, max(1, round(PORTION * len(problems))))
        parts: dict[Split, list[Problem]] = {}
        rest = hash_shuffled(problems)
        for split in self._missing:
            parts[split], rest = rest[:size], rest[size:]
        kept = {problem.id for problem in rest}
        parts["train"] = [problem for problem in problems if problem.id in kept]
        return parts


class Distinct:
    """Leaves out repeated rows: those with the question and answer of an earlier row.

    `key` returns question and answer of a row, or raises ValueError for a faulty row, which is
    kept, so that the fault is reported with its line.
    """

    def __init__(self, key: Callable[[dict[str, Any]], Hashable]):
        self._key = key
        self._seen: set[Hashable] = set()
        self._repeated = 0

    def keep(self, row: dict[str, Any]) -> bool:
        """Whether the row is the first of its kind; for `read_split`."""
        try:
            pair = self._key(row)
        except ValueError:
            return True
        if pair in self._seen:
            self._repeated += 1
            return False
        self._seen.add(pair)
        return True

    def report(self, place: str) -> None:
        """Prints how many rows were left out, if any were."""
        if self._repeated and is_writer():
            print(f"{place}: {self._repeated:,} rows repeat an earlier one and are left out")
