"""The MATH task on rows of our own: splits, golds, grading modes, and where rows come from."""

import gzip
import json
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from helpers.refusals import refuses

import vinejax.grading
from vinejax.core.errors import DataError
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.grading import Grader, Verdict
from vinejax.tasks.answers import boxed_answer
from vinejax.tasks.base import Task, load_task
from vinejax.tasks.files import read_file
from vinejax.tasks.math import MATH, divide
from vinejax.tasks.read_rows import read_split


def row(i: int) -> dict[str, Any]:
    solution = f"We add: ${i}+1={i + 1}.$ So the answer is $\\boxed{{{i + 1}}}$."
    return {"problem": f"What is ${i}+1$?", "solution": solution, "level": "Level 1"}


def problems(source: str, count: int) -> list[Problem]:
    return [
        Problem(f"{source}/{i}", r["problem"], r["solution"])
        for i, r in enumerate(map(row, range(count)))
    ]


def write(file: Path, rows: list[Any]) -> None:
    file.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "train.jsonl", [row(i) for i in range(48)])
    write(tmp_path / "test.jsonl", [row(i) for i in range(100, 102)])
    return tmp_path


def task_of(path: object) -> Task:
    return load_task(DataConfig(task="vinejax.tasks.math", path=str(path)))


# --- splits


@pytest.mark.parametrize("sizes", [(12_000, 500), (7_500, 5_000)])
def test_either_division_gives_the_reference_sizes(sizes: tuple[int, int]):
    train, test = (problems(name, n) for name, n in zip(("train", "test"), sizes, strict=True))
    splits = divide(train, test)
    assert {name: len(part) for name, part in splits.items()} == {
        "train": 11_500,
        "validation": 500,
        "test": 500,
    }
    ids = [p.id for part in splits.values() for p in part]
    assert len(ids) == 12_500 and set(ids) == {p.id for p in train + test}
    assert all(p.id.startswith("test/") for p in splits["test"])
    if sizes == (12_000, 500):
        assert splits["test"] == test


def test_the_draw_never_changes():
    """Every published number depends on the draw."""
    splits = divide(problems("train", 7_500), problems("test", 5_000))
    assert [p.id for p in splits["validation"][:3]] == ["train/2477", "train/6645", "train/6155"]
    assert [p.id for p in splits["test"][:3]] == ["test/379", "test/3280", "test/1717"]
    assert divide(problems("train", 7_500), problems("test", 5_000)) == splits


@pytest.mark.parametrize(
    "sizes, parts",
    [
        ((48, 2), (46, 2, 2)),
        ((30, 10), (29, 1, 10)),  # a test file of a quarter is kept
        ((30, 11), (37, 2, 2)),  # a larger one is divided: a 25th of 41 stays, and 9 rows move
        ((2, 1), (1, 1, 1)),
    ],
)
def test_other_sizes_go_by_proportion(sizes: tuple[int, int], parts: tuple[int, int, int]):
    splits = divide(problems("train", sizes[0]), problems("test", sizes[1]))
    assert tuple(map(len, splits.values())) == parts
    assert sum(parts) == sum(sizes)


def test_problems_keep_row_or_unique_id_and_the_whole_solution(folder: Path, capsys: Any):
    task = task_of(folder)
    for problem in task.load("train") + task.load("validation"):
        source = row(int(problem.id.removeprefix("train/")))
        assert (problem.question, problem.answer) == (source["problem"], source["solution"])
    assert [p.id for p in task.load("test")] == ["test/0", "test/1"]
    assert capsys.readouterr().out == ""
    write(folder / "test.jsonl", [row(1) | {"unique_id": "test/algebra/1.json"}, row(2)])
    assert [p.id for p in task_of(folder).load("test")] == ["test/algebra/1.json", "test/1"]


def test_moved_test_rows_are_announced(folder: Path, capsys: Any):
    write(folder / "test.jsonl", [row(i) for i in range(52)])
    assert len(task_of(folder).load("test")) == 4
    assert capsys.readouterr().out == "math: 48 of the 52 test rows are used for training\n"


@pytest.mark.parametrize("other", ["train", "test"])
def test_duplicate_ids_are_named_with_both_places(folder: Path, other: str):
    same = {"unique_id": "same"}
    write(folder / "test.jsonl", [row(1), row(2), row(3) | same])
    rows = [row(4), row(5) | same] if other == "train" else [row(4)]
    write(folder / "train.jsonl", rows)
    if other == "test":
        write(folder / "test.jsonl", [row(1), row(2) | same, row(3) | same])
    with pytest.raises(DataError) as error:
        task_of(folder).load("test")
    place = folder / f"{other}.jsonl"
    assert f"test.jsonl:3: the id 'same' is in use by {place}:2" in str(error.value)


def test_an_id_that_is_no_text_is_named_with_its_line(folder: Path):
    write(folder / "train.jsonl", [row(0), row(1) | {"unique_id": "a\ud800"}])
    with pytest.raises(DataError, match=r"train.jsonl:2: the id holds '\\ud800', half a character"):
        task_of(folder).load("train")


def test_one_row_is_too_few_for_training_and_validation(folder: Path):
    write(folder / "train.jsonl", [row(0)])
    write(folder / "test.jsonl", [row(1)])
    with pytest.raises(DataError, match="train: one row, and validation takes at least one"):
        task_of(folder).load("train")
    assert [len(task_of(folder).load(split)) for split in ("validation", "test")] == [1, 1]


def test_an_empty_question_is_named_with_its_line(folder: Path):
    write(folder / "train.jsonl", [row(0), row(1) | {"problem": " \n"}])
    with pytest.raises(DataError, match=r"train\.jsonl:2: the question is empty$"):
        task_of(folder).load("train")


def test_an_empty_solution_is_named_with_its_line(folder: Path):
    write(folder / "train.jsonl", [row(0), row(1) | {"solution": " "}])
    with pytest.raises(DataError, match=r"train\.jsonl:2: the answer is empty$"):
        task_of(folder).load("train")


# --- golds


@pytest.mark.parametrize(
    "solution, answer",
    [
        (r"so $\boxed{5}$.", "5"),
        (r"$\boxed{1}$, no: $\boxed{ \frac{1}{2} }$", r"\frac{1}{2}"),
        (r"\fbox{x}", "x"),
        (r"it is \boxed 5.", "5"),
        (r"$\boxed\pi$", r"\pi"),
        (r"$\boxed{\{1, 2\}}$", r"\{1, 2\}"),
        (r"$\boxed{\}}$", r"\}"),
        (r"$\boxed{1}$ and $\boxed{2}$.", "1, 2"),
        (r"$\boxed{}$", None),
        (r"$\boxed{1}$ $\boxed{ }$", None),
        (r"$\boxed{1", None),
        (r"$\boxed$", None),
        (r"\boxedx 5", None),
        ("the answer is 5", None),
        ("", None),
    ],
)
def test_the_last_box(solution: str, answer: str | None):
    assert boxed_answer(solution) == answer


def test_problems_without_a_gold_are_loaded_like_others(folder: Path):
    """A run lists them and does not train on them (tests/training/test_startup.py)."""
    rows = [row(i) for i in range(48)]
    rows[7]["solution"] = "The answer is 5."
    write(folder / "train.jsonl", rows)
    task = MATH(str(folder))
    golds = {p.id: task.gold(p) for p in task.load("train") + task.load("validation")}
    assert len(golds) == 48 and golds.pop("train/7") is None
    assert golds == {f"train/{i}": str(i + 1) for i in range(48) if i != 7}


# --- prompt, response, reward


def test_prompt_and_response_are_the_reference_ones():
    task, problem = MATH("x"), problems("test", 1)[0]
    assert task.prompt(problem) == "[MATH_TASK] Problem:\nWhat is $0+1$?\n\nSolution:"
    assert task.solution(problem) == "\n" + problem.answer
    assert task.split(task.solution(problem)) == [0, 17, 47]


BOXED = Problem("test/0", "Which?", r"So it is $\boxed{7}$, no: $\boxed{\frac{1}{2}}$.")
RESPONSES = [
    r"Thus $\boxed{0.5}$.",
    r"Not $\boxed{7}$. So $\boxed{1/2}$",
    r"$\boxed{0.4}$",
    "Hm",
    "",
]


def test_strict_mode_compares_with_the_last_box():
    task = MATH("x")
    items = [(BOXED, response) for response in [task.solution(BOXED), *RESPONSES[1:]]]
    with Grader(1) as grader:
        assert task.rewards(items, grader) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert [task.reward(BOXED, response) for _, response in items] == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert task.answer(RESPONSES[0]) == "0.5"


class Recorder(Grader):
    """A grader that finds every answer wrong, and records the questions."""

    def grade_responses(self, items: Iterable[tuple[str, str, str]]) -> list[Verdict]:
        self.asked = list(items)
        return [Verdict(False) for _ in self.asked]


def test_reference_mode_hands_over_the_whole_solution():
    grader = Recorder(1, mode="reference")
    with grader:
        assert MATH("x").rewards([(BOXED, "a"), (BOXED, "b")], grader) == [0.0, 0.0]
    gold = BOXED.answer
    assert grader.asked == [("a", gold, "Which?"), ("b", gold, "Which?")]


def test_a_solution_with_two_answers_earns_its_reward():
    problem = Problem("test/0", "Which?", r"They are $\boxed{1}$ and $\boxed{2}$.")
    responses = [problem.answer, r"$\boxed{2, 1}$", r"$\boxed{2}$"]
    with Grader(1) as grader:
        found = MATH("x").rewards([(problem, response) for response in responses], grader)
    assert found == [1.0, 1.0, 0.0]


def test_the_reference_takes_all_boxes_for_the_answer():
    with Grader(1, mode="reference") as grader:
        items = [(BOXED, RESPONSES[0]), (BOXED, BOXED.answer), (BOXED, RESPONSES[1])]
        assert MATH("x").rewards(items, grader) == [0.0, 1.0, 1.0]


def test_without_a_gold_no_response_is_right():
    task, problem = MATH("x"), Problem("test/0", "Which?", "It is $\\boxed{}$.")
    with Grader(1) as grader:
        assert task.rewards([(problem, ""), (problem, problem.answer)], grader) == [0.0, 0.0]
    assert task.reward(problem, problem.answer) == 0.0


def test_answers_come_from_the_grader(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vinejax.grading, "extract_answer", lambda text, style: style + text)
    assert MATH("x").answer(" 5") == "math 5"


# --- where rows come from


def test_a_path_is_needed():
    with refuses("data.path"):
        task_of("")


def test_a_missing_field_is_named_with_its_line(folder: Path):
    write(folder / "train.jsonl", [row(0), {"problem": "p"}])
    with pytest.raises(DataError, match=r"train\.jsonl:2: field 'solution' is missing"):
        task_of(folder).load("test")


def test_a_missing_file_is_named_with_the_other_kinds(folder: Path):
    (folder / "test.jsonl").unlink()
    with pytest.raises(DataError, match=r"test\.jsonl: no such file, nor one in \.jsonl\.gz, "):
        task_of(folder).load("train")
    with pytest.raises(DataError, match=r"train\.jsonl: a file; needed is a folder"):
        task_of(folder / "train.jsonl").load("train")


def test_packed_and_parquet_files_hold_the_same_rows(folder: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    expected = read_split(str(folder), "test", ("problem",)).numbered
    assert [line for line, _ in expected] == [1, 2]
    packed = gzip.compress((folder / "test.jsonl").read_bytes())
    (folder / "test.jsonl").unlink()
    (folder / "test.jsonl.gz").write_bytes(packed)
    assert read_split(str(folder), "test", ("problem",)).numbered == expected
    (folder / "test.jsonl.gz").unlink()
    table = sys.modules["pyarrow"].Table.from_pylist([row for _, row in expected])
    parquet.write_table(table, folder / "test.parquet")
    assert read_split(str(folder), "test", ("problem",)).numbered == expected
    with pytest.raises(DataError, match=r"test\.parquet:1: field 'solved' is missing"):
        read_file(folder / "test.parquet", ("solved",))


def test_damaged_files_are_one_line(tmp_path: Path):
    packed = gzip.compress(b'{"a": "1"}\n' * 1000)
    for content in (packed[:-20], b"no gzip", packed[:12] + b"\xff" * 30):
        (tmp_path / "x.jsonl.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"x\.jsonl\.gz: ") as error:
            read_file(tmp_path / "x.jsonl.gz")
        assert "\n" not in str(error.value)
    (tmp_path / "x.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"x\.parquet: not Parquet: ") as error:
        read_file(tmp_path / "x.parquet")
    assert "\n" not in str(error.value)


def test_a_name_is_a_data_set_without_configuration(monkeypatch: pytest.MonkeyPatch, folder: Path):
    calls = []

    def load_dataset(path: str, name: str | None, split: str) -> list[Any]:
        calls.append((path, name, split))
        return [row for _, row in read_file(folder / f"{split}.jsonl").numbered]

    module = types.ModuleType("datasets")
    vars(module)["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    task = task_of("someone/math")
    assert task.load("train") == task_of(folder).load("train")
    assert task.load("test") == task_of(folder).load("test")
    # Each split is read once.
    assert calls == [("someone/math", None, "train"), ("someone/math", None, "test")]
