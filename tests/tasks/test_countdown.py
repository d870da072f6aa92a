"""The countdown game: problems, the parser of answers, and the config."""

import re
from fractions import Fraction

import pytest
from helpers import generated_tasks
from helpers.refusals import refuses

from vinejax.core.errors import DataError
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.tasks.base import load_task
from vinejax.tasks.countdown import Countdown, evaluate
from vinejax.tasks.prompts import encode_prompt, encode_response

TASK, PROBLEMS = generated_tasks.load("countdown")
PROBLEM = Problem("x", "36,7,19=48", "36-7=29\n29+19=48\n#### (36-7)+19")


def test_splits_are_disjoint_and_always_the_same():
    generated_tasks.check_splits("countdown", PROBLEMS)


def test_every_worked_solution_is_true_and_right():
    for problem in PROBLEMS["train"][:1500]:
        numbers, target = problem.question.split("=")
        pool = [int(number) for number in numbers.split(",")]
        assert len(pool) in (3, 4) and 1 <= min(*pool, int(target)) <= max(*pool, int(target)) <= 20
        *lines, last = problem.answer.split("\n")
        for line in lines:
            left, value = line.split("=")
            assert eval(left) == int(value) and 1 <= int(value) <= 99
            for used in re.findall(r"\d+", left):
                pool.remove(int(used))
            pool.append(int(value))
        assert pool == [int(target)] == [eval(last.removeprefix("#### "))]
        assert TASK.reward(problem, TASK.solution(problem)) == 1.0


@pytest.mark.parametrize("free_steps", [1, 2])
def test_the_number_of_numbers_is_a_setting(free_steps: int):
    task = load_task(DataConfig(task="vinejax.tasks.countdown", free_steps=free_steps))
    for problem in task.load("validation"):
        assert problem.question.count(",") == free_steps + 1


@pytest.mark.parametrize("free_steps", [0, 3])
def test_other_numbers_are_refused(free_steps: int):
    with refuses("data.free_steps"):
        load_task(DataConfig(task="vinejax.tasks.countdown", free_steps=free_steps))


def test_too_few_questions_are_an_error_and_no_endless_search():
    with pytest.raises(
        DataError, match=r"^countdown validation: \d+ different questions found, 256"
    ):
        Countdown((0,)).load("validation")


@pytest.mark.parametrize(
    "expression, value",
    [
        ("7", 7),
        ("1+2*3", 7),
        ("(1+2)*3", 9),
        ("7-2-1", 4),
        ("1/3", Fraction(1, 3)),
        (" (1 + 2) / 3 ", 1),
        ("-(1+2)", -3),
        ("1--2", 3),
        ("(" * 60 + "1" + ")" * 60, 1),
    ],
)
def test_expressions(expression: str, value: Fraction):
    found = evaluate(expression)
    assert found is not None and found[0] == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        " ",
        "()",
        "1+",
        "1 2",
        "(1)(2)",
        "2**3",
        "7//2",
        "7%2",
        "1.5",
        "1e3",
        "1,2",
        "007",
        "1/0",
        "1/(2-2)",
        "x",
        "__import__('os')",
        "1\n+2",
        "٣",  # a digit of Unicode
        "-" * 127 + "1 ",
        "(" * 90 + "1" + ")" * 38,
        "1+" * 100 + "1",  # too long
    ],
)
def test_texts_that_are_no_expression_of_the_game(expression: str):
    assert evaluate(expression) is None or expression.startswith("---")


def test_the_longest_expressions_are_read_without_a_recursion_error():
    assert evaluate("-" * 127 + "1") == (-1, [1])
    assert evaluate("1" * 128) is not None


@pytest.mark.parametrize(
    "response, reward",
    [
        ("\n36-7=29\n29+19=48\n#### (36-7)+19", 1.0),
        ("\n#### 19-7+36", 1.0),  # no work, in another order
        ("\n1+1=3\n#### 36+19-7", 1.0),  # the work is not graded
        ("\n#### 36+19-7\n", 0.0),
        ("\n#### 36+19-7=48", 0.0),
        ("\n#### 48", 0.0),
        ("\n#### 36+12", 0.0),  # other numbers
        ("\n#### 36+19-7+7-7", 0.0),  # 7 three times
        ("\n#### 36+19-7*7/7", 0.0),
        ("\n#### 36+19+7", 0.0),  # 62
        ("\n#### 367-319", 0.0),  # the digits, but not the numbers
        ("\n36+19-7", 0.0),
        ("", 0.0),
    ],
)
def test_rewards(response: str, reward: float):
    assert TASK.reward(PROBLEM, response) == reward


def test_each_number_is_used_as_often_as_it_is_given():
    problem = Problem("x", "5,5,5=25", "")
    assert TASK.reward(problem, "\n#### 5*5+5-5") == 0.0
    assert TASK.reward(problem, "\n#### 5*5") == 0.0
    assert TASK.reward(Problem("x", "5,5,5=30", ""), "\n#### 5*5+5") == 1.0
    assert TASK.reward(Problem("x", "3,3,8=8", ""), "\n#### 8/(3/3)") == 1.0


def test_a_step_is_a_line():
    steps = generated_tasks.steps_of(TASK, f"\n{PROBLEM.answer}")
    assert steps == ["\n36-7=29", "\n29+19=48\n#### (36-7)+19"]


def test_every_text_survives_the_tokenizer():
    generated_tasks.check_tokenizer(TASK, PROBLEMS["validation"])


@pytest.mark.parametrize("free_steps", ["1", "2"])
def test_every_problem_fits_the_config(free_steps: str):
    cfg = generated_tasks.config("countdown", free_steps)
    task, tokenizer = load_task(cfg.data), TASK.tokenizer()
    for problem in task.load("validation"):
        prompt = encode_prompt(tokenizer, task.prompt(problem), False)
        assert len(prompt) <= cfg.data.max_prompt_tokens
        assert len(encode_response(tokenizer, task.solution(problem))) <= cfg.sample.max_tokens
        assert len(prompt) + cfg.sample.max_tokens <= cfg.model.context
