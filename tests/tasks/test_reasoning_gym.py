"""The task `reasoning_gym`: its forms of answers, and scoring in processes that can be killed.

A stand-in for the package, with three data sets, serves without the extra. With the extra every
data set of the installed version is tested.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.data import path
from helpers.refusals import refuses

from vinejax.core.errors import ConfigError, DataError
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.grading import Grader
from vinejax.grading.extract import marked_answer
from vinejax.tasks.base import load_task
from vinejax.tasks.reasoning_gym import ReasoningGym, generate

RECORDED = json.loads(path("reasoning_gym.json").read_text(encoding="utf-8"))
# Data sets without a known right answer, by what their entries have instead of it.
UNSOLVED = {"boxnet": "the start of a game", "rush_hour": "the number of moves"}
IS_INSTALLED = importlib.util.find_spec("reasoning_gym") is not None

PACKAGE = '''
import dataclasses, os, time

print("noise on the standard output")

class Numbers:
    """Item i of a seed has the question seed + i, but for the last digits of `modulo`."""
    def __init__(self, size, seed, modulo=0):
        if modulo < 0:
            raise AssertionError("modulo must not be negative")
        self.size, self.seed, self.modulo = size, seed, modulo
    def __getitem__(self, i):
        n = self.seed % 10**8 + self.seed // 10**8 * 1000 + i
        n = n % self.modulo if self.modulo else n
        words = "".join(sorted({"a", "b", "c", "d", "e"}, key=hash))  # depends on PYTHONHASHSEED
        metadata = {"source_dataset": "numbers", "words": words, "set": {1}, (1, 2): 3}
        return {"question": f"{n}?", "answer": str(n), "metadata": metadata}
    def score_answer(self, answer, entry):
        if answer == "hang":
            time.sleep(1000)
        if answer == "die":
            os._exit(1)
        if answer == "too much":
            return float("nan")
        if answer == "tuned":
            return self.modulo / 100
        return 1.0 if eval(answer) == int(entry["answer"]) else 0.25

class Unsolved(Numbers):
    def __getitem__(self, i):
        entry = super().__getitem__(i)
        entry["metadata"] |= {"source_dataset": "unsolved"}
        return entry | {"answer": None}

@dataclasses.dataclass
class DatasetSpec:
    name: str
    weight: float
    config: dict

class Composite:
    def __init__(self, size, seed, datasets):
        parts = [dict(size=size, seed=seed + i, **x.config) for i, x in enumerate(datasets)]
        self.parts = [DATASETS[x.name](**part) for x, part in zip(datasets, parts)]
    def __getitem__(self, i):
        return self.parts[i % len(self.parts)][i]

DATASETS = {"numbers": Numbers, "unsolved": Unsolved, "composite": Composite}

def create_dataset(name, **config):
    return DATASETS[name](**config)
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with reasoning-gym's name and interface, for this process and its children."""
    folder = tmp_path / "packages" / "reasoning_gym"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(PACKAGE)
    for module in ("factory", "composite"):
        (folder / f"{module}.py").write_text("from reasoning_gym import DATASETS, DatasetSpec\n")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setenv("PYTHONPATH", os.fspath(folder.parent))


def task_of(name: str = "numbers", **fields: Any) -> ReasoningGym:
    task = load_task(DataConfig(task="vinejax.tasks.reasoning_gym", path=name, **fields))
    assert isinstance(task, ReasoningGym)
    return task


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row["data_set"])
@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({}, "#### {}"),
        ({"template": "{question} Answer in \\boxed{{}}."}, "\\boxed{{{}}}"),
        (
            {"chat_template": True, "system": "Put it between <answer> and </answer>."},
            "<answer>{}</answer>",
        ),
    ],
)
def test_each_form_of_answer_is_found_again(row: dict[str, Any], fields: Any, form: str):
    task = ReasoningGym(DataConfig(path=row["data_set"], **fields))
    problem = Problem("train/0", row["question"], row["answer"], row)
    template = fields.get("template", "{question}\n")
    assert task.prompt(problem) == template.replace("{question}", row["question"])
    if not row["answer"]:
        with pytest.raises(DataError, match="no right answer is known; rush_hour has no solutions"):
            task.solution(problem)
        return
    solution = task.solution(problem)
    assert solution.endswith(form.format(row["answer"]))
    assert task.answer(solution) == row["answer"]
    assert task.answer(f"<think>{form.format('?')}</think>{solution}") == row["answer"]


def test_a_worked_solution_has_a_step_a_line():
    row = RECORDED[0]
    task = ReasoningGym(DataConfig(path="gsm_symbolic"))
    solution = task.solution(Problem("train/0", row["question"], row["answer"], row))
    bounds = task.split(solution)
    assert len(bounds) - 1 == row["metadata"]["answer_cot"].count("\n") > 1
    assert solution[bounds[-2] :].count("\n") == 2  # the last line, and the answer
    assert solution == row["metadata"]["answer_cot"]


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("#### 5\n6", "5\n6"),
        ("#### 4\nno,\n#### 5", "5"),
        ("\\boxed{4} and #### 5", "4"),
        ("<answer>\n4 1\n1 4\n</answer>", "4 1\n1 4"),
        ("<answer>4</answer> or <answer>5</answer>", "5"),
        ("<answer>\\boxed{4}</answer>", "4"),
        ("<think>#### 4</think> so 5", None),
        ("<think>#### 4", None),
        ("the answer is 5", None),
        ("", None),
    ],
)
def test_only_a_marked_answer_counts(response: str, answer: str | None):
    assert marked_answer(response) == answer


def test_splits_have_seeds_apart_and_no_question_twice(package: None, capsys: Any, tmp_path: Path):
    task = task_of(size=40)
    splits = {split: task.load(split) for split in ("train", "validation", "test")}
    assert {split: len(problems) for split, problems in splits.items()} == {
        "train": 40, "validation": 4, "test": 4,
    }  # fmt: skip
    questions = [problem.question for problems in splits.values() for problem in problems]
    assert len(set(questions)) == len(questions)
    first = {split: problems[0] for split, problems in splits.items()}
    assert {split: (p.id, p.answer) for split, p in first.items()} == {
        "test": ("test/0", "0"),
        "validation": ("validation/0", "1000"),
        "train": ("train/0", "2000"),
    }
    assert task_of(size=400).load("test")[:4] == splits["test"]
    assert not capsys.readouterr().out
    few = tmp_path / "few.yaml"
    few.write_text("datasets:\n- {name: numbers, config: {modulo: 30}}\n")
    task = task_of(os.fspath(few), size=40)
    assert [len(task.load(split)) for split in ("test", "validation", "train")] == [4, 4, 22]
    said = capsys.readouterr().out
    assert said == f"{few} train: 18 of 40 questions repeat others and are left out\n"
    few.write_text("datasets:\n- {name: numbers, config: {modulo: 3}}\n")
    with pytest.raises(DataError, match="all questions are in another split"):
        task_of(os.fspath(few), size=40).load("train")


def test_the_same_problems_at_every_start(package: None, monkeypatch: pytest.MonkeyPatch):
    words = set()
    for seed in "12345":
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        words.add(generate("numbers", 1, 0)[0]["metadata"]["words"])
    assert len(words) == 1


def test_answers_are_scored_in_processes_with_limits(package: None, tmp_path: Path):
    task = task_of(size=10)
    problem = task.load("train")[0]
    assert problem.columns["metadata"]["set"] == "{1}"  # as JSON writes it
    written, made = tmp_path / "written", tmp_path / "made"
    commands = [
        f"open({os.fspath(written)!r}, 'w').close() or 2000",
        f"__import__('os').mkdir({os.fspath(made)!r}) or 2000",
        f"__import__('subprocess').run(['touch', {os.fspath(written)!r}]) and 2000",
        f"__import__('os').system('touch {written}') or 2000",
    ]
    answers = ["2000", "1000 + 1000", "7", "no number", "hang", "die", "too much", *commands]
    with Grader(workers=2, timeout_s=0.5, grace_s=0.1) as grader:
        items = [(problem, f"so #### {answer}") for answer in answers]
        rewards = task.rewards([*items, (problem, "2000")], grader)
        assert rewards == [1.0, 1.0, 0.25, 0, 0, 0, 0, *[0 for _ in commands], 0]
        assert (grader.stats.timeouts, grader.stats.errors) == (1, 1)
    assert not written.exists() and not made.exists()
    assert task.reward(problem, "#### 2000") == 1.0
    assert "reasoning_gym" not in sys.modules or IS_INSTALLED


def test_a_composite_is_scored_with_its_settings(package: None, tmp_path: Path):
    file = tmp_path / "mixed.yaml"
    parts = "- {name: numbers, weight: 2, config: {modulo: 50}}\n- {name: unsolved}\n"
    file.write_text(f"datasets:\n{parts}")
    task = task_of(os.fspath(file), size=20)
    of_set = {problem.columns["data_set"]: problem for problem in task.load("train")}
    with Grader(workers=1) as grader:
        items = [(of_set[name], "#### tuned") for name in ("numbers", "unsolved")]
        assert task.rewards(items, grader) == [0.5, 0.0]


@pytest.mark.parametrize(
    ("text", "fault"),  # any error of the package is one of `data.path`, so each fault is matched
    [
        ("datasets: []\nseed: 1\n", "leave out seed"),
        ("datasets:\n- {name: numbers, config: {size: 1}}\n", "leave out size"),
        ("- numbers\n", "no list `datasets`"),
        ("datasets:\n- {name: number}\n", "the nearest is 'numbers'"),
        ("datasets:\n- {name: numbers, config: {modulo: -1}}\n", "modulo must not be negative"),
        ("datasets:\n- {name: numbers, config: {digits: 1}}\n", "argument 'digits'"),
    ],
)
def test_a_wrong_composite_is_one_line(text: str, fault: str, package: None, tmp_path: Path):
    file = tmp_path / "mixed.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=fault) as error:
        task_of(os.fspath(file)).load("train")
    assert error.value.field == "data.path" and "\n" not in str(error.value)


def test_what_is_missing_or_not_read_is_one_line(package: None, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="no data set 'number'; the nearest is 'numbers'"):
        task_of("number").load("test")
    with refuses("data.path"):
        task_of("")
    with refuses("data.template"):
        task_of(template="no place")
    here = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "reasoning_gym" else here(name)
    )
    with refuses("data.task"):
        task_of()


ALL = """
import json, os, sys
from reasoning_gym.factory import DATASETS
from vinejax.grading.pool.problems import entries_of
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
names = sorted(DATASETS.keys() - {"composite"})
json.dump({name: entries_of(name, 2, 7) for name in names}, replies)
replies.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(not IS_INSTALLED, reason="needs the extra tasks")
def test_every_data_set_of_the_package_scores_its_own_answer_as_right():
    made = subprocess.run([sys.executable, "-c", ALL], stdout=subprocess.PIPE, check=True)
    data_sets = json.loads(made.stdout)
    assert len(data_sets) > 100
    items, unsolved = [], set()
    for name, rows in data_sets.items():
        task = ReasoningGym(DataConfig(path=name))
        for i, row in enumerate(rows):
            problem = Problem(f"train/{i}", row["question"], row["answer"], row)
            assert task.prompt(problem) == f"{row['question']}\n" and row["question"].strip()
            assert row["data_set"] == name
            if row["answer"]:
                items.append((task, problem, task.solution(problem)))
            else:
                unsolved.add(name)
    assert unsolved == UNSOLVED.keys()
    with Grader(workers=2, timeout_s=30) as grader:
        answers = [(task.answer(text), problem.columns["entry"]) for task, problem, text in items]
        scores = grader.score_many(answers)
    wrong = {
        problem.columns["data_set"]: (problem.answer, score)
        for (_, problem, _), score in zip(items, scores, strict=True)
        if score != 1
    }
    assert not wrong
