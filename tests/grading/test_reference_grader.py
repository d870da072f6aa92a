"""Mode 'reference': the verdicts of the reference, its mistakes included."""

import json
import subprocess
import sys
from typing import Any

import pytest
from test_extract import rows

from vinejax.grading import grade_response
from vinejax.grading.extract import reference_gsm8k
from vinejax.grading.reference import symbolic
from vinejax.grading.reference.compare import (
    bare_answers,
    cheap_reference,
    equal_gsm8k,
    equal_reference,
    reference_answers,
)


def cases(task: str) -> list[dict[str, Any]]:
    return [row for row in rows("vineppo_grader_cases") if row["task"] == task]


def boxed(row: dict[str, Any], side: str) -> str:
    """Cases on extraction hold whole texts, the others answers, which were graded in a box."""
    return row[side] if row["branch"] == "extract" else f"$\\boxed{{{row[side]}}}$"


def test_every_math_case():
    for row in cases("MATH"):
        found = reference_answers(boxed(row, "prediction"), boxed(row, "gold"), row["problem"])
        assert found == (row["pred_extracted"], row["gold_extracted"]), row
        assert equal_reference(*found) == row["verdict"], row
        assert cheap_reference(*found) in (row["verdict"], None), row


def test_every_math_case_with_bare_answers():
    for row in cases("MATH"):
        found = reference_answers(row["prediction"], row["gold"], row["problem"])
        assert found == (row["pred_extracted"], row["gold_extracted"]), row


def test_every_gsm8k_case():
    for row in cases("GSM8K"):
        answer = reference_gsm8k(row["prediction"])
        assert answer == row["pred_extracted"]
        assert equal_gsm8k(answer or "", row["gold_extracted"]) == row["verdict"], row
        assert (
            grade_response(row["prediction"], row["gold"], "reference", "gsm8k") == row["verdict"]
        )


def test_the_gsm8k_oracle():
    for row in rows("vineppo_oracle_gsm8k"):
        assert reference_gsm8k(row["solution"]) == row["predicted"]
        if "verdict" in row:
            assert equal_gsm8k(row["predicted"], row["gold"]) == row["verdict"]


def test_cases_through_the_public_name():
    for row in cases("MATH")[::10]:
        sides = boxed(row, "prediction"), boxed(row, "gold")
        assert grade_response(*sides, "reference", problem=row["problem"]) == row["verdict"], row


def test_a_bare_gold_leaves_sentences_to_the_reference():
    assert reference_answers("We have 3 then 5 and nothing else.", "5") == (["5"], ["5"])
    assert reference_answers("The answer is 5.", "5") == (["5"], ["5"])
    assert reference_answers(r"\text{east}", r"\boxed{\text{east}}") == ([], ["east"])


@pytest.mark.parametrize(
    ("prediction", "gold", "verdict"),
    [
        ("x^2-1", "(x-1)(x+1)", True),
        ("2xy", "2yx", True),
        ("xyz", "zyx", False),  # three letters
        (r"\sin^2 x+\cos^2 x", "1", True),
        ("1", r"\frac{2}{2}", True),
        (r"1\frac12", "1.5", True),
        ("3!", "6", True),
        ("x=5", "5", True),
        ("x+y=1", "1-x-y=0", True),
        ("no", "on", True),
        (r"-2{or}-12", r"-2\text{or}-12", True),
        ("7", r"\frac{1}{0}", False),
        ("x2", "2x", True),
        ("0x1F", "31", True),
    ],
)
def test_formulas(prediction: str, gold: str, verdict: bool):
    assert equal_reference(bare_answers(prediction), bare_answers(gold)) == verdict


def test_lists_match_in_any_order_and_the_last_ones_count():
    assert equal_reference(["3", "1", "2"], ["2", "1"])
    assert not equal_reference(["1"], ["1", "2"])
    assert equal_reference([], [])
    assert not equal_reference(["1"], [])


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch CANARY')",
        "().__class__",
        "x.y",
        "x[0]",
        "[1 for x in (1,)]",
        "lambda: 1",
        "'a'*5",
        "id(5)",
        "N(5)",
        "S('1')",
        "x if x else y",
        "1e99999999999",
        "9**9**9**9",
        "((9!)!)!",
        "(9**9)!",
        "((((9**9)**9)**9)**9)**9",
        "x**999",
        "9" * 400,
        "(" * 500 + ")" * 500,
        "-" * 1900 + "1",
        "1+" * 5000 + "1",
        "sin(1,2,3)",
        "x=1",
        "x .real()",
        "",
        "\0",
    ],
)
def test_what_is_no_formula_is_refused(text: str):
    with pytest.raises((symbolic.Refused, TypeError)):
        symbolic.build_formula(text)


def test_deep_nesting_is_not_an_exception():
    deep = "(" * 3000 + "1" + ")" * 3000
    assert not equal_reference([deep], ["(7)"])
    assert cheap_reference([deep], ["(7)"]) is None


def test_grading_imports_nothing_heavy():
    code = """
import json, sys
import vinejax.grading.pool.worker
heavy = {"jax", "numpy", "transformers", "sympy", "pylatexenc", "vinejax.core.types"}
print(json.dumps(sorted(heavy & sys.modules.keys())))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True)
    assert json.loads(done.stdout) == [], done.stderr
