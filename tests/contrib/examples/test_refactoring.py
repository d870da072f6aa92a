"""Rewards of extracted functions: right and sham refactorings, and texts that are no program."""

import json
from pathlib import Path
from typing import Any

import pytest
from contrib.code.test_sandbox import kernel_only

from vinejax.contrib.code.settings import CodeConfig
from vinejax.contrib.code.task import make
from vinejax.contrib.examples import refactoring
from vinejax.contrib.examples.refactoring import extracted, shorter
from vinejax.core.settings import DataConfig, GraderConfig, RewardConfig
from vinejax.tasks.graded import GradedTask

ORIGINAL = '''
def report(rows):
    """Rows as a text."""
    total = 0
    for row in rows:
        total += row
    return f"{len(rows)} rows, {total}"
'''
RIGHT = '''
def sum_of(rows):
    total = 0
    for row in rows:
        total += row
    return total

def report(rows):
    """Rows as a text."""
    return f"{len(rows)} rows, {sum_of(rows)}"
'''
METHOD = RIGHT.replace("{sum_of(rows)}", "{Sums().sum_of(rows)}").replace(
    "\ndef sum_of(rows):", "\nclass Sums:\n  def sum_of(self, rows):"
)


def fenced(program: str) -> str:
    return f"The loop moves out.\n```python\n{program}```\n"


CASES = {  # response: (extracted, shorter); the original has 4 statements, the right one 1
    "right": (fenced(RIGHT), 1.0, 0.75),
    "nested": (fenced(ORIGINAL + "    def helper(): pass\n    helper()\n"), 1.0, 0.0),
    "method": (fenced(METHOD.replace("\n    ", "\n      ", 4)), 1.0, 0.75),
    "the same": (fenced(ORIGINAL), 0.0, 0.0),
    "not called": (fenced(ORIGINAL + "\ndef sum_of(rows):\n    return sum(rows)\n"), 0.0, 0.0),
    "renamed": (fenced(RIGHT.replace("report", "text_of")), 0.0, 0.0),
    "calls itself": (fenced("def report(rows):\n    return report(rows)\n"), 0.0, 0.0),
    "no function": (fenced("print(sum(map(int, input().split())))\n"), 0.0, 0.0),
    "malformed": (fenced(RIGHT.replace("for row", "for for")), 0.0, 0.0),
    "words": ("I would move the loop into sum_of(rows).", 0.0, 0.0),
    "nothing": ("", 0.0, 0.0),
    "last block": (fenced(RIGHT) + fenced(ORIGINAL), 0.0, 0.0),
}


@pytest.mark.parametrize("name", CASES)
def test_what_counts_as_extracted(name: str):
    response, is_extracted, share = CASES[name]
    for question in (ORIGINAL, f"Refactor:\n```python\n{ORIGINAL}```"):
        assert extracted(response, question) == is_extracted
        assert shorter(response, question) == pytest.approx(share)


@kernel_only
def test_tests_and_syntax_add_up(tmp_path: Path):
    """A program that fails the tests earns less than 1, whatever it extracts."""
    tests = ["assert report([1, 2]) == '2 rows, 3'", "assert report([]) == '0 rows, 0'"]
    rows = [{"original": f"{ORIGINAL}# {i}", "tests": tests} for i in range(3)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    fields: dict[str, Any] = {"path": str(file), "question": "original", "answer": "tests"}
    task, limits = make(DataConfig(**fields)), GraderConfig(workers=1)
    task.configure_sandbox(CodeConfig(), limits)
    names = [f"{refactoring.__name__}.{name}" for name in ("extracted", "shorter")]
    reward = RewardConfig(functions=("task", *names), weights=(1.0, 0.25, 0.25))
    problem = task.load("train")[0]
    wrong = fenced(RIGHT.replace("total = 0", "total = 1"))
    texts = [CASES["right"][0], CASES["the same"][0], wrong, CASES["malformed"][0]]
    with GradedTask(task, limits, reward) as graded:
        found = graded([(problem, text) for text in texts])
    assert found == pytest.approx([1.4375, 1.0, 0.4375, 0.0])
