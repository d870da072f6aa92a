"""DAPO-Math-17k: rows in the published format, repeated and contradictory ones, and the reward."""

import json
from pathlib import Path
from typing import Any

import pytest

from vinejax.core.errors import DataError
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.grading import Grader
from vinejax.tasks.base import Task, load_task
from vinejax.tasks.dapo_math import HEAD, HUB_NAME, TAIL, DAPOMath

QUESTIONS = [f"Find the remainder when $7^{{{i}}}$ is divided by 100." for i in range(60)]


def row(i: int, question: str, answer: str) -> dict[str, Any]:
    """A row with the columns of BytedTsinghua-SIA/DAPO-Math-17k."""
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": f"{HEAD}{question}{TAIL}", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"id-{i}"},
    }


ROWS = [row(i, question, str(i - 3)) for i, question in enumerate(QUESTIONS)]


def task_of(path: object) -> Task:
    return load_task(DataConfig(task="vinejax.tasks.dapo_math", path=str(path) if path else ""))


def write_parquet(file: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow
    import pyarrow.parquet as parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file


def all_problems(task: Task) -> list[Problem]:
    return task.load("train") + task.load("validation") + task.load("test")


def test_the_published_file_repeats_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    repeated = [
        row(1000 * n + i, q, str(i - 3)) for n in range(20) for i, q in enumerate(QUESTIONS)
    ]
    file = write_parquet(tmp_path / "dapo-math-17k.parquet", repeated)
    task = task_of(file)
    problems = all_problems(task)
    assert len(problems) == 60 and len({p.question for p in problems}) == 60
    assert (len(task.load("validation")), len(task.load("test"))) == (3, 3)
    for problem in problems:
        i = QUESTIONS.index(problem.question)
        assert (problem.id, problem.answer) == (f"train/{i}", str(i - 3))
        assert task.prompt(problem) == ROWS[i]["prompt"][0]["content"]
    assert f"{file}: 1,140 rows repeat an earlier one" in capsys.readouterr().out


def test_questions_with_two_answers_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    # 03 equals the earlier answer 3.
    other = [row(99, QUESTIONS[5], "17"), row(98, QUESTIONS[6], "03")]
    write_parquet(tmp_path / "train.parquet", ROWS + other)
    problems = all_problems(task_of(tmp_path))
    assert {p.question for p in problems} == set(QUESTIONS) - {QUESTIONS[5]}
    assert "1 questions have two answers or more and are left out" in capsys.readouterr().out


def test_the_processed_data_set_and_a_test_file_of_ones_own(tmp_path: Path):
    plain = [one | {"prompt": QUESTIONS[i], "solution": "3"} for i, one in enumerate(ROWS)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(one) + "\n" for one in plain))
    (tmp_path / "test.jsonl").write_text(json.dumps(row(0, "How many?", "204")) + "\n")
    task = task_of(tmp_path)
    assert [p.question for p in task.load("test")] == ["How many?"]
    problem = task.load("train")[0]
    assert task.prompt(problem) == ROWS[QUESTIONS.index(problem.question)]["prompt"][0]["content"]
    assert len(task.load("train")) == 57


@pytest.mark.parametrize(
    "response, reward",
    [
        ("So 6 and 28.\nAnswer: 34", 1.0),
        ("Answer: $34$", 1.0),
        ("**Answer: 34**", 1.0),
        ("answer : \\boxed{34}", 1.0),
        ("Answer: 34\n\nThank you.", 1.0),
        ("Answer: 33\nNo.\nAnswer: 34", 1.0),
        ("Answer: 34\nAnswer: 33", 0.0),
        ("Answer: 340", 0.0),
        ("Thus\n**Answer**:\n\n34", 1.0),
        ("Answer：34", 1.0),
        ("Answer:\n\\[\n34\n\\]", 1.0),
        ("\\textbf{Answer:} 34", 1.0),
        ("\\textbf{Answer: 34}", 1.0),
        ('Answer: 34\n\nIt stands after "Answer:", as in Answer: $Answer.', 1.0),
        ("<think>Answer: 33</think>\nAnswer: 34", 1.0),
        ("<think>Answer: 34", 0.0),
        ("Answer: 34 or 35", 0.0),
        ("Answer:\n33\n34", 0.0),
        ("**Answer**: 33", 0.0),
        ("Answer: anything but 34", 0.0),
        ("\\boxed{34}", 0.0),
        ("Answer:", 0.0),
        ("", 0.0),
    ],
)
def test_the_last_answer_line_decides(response: str, reward: float):
    task, problem = DAPOMath(DataConfig(path="x")), Problem("train/0", "", "34")
    with Grader(workers=1) as grader:
        assert task.rewards([(problem, response)], grader) == [reward]
    assert task.reward(problem, response) == reward
    assert task.gold(problem) == "34"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"reward_model": {"ground_truth": "1/2"}}, "must be an integer, found '1/2'"),
        ({"reward_model": {}}, "column 'reward_model.ground_truth' is missing"),
        ({"prompt": []}, "column 'prompt' must end with the user's message, not none"),
        ({"prompt": HEAD + TAIL}, "column 'prompt' holds no question"),
    ],
)
def test_faulty_rows_are_named_with_their_line(change: Any, message: str, tmp_path: Path):
    lines = [json.dumps(ROWS[0]), json.dumps(ROWS[1] | change)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match=f"train.jsonl:2: .*{message}"):
        task_of(tmp_path).load("train")


def test_without_a_path_it_is_the_data_set_of_the_hub():
    task = task_of("")
    assert isinstance(task, DAPOMath) and task.path == HUB_NAME and task.name == "dapo_math"
    with pytest.raises(DataError, match="has no worked solutions"):
        task.solution(Problem("train/0", "", "1"))
