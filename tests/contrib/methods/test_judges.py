"""Judges that are exact, that hang and are killed, that fail, or that return something else."""

import re
import sys
import time
from pathlib import Path

import pytest

from vinejax.contrib.methods.brpo import sign_of_verdict
from vinejax.contrib.methods.judge_stage import JudgeConfig
from vinejax.contrib.methods.judges import JudgedPair, compared, last_word
from vinejax.contrib.methods.pairwise import order_free_chance
from vinejax.core.errors import ConfigError, UserError
from vinejax.core.settings import Config

SOURCE = """import os
import subprocess
import time

def longer(questions, answers, firsts, seconds):
    print("heard on standard error")
    return [float(len(x) > len(y)) for x, y in zip(firsts, seconds)]

def sleeps_on_slow(questions, answers, firsts, seconds):
    if "slow" in questions:
        child = subprocess.Popen(["sleep", "60"])
        open(os.environ["SEEN"], "w").write(str(child.pid))
        time.sleep(60)
    return [1.0] * len(firsts)

def fails(questions, answers, firsts, seconds):
    return [answers[9]]

def too_few(questions, answers, firsts, seconds):
    return [0.5]

def too_much(questions, answers, firsts, seconds):
    return [0.5, 1.5]

def dies(questions, answers, firsts, seconds):
    os._exit(3)

number = 3
"""
PAIRS = [JudgedPair("q", "7", "a 7", "b 6"), JudgedPair("q", "7", "8", "a long one")]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_judges.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_judges", raising=False)
    return str(tmp_path / "my_judges.py")


def test_the_last_word_decides():
    firsts, seconds = ["so 7", "6", "7", "7 or 8"], ["6", "is 7", " 7\n", ""]
    assert last_word(["q"] * 4, ["7"] * 4, firsts, seconds) == [1.0, 0.0, 0.5, 0.5]
    assert compared("vinejax.contrib.methods.judges.last_word", PAIRS, 1, 60.0) == [1.0, 0.5]


def test_a_judge_of_a_user_in_batches(module: str, capfd: pytest.CaptureFixture[str]):
    assert compared("my_judges.longer", PAIRS * 2, 3, 60.0) == [0.0, 0.0, 0.0, 0.0]
    assert compared("my_judges.longer", [JudgedPair("", "", "xx", "x")], 3, 60.0) == [1.0]
    assert capfd.readouterr().err.count("heard on standard error") == 3
    assert compared("my_judges.longer", [], 3, 60.0) == []


def test_a_batch_that_takes_too_long_is_killed_with_what_it_started(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = tmp_path / "seen"
    monkeypatch.setenv("SEEN", str(seen))
    pairs = [JudgedPair("", "", "", ""), JudgedPair("slow", "", "", ""), JudgedPair("", "", "", "")]
    start = time.monotonic()
    assert compared("my_judges.sleeps_on_slow", pairs, 1, 8.0) == [1.0, None, 1.0]
    assert time.monotonic() - start < 40
    stat = Path("/proc") / seen.read_text() / "stat"
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fails", r"failed: .*my_judges.py:17: IndexError: list index out of range"),
        ("too_few", r"failed: .*my_judges.py:19: gave \[0.5\]; needed are 2 numbers from 0 to 1"),
        ("too_much", r"failed: .*my_judges.py:22: gave \[0.5, 1.5\]; needed are 2 numbers"),
        ("dies", "failed: its process ended with status 3"),
    ],
)
def test_a_judge_that_fails_is_one_line(module: str, name: str, message: str):
    with pytest.raises(UserError) as error:
        compared(f"my_judges.{name}", PAIRS, 8, 60.0)
    assert re.search(f"^judge.function: my_judges.{name} {message}", str(error.value))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("my_judges.nothing", "has nothing called 'nothing'"),
        ("my_judges.number", "has no function 'number'"),
        ("no_such_judges.x", "no module 'no_such_judges'"),
        ("nodots", "no module 'nodots'"),
    ],
)
def test_what_names_no_judge_is_one_line(module: str, path: str, message: str):
    with pytest.raises(ConfigError, match=f"^judge.function = '{path}': .*{message}") as error:
        JudgeConfig(function=path).check(Config())
    assert "\n" not in str(error.value)


def test_what_is_earned():
    assert [sign_of_verdict(x) for x in ([0.9], [0.2], [0.5], [])] == [1.0, -1.0, 0.0, 0.0]
    assert order_free_chance([0.75, 0.25]) == 0.75 and order_free_chance([0.875, 0.875]) == 0.5
