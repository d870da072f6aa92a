"""Answers of models that reason: where the answer stands, and what words and conditions make of it.

Every kind has pairs that are equal and, of the same form, pairs that are not.
"""

import pytest
from helpers.answer_pairs import both_ways
from helpers.bounded import bounded

from vinejax.grading.extract import extract_answer
from vinejax.grading.strict.compare import equal_strict, readable_strict

EXTRACTED: dict[str, list[tuple[str, str | None]]] = {
    "thinking": [
        ("<think>\nMaybe \\boxed{3}?\n</think>\n\nIt is 5.", "5"),
        ("<think>The answer is 3.</think> **Answer**: 5", "5"),
        ("<THINKING>$3$</THINKING> $5$", "5"),
        ("so \\boxed{3}</think>\n\\boxed{5}", "5"),
        ("◁think▷3◁/think▷The result: 5", "5"),
        ("<seed:think>\\boxed{3}</seed:think>So it is 5.", "5"),
        ("<think>\\boxed{3}</think>", None),
        ("<think>\\boxed{3}</think> I give up.", None),
        ("<think>\\boxed{3} and", None),
        ("<think>3</think>\\boxed{4} <think>\\boxed{5}", None),
        ("x < 3, so \\boxed{5}", "5"),
    ],
    "answer tags": [
        ("It is 3. <answer>5</answer>", "5"),
        ("\\boxed{3} <answer>5</answer>", "5"),
        ("<answer>\n\\boxed{5}\n</answer>", "5"),
        ("<answer>The answer is $5$.</answer>", "5"),
        ("<answer>the total is 5</answer>", "5"),
        ("<Answer> 5 apples </Answer>", "5 apples"),
        ("<answer>(1, 2)</answer>", "(1, 2)"),
        ("<answer>x = 1, y = 2</answer>", "x = 1, y = 2"),
        ("<answer>3 or 5</answer>", "3 or 5"),
        ("<answer>5", "5"),
        ("<answer>3</answer> No. <answer>5</answer>", "5"),
        ("<answer>5</answer>, between <answer> and </answer>", "5"),
        ("<answer>5</answer>, as <answer></answer> asks", "5"),
        ("<answer>3</answer> No: \\boxed{5}", "5"),
        ("<answer>3\n5</answer>", "3\n5"),
        ("<think><answer>3</answer></think> 5", "5"),
    ],
    "boxes that are one answer": [
        (r"$a = \boxed{3}$ and $b = \boxed{5}$", "a = 3, b = 5"),
        (r"$t=\boxed{3}$ or $t=\boxed{5}$", "t=3, t=5"),
        (r"$z_1 = \boxed{3}$, $z_2 = \boxed{5}$", "z_1 = 3, z_2 = 5"),
        (r"$f(1) = \boxed{3}$; $f(2) = \boxed{5}$", "f(1) = 3, f(2) = 5"),
        ("- \\boxed{3}\n- \\boxed{5}\n- \\boxed{7}", "3, 5, 7"),
        ("1) $\\boxed{3}$.\n2) $\\boxed{5}$.", "3, 5"),
        ("(a) \\boxed{3}\n\n(b) \\boxed{5}", "(a) 3, (b) 5"),
        ("\\boxed{3}\n\n\\boxed{5}", "3, 5"),
        ("The width is \\boxed{3}, and the height is \\boxed{5}.", "3, 5"),
        ("Case 1: \\boxed{3}\nCase 2: \\boxed{5}", "3, 5"),
        (r"$a = \boxed{3}$. Then $b = \boxed{5}$", "5"),
        (r"$a = \boxed{3}$, so $b = \boxed{5}$", "5"),
        ("I found \\boxed{3}. It fails, hence \\boxed{5}.", "5"),
        ("It is \\boxed{3}, or it is \\boxed{5}", "5"),
        ("The width is \\boxed{3}. The area is \\boxed{5}", "5"),
        ("\\boxed{3}, wait: \\boxed{5}", "5"),
        ("\\boxed{5}\n\n**Final Answer**\n\n\\boxed{5}", "5"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\boxed{3}, \boxed{5}}", "3, 5"),
    ],
    "placeholders": [
        ("\\boxed{5}, which stands in \\boxed{}.", "5"),
        ("\\boxed{5}, within \\boxed{...} as asked", "5"),
        ("\\boxed{5}\n(in \\boxed{\\text{your answer}})", "5"),
        ("It is 5. Put it in \\boxed{ }.", "5"),
        ("Here, in \\boxed{}: 5", "5"),
        ("\\boxed{3}, no: \\boxed{answers}", "answers"),
        ('The answer is 5, written behind "Answer:".', "5"),
    ],
    "numbers in prose": [
        ("That makes 3.5e6 cells.", "3.5e6"),
        ("There are 3^10 of them.", "3^10"),
        ("There are 2^5 - 1 of them.", "2^5 - 1"),
        ("There are 3**4 of them.", "3**4"),
        ("It comes to 5\\sqrt2 in all", "5\\sqrt2"),
        ("It comes to 5 \\pi in all", "5 \\pi"),
        ("It comes to 16π", "16π"),
        ("some 4.2 × 10^7 years", "4.2 × 10^7"),
        ("some 4.2 x 10^7 years", "4.2 x 10^7"),
        ("a chance of \\frac{3}{8} then", "\\frac{3}{8}"),
        ("which is sqrt(5) then", "sqrt(5)"),
        ("which is 3/(4+5)", "3/(4+5)"),
        ("which is ln 5", "ln 5"),
        ("which is 3n", "3n"),
        ("which is n - 3", "n - 3"),
        ("which is 3 + 4i", "3 + 4i"),
        ("which is 0.1666...", "0.1666..."),
        ("which is 0.1(6)", "0.1(6)"),
        ("about 5 million", "5 million"),
        ("down to negative 5", "negative 5"),
        ("a square of 25 cm^2", "25 cm^2"),
        ("a square of 25 m^2", "25"),
        ("at (3, 5)", "(3, 5)"),
        ("it costs $1,250 (1,250)", "1,250"),
        ("as 2^3 = 8", "8"),
        ("as 2^3 = 8, there are 5", "5"),
        ("as 3 - 5", "5"),
        ("as 3 + 5 = 8", "8"),
        ("the 3D box of 5 m", "5"),
        ("__58__ in all", "58"),
        ("it is 5!", "5"),
    ],
    "choices": [
        ("So option C is correct.", "C"),
        ("(C) is the right choice, as A is wrong.", "(C)"),
        ("The correct option is C.", "C"),
        ("I choose C.", "C"),
        ("It must be (C).", "(C)"),
        ("It is C.", "C"),
        ("So option (C) is the answer", "(C)"),
        ("Option A is wrong, option C is correct.", "C"),
        ("Option C is not correct.", None),
    ],
}


@pytest.mark.parametrize("kind", EXTRACTED)
def test_where_the_answer_stands(kind: str) -> None:
    found = [(text, extract_answer(text)) for text, _ in EXTRACTED[kind]]
    assert found == EXTRACTED[kind]


CHANGED = """anything but;everything except;cannot be;never;isn't;unlike;the opposite of
a multiple of;a divisor of;divisible by;the log of;the reciprocal of;a power of;a digit of
nowhere near;close to;beyond;one third of;raised by;modulo
at odds with;the derivative of;the totient of;out of;the number after
might be;instead of;rejected:;false:"""
JUDGED = """is wrong;is incorrect;is not it;isn't it;is too large;is an upper bound;was my guess
fails;(wrong);(rejected);does not fit;is excluded;would be nice;is false"""
KEPT_BEFORE = "exactly;about;the answer is;the area is;profit of;precisely"
KEPT_AFTER = "ways;books;cm;is the answer;is our final answer;is correct;are left"

SAME = {
    "words that keep the value": [
        *[(rf"\text{{{w} }} 6", "6") for w in KEPT_BEFORE.split(";")],
        *[(rf"6 \text{{ {w}}}", "6") for w in KEPT_AFTER.split(";")],
        (r"\text{least value} = 6", "6"),
        ("6 (approximately)", "6"),
        ("6 (six)", "6"),
        ("6 (cm)", "6"),
    ],
    "functions in words": [
        ("the square root of 36", "6"),
        (r"\text{the cube root of } 27", "3"),
        ("twice 6", "12"),
        ("half of 6", "3"),
        (r"\text{the reciprocal of } \frac{2}{3}", "1.5"),
        ("the square of 6", "36"),
        ("the absolute value of -6", "6"),
        ("x = double 6", "12"),
        ("the opposite of 6", "-6"),
        (r"\text{half of } \pi", r"\frac{\pi}{2}"),
    ],
    "conditions": [
        (r"g(t) = 5t - 1 \text{ for all } t", "g(t) = 5t - 1"),
        (r"5t - 1 \text{ for every real number } t", "5t-1"),
        (r"\frac{t}{t-1}, t \ne 1", r"\frac{t}{t-1}"),
        (r"\frac{t}{t-1} \text{ if } t \ne 1", r"\frac{t}{t-1}"),
        (r"\frac{t}{t-1} (t \ne 1)", r"\frac{t}{t-1}"),
        (r"t^3, \quad 0 < t < 2", "t^3"),
        (r"t^3 \text{ where } t \in [0, 2)", r"t^3, t \in [0,2)"),
        (r"t = 6 \text{ (because } t > 0)", "6"),
        (r"m = 6j \text{ where } j \text{ is an integer}", "m = 6j"),
        (r"2\pi m, m \in \mathbb{Z}", r"2\pi k"),
        (r"2\pi m, m \in \mathbb{Z}", r"2\pi k \text{ for any integer } k"),
        (r"3a - b, a, b \in \mathbb{Z}", "3a-b"),
        (r"t+1, t+2, t > 0", "t+1, t+2"),
        (r"(t, 3t), t \in \mathbb{R}", "(t,3t)"),
        (r"6 \text{ for all } t", "6"),
    ],
    "Euler's e": [
        (r"\frac{5e-2}{e}", r"5-\frac{2}{e}"),
        (r"\ln(4e+1)", r"\ln(1+4e)"),
        (r"4\mathrm{e}-3", "-3+4e"),
        ("4e - 3", "-3+4e"),
        ("4e-3", "-3+4e"),
        ("4e-3", "0.004"),
        ("-4e-3", "-0.004"),
        (r"t = 4e+3", "4000"),
        (r"4e-3 \text{ m}", "0.004"),
        ("4e-3, 5e-3", "0.005, 0.004"),
        ("4e3", "4000"),
        (r"6.5 \times 10^{-8}", "6.5e-08"),
    ],
    "numbers that floats print": [
        ("0.7000000000000001", "0.7"),
        ("1.1999999999999997", r"\frac{6}{5}"),
        ("100.00000000000001", "100"),
        ("4.1000000000000005e-09", "4.1e-9"),
        ("0.20000000298023224", "0.2"),
        ("0.20000000298023224", "0.20"),
        ("65.0999984741211", "65.1"),
    ],
    "lists in JSON": [
        ('["12"]', "12"),
        (r'["\\frac{3}{4}", "2"]', "2, 0.75"),
        (r'["\frac{3}{4}"]', "3/4"),
        ("['12', '13']", "12, 13"),
        (r"['\\sqrt{2}']", r"\sqrt2"),
        ('["4\\u03c0"]', r"4\pi"),
        ('["(1,2)", "(3,4)"]', "(3,4), (1,2)"),
    ],
    "repeating decimals": [
        ("0.(6)", "2/3"),
        ("2.1(36)", r"\frac{47}{22}"),
        ("-0.(6)", r"-\frac23"),
        ("0.6 repeating", "2/3"),
        (r"0.6\text{ recurring}", "2/3"),
        (r"0.\dot{3}\dot{6}", "4/11"),
        (r"0.\dot{1}4285\dot{7}", "1/7"),
        ("0.6\u0305", "2/3"),
        ("0.13\u0305", "2/15"),
        ("0.3\u03076\u0307", "4/11"),
    ],
    "raised and lowered characters": [
        ("y⁻²", r"\frac{1}{y^2}"),
        ("3ⁿ⁺¹", "3^{n+1}"),
        ("y⁽ⁿ⁾", "y^{(n)}"),
        ("log₃ 81", "4"),
        ("a₁₂ + a₃", "a_3 + a_{12}"),
        ("1101₂", "1101_2"),
        ("³⁄₄", "0.75"),
        ("2¹/₂", "2.5"),
        ("CO₂", r"\text{CO}_2"),
    ],
    "choices": [
        ("Option D", "D"),
        (r"\text{Choice (D)}", "D"),
        ("the correct answer is D", "(D)"),
        ("D is correct", "D"),
        ("(D) is the correct option", "D"),
        ("option D: 7", "D"),
        ("option D: 7", "7"),
        ("(D): 7", "D"),
    ],
}
DIFFERENT = {
    "words that change the value": [
        *[(rf"\text{{{w} }} 6", "6") for w in CHANGED.replace("\n", ";").split(";")],
        *[(f"{w} 6", "6") for w in CHANGED.replace("\n", ";").split(";")],
        *[(rf"6 \text{{ {w}}}", "6") for w in JUDGED.replace("\n", ";").split(";")],
        *[(f"z = 6 {w}", "z = 6") for w in JUDGED.replace("\n", ";").split(";")],
        (r"\text{not } z = 6", "6"),
        (r"\text{anything but } (1,6)", "(1,6)"),
        (r"(1,6) \text{ is wrong}", "(1,6)"),
        (r"\{1,6\} \text{ is wrong}", r"\{1,6\}"),
        ("6:30 is wrong", "6:30"),
        ("anything but blue", "blue"),
        ("6 (seven)", "6"),
        ("6 (maybe seven)", "6"),
    ],
    "functions in words": [
        ("the square root of 36", "36"),
        ("twice 6", "6"),
        ("half of 6", "6"),
        ("the square root of 16 + 9", "5"),
        ("the square root of 16 + 9", "13"),
    ],
    "conditions": [
        (r"\frac{t}{t-1}, t \ne 1", r"\frac{t}{t-2}"),
        (r"t^3, t > 0", r"t^3, t < 0"),
        (r"t^3 \text{ where } t \in [0, 2)", r"t^3 \text{ where } t \in [0, 2]"),
        (r"t > 3, t \ne 4", "t>3"),
        ("t = 1, t > 4", "t = 1"),
        ("t = 1, t > 4", "1"),
        (r"t \text{ if } t > 0, -t \text{ if } t < 0", "t"),
        (r"t^3 \text{ for } t = 2", "t^3"),
        (r"t^3 \text{ except } t = 2", "t^3"),
        (r"t^3 \text{ for odd } t", "t^3"),
        (r"6 \text{ for } t > 2", "6"),
        (r"6, t > 2", "6"),
        (r"a = 6, b > 2", "a = 6"),
        (r"t^2 + s^2 = 1, s > 0", "t^2 + s^2 = 1"),
        (r"\mathbb{R}, t \ne 1", r"\mathbb{R}"),
        (r"t+1, t+2, t > 0", "t+1"),
        (r"2\pi m, m \in \mathbb{Z}", r"3\pi k"),
        (r"2\pi m, m \in \mathbb{Z}", r"2\pi x"),
        (r"2m", "2k"),
        (r"6 \text{ since } t \text{ is not } 7", "7"),
    ],
    "Euler's e": [
        ("4e - 3", "0.004"),
        (r"4\mathrm{e}-3", "0.004"),
        (r"\frac{0.4}{e}", r"\frac{4e-1}{e}"),
        ("(4e-3)^2", "0.000016"),
        ("4e-3", "-3+5e"),
        ("4e-3", "0.04"),
    ],
    "numbers that floats print": [
        ("0.7000000000000001", "0.70001"),
        ("0.7000000000000001", "0.8"),
        ("0.20000000298023224", "0.200001"),
        ("0.20000000298023224", "0.2000001"),
        ("0.33333333", "1/3"),
        ("0.6667", "2/3"),
        ("1.00006103515625", "1.000061"),
    ],
    "lists in JSON": [
        ('["12"]', "13"),
        ('["12", "13"]', "12"),
        ('["12", "13"]', "13"),
        ("['12', '13']", "12, 14"),
    ],
    "repeating decimals": [
        ("0.(6)", "0.6"),
        ("0.(6)", "0"),
        ("0.6 repeating", "0.6"),
        ("0.16 repeating", "0.16"),
        ("2.5(4)", "10"),
        (r"0.\dot{3}\dot{6}", "0.36"),
    ],
    "raised and lowered characters": [
        ("y⁻²", "y^2"),
        ("a₁", "a_2"),
        ("1101₂", "1101₃"),
        ("log₃ 81", "81"),
        ("³⁄₄", "34"),
    ],
    "choices": [
        ("Option D", "C"),
        ("not option D", "D"),
        ("option D is wrong", "D"),
        ("D is not correct", "D"),
        ("option C or D", "D"),
        ("options C and D", "D"),
        ("all but option D", "D"),
        ("anything but D", "D"),
        ("option D: 7", "8"),
    ],
}


@pytest.mark.parametrize("kind", SAME)
def test_the_same(kind: str) -> None:
    assert both_ways(SAME[kind], are_same=True) == []


@pytest.mark.parametrize("kind", DIFFERENT)
def test_not_the_same(kind: str) -> None:
    assert both_ways(DIFFERENT[kind], are_same=False) == []


@pytest.mark.parametrize("response", ["\\boxed{4}\n\\boxed{6}", "<answer>4, 6</answer>", "4 or 6"])
def test_several_answers_are_not_one_of_them(response: str) -> None:
    answer = extract_answer(f"The answer is {response}") or ""
    assert [gold for gold in ("4", "6") if equal_strict(answer, gold)] == []


@pytest.mark.parametrize("gold", ['["12", "13"]', "0.7000000000000001", "3.5e+23", "0.(6)", "y⁻²"])
def test_golds_are_readable(gold: str) -> None:
    assert readable_strict(gold)


@pytest.mark.parametrize(
    "piece",
    [
        "x, ",
        "x<1, ",
        r"\text{ for all }",
        "(x<",
        "not ",
        "half of ",
        "0.(1)",
        '["',
        "²",
        "₁/",
        "2e-1+",
    ]
    + [r"\dot{1}", "1\u0305", "option ", "(one)", "is the "],
)
def test_long_answers_come_to_an_end(piece: str) -> None:
    with bounded(piece):
        assert not equal_strict("5" + piece * (15_000 // len(piece)) + "y", "6")
