"""The example of docs/tasks.md is a task, and everything a run asks of one works."""

import re
import sys
from pathlib import Path

import pytest
from tokenizer_cases import load

from vinejax.config import DataConfig
from vinejax.tasks.base import Split, Task, load_task
from vinejax.tasks.prompts import encode_prompt, encode_response, load_problems
from vinejax.tasks.steps import step_ends
from vinejax.types import Problem

PAGE = Path(__file__).parents[1] / "docs" / "tasks.md"


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "reverse.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "reverse", raising=False)
    return load_task(DataConfig(task="reverse"))


def test_its_problems_load_with_their_prompts(task: Task):
    splits: tuple[Split, ...] = ("train", "validation", "test")
    for split, size in zip(splits, (2000, 100, 200), strict=True):
        problems, dropped = load_problems(task, load("byte_level"), split, 64, False)
        assert len(problems) == size and dropped == []
        assert [p for p, _ in problems] == task.load(split)


def test_a_solution_earns_the_whole_reward_and_half_a_word_half(task: Task):
    for problem in task.load("test"):
        assert task.reward(problem, task.solution(problem)) == 1.0
    problem = Problem("test/0", "abcdef", "fedcba")
    assert task.prompt(problem) == "Reverse: abcdef\n"
    assert task.reward(problem, "f\n#### fedxxx") == 0.5
    assert task.reward(problem, "fedcba") == 0.0
    assert task.answer("#### abc ") == "abc" and task.answer("abc") is None


def test_its_steps_are_lines_in_characters_and_in_tokens(task: Task):
    problem, tokenizer = Problem("test/0", "abcdef", "fedcba"), load("byte_level")
    text = task.solution(problem)
    assert task.split(text) == [0, 1, 3, 5, 7, 9, 11, 23]
    prompt = encode_prompt(tokenizer, task.prompt(problem), False)
    response = encode_response(tokenizer, text)
    ends = step_ends(tokenizer, prompt, response, task.split(text), text)
    assert len(ends) == 7 and ends[-1] == len(response)
