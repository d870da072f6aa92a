"""The examples of docs/tasks.md are tasks with everything that a run needs."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import REPO
from helpers.tokenizer_cases import load
from helpers.tool_templates import QWEN

from vinejax.core.settings import DataConfig, GraderConfig
from vinejax.core.types import Problem
from vinejax.tasks.base import Split, Task, load_task
from vinejax.tasks.environment import EnvRules, EnvStart, Observation, start_environment
from vinejax.tasks.graded import GradedTask
from vinejax.tasks.prompts import encode_prompt, encode_response, load_problems
from vinejax.tasks.steps import every_n_tokens, step_ends

PAGE = REPO / "docs" / "tasks.md"


def sources() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (source,) = (source for source in sources() if f"Save as {name}.py" in source)
    (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return load_task(DataConfig(task=name))


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    return example("reverse", tmp_path, monkeypatch)


@pytest.fixture
def expand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    example("reverse", tmp_path, monkeypatch)
    return example("expand", tmp_path, monkeypatch)


def test_its_problems_load_with_their_prompts(task: Task):
    splits: tuple[Split, ...] = ("train", "validation", "test")
    for split, size in zip(splits, (2000, 100, 200), strict=True):
        data = DataConfig(max_prompt_tokens=64)
        problems, dropped = load_problems(task, load("byte_level"), split, data)
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


def test_the_method_that_counts_steps_in_tokens(task: Any):
    task.step_ends = lambda num_tokens: every_n_tokens(num_tokens, 50)
    rewards = GradedTask(task, GraderConfig())
    assert rewards.step_ends(load("byte_level"), [], [0] * 120, "") == [50, 100, 120]


def test_the_other_one_is_graded_by_the_grader(expand: Any):
    problem = Problem("test/0", "(x+1)(x+2)", "x^2+3x+2")
    assert len({p.id for p in expand.load("train")}) == 2000
    texts = [expand.solution(problem), "It is $\\boxed{(2+x)(x+1)}$.", "It is $\\boxed{x^2}$.", ""]
    with GradedTask(expand, GraderConfig(workers=1)) as rewards:
        assert rewards([(problem, text) for text in texts]) == [1.0, 1.0, 0.0, 0.0]
        assert rewards.stats.pairs == 4
        assert rewards.unreadable(expand.load("test")) == {}
    assert [expand.reward(problem, text) for text in texts] == [1.0, 1.0, 0.0, 0.0]


def test_the_other_one_rewards_steps(expand: Any):
    problem = Problem("test/0", "(x+1)(x+2)", "x^2+3x+2")
    rewards, text = GradedTask(expand, GraderConfig()), "\na\nb\na\na"
    ends = expand.split(text)
    steps = [text[a:b] for a, b in zip(ends, ends[1:], strict=False)]
    assert steps == ["\na", "\nb", "\na", "\na"] and rewards.has_steps
    assert rewards.step_rewards(problem, steps) == [-0.01, -0.01, -0.1, -0.1]


def test_the_example_with_tools_answers_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    task = example("sums", tmp_path, monkeypatch)
    tokenizer = load("gpt2")
    monkeypatch.setattr(tokenizer, "chat_template", QWEN)
    data = DataConfig(chat_template=True, max_prompt_tokens=500)
    problems, _ = load_problems(task, tokenizer, "train", data)
    assert "Adds two numbers." in tokenizer.decode(problems[0][1])
    start = EnvStart(problems[0][0], 0)
    environment, _ = start_environment(task, start, EnvRules(60.0))
    call = '<tool_call>{"name": "add", "arguments": {"a": 100, "b": 100}}</tool_call>'
    assert environment.step(call) == Observation("200", results=("200",))
    assert environment.step("It is 200.") == Observation("", 1.0, done=True)
