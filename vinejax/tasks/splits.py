"""Splits of data without validation or test rows, and of problems drawn by seeds."""

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any

from vinejax.core.errors import DataError
from vinejax.core.types import Problem
from vinejax.runtime.distributed import is_writer
from vinejax.tasks.base import Split
from vinejax.tasks.read_rows import hash_shuffled

PORTION = 1 / 20  # share of the train rows that is held out per missing split
MAX_HELD_OUT = 500  # maximum number of problems of a held-out split
DRAWN = 5000  # default of `data.size`, the number of training problems drawn by seeds
SEED_STEP = 10**8  # distance between the first seeds of two splits
# A question drawn in two splits belongs to the first of them, so `data.size` changes no test split.
ORDER: tuple[Split, ...] = ("test", "validation", "train")


def seeds_of(split: Split, size: int | None) -> range:
    """The seeds of a split's problems, one per problem.

    There are `size` seeds for training, and a tenth as many, at most 500, for each held-out split.
    Splits share no seed.
    """
    count, first = size or DRAWN, SEED_STEP * ORDER.index(split)
    if split != "train":
        count = min(MAX_HELD_OUT, max(1, count // 10))
    return range(first, first + count)


class HeldOut:
    """The three splits; a missing validation or test split is held out of the train split.

    `read(source)` returns the problems of a split of the data, and `has(source)` tells whether the
    split exists. A held-out split is a twentieth of the train rows, at most 500. Rows with equal
    `prompt`, such as several worked solutions of a question, stay in one split. A hash of row ids
    selects the rows, so the split is the same on every machine and in every version.
    """

    def __init__(
        self,
        read: Callable[[str], list[Problem]],
        has: Callable[[str], bool],
        prompt: Callable[[Problem], Hashable],
    ):
        self._read = read
        self._has = has
        self._prompt = prompt

    def load(self, split: Split, place: str) -> list[Problem]:
        """The problems of a split. Raises DataError, naming `place`, if the split is empty."""
        if split != "train" and split not in self._missing:
            return self._read(split)
        problems = self._parts[split]
        if not problems:
            message = "too few prompts: at least one each is held out for validation and for test"
            raise DataError(place, None, message)
        return problems

    @cached_property
    def _missing(self) -> list[Split]:
        splits: tuple[Split, ...] = ("validation", "test")
        return [split for split in splits if not self._has(split)]

    @cached_property
    def _parts(self) -> dict[Split, list[Problem]]:
        """The held-out splits, and the remaining train split in the order of the data."""
        problems = self._read("train")
        size = min(MAX_HELD_OUT, max(1, round(PORTION * len(problems))))
        parts: dict[Split, list[Problem]] = {}
        groups: dict[Hashable, list[Problem]] = {}
        for problem in hash_shuffled(problems):
            groups.setdefault(self._prompt(problem), []).append(problem)
        remaining = list(groups.values())
        for split in self._missing:
            held_out, remaining = _first_groups(remaining, size)
            parts[split] = [problem for group in held_out for problem in group]
        train_ids = {problem.id for group in remaining for problem in group}
        parts["train"] = [problem for problem in problems if problem.id in train_ids]
        return parts


def _first_groups(
    groups: list[list[Problem]], size: int
) -> tuple[list[list[Problem]], list[list[Problem]]]:
    """(the first groups, as many as have at most `size` problems in all; the other groups).

    A group for which there is no room is passed over. If no group has room, the first is taken.
    """
    chosen: list[list[Problem]] = []
    others: list[list[Problem]] = []
    room = size
    for group in groups:
        if len(group) <= room:
            chosen.append(group)
            room -= len(group)
        else:
            others.append(group)
    return (chosen, others) if chosen else (groups[:1], groups[1:])


class Distinct:
    """A filter of repeated rows, which have the prompt and answer of an earlier row.

    `key` returns the prompt and answer of a row, or raises ValueError for a faulty row. Faulty
    rows are kept, so that a later error reports them with their line.
    """

    def __init__(self, key: Callable[[dict[str, Any]], Hashable]):
        self._key = key
        self._keys: set[Hashable] = set()
        self._repeated = 0

    def keep(self, row: dict[str, Any]) -> bool:
        """Whether the row is the first with its prompt and answer.

        `read_split` takes this method as its argument `keep`.
        """
        try:
            key = self._key(row)
        except ValueError:
            return True
        if key in self._keys:
            self._repeated += 1
            return False
        self._keys.add(key)
        return True

    def report(self, place: str) -> None:
        """Prints how many rows were left out, if any were."""
        if self._repeated and is_writer():
            print(f"{place}: {self._repeated:,} rows repeat an earlier one and are left out")
