"""The task with free order: problems, rewards, demonstrations, and the start that ships."""

import dataclasses
import itertools
import json
import statistics
from pathlib import Path

import pytest
from helpers import generated_tasks
from helpers.refusals import refuses

from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.tasks.base import load_task
from vinejax.tasks.free_order import RIGHT
from vinejax.tasks.prompts import encode_prompt, encode_response

TASK, PROBLEMS = generated_tasks.load("free_order")
PROBLEM = Problem("x", "a3+4 b7+1 c9-5", "\na3+4=77\nb7+1=85\nc9-5=49\n#### 9")


def is_true(question: str, line: str) -> bool:
    """Whether a line's sub-expression is in the question, and its value right by Python."""
    named, results = line.split("=")
    return named in question.split(" ") and eval(named[1:]) == int(results[0])


def test_splits_are_disjoint_and_always_the_same():
    generated_tasks.check_splits("free_order", PROBLEMS)


@pytest.mark.parametrize("free_steps", [1, 5, 25])
def test_the_number_of_free_steps_is_a_setting(free_steps: int):
    task = load_task(DataConfig(task="vinejax.tasks.free_order", free_steps=free_steps))
    for problem in task.load("validation"):
        assert len(problem.question.split(" ")) == free_steps + 1
        assert task.reward(problem, problem.answer) == 1.0


@pytest.mark.parametrize("free_steps", [0, 26])
def test_other_numbers_are_refused(free_steps: int):
    with refuses("data.free_steps"):
        load_task(DataConfig(task="vinejax.tasks.free_order", free_steps=free_steps))


def test_every_line_of_a_worked_solution_is_true():
    for problem in PROBLEMS["train"][:500]:
        *lines, last = problem.answer.strip().split("\n")
        total = 0
        for line in lines:
            assert is_true(problem.question, line)
            total += int(line[-2])
            assert int(line[-1]) == total % 10
        assert last == f"#### {total % 10}" and len(lines) == len(problem.question.split(" "))


def test_demonstrations_have_any_order_and_wrong_values_anywhere():
    in_order: list[bool] = []
    right: dict[int, list[bool]] = {}
    for problem in PROBLEMS["train"]:
        response = TASK.solution(problem)
        *lines, last = response.strip().split("\n")
        assert sorted(line[:4] for line in lines) == problem.question.split(" ")
        sums = [0, *(int(line[-1]) for line in lines)]
        for line, (before, after) in zip(lines, itertools.pairwise(sums), strict=True):
            assert after == (before + int(line[-2])) % 10  # the sums are those of the values
        assert last == f"#### {sums[-1]}"
        is_right = [is_true(problem.question, line) for line in lines]
        right.setdefault(len(lines), []).append(all(is_right))
        assert TASK.reward(problem, response) == 1.0 or not all(is_right)
        assert TASK.reward(problem, response) == 0.0 or sum(is_right) != len(lines) - 1
        if len(lines) == 4:
            in_order.append(lines == sorted(lines))
    assert 0.01 < statistics.mean(in_order) < 0.1  # 1 in 24 orders
    for shares in right.values():
        assert abs(statistics.mean(shares) - RIGHT) < 0.04


@pytest.mark.parametrize(
    "response, reward",
    [
        ("\na3+4=77\nb7+1=85\nc9-5=49\n#### 9", 1.0),
        ("\nc9-5=44\na3+4=71\nb7+1=89\n#### 9", 1.0),  # another order
        ("\n#### 9", 1.0),  # a guess; only the answer counts
        ("\na3+4=77\nb7+1=85\nc9-5=49\n#### 8", 0.0),
        ("\na3+4=77\nb7+1=85\nc9-5=49\n#### 19", 0.0),
        ("\na3+4=77\nb7+1=85\nc9-5=49\n#### 9 ", 0.0),
        ("\na3+4=77\nb7+1=85\nc9-5=49\n#### 9\n", 0.0),
        ("\na3+4=77\nb7+1=85\nc9-5=49\n#### 8\n#### 9", 1.0),  # the last answer counts
        ("\na3+4=77\nb7+1=85\nc9-5=49\n#### 9\n#### 8", 0.0),
        ("\na3+4=77\nb7+1=85\nc9-5=49", 0.0),
        ("#### 9", 0.0),  # not on a line of its own
        ("\n#### ", 0.0),
        ("", 0.0),
    ],
)
def test_rewards(response: str, reward: float):
    assert TASK.reward(PROBLEM, response) == reward


def test_a_step_is_a_line():
    steps = generated_tasks.steps_of(TASK, "\nc9-5=44\na3+4=71\nb7+1=89\n#### 9")
    assert steps == ["\nc9-5=44", "\na3+4=71", "\nb7+1=89\n#### 9"]


def test_every_text_survives_the_tokenizer():
    generated_tasks.check_tokenizer(TASK, PROBLEMS["validation"])


@pytest.mark.parametrize("free_steps", ["1", "4"])
def test_every_problem_fits_the_config(free_steps: str):
    cfg = generated_tasks.config("free_order", free_steps)
    task, tokenizer = load_task(cfg.data), TASK.tokenizer()
    sizes = json.loads((Path(cfg.model.path) / "config.json").read_text())
    for problem in task.load("validation")[:50]:
        prompt = encode_prompt(tokenizer, task.prompt(problem), False)
        assert len(prompt) <= cfg.data.max_prompt_tokens
        assert len(encode_response(tokenizer, problem.answer)) <= cfg.sample.max_tokens
        longest = len(prompt) + cfg.sample.max_tokens
        assert longest <= cfg.model.context == sizes["max_position_embeddings"]


@pytest.mark.slow
def test_the_start_solves_some_problems_and_trains(tmp_path: Path):
    from vinejax.training.loop import train

    cfg = generated_tasks.config("free_order", "3")
    few = dataclasses.replace(cfg.eval, problems=256, samples=1, temperature=1.0, top_p=1.0)
    train(dataclasses.replace(cfg, method="grpo", iterations=1, eval=few), tmp_path)
    lines = [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    (first, *_) = [line for line in lines if line["stage"] == "eval"]
    assert 0.2 <= first["eval/pass_at_1"] <= 0.38
    (trained,) = [line for line in lines if line["stage"] == "train"]
    assert trained["actor/grad_norm"] > 0
