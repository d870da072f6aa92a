r"""Problems that the package reasoning-gym generates, scored by the rules of their data sets.

`data.path` names one of its data sets, such as 'gsm_symbolic', or a YAML file of a composite in
reasoning-gym's form: `datasets`, a list of `name`, `weight` and `config`. `data.size` is the number
of problems drawn for training. The held-out splits have a tenth as many each, at most 500. Every
split has its own seeds, and a question is in one split only.

The answer of a response stands between <answer> tags, in \boxed{} or after ####. Its score, from 0
to 1 with partial credit, is the reward; 1.0 counts as correct.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from vinejax import grading
from vinejax.core.errors import ConfigError, DataError
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.grading.extract import MARKER, marked_answer
from vinejax.grading.pool.environment import child_environment
from vinejax.grading.pool.gym import PACKAGE
from vinejax.runtime.distributed import is_writer
from vinejax.tasks.base import Split, check_package, check_template
from vinejax.tasks.splits import ORDER, seeds_of
from vinejax.tasks.steps import split_steps

WORKED = "answer_cot"  # key of a worked solution in the metadata; its last line is the answer


def make(data: DataConfig) -> "ReasoningGym":
    check_package(PACKAGE, "tasks", data)
    if not data.path:
        raise ConfigError("data.path", "name a data set, such as 'gsm_symbolic'", "''")
    check_template(data.template)
    return ReasoningGym(data)


def generate(path: str, size: int, seed: int) -> list[dict[str, Any]]:
    """`size` entries of a data set, or of the composite that a YAML file describes.

    Each entry has `question`, `answer` ('' if there are many right answers and none is known),
    `metadata` as JSON, `data_set`, and `entry`, which `Grader.score_many` takes. Raises ConfigError
    if there is no such data set.
    """
    child = subprocess.run(
        [sys.executable, "-P", "-m", "vinejax.grading.pool.problems"],
        input=json.dumps({"path": path, "size": size, "seed": seed}).encode(),
        stdout=subprocess.PIPE,
        env={**child_environment(), "PYTHONHASHSEED": "0"},
    )
    if child.returncode:
        raise ConfigError("data.path", "reasoning-gym failed; see its error above", repr(path))
    result = json.loads(child.stdout)  # the entries, or the message of an error
    if isinstance(result, str):
        raise ConfigError("data.path", result, repr(path))
    return result


class ReasoningGym:
    """Data sets of reasoning-gym as a task; `tasks/base.py` documents its methods."""

    name = "reasoning_gym"
    reads = ("template", "size")
    own_rules = True

    def __init__(self, data: DataConfig):
        self.path = data.path
        self._data = data
        self._drawn: dict[Split, list[Problem]] = {}

    def load(self, split: Split) -> list[Problem]:
        """Problems named after the split and the number of their draw, such as 'train/17'.

        `columns` has the metadata and the `entry` of a problem.
        """
        earlier = ORDER[: ORDER.index(split)]
        questions = {problem.question for other in earlier for problem in self._draw(other)}
        problems = []
        for problem in self._draw(split):
            if problem.question not in questions:
                problems.append(problem)
                questions.add(problem.question)
        place, drawn = f"{self.path} {split}", len(self._draw(split))
        if not problems:
            message = "all questions are in another split, too; lower data.size"
            raise DataError(place, None, message)
        if len(problems) < drawn and is_writer():
            repeated = drawn - len(problems)
            print(f"{place}: {repeated:,} of {drawn:,} questions repeat others and are left out")
        return problems

    def _draw(self, split: Split) -> list[Problem]:
        if split not in self._drawn:
            # A data set adds the number of a problem to its seed.
            seeds = seeds_of(split, self._data.size)
            rows = generate(self.path, len(seeds), seeds.start)
            self._drawn[split] = [
                Problem(f"{split}/{i}", row["question"], row["answer"], row)
                for i, row in enumerate(rows)
            ]
        return self._drawn[split]

    def prompt(self, problem: Problem) -> str:
        return self._data.template.replace("{question}", problem.question)

    def solution(self, problem: Problem) -> str:
        r"""The worked solution, if there is one, and the answer in the form that the prompt wants.

        `data.template` or `data.system` names the form: <answer>, \boxed{}, or else ####.
        """
        if not problem.answer:
            message = f"no right answer is known; {problem.columns['data_set']} has no solutions"
            raise DataError(f"{self.path} {problem.id}", None, message)
        worked, _, _ = problem.columns["metadata"].get(WORKED, "").rpartition(MARKER)
        instructions = self._data.template
        if self._data.chat_template:
            instructions += self._data.system
        if "<answer>" in instructions:
            return f"{worked}<answer>{problem.answer}</answer>"
        if "\\boxed" in instructions:
            return f"{worked}\\boxed{{{problem.answer}}}"
        return f"{worked}{MARKER} {problem.answer}"

    def split(self, text: str) -> list[int]:
        return split_steps(text, "gsm8k")

    def answer(self, text: str) -> str | None:
        return marked_answer(text)

    def reward(self, problem: Problem, response: str) -> float:
        """The score of the response's answer, computed in a process of its own."""
        with grading.Grader(workers=1) as grader:
            return self.rewards([(problem, response)], grader)[0]

    def rewards(self, items: Sequence[tuple[Problem, str]], grader: grading.Grader) -> list[float]:
        return grader.score_many(
            (self.answer(response), problem.columns["entry"]) for problem, response in items
        )
