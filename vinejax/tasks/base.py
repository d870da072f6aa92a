"""The protocol of a task, protocols of optional methods, and finding a task by its name."""

import abc
import difflib
import importlib
import importlib.util
import pkgutil
from collections.abc import Sequence
from typing import Literal, Protocol, cast, runtime_checkable

from vinejax.core.accessories import contributed, contributed_module
from vinejax.core.errors import ConfigError, UserError
from vinejax.core.plugins import failure, find_module, source_of
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
    """Problems with a reward. Any module with `make(data: DataConfig) -> Task` can be `data.task`.

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
        """The final answer of a response, on which maj@k votes; None if it gives none."""
        ...

    def reward(self, problem: Problem, response: str) -> float:
        """The reward of a whole response; 1.0 and more counts as correct.

        An exception ends the run, and so does a result that is no finite number.
        """
        ...


@runtime_checkable
class BatchGraded(Protocol):
    """A task whose answers the run's grader compares, many at a time, in the mode of the run."""

    def rewards(self, items: Sequence[tuple[Problem, str]], grader: Grader) -> list[float]:
        """The rewards of all (problem, response), in order; called instead of `reward`."""
        ...


@runtime_checkable
class WithStyle(Protocol):
    """A task that sets its grader's style of finding answers; the default style is 'math'."""

    style: Style


@runtime_checkable
class WithGold(Protocol):
    """A `BatchGraded` task whose correct answers the grader tries to read before the run."""

    def gold(self, problem: Problem) -> str | None:
        """The correct answer without a solution; None if the data set has none for the problem."""
        ...


@runtime_checkable
class StepRewarded(Protocol):
    """A task with process rewards, which are added to the reward of the response."""

    def step_rewards(self, problem: Problem, steps: Sequence[str]) -> Sequence[float]:
        """A reward for each step of a response; `steps` are the texts that `split` makes of it."""
        ...


@runtime_checkable
class StepsInTokens(Protocol):
    """A task whose steps are counted in tokens, for text without natural boundaries.

    `split` is then not called. Such a task cannot be `StepRewarded`, as its steps are no texts.
    """

    def step_ends(self, num_tokens: int) -> list[int]:
        """[C] rising token indices one past each step of a response; the last is `num_tokens`."""
        ...


@runtime_checkable
class WithTokenizer(Protocol):
    """A task that ships a tokenizer, so that a new model can be trained on it."""

    def tokenizer(self) -> Tokenizer: ...


@runtime_checkable
class WithFreeSteps(Protocol):
    """A task that reads `data.free_steps`, which has no effect on any other task."""

    free_steps: tuple[int, ...]  # numbers of free steps of its problems, in equal shares


@runtime_checkable
class WithColumns(Protocol):
    """A task that reads some of the fields `FIELDS` of `data`; the others have no effect on it."""

    reads: tuple[str, ...]


@runtime_checkable
class Configured(Protocol):
    """A task that reads groups of settings of accessories."""

    sections: tuple[str, ...]  # names of the groups, such as ('code',)

    def configure(self, cfg: Config) -> None:
        """Takes the settings of a run. Raises ConfigError if they do not suit the task."""
        ...


@runtime_checkable
class WithFailures(Protocol):
    """A task that can say what is wrong with a response."""

    def failure(self, problem: Problem, response: str) -> dict[str, str] | None:
        """'input', 'expected' and 'got' of the first test that a response fails, for people."""
        ...


@runtime_checkable
class OwnRules(Protocol):
    """A `BatchGraded` task whose data set brings its rules, so that nothing reads `grader.mode`."""

    own_rules: bool


# Fields of `data` that only a task `WithColumns` can read; its `reads` names the ones it does read.
COLUMN_FIELDS = ("question", "answer", "solution", "subset", "template")
FIELDS = (*COLUMN_FIELDS, "size")


def check_template(template: str) -> None:
    """Raises ConfigError for a `data.template` without a place for the question."""
    if "{question}" not in template:
        rule = "must hold {question}, where the question of a row is put"
        raise ConfigError("data.template", rule, repr(template))


def check_package(package: str, extra: str, data: DataConfig) -> None:
    """Raises ConfigError where a task's package, which `extra` of setup.py installs, is missing."""
    if importlib.util.find_spec(package) is None:
        name = package.replace("_", "-")
        rule = f"needs the package {name}: pip install 'vinejax[{extra}]'"
        raise ConfigError("data.task", rule, repr(data.task))


def shipped_tokenizer(task: Task, remedy: str) -> Tokenizer:
    """The tokenizer that the task ships; if it has none, raises ConfigError with `remedy`."""
    if not isinstance(task, WithTokenizer):
        raise ConfigError("model.path", f"task {task.name} ships no tokenizer; {remedy}")
    return task.tokenizer()


class ReferenceTask(abc.ABC):
    """The base of tasks that follow VinePPO's code: a data path, a prompt and a style of steps."""

    name: str
    style: Style = "math"

    def __init__(self, path: str):
        self.path = path

    def prompt(self, problem: Problem) -> str:
        """VinePPO's prompt, the same for every data set; the response begins with a newline.

        Source: prompt_library/MATH_step_by_step_sft.jsonnet and generic_GSM8K_step_by_step.jsonnet.
        """
        return f"[MATH_TASK] Problem:\n{problem.question}\n\nSolution:"

    def split(self, text: str) -> list[int]:
        return split_steps(text, self.style)

    @abc.abstractmethod
    def answer(self, text: str) -> str | None: ...

    @abc.abstractmethod
    def gold(self, problem: Problem) -> str | None: ...

    def given(self, response: str) -> str | None:
        """The answer of a response that mode 'strict' compares with `gold`."""
        return self.answer(response)

    def reward(self, problem: Problem, response: str) -> float:
        """1.0 if the response's answer equals the correct answer in mode 'strict', else 0.0."""
        return self.rewards([(problem, response)], shared_grader())[0]

    def rewards(self, items: Sequence[tuple[Problem, str]], grader: Grader) -> list[float]:
        """Mode 'strict' compares `given` with `gold`; mode 'reference' the answers that VinePPO's
        rules extract from the response and from the data set's whole answer."""
        if grader.mode == "strict":
            return self._graded(items, grader)
        verdicts = grader.grade_responses(
            (response, problem.answer, problem.question) for problem, response in items
        )
        return [float(verdict.correct) for verdict in verdicts]

    def _graded(self, items: Sequence[tuple[Problem, str]], grader: Grader) -> list[float]:
        pairs = ((self.given(response), self.gold(problem) or "") for problem, response in items)
        return [float(verdict.correct) for verdict in grader.grade_many(pairs)]


class AnswerTask(ReferenceTask):
    """The base of tasks that extract the answer of a response in one way, in all grading modes."""

    def rewards(self, items: Sequence[tuple[Problem, str]], grader: Grader) -> list[float]:
        """The rewards by the mode of the grader; in both modes `answer` extracts the answers."""
        return self._graded(items, grader)


def load_task(data: DataConfig) -> Task:
    """The task that `data.task` names: `make(data)` of that module, which may be the user's.

    A task of a user's own becomes a `CheckedTask`. Raises ConfigError if the module does not exist,
    if it fails (with file and line), or if its `make` gives no task; UserError as `CheckedTask`
    does.
    """
    name = data.task
    try:
        module = contributed_module("TASKS", name) or find_module(name)
        task = module.make(data) if module and hasattr(module, "make") else None
    except UserError:
        raise
    except Exception as error:
        raise ConfigError("data.task", failure(error, source_of(name)), repr(name)) from error
    if module is None:
        raise _no_such_module(name)
    if not hasattr(module, "make"):
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
    known = [f"vinejax.tasks.{task}" for task in tasks] + list(contributed("TASKS"))
    leaves = {path.rpartition(".")[2]: path for path in known}
    nearest = difflib.get_close_matches(name.rpartition(".")[2], leaves, n=1, cutoff=0.0)[0]
    message = f"no such module; the nearest of ours is {leaves[nearest]!r}"
    return ConfigError("data.task", message, repr(name))
