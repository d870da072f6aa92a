"""The base of generated tasks: problems of each split, random choices by hash, a tokenizer.

The tasks are `arithmetic`, `bifurcation`, `free_order` and `countdown`.
"""

import hashlib
import pathlib
import re

import numpy as np

from vinejax.core.errors import ConfigError, DataError
from vinejax.core.settings import DataConfig
from vinejax.core.text import Tokenizer
from vinejax.core.types import Problem
from vinejax.tasks.base import Split
from vinejax.tasks.steps import split_steps

SIZES = {"train": 6000, "validation": 256, "test": 512}  # problems of each split
MAX_DRAWS = 100  # drawn questions per problem of a split; a tenth is for validation or test
TOKENIZER = pathlib.Path(__file__).parent / "character_tokenizer"

_ANSWER = re.compile(r"\n#### ([^\n]*)\Z")


def rng_of(text: str) -> np.random.Generator:
    """A random generator seeded by a hash of the text, the same on every host."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest))


def share_of(text: str) -> float:
    """A number in [0, 1) computed from a hash of the text, the same on every host."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) / 2**32


def split_of(question: str) -> str:
    """The split of a question by its hash: a tenth is for validation, a tenth for test."""
    return {0: "test", 1: "validation"}.get(int(10 * share_of(question)), "train")


def numbers_of_free_steps(
    data: DataConfig, default: tuple[int, ...], low: int, high: int
) -> tuple[int, ...]:
    """`(data.free_steps,)`, or `default` if `data.free_steps` is None.

    Raises ConfigError for a number outside low .. high.
    """
    if data.free_steps is None:
        return default
    if not low <= data.free_steps <= high:
        message = f"must be from {low} to {high} for this task"
        raise ConfigError("data.free_steps", message, repr(data.free_steps))
    return (data.free_steps,)


class CharacterTask:
    """A task that ships a character-level tokenizer."""

    vocabulary = TOKENIZER  # folder of the tokenizer

    def tokenizer(self) -> Tokenizer:
        """The shipped tokenizer, for a new model."""
        from vinejax.model.hf.weights import load_tokenizer

        return load_tokenizer(self.vocabulary)


class GeneratedTask(CharacterTask):
    """The base of generated tasks: a subclass has a `name`, `draw`, `prompt` and `solution`.

    A hash of a question decides its split, so no two splits share a question. A tenth of all
    possible questions is for validation and a tenth for test.
    """

    name: str

    def __init__(self, free_steps: tuple[int, ...]):
        """Every number of free steps in `free_steps` gets an equal share of the problems."""
        self.free_steps = free_steps

    @property
    def difficulties(self) -> tuple[int, ...]:
        """The difficulties of the problems, in equal shares; `draw` takes one of them."""
        return self.free_steps

    def draw(self, rng: np.random.Generator, difficulty: int) -> tuple[str, str]:
        """(a random question of this difficulty, its worked solution)."""
        raise NotImplementedError

    def load(self, split: Split) -> list[Problem]:
        """The problems of a split; raises DataError if the task has too few questions."""
        rng = np.random.default_rng(["train", "validation", "test"].index(split))
        problems: dict[str, Problem] = {}
        for _ in range(MAX_DRAWS * SIZES[split]):
            difficulty = self.difficulties[len(problems) % len(self.difficulties)]
            question, answer = self.draw(rng, difficulty)
            if split_of(question) == split and question not in problems:
                name = f"{split}/{len(problems)}"
                problems[question] = Problem(name, question, answer)
            if len(problems) == SIZES[split]:
                return list(problems.values())
        message = f"{len(problems)} different questions found, {SIZES[split]} needed"
        raise DataError(f"{self.name} {split}", None, message)

    def split(self, text: str) -> list[int]:
        """One step per line; the answer belongs to the step of the line before the answer."""
        return split_steps(text, style="gsm8k")

    def answer(self, text: str) -> str | None:
        """The text after `#### ` in the last line; None if that line does not begin with it."""
        match = _ANSWER.search(text)
        return match[1] if match else None

    def reward(self, problem: Problem, response: str) -> float:
        """1 if the answer is that of the worked solution, else 0."""
        return float(self.answer(response) == self.answer(problem.answer))
