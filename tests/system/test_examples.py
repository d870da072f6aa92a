"""The examples run, and say what they promise."""

import re
import runpy
from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.paths import REPO

import vinejax

EXAMPLES = REPO / "examples"


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_advantages(capsys: pytest.CaptureFixture[str]):
    load("advantages")["main"]()
    printed = capsys.readouterr().out
    # V(s_0) is 2/4 for both solutions; the sums are R less that.
    table = re.findall(r"(\d\.\d\d) +([+-]\d\.\d\d)$", printed, re.MULTILINE)
    assert table[:5] == [
        *[("0.50", "+0.25"), ("0.75", "+0.25"), ("1.00", "+0.00")],
        *[("0.50", "-0.50"), ("0.00", "+0.00")],
    ]
    assert "+0.50 = +0.50" in printed and "-0.50 = -0.50" in printed
    assert "GRPO, for comparison: +1.00 on all of solution 1, -1.00 on all of 2" in printed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("model"))
    vinejax.save_pretrained(path, cases.model(), cases.params(), cases.tokenizer())
    return path


class Recorder(vinejax.Engine):
    branches: list[vinejax.Branch]

    def grow(self, params, trunks, branches, max_tokens=None):
        Recorder.branches = list(branches)
        return super().grow(params, trunks, branches, max_tokens)


@pytest.mark.slow
def test_score_steps(folder: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vinejax, "Engine", Recorder, raising=False)
    example = load("score_steps")
    solution = example["SOLUTION"].replace("9", "4")
    steps, values, advantages = example["score_steps"](folder, "7+8-4-3=", solution, "4", k=16)
    positions = [1 + 8, 1 + 8 + 7, 1 + 8 + 7 + 8]  # BOS and prompt, then a token a character
    assert [b.position for b in Recorder.branches] == [p for p in positions for _ in range(16)]
    assert len({b.seed for b in Recorder.branches}) == 48
    assert "".join(steps) == solution and len(steps) == len(values) == len(advantages) == 3
    # A random model ends one text in so many with a 4: values are counts of 16.
    assert ((0 <= values) & (values <= 1)).all() and values.max() > 0
    np.testing.assert_array_equal(values * 16, np.round(values * 16))
    np.testing.assert_allclose(advantages.sum(), 1.0 - values[0], atol=1e-6)


@pytest.mark.slow
def test_score_steps_prints_a_table(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.argv", ["score_steps.py", folder])
    load("score_steps")["main"]()
    prompt, _, header, *rows = capsys.readouterr().out.splitlines()
    assert prompt == "7+8-4-3=" and header.split() == ["V", "before", "advantage", "step"]
    assert [row.split()[2] for row in rows] == ["'7+8=15'", "'15-4=12'", "'12-3=9\\n####"]


@pytest.mark.slow
def test_the_shipped_start_sees_the_slip():
    """V is high up to the step with the mistake, and 0 after it."""
    example = load("score_steps")
    _, values, advantages = example["score_steps"](
        str(example["MODEL"]), example["PROMPT"], example["SOLUTION"], example["ANSWER"], k=32
    )
    assert values[1] > 0.5 and values[2] == 0.0
    assert advantages.argmin() == 1


@pytest.mark.slow
def test_the_algorithm_on_one_page_learns():
    before, after = load("vineppo")["train"](iterations=3)
    assert 0.3 < before < 0.45 and after > before + 0.2


def test_the_rewards_of_open_rs():
    """The paper's curve, where a wrong answer loses less for being long, and the form."""
    rewards = load("rewards/open_rs")
    curve = {0: 1.0, 250: 0.926777, 500: 0.75, 1000: 0.5, 2000: 0.5}
    for length, expected in curve.items():
        right, wrong = ("x" * max(length - len(end), 0) + end for end in ("\n#### 7", "\n#### 8"))
        if length:
            assert len(right) == length
            assert rewards["cosine"](right, "7") == pytest.approx(expected, abs=2e-6)
            assert rewards["cosine"](wrong, "7") == pytest.approx(-expected, abs=2e-6)
    assert rewards["cosine"]("", "7") == pytest.approx(-1.0)
    assert [rewards["form"](x) for x in ("a\n</think>\nb", "a</think>b", "\n</think>\n" * 2)] == [
        *(1.0, 0.0, 0.0)
    ]
