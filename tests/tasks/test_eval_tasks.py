"""The evaluation sets: real rows, prompts, answers, and errors."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import data
from helpers.refusals import refuses

import vinejax.grading
from vinejax.core.errors import DataError
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.grading import Grader
from vinejax.tasks.answer_sets import AnswerSet
from vinejax.tasks.base import Task, load_task

FILES = {
    "svamp": "eval/svamp.jsonl.gz",
    "olympiad": "eval/olympiadbench_en_oe_to.jsonl.gz",
    "college_math": "eval/college_math_ccby.jsonl.gz",
}
ROWS: dict[str, dict[str, Any]] = {
    "svamp": {"Body": "He has 3 pens", "Question": "How many?", "Answer": 3.0},
    "olympiad": {"question": "Find $x$. ", "final_answer": ["$1$", "$2$"], "unit": None},
    "college_math": {"question": "Solve $x=3$.", "answer": "$3$"},
}


def task_of(name: str, path: object) -> Task:
    return load_task(DataConfig(task=f"vinejax.tasks.{name}", path=str(path)))


def write(tmp_path: Path, row: dict[str, Any]) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "name, count", [("svamp", 1000), ("olympiad", 675), ("college_math", 1260)]
)
def test_real_rows_are_problems_with_bare_answers(name: str, count: int):
    problems = task_of(name, data.path(FILES[name])).load("test")
    assert [p.id for p in problems] == [f"test/{i}" for i in range(count)]
    assert all(p.question.strip() == p.question and p.answer.strip() for p in problems)
    if name == "svamp":
        assert all(p.answer.isdigit() for p in problems)
        assert problems[0].question.endswith("93 groups. How big is each group of bananas?")


@pytest.mark.parametrize(
    "name, question, answer",
    [
        ("svamp", "He has 3 pens. How many?", "3"),
        ("olympiad", "Find $x$.", "$1$, $2$"),
        ("college_math", "Solve $x=3$.", "$3$"),
    ],
)
def test_a_row_by_hand(name: str, question: str, answer: str, tmp_path: Path):
    task = task_of(name, write(tmp_path, ROWS[name]))
    problem = Problem("test/0", question, answer)
    assert task.load("test") == [problem]
    assert task.prompt(problem) == f"[MATH_TASK] Problem:\n{question}\n\nSolution:"
    bare = answer.replace("$", "")
    assert task.solution(problem) == f"\nThe answer is $\\boxed{{{bare}}}$."
    assert task.split("\n" + "a" * 30 + "\n" + "b" * 30) == [0, 31, 62]


@pytest.mark.parametrize("name", FILES)
def test_every_real_gold_in_its_box_earns_the_reward_and_another_number_does_not(name: str):
    task = task_of(name, data.path(FILES[name]))
    for problem in task.load("test")[::10]:
        assert task.reward(problem, task.solution(problem)) == 1.0, problem
        assert task.reward(problem, "\nThe answer is $\\boxed{7919}$.") == 0.0, problem


@pytest.mark.parametrize("answer, text", [(3.5, "3.5"), (-2.0, "-2"), (7, "7")])
def test_svamp_answers_are_written_as_people_do(answer: float, text: str, tmp_path: Path):
    file = write(tmp_path, ROWS["svamp"] | {"Body": "Is it? ", "Answer": answer})
    (problem,) = task_of("svamp", file).load("test")
    assert (problem.question, problem.answer) == ("Is it? How many?", text)


def test_a_folder_works_too(tmp_path: Path):
    shutil.copy(data.path(FILES["olympiad"]), tmp_path / "test.jsonl.gz")
    assert len(task_of("olympiad", tmp_path).load("test")) == 675


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_there_is_nothing_to_train_on(name: str, split: Any, tmp_path: Path):
    task = task_of(name, write(tmp_path, ROWS[name]))
    with pytest.raises(DataError, match=f"{name} is an evaluation set, without {split}$"):
        task.load(split)


@pytest.mark.parametrize("name", FILES)
def test_a_path_is_needed(name: str):
    with refuses("data.path"):
        task_of(name, "")


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("svamp", {"Answer": "3"}, "rows.jsonl:1: field 'Answer' must be a number, found '3'"),
        ("svamp", {"Answer": None}, "rows.jsonl:1: field 'Answer' must be a number, found None"),
        ("svamp", {"Body": 1}, "rows.jsonl:1: field 'Body' must be a string, not int"),
        ("olympiad", {"final_answer": "1"}, "rows.jsonl:1: field 'final_answer' must be a list"),
        ("olympiad", {"final_answer": []}, "rows.jsonl:1: the answer is empty"),
        ("olympiad", {"final_answer": [1]}, "rows.jsonl:1: field 'final_answer' must be a list"),
        ("college_math", {"answer": " "}, "rows.jsonl:1: the answer is empty"),
        ("college_math", {"question": None}, "rows.jsonl:1: field 'question' must be a string"),
    ],
)
def test_a_bad_row_is_named(name: str, change: dict, message: str, tmp_path: Path):
    file = write(tmp_path, ROWS[name] | change)
    with pytest.raises(DataError) as error:
        task_of(name, file).load("test")
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "response, style",
    [
        ("\nSo $\\boxed{3}$.", "math"),
        ("\n3 pens\n#### 3", "gsm8k"),
        ("\n#### 1. Count\nPens.\n####\n3", "gsm8k"),
        *[(f"\n3 pens\n#### {answer}\n\nDone.", "gsm8k") for answer in ("3", "$3$", "+3.0")],
        ("\n#### Conclusion\nShe makes **$3**", "math"),
        ("\n#### 2. Conclusion\nShe makes 3.", "math"),
        ("\n#### Step 1\nIt is $\\boxed{3}$.", "math"),
        ("\nThe answer is 3.", "math"),
        ("<think>Shall I put it in \\boxed{5}?</think>\n#### 3", "gsm8k"),
    ],
)
def test_a_response_is_read_as_it_is_written(
    response: str, style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    task = task_of("college_math", write(tmp_path, ROWS["college_math"]))
    assert task.reward(Problem("test/0", "q", "$3$"), response) == 1.0
    assert task.reward(Problem("test/0", "q", "$4$"), response) == 0.0
    monkeypatch.setattr(vinejax.grading, "extract_answer", lambda text, style: style)
    assert task.answer(response) == style


@pytest.mark.parametrize("mode", ["strict", "reference"])
def test_a_batch_has_the_rewards_of_its_responses(mode: Any, tmp_path: Path):
    task = AnswerSet(
        "college_math", str(write(tmp_path, ROWS["college_math"])), (), lambda _: ("", "")
    )
    responses = ["\nSo $\\boxed{3}$.", "\n3 pens\n#### 3", "\n#### 5", "\nIt is $\\boxed{4}$.", ""]
    items = [(Problem("test/0", "q", "$3$"), response) for response in responses]
    with Grader(1, mode=mode) as grader:
        assert task.rewards(items, grader) == [1.0, 1.0, 0.0, 0.0, 0.0]
        assert grader.stats.pairs == 5
    assert [task.gold(problem) for problem, _ in items[:1]] == ["$3$"]
