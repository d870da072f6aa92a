"""What the tests of generated tasks share: problems of all splits, the config, and two checks."""

import itertools
import runpy
from typing import Any

from helpers.paths import CONFIGS
from vinejax.config.checks import check_config
from vinejax.config.load import from_dict
from vinejax.core.settings import Config, DataConfig
from vinejax.core.text import decode
from vinejax.core.types import Problem
from vinejax.tasks.base import Split, load_task
from vinejax.tasks.generated import SIZES, split_of
from vinejax.tasks.prompts import encode_prompt, encode_response

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Problems = dict[Split, list[Problem]]


def load(name: str) -> tuple[Any, Problems]:
    """(the task of a module of vinejax.tasks, its problems by split)."""
    task = load_task(DataConfig(task=f"vinejax.tasks.{name}"))
    return task, {split: task.load(split) for split in SPLITS}


def config(name: str, argument: str) -> Config:
    """The task's config for an argument of `get_config`, checked."""
    cfg = from_dict(runpy.run_path(str(CONFIGS / f"{name}.py"))["get_config"](argument))
    check_config(cfg)
    return cfg


def check_splits(name: str, problems: Problems) -> None:
    """Splits have their sizes and no question twice, and are the same when they are made again."""
    questions = [problem.question for split in SPLITS for problem in problems[split]]
    assert len(set(questions)) == len(questions) == sum(SIZES.values())
    for split in SPLITS:
        assert len(problems[split]) == SIZES[split]
        assert {split_of(problem.question) for problem in problems[split]} == {split}
    again = load_task(DataConfig(task=f"vinejax.tasks.{name}"))
    assert again.load("validation") == problems["validation"]


def check_tokenizer(task: Any, problems: list[Problem]) -> None:
    """Prompts and demonstrations survive the task's tokenizer."""
    tokenizer = task.tokenizer()
    for problem in problems:
        prompt, response = task.prompt(problem), task.solution(problem)
        ids = encode_prompt(tokenizer, prompt, False) + encode_response(tokenizer, response)
        assert tokenizer.unk_token_id not in ids and decode(tokenizer, ids) == prompt + response


def steps_of(task: Any, response: str) -> list[str]:
    """The texts of the steps that the task divides a response into."""
    return [response[a:b] for a, b in itertools.pairwise(task.split(response))]
