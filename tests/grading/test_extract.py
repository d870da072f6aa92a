"""Extraction of answers, ours and the reference's, and the reference's normalisation."""

from typing import Any

import pytest
from helpers import data
from helpers.bounded import bounded
from hypothesis import given, settings
from hypothesis import strategies as st

from vinejax.grading.extract import extract_answer, extract_reference, reference_gsm8k
from vinejax.grading.reference.normalise import normalise


def rows(name: str) -> list[dict[str, Any]]:
    return data.rows(f"grading/{name}")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so $\boxed{3}$, no: $\boxed{\frac{1}{2}}$ and then 7", r"\frac{1}{2}"),
        (r"\boxed{\text{a \{ brace}}", r"\text{a \{ brace}"),
        (r"$\boxed 5$", "5"),
        (r"$\fbox{5}$", "5"),
        ("The final answer is $6$. I hope it is correct.", "6"),
        ("The answer is 5. The answer is 6.", "6"),
        ("5\x1f\n", "5"),  # a separator of ASCII is white space
        ("The answer is (3, 4).", "(3, 4)"),
        ("The solution set is {1, 2, 3}.", "{1, 2, 3}"),
        ("Hence S={-3}", "{-3}"),
        (r"So the probability is \frac {1} {2}.", "2}"),
        ("so a_{3}", "3}"),
        (r"The answer is $\frac12$ because 3 is odd", r"\frac12"),
        ("**Final Answer:**\n\\[ 7 \\]", "7"),
        ("The final answer: the largest $n$ is 34.", "34"),
        ("The final answer: the largest root is $x = 4$ here.", "x = 4"),
        ("It costs 1,234.50 dollars", "1,234.50"),
        ("x is -3/4", "-3/4"),
        ("so 3-5", "5"),
        ("so 3 - 5", "5"),
        ("it is − 5", "-5"),
        ("about .5 or so", ".5"),
        (r"-\frac{1}{2}", r"-\frac{1}{2}"),
        (r"$5\text{ square cm}$", r"5\text{ square cm}"),
        ("[0, 1)", "[0, 1)"),
        ("90 degrees", "90"),
        ("infinity", "infinity"),
        ("first\n1/2\nx^2", "x^2"),
        (r"So $x = \boxed{1}$ and $y = 2$, or $\boxed{3}$", "3"),
        (r"The roots are $\boxed{1}$ and $\boxed{2}$.", "1, 2"),
        (r"\[\boxed{(1, 2)}, \boxed{(2, 1)}\]", "(1, 2), (2, 1)"),
        (r"First $\boxed{1}$. Then $\boxed{2}$", "2"),
        (r"Therefore $x \geq 5$ is the solution.", r"x \geq 5"),
        (r"The sum is $\begin{pmatrix}1\\2\end{pmatrix}$.", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        (r"As $x > 0$ there are 12 of them", "12"),
        (r"Answer \( (9+1) \)", "(9+1)"),
        ("It is 2,74 here", "2,74"),
        ("Final Answer: Jane started growing it 3 hours ago.", "3"),
        ("The answer is 3 hours and 20 minutes.", "3 hours and 20 minutes"),
        (".1, 4.0", ".1, 4.0"),
        (r"it is cut off \boxed{unbalanced", None),
        (r"\boxed{unbalanced", None),
        (r"So it is $\boxed{\frac{7}{2}$.", r"\frac{7}{2}"),
        (r"First \boxed{3}, then \boxed{\frac{5}{2}\] and 7", r"\frac{5}{2}"),
        ("The answer is $5$.\nCheck: 3 + 2 = 5. Yes, the answer is correct.", "5"),
        ("The answer is 5. So the final answer is indeed right, and we are done.", "5"),
        ("x = 5, so the answer is correct.", "5"),
        ("The answer is correct.", "correct"),
        ("The answer is $5$? No, the answer is Monday.", "Monday"),
        (r"The answer is $\frac12$ and $\frac13$.", r"\frac12, \frac13"),
        (r"The answers are \(1\), \(2\), and \(3\) here.", "1, 2, 3"),
        ("Answer: $x = 5$, $y = 6$", "x = 5, y = 6"),
        ("The answer is $5$ or $6$", "5, 6"),
        ("The answer is $5$, $x$ being the length.", "5"),
        ("The answers are the roots $1$ and $2$.", "1, 2"),
        ("The answer: for $n = 3$, $5$ ways", "5"),
        ("The answers are 1 and 2.", "1 and 2"),
        ("The answer is 5 (mod 7).", "5 (mod 7)"),
        ("There are 1 000 000 ways.", "1 000 000"),
        ("In 2010 100 people came", "100"),
        ("It takes 2 1/2 hours.", "2 1/2"),
        ("It is - 2 1/2", "-2 1/2"),
        ("The ratio of a to b is 2:3", "2:3"),
        ("They have a ratio of 2 : 3.", "2 : 3"),
        ("They meet at 3:30 PM.", "3:30 PM"),
        ("Step 3: 5 apples", "5"),
        ("I do not know.", None),
        ("", None),
    ],
)
def test_the_last_answer_of_a_response(text: str, answer: str | None):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("5\n#### 6\n#### 1,000\nmore", "1,000"),
        ("####", None),
        ("Therefore the answer is -3", "-3"),
        (r"The result is \\boxed{-3}", "-3"),
        ("3 then 4 apples", "4"),
        ("#### **12** apples", "12 apples"),
        ("**#### 12**", "12"),
        ("#### 2**10", "2**10"),
    ],
)
def test_the_last_answer_of_a_gsm8k_response(text: str, answer: str | None):
    assert extract_answer(text, "gsm8k") == answer


def test_the_marker_is_of_gsm8k_alone():
    assert extract_answer("the answer is 3\n#### 4", "math") == "3"


def test_boxes_of_math_solutions():
    cases = [row for row in rows("boxed_extraction") if "text" in row]
    right = sum(extract_answer(row["text"]) == row["last_boxed"] for row in cases)
    assert right >= 0.99 * len(cases)


def test_boxes_of_model_responses():
    for row in rows("responses"):
        answer = extract_answer(row["response"])
        assert answer is not None
        assert f"\\boxed{{{answer}}}" in row["response"].replace("{ ", "{").replace(" }", "}") or (
            "boxed" not in row["response"]
        )


@pytest.mark.parametrize(
    ("text", "problem", "answers"),
    [
        (r"$\boxed{3}$ or $\boxed{5}$", "", ["3", "5"]),
        (r"$\boxed 5$", "", []),
        (r"$\boxed{50}\%$", "", ["50"]),
        (r"$\boxed{50}%$", "", ["50}"]),
        ("We have 3-5", "", ["-5"]),
        ("The answer is 5.\nMore 7", "", ["5"]),
        ("final answer is $6$. I hope. $\\boxed{5}$", "", ["6"]),
        ("```output\n7\n```\n8", "", ["7"]),
        ("nothing", "", []),
        (r"\boxed{1, 2}", "Give them separated by commas.", ["1", "2"]),
        (r"\boxed{(1, 2)}", "Give them separated by commas.", ["(1,2)"]),
        (r"\boxed{1, 2}", "", ["1,2"]),
        (r"\boxed{1 \text{ and } 2}", "", ["1", "2"]),
        (r"\boxed{\text{and}}", "", ["and"]),
    ],
)
def test_extraction_of_the_reference(text: str, problem: str, answers: list[str]):
    assert extract_reference(text, problem) == answers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\dfrac12 ", r"\frac{1}{2}"),
        (r"\left( 1, 2 \right).", "(1,2)"),
        (r"5\text{ cm}", "5"),
        (r"\text{ cm}", "cm"),
        (r"2\cdot 3", "23"),
        (r"90^{\circ}", "90"),
        ("3t", "3"),
        ("3.00", "3"),
        (".5", "0.5"),
        ("2/4", r"\frac{2}{4}"),
        ("02/4", "02/4"),
        ("a/b", "a/b"),
        (r"\sqrt 2", r"\sqrt{2}"),
        (r"\frac1", r"\frac1"),
        ("inf", r"\infty"),
        (r"5\mbox{ cm}", "5"),
        ("1+2j", "1+2i"),
        ("", ""),
    ],
)
def test_normalisation_of_the_reference(text: str, expected: str):
    assert normalise(text) == expected


def test_gsm8k_answer_of_the_reference():
    assert reference_gsm8k("a #### 1 #### 2 \n") == "2"
    assert reference_gsm8k("a 2") is None


PIECES = st.sampled_from(
    [r"\boxed", r"\fbox", "{", "}", r"\{", "$", "####", "answer is", "final answer is", " ", "\n"]
    + [r"\text{", r"\frac", r"\sqrt", r"\mbox{", "5", ".", ",", "-", "/", "٣", "é", r"\\", "%"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=40).map("".join))
def test_any_text_has_an_extraction(text: str):
    for style in ("math", "gsm8k"):
        answer = extract_answer(text, style)
        assert answer is None or isinstance(answer, str)
    assert all(isinstance(answer, str) for answer in extract_reference(text, text))


@pytest.mark.parametrize(
    "piece",
    [r"\boxed{", r"\text{", r"\sqrt", r"\mbox{", "1", "1 ", "\\", "answer is ", "$", "{"]
    + [
        "<answer>",
        "<think>",
        "</think>",
        r"\boxed{}",
        r"\boxed{1} ",
        r"x = \boxed{1}, ",
        "1^",
        "(1, ",
    ]
    + [r"The a is \boxed{1} and ", "5 m^2 ", "answer ", "choose ", "1 + ", "{1}", "1.\n"],
)
def test_extraction_of_long_texts_takes_no_time(piece: str):
    """Linear passes take a second together; one that is quadratic takes minutes."""
    text = piece * (200_000 // len(piece))
    with bounded(piece):
        extract_answer(text)
        extract_answer(text, "gsm8k")
        normalise(text + "}")
        normalise(text + "x")
