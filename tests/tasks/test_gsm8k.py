"""GSM8K on the real data, with the reference's verdicts; finding tasks and reading their data."""

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from helpers import data
from helpers.tokenizer_cases import load

from vinejax.core.errors import ConfigError, DataError
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.grading import Grader
from vinejax.tasks import gsm8k
from vinejax.tasks.base import Task, load_task
from vinejax.tasks.files import read_file
from vinejax.tasks.prompts import load_problems
from vinejax.tasks.read_rows import hold_out

ROWS = [
    {
        "question": f" How many are {i} and 1? ",
        "answer": f"{i}+1=<<{i}+1={i + 1}>>{i + 1}.\n#### {i + 1}",
    }
    for i in range(40)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, rows in (("train", ROWS), ("test", ROWS[:3])):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    return tmp_path


def task_of(path: object) -> Task:
    return load_task(DataConfig(task="vinejax.tasks.gsm8k", path=str(path)))


# --- the task


def test_the_real_splits_have_the_reference_sizes():
    task = task_of(data.path("gsm8k"))
    train, validation, test = (task.load(s) for s in ("train", "validation", "test"))
    assert (len(train), len(validation), len(test)) == (7100, 373, 1319)
    ids = {p.id for p in train} | {p.id for p in validation}
    assert ids == {f"train/{i}" for i in range(7473)}
    assert [p.id for p in test] == [f"test/{i}" for i in range(1319)]
    # The draw must never change, because every published number depends on it.
    assert [p.id for p in validation[:4]] == [
        "train/2477",
        "train/6645",
        "train/6155",
        "train/7051",
    ]


def test_rows_keep_their_names_and_the_split_is_always_the_same(folder: Path):
    task = task_of(folder)
    train, validation = task.load("train"), task.load("validation")
    assert len(validation) == 2 and len(train) == 38
    for problem in train + validation:
        row = ROWS[int(problem.id.removeprefix("train/"))]
        assert problem.question == row["question"].strip() and problem.answer == row["answer"]
    assert task_of(folder).load("validation") == validation
    assert [p.id for p in train] != sorted(p.id for p in train)


def test_two_rows_are_enough_for_a_split():
    problems = [Problem(f"train/{i}", "", "#### 1") for i in range(2)]
    (validation,), (train,) = hold_out(problems, gsm8k.VALIDATION_PORTION)
    assert {train.id, validation.id} == {"train/0", "train/1"}


def test_prompt_and_solution_are_the_reference_ones():
    problem = Problem("train/0", "How many?", "48/2 = <<48/2=\n24>>24 clips.\n#### 24")
    task = gsm8k.make(DataConfig())
    assert task.prompt(problem) == "[MATH_TASK] Problem:\nHow many?\n\nSolution:"
    assert task.solution(problem) == "\n48/2 = 24 clips.\n#### 24\n"
    assert task.split(task.solution(problem)) == [0, 26]
    assert task.path == "openai/gsm8k"


def test_every_real_solution_earns_its_reward_and_none_without_its_answer():
    task = task_of(data.path("gsm8k"))
    for problem in task.load("test"):
        solution = task.solution(problem)
        assert "<<" not in solution
        assert task.reward(problem, solution) == 1.0
        assert task.reward(problem, solution.replace("####", "")) == 0.0
        assert task.reward(problem, solution.rstrip() + "1\n") == 0.0


def test_mode_reference_gives_the_reference_verdicts():
    cases = [x for x in data.rows("grading/vineppo_grader_cases") if x["branch"] == "gsm8k"]
    assert len(cases) == 7 and not any(case["verdict"] for case in cases)
    task = gsm8k.make(DataConfig())
    items = [(Problem("", "", f"#### {case['gold']}"), case["prediction"]) for case in cases]
    assert [task.answer(response) for _, response in items] == [c["pred_extracted"] for c in cases]
    with Grader(1, mode="reference", style="gsm8k") as grader:
        assert task.rewards(items, grader) == [0.0] * 7
        problem = Problem("", "", "#### 1072")
        responses = ["A\n#### 1,072 ", "1072", "#### 1072\nThat is it."]
        assert task.rewards([(problem, r) for r in responses], grader) == [1.0, 0.0, 0.0]


RESPONSES = [
    ("\nA\n#### 1,000", True),
    ("#### 5\n#### 1000 ", True),
    ("#### 1000.0", True),
    ("#### $1000", True),
    ("#### 1000 clips", True),
    ("####\n1000\nThat is it.", True),
    ("#### 1000\n#### 5", False),
    ("#### 1000.5", False),
    ("#### -1000", False),
    ("#### ", False),
    ("1000", False),
    ("<think>#### 1000</think>It is 1000.", False),
    ("", False),
]


@pytest.mark.parametrize("gold", ["1,000", "1000"])
def test_rewards_by_hand(gold: str):
    task, problem = gsm8k.make(DataConfig()), Problem("test/0", "", f"5\n#### {gold}")
    expected = [float(is_right) for _, is_right in RESPONSES]
    with Grader(1, style="gsm8k") as grader:
        assert task.rewards([(problem, r) for r, _ in RESPONSES], grader) == expected
        without_gold = Problem("test/1", "", "1000")
        assert task.gold(problem) == gold and task.gold(without_gold) is None
        assert task.rewards([(without_gold, "#### 1000")], grader) == [0.0]
    assert [task.reward(problem, r) for r, _ in RESPONSES] == expected


def test_a_row_without_an_answer_is_an_error(folder: Path):
    rows = "".join(json.dumps(row) + "\n" for row in ROWS[:2])
    for answer in ("5", "5\\n####", ""):
        bad = f'\n{{"question": "q", "answer": "{answer}"}}\n'
        (folder / "test.jsonl").write_text(rows + bad)
        with pytest.raises(DataError, match=r"test\.jsonl:4: no answer after '####'$"):
            task_of(folder).load("test")


def test_problems_load_with_their_prompts(folder: Path):
    problems, dropped = load_problems(task_of(folder), load("byte_level"), "test", DataConfig())
    assert [p.id for p, _ in problems] == ["test/0", "test/1", "test/2"] and dropped == []


# --- the hub


def fake_datasets(monkeypatch: pytest.MonkeyPatch, rows: list[Any]) -> list[tuple[str, str, str]]:
    calls = []

    def load_dataset(path: str, name: str, split: str) -> list[Any]:
        calls.append((path, name, split))
        if path != "openai/gsm8k":
            raise FileNotFoundError(f"Dataset '{path}' doesn't exist\non the Hub")
        return rows

    module = types.ModuleType("datasets")
    vars(module)["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_a_name_that_is_no_path_is_a_data_set(monkeypatch: pytest.MonkeyPatch, folder: Path):
    calls = fake_datasets(monkeypatch, ROWS)
    from_hub = task_of("openai/gsm8k").load("validation")
    assert calls == [("openai/gsm8k", "main", "train")]
    assert from_hub == task_of(folder).load("validation")
    assert len(calls) == 1  # a folder that exists is never looked up


def test_hub_failures_are_one_line(monkeypatch: pytest.MonkeyPatch):
    fake_datasets(monkeypatch, [{"question": "q", "answer": 5}])
    with pytest.raises(
        DataError, match="^no/such: no such file or folder, and no such data set: .*$"
    ):
        task_of("no/such").load("test")
    with pytest.raises(DataError, match="openai/gsm8k test:1: field 'answer' must be a string"):
        task_of("openai/gsm8k").load("test")


# --- finding tasks


@pytest.mark.parametrize(
    "name", ["gsm8k", "vinejax.tasks.gsm8", "no_such_package.gsm8k", "", "a/gsm8k"]
)
def test_an_unknown_module_names_the_nearest_of_ours(name: str):
    with pytest.raises(ConfigError) as error:
        load_task(DataConfig(task=name))
    assert repr(name) in str(error.value) and "\n" not in str(error.value)
    assert name == "" or "'vinejax.tasks.gsm8k'" in str(error.value)


def test_a_module_of_pythons_own_is_no_task():
    message = "no such module in the current folder or on PYTHONPATH; .* 'vinejax.tasks.math'$"
    with pytest.raises(ConfigError, match=message):
        load_task(DataConfig(task="math"))


def test_a_module_of_the_user_is_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = "from vinejax.tasks.gsm8k import GSM8K\ndef make(data): return GSM8K(data.path)\n"
    (tmp_path / "my_good_task.py").write_text(source)
    assert load_task(DataConfig(task="my_good_task", path="x")).name == "gsm8k"
    (tmp_path / "my_task_without_make.py").write_text("")
    with pytest.raises(ConfigError, match="no make"):
        load_task(DataConfig(task="my_task_without_make"))
    (tmp_path / "my_half_task.py").write_text(
        "class Half:\n  name = 'x'\ndef make(d): return Half()"
    )
    with pytest.raises(ConfigError, match="without load, prompt, solution, split, answer, reward"):
        load_task(DataConfig(task="my_half_task"))
    for name, line, text in (
        ("my_broken_task", 1, "import a_module_that_is_missing\n"),
        ("my_failing_task", 2, "def make(data):\n  return data.a_module_that_is_missing\n"),
    ):
        (tmp_path / f"{name}.py").write_text(text)
        place = f"data.task = '{name}': {tmp_path}/{name}.py:{line}: "
        with pytest.raises(ConfigError, match=f"{re.escape(place)}.*a_module_that_is_missing"):
            load_task(DataConfig(task=name))
    (tmp_path / "my_misspelt_task.py").write_text("def make(data:\n")
    place = f"data.task = 'my_misspelt_task': {tmp_path}/my_misspelt_task.py: SyntaxError"
    with pytest.raises(ConfigError, match=re.escape(place)):
        load_task(DataConfig(task="my_misspelt_task"))
    (tmp_path / "my_broken_package").mkdir()
    (tmp_path / "my_broken_package" / "__init__.py").write_text("1 / 0\n")
    place = f"{tmp_path}/my_broken_package/__init__.py:1: ZeroDivisionError"
    with pytest.raises(ConfigError, match=re.escape(place)):
        load_task(DataConfig(task="my_broken_package.task"))


# --- JSON Lines


def test_rows_are_lines_whatever_their_strings_hold(tmp_path: Path):
    file = tmp_path / "x.jsonl"
    file.write_bytes('\ufeff{"a": "1\u2028"}\r\n\n{"a": "é"}'.encode())
    assert read_file(file, ("a",)).numbered == [(1, {"a": "1\u2028"}), (3, {"a": "é"})]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "x.jsonl: no rows"),
        (b"\n\n", "x.jsonl: no rows"),
        (b'{"a": "1"}\n\n{"a": \n', "x.jsonl:3: not JSON"),
        (b"[" * 100_000 + b"\n", "x.jsonl:1: JSON that is nested too deeply to be read"),
        (b'{"a": "1"}\n["a"]\n', "x.jsonl:2: expected an object, found list"),
        (b'{"a": "1"}\n{"b": "1"}\n', "x.jsonl:2: field 'a' is missing"),
        (b'{"a": 1}\n', "x.jsonl:1: field 'a' must be a string, not int"),
        (b'{"a": "1"}\n{"a": "\xff"}\n', "x.jsonl:2: not UTF-8 text (invalid start byte)"),
        ('{"a": "1"}'.encode("utf-16"), "x.jsonl:1: not UTF-8"),
        (
            b'{"a": "1"}\n{"a": "q\\ud800"}\n',
            r"x.jsonl:2: field 'a' holds '\ud800', half a character",
        ),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, content: bytes, message: str):
    file = tmp_path / "x.jsonl"
    file.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_file(file, ("a",))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_fields_that_are_not_read_may_hold_anything(tmp_path: Path):
    file = tmp_path / "x.jsonl"
    file.write_bytes(b'{"a": "1", "b": "\\ud800"}\n{"a": "\\ud83d\\ude00"}\n')
    assert [row["a"] for _, row in read_file(file, ("a",)).numbered] == ["1", "\U0001f600"]


def test_one_row_is_too_few_for_training_and_validation(folder: Path):
    (folder / "train.jsonl").write_text(json.dumps(ROWS[0]) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="train.jsonl: one row, and validation takes"):
        task_of(folder).load("train")
    assert [len(task_of(folder).load(split)) for split in ("validation", "test")] == [1, 3]
    (folder / "train.jsonl").write_text(2 * (json.dumps(ROWS[0]) + "\n"), encoding="utf-8")
    assert [len(task_of(folder).load(split)) for split in ("train", "validation")] == [1, 1]


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(DataError, match="none.jsonl: No such file"):
        read_file(tmp_path / "none.jsonl")
