"""ACECode's reward: its curve, and programs that are fast, slow, wrong, malformed or hang."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contrib.code.test_sandbox import kernel_only
from helpers.refusals import refuses

from vinejax.contrib.code.settings import CodeConfig
from vinejax.contrib.examples import fast_code
from vinejax.contrib.examples.fast_code import LEAST_S, FastCode, make, speed_reward
from vinejax.core.settings import Config, DataConfig, GraderConfig
from vinejax.grading import Grader

SUM = "def total(n):\n    return sum(range(n + 1))"
FORMULA = "def total(n):\n    return n * (n + 1) // 2"
SLOW = (
    "def total(n):\n    x = 0\n    for i in range(n + 1):\n        x += i % (n + 2)\n    return x"
)
CALLS = {"fn_name": "total", "inputs": [[10], [3_000_000]], "outputs": [55, 4500001500000]}


def fenced(program: str) -> str:
    return f"```python\n{program}\n```"


def task_of(folder: Path, **data: Any) -> FastCode:
    row = {"tests": CALLS, "worked": SUM}
    lines = [json.dumps(row | {"question": f"{i}: total(n), the sum of 0 to n"}) for i in range(3)]
    file = folder / "rows.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    fields: dict[str, Any] = {"path": str(file), "answer": "tests", "solution": "worked"} | data
    return make(DataConfig(task=fast_code.__name__, **fields))


def test_the_reward_of_a_right_program_is_the_clipped_logarithm():
    seconds, reference = np.geomspace(LEAST_S, 20.0, 25)[:, None], np.geomspace(LEAST_S, 20.0, 9)
    expected = 1 + 0.25 * (1 + np.clip(np.log(reference / seconds), -1, 1))
    found = [[speed_reward(a, b) for b in reference.tolist()] for a in seconds[:, 0].tolist()]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert expected.min() == 1.0 and expected.max() == 1.5
    assert speed_reward(0.0, 0.0) == speed_reward(LEAST_S / 9, LEAST_S) == 1.25


@kernel_only
def test_programs_earn_by_their_speed(tmp_path: Path):
    """The formula takes less than 1/e of the reference's time and the loop more than e times it."""
    task = task_of(tmp_path)
    task.configure_sandbox(CodeConfig(), GraderConfig(workers=1, timeout_s=10))
    problem = task.load("train")[0]
    responses = {
        "fast": fenced(FORMULA),
        "same": fenced(SUM),
        "slow": fenced(SLOW),
        "wrong": fenced(FORMULA.replace("+ 1", "- 1")),
        "no Python": fenced("def total(n): return ("),
        "no program": "The sum is n(n + 1)/2.",
        "ends itself": fenced("import os\nos._exit(0)\n" + FORMULA),
        "says its time": fenced("import time\ntime.process_time = lambda: 0.0\n" + SLOW),
    }
    with Grader(workers=1) as grader:
        found = task.rewards([(problem, text) for text in responses.values()], grader)
        earned = dict(zip(responses, found, strict=True))
        assert earned["same"] == 1.25  # the same program has been timed, so the ratio is 1
        assert earned["fast"] == 1.5 and earned["slow"] == earned["says its time"] < 1.25
        assert {earned[x] for x in ("wrong", "no Python", "no program", "ends itself")} == {0.0}
        assert task.rewards([(problem, responses["slow"])], grader) == [earned["slow"]]


@pytest.mark.parametrize("worked", [None, [], ""])
def test_a_row_without_a_worked_solution_ends_no_run(worked: Any, tmp_path: Path):
    task = task_of(tmp_path)
    problem = dataclasses.replace(task.load("train")[0], columns={"worked": worked})
    task._seconds = lambda answer, code: LEAST_S * (2 if code else 1)  # type: ignore[assignment]
    assert task._speed_reward((problem, fenced(FORMULA))) == speed_reward(2 * LEAST_S, LEAST_S)


@kernel_only
def test_a_program_that_hangs_is_wrong(tmp_path: Path):
    task = task_of(tmp_path)
    task.configure_sandbox(CodeConfig(), GraderConfig(workers=1, timeout_s=1))
    problem = task.load("train")[0]
    with Grader(workers=1) as grader:
        hangs = fenced("def total(n):\n    while True: pass")
        assert task.rewards([(problem, hangs)], grader) == [0.0] and grader.stats.timeouts == 1
    outcome = task._sandbox.get().run("for i in range(10**6): pass")
    assert outcome.status == "ok" and 0 < (outcome.seconds or 0) < 1


def test_what_is_refused(tmp_path: Path):
    with refuses("data.solution"):
        task_of(tmp_path, solution="")
    sandbox = CodeConfig(sandbox="none")
    with refuses("code.sandbox"):
        task_of(tmp_path).configure(Config(sections={"code": sandbox}))
