"""The protocol of a task, the protocols of its optional methods, and the task of a run by name."""

import abc
import difflib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Sequence
from typing import Literal, Protocol, cast, runtime_checkable

from vinejax.core.accessories import contributed, contributed_module
from vinejax.core.errors import ConfigError, UserError
from vinejax.core.plugins import SEARCHED, failure, find_module, source_of
from vinejax.core.settings import Config, DataConfig
from vinejax.core.text import Tokenizer
from vinejax.core.types import Problem
from vinejax.grading import Grader, shared_grader
from vinejax.grading.extract import Style
from vinejax.tasks.checked import CheckedTask
from vinejax.tasks.steps import split_steps

Split = Literal["train", "validation", "test"]


@runtime_checkable
class Task(Protocol):
    """Problems and their rewards; any module with `make(data: DataConfig) -> Task` is a task.

    A task sees texts, never token ids: `tasks/prompts.py` encodes its prompts, and `tasks/steps.py`
    maps its step boundaries to tokens. The protocols below are optional.
    """

    name: str

    def load(self, split: Split) -> list[Problem]:
        """The problems of a split, in the same order on every host and at every start.

        Ids are unique within the split. Raises DataError if the data cannot be used.
        """
        ...

    def prompt(self, problem: Problem) -> str:
        """The text that the model continues."""
        ...

    def solution(self, problem: Problem) -> str:
        """A worked solution in the form of a response, for supervised training and for resets."""
        ...

    def split(self, text: str) -> list[int]:
        """Character boundaries [0, ..., len(text)] of the reasoning steps of any response."""
        ...

    def answer(self, text: str) -> str | None:
        """The final answer of a response, for the votes of maj@k; None without an answer."""
        ...

    def reward(self, problem: Problem, response: str) -> float:
        """The reward of a whole response; 1.0 and more counts as correct.

        An exception, or a result that is not a finite number, ends the run.
        """
        ...


@runtime_checkable
class BatchGraded(Protocol):
    """A task whose answers the run's grader compares in batches, in the mode of the run."""

    def rewards(self, items: Sequence[tuple[Problem, str]], grader: Grader) -> list[float]:
        """The rewards of (problem, response) pairs, in order. Runs call this, not `reward`."""
        ...


@runtime_checkable
class WithStyle(Protocol):
    """A task that sets the style in which its grader finds answers; the default is 'math'."""

    style: Style


@runtime_checkable
class WithGold(Protocol):
    """A `BatchGraded` task with correct answers, which the grader tries to read before the run."""

    def gold(self, problem: Problem) -> str | None:
        """The correct answer without a solution; None if the data set has none."""
        ...


@runtime_checkable
class StepRewarded(Protocol):
    """A task with process rewards, which are added to the reward of the response."""

    def step_rewards(self, problem: Problem, steps: Sequence[str]) -> Sequence[float]:
        """A reward per step of a response; `steps` are the texts that `split` divides it into."""
        ...


@runtime_checkable
class StepsInTokens(Protocol):
    """A task that ends steps at token counts, for text without natural boundaries.

    Its `split` is never called. It cannot be `StepRewarded`, because its steps are not texts.
    """

    def step_ends(self, num_tokens: int) -> list[int]:
        """The index one past the last token of each of the C steps of a response, [C].

        The indices increase, and the last is `num_tokens`, the length of the response.
        """
        ...


@runtime_checkable
class WithTokenizer(Protocol):
    """A task that ships a tokenizer, so that a new model can be trained on it."""

    def tokenizer(self) -> Tokenizer: ...


@runtime_checkable
class WithFreeSteps(Protocol):
    """A task that reads `data.free_steps`, which has no effect on any other task."""

    free_steps: tuple[int, ...]  # numbers of free steps, each of an equal share of problems


@runtime_checkable
class WithColumns(Protocol):
    """A task that names, in `reads`, the fields of `data` that it reads.

    Of the optional fields, which `FIELDS` lists, those that it does not name have no effect.
    """

    reads: tuple[str, ...]  # names of the fields


@runtime_checkable
class Configured(Protocol):
    """A task that reads groups of settings besides `data`, such as `code`."""

    sections: tuple[str, ...]  # names of the groups, such as ('code',)

    def configure(self, cfg: Config) -> None:
        """Reads the settings of a run. Raises ConfigError if they do not suit the task."""
        ...


@runtime_checkable
class WithFailures(Protocol):
    """A task that can show why a response is wrong."""

    def failure(self, problem: Problem, response: str) -> dict[str, str] | None:
        """'input', 'expected' and 'got' of the first test that a response fails, for the report."""
        ...


@runtime_checkable
class OwnRules(Protocol):
    """A `BatchGraded` task that scores by its data set's rules instead of `grader.mode`."""

    own_rules: bool


# Fields of `data` that only a task `WithColumns` can read; its `reads` names those that it reads.
COLUMN_FIELDS = ("question", "answer", "solution", "subset", "template")
FIELDS = (*COLUMN_FIELDS, "size")


def check_template(template: str) -> None:
    """Raises ConfigError for a `data.template` without a place for the question."""
    if "{question}" not in template:
        message = "must hold {question}, which stands for the question of a row"
        raise ConfigError("data.template", message, repr(template))


def check_package(package: str, extra: str, data: DataConfig) -> None:
    """Raises ConfigError if a task's package, which `extra` of setup.py installs, is missing."""
    if importlib.util.find_spec(package) is None:
        name = package.replace("_", "-")
        message = f"needs the package {name}: pip install 'vinejax[{extra}]'"
        raise ConfigError("data.task", message, repr(data.task))


def shipped_tokenizer(task: Task, remedy: str) -> Tokenizer:
    """The tokenizer that the task ships; raises ConfigError with `remedy` if it ships none."""
    if not isinstance(task, WithTokenizer):
        raise ConfigError("model.path", f"task {task.name} ships no tokenizer; {remedy}")
    return task.tokenizer()


class ReferenceTask(abc.ABC):
    """The base of tasks that follow VinePPO's code, with its prompt and its steps."""

    name: str
    style: Style = "math"

    def __init__(self, path: str):
        self.path = path

    def prompt(self, problem: Problem) -> str:
        """VinePPO's prompt, which is the same for every data set; responses begin with a newline.

        Source: prompt_library/MATH_step_by_step_sft.jsonnet and generic_GSM8K_step_by_step.jsonnet.
        """
        return f"[MATH_TASK] Problem:\n{problem.question}\n\nSolution:"

    def split(self, text: str) -> list[int]:
        return split_steps(text, self.style)

    @abc.abstractmethod
    def answer(self, text: str) -> str | None: ...

    @abc.abstractmethod
    def gold(self, problem: Problem) -> str | None: ...

    def strict_answer(self, response: str) -> str | None:
        """The answer of a response, as mode 'strict' compares it with `gold`."""
        return self.answer(response)

    def reward(self, problem: Problem, response: str) -> float:
        """1.0 if the response's answer equals the correct answer in mode 'strict', else 0.0."""
        return self.rewards([(problem, response)], shared_grader())[0]

    def rewards(self, items: Sequence[tuple[Problem, str]], grader: Grader) -> list[float]:
        """The rewards of (problem, response) pairs, in order.

        Mode 'strict' compares `strict_answer` with `gold`. Mode 'reference' compares the answers
        that VinePPO's rules extract from the response and from the data set's whole answer.
        """
        if grader.mode == "strict":
            return self._graded(items, grader)
        verdicts = grader.grade_responses(
            (response, problem.answer, problem.question) for problem, response in items
        )
        return [float(verdict.correct) for verdict in verdicts]

    def _graded(self, items: Sequence[tuple[Problem, str]], grader: Grader) -> list[float]:
        pairs = (
            (self.strict_answer(response), self.gold(problem) or "") for problem, response in items
        )
        return [float(verdict.correct) for verdict in grader.grade_many(pairs)]


def load_task(data: DataConfig) -> Task:
    """The task of `data.task`: `make(data)` of the module with that name, built in or the user's.

    A task of a user's own becomes a `CheckedTask`. Raises ConfigError if the module does not exist,
    if it fails (with file and line), or if its `make` gives no task. Raises UserError as
    `CheckedTask` does.
    """
    name = data.task
    try:
        module = contributed_module("TASKS", name) or find_module(name)
        task = module.make(data) if module and hasattr(module, "make") else None
    except UserError:
        raise
    except Exception as error:
        raise ConfigError("data.task", failure(error, source_of(name)), repr(name)) from error
    if not hasattr(module, "make"):
        if module is None or name in sys.stdlib_module_names:  # such as 'math', Python's own
            raise _no_such_module(name)
        raise ConfigError("data.task", "the module has no make(data)", repr(name))
    if not isinstance(task, Task):
        members = ("name", "load", "prompt", "solution", "split", "answer", "reward")
        lacks = ", ".join(m for m in members if getattr(task, m, None) is None)
        raise ConfigError("data.task", f"make(data) gave a task without {lacks}", repr(name))
    if type(task).__module__.startswith("vinejax."):
        return task
    return cast(Task, CheckedTask(task))


def _no_such_module(name: str) -> ConfigError:
    package = importlib.import_module("vinejax.tasks")
    modules = [info.name for info in pkgutil.iter_modules(package.__path__)]
    tasks = [m for m in modules if hasattr(importlib.import_module(f"vinejax.tasks.{m}"), "make")]
    paths = [f"vinejax.tasks.{task}" for task in tasks] + list(contributed("TASKS"))
    leaves = {path.rpartition(".")[2]: path for path in paths}
    nearest = difflib.get_close_matches(name.rpartition(".")[2], leaves, n=1, cutoff=0.0)[0]
    message = f"no such module {SEARCHED}; the nearest built-in task is {leaves[nearest]!r}"
    return ConfigError("data.task", message, repr(name))
