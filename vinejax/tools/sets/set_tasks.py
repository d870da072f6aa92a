"""From the text of `--sets` to the problems of each set, without a model or a device."""

from pathlib import Path
from typing import Any, NamedTuple

from vinejax.core.errors import ConfigError, DataError, UserError, nearest_hint
from vinejax.core.settings import Config, DataConfig
from vinejax.core.types import Problem
from vinejax.runtime.distributed import is_writer
from vinejax.tasks.base import Task, load_task
from vinejax.tasks.environment import MultiTurn
from vinejax.tasks.graded import configure
from vinejax.tasks.table import FIELD, ContextQuestion, RowTask, Table
from vinejax.tools.sets.named_sets import SETS, TABLE, NamedSet

QUESTION = "{question}"  # the place of the question in a template


class SetTask(NamedTuple):
    """A set, with the task that holds its problems, makes their prompts and grades responses."""

    name: str
    path: str  # hub name, file or folder
    task: Task  # `load` returns all problems of the set, whatever the split


class AnswerRows(Table):
    """The task `table` for rows whose question and reference answer a `NamedSet` reads."""

    def __init__(self, name: str, row: NamedSet, data: DataConfig):
        super().__init__(data)
        self.name = name
        self._row = row

    def _pair(self, row: dict[str, Any]) -> tuple[ContextQuestion, str]:
        question, answer = self._row.read(row, self._row.question, self._row.answer)
        return ((), question), answer


def set_tasks(cfg: Config, sets: str) -> list[SetTask]:
    """The sets that `sets` names, with the prompts of the run, in that order.

    Raises UserError for a wrong `sets` (`chosen_sets`), and if a set's data are missing or have a
    faulty row. Raises ConfigError as `template_of` does. A column that `data.template` names and a
    set lacks is a printed warning.
    """
    chosen = chosen_sets(sets)
    template = template_of(load_task(cfg.data))
    return [set_task(cfg, template, name, path) for name, path in chosen.items()]


def chosen_sets(sets: str) -> dict[str, str]:
    """Maps the names in `sets`, such as 'gsm8k,aime24=data/aime.jsonl', to paths; '': the hub.

    Raises UserError for an unknown or repeated name, and for a path that does not exist.
    """
    chosen: dict[str, str] = {}
    for part in sets.split(","):
        name, has_path, path = (text.strip() for text in part.partition("="))
        if name not in SETS:
            hint = nearest_hint(name.lower(), SETS)
            raise UserError(f"--sets: no set {name!r}{hint}; there are {', '.join(SETS)}")
        if name in chosen:
            raise UserError(f"--sets: {name} is named twice; name it once")
        if has_path and not (path and Path(path).expanduser().exists()):
            message = f"{path!r} is no file or folder; leave '={path}' out to use the hub's"
            raise UserError(f"--sets: {name}: {message}")
        chosen[name] = path
    return chosen


def template_of(task: Task) -> str:
    """The prompt of a run's task, with {question} in the place of the question.

    Raises ConfigError if the task has several turns, or if its prompt is not a text around the
    question.
    """
    field, value = "data.task", repr(task.name)
    if isinstance(task, MultiTurn):
        message = "its solutions have several turns, which --sets does not evaluate"
        raise ConfigError(field, message, value)
    message = "its prompts need more than a question, and a set has no more; --sets cannot use it"
    try:
        template = task.prompt(Problem("", QUESTION, ""))
    except Exception as error:  # of a task that reads the question or other columns
        raise ConfigError(field, message, value) from error
    if QUESTION not in template:
        raise ConfigError(field, message, value)
    return template


def set_task(cfg: Config, template: str, name: str, path: str) -> SetTask:
    """The set `name`, whose rows are read from `path` or, if that is '', from the hub."""
    row = SETS[name]
    folder = Path(path).expanduser()
    # A local copy has a folder per configuration or, in most cases, only the one that is needed.
    is_apart = bool(row.subset) and (not path or (folder / row.subset).is_dir())
    data = DataConfig(
        task=row.task,
        path=path or row.path,
        question=row.question,
        answer=row.answer,
        subset=row.subset if is_apart else "",
        template=template,
    )
    task = AnswerRows(name, row, data) if row.task == TABLE else load_task(data)
    assert isinstance(task, RowTask)
    try:
        problems = task.read_source(row.split)
    except DataError as error:
        remedy = "" if path else f"; {name}=FILE reads a copy of yours"
        raise UserError(f"--sets: {name}: {error}{remedy}") from error
    _warn_unfilled(task, template, problems, name)
    configure(task, cfg)
    task.load = lambda split: problems  # the task itself would hold parts out for training
    return SetTask(name, path or row.path, task)


def _warn_unfilled(task: RowTask, template: str, problems: list[Problem], name: str) -> None:
    """Prints a warning if the first prompt has fields of `template` that no column fills in.

    Text in braces that is no name, such as {1, 2}, may be meant as it is.
    """
    names = [field["name"] or "" for field in FIELD.finditer(template)]
    fields = {f"{{{name}}}" for name in names if name.replace(".", "_").isidentifier()}
    fields -= {f"{{{column}}}" for column in task.hidden_columns()}
    left = sorted(field for field in fields if problems and field in task.prompt(problems[0]))
    if left and is_writer():
        message = f"the prompts have {', '.join(left)} as text, because no column has this name"
        print(f"warning: {name}: {message}")
