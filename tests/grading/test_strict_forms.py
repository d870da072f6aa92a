"""The strict comparison of parts, chains, leading conditions, Unicode and numbers of other scripts.

Every kind has pairs that are equal and, of the same form, pairs that are not.
"""

import pytest
from helpers.answer_pairs import both_ways
from helpers.bounded import bounded

from vinejax.grading.extract import extract_answer
from vinejax.grading.strict.compare import equal_strict

SAME = {
    "labelled parts": [
        ("(a) 4, (b) 9", "4, 9"),
        ("a) 4, b) 9", "(4, 9)"),
        (r"(i)\, 4;\ (ii)\, 9", "4, 9"),
        (r"\text{(a)}\ 4 \quad \text{(b)}\ 9", "4, 9"),
        ("(1) 4, (2) 9", "4, 9"),
        ("(a) 4 and (b) 9", "(a) 4, (b) 9"),
        ("(a) x = 4, (b) y = 9", "x = 4, y = 9"),
        ("(a) 4, (b) 4", "4, 4"),
    ],
    "chains": [
        ("4 + 5 = 9", "9"),
        ("x = 4 + 5 = 9", "9"),
        ("x = 4 + 5 = 9", "x = 9"),
        (r"V = \pi r^2 h = 12\pi", r"12\pi"),
        (r"\frac{a+b}{2} = \frac{7+9}{2} = 8", "8"),
        ("10/3 = 3.33", "3.33"),
        (r"2\text{ m} = 200\text{ cm}", "200"),
        ("25\\% = 0.25", "0.25"),
        (r"180^\circ = \pi", r"\pi"),
    ],
    "glued words": [
        ("x=3orx=7", "3, 7"),
        ("f(x)=3orf(x)=7", r"f(x) = 3 \text{ or } f(x) = 7"),
    ],
    "leading conditions": [
        (r"\text{for all } t, g(t) = 5t", "g(t) = 5t"),
        ("for all t, g(t) = 5t", "5t"),
        (r"\text{If } t \ne 1, \text{ then } \frac{t}{t-1}", r"\frac{t}{t-1}"),
        (r"\text{for any integer } m, 2\pi m", r"2\pi k, k \in \mathbb{Z}"),
        ("for t > 0, y = 5t", "y = 5t, t > 0"),
        ("for all a, b, a + b", "a + b"),
    ],
    "groups of names": [
        ("p = 5, q = 2; p = 7, q = 2", "(5, 2), (7, 2)"),
        ("p = 5, q = 2 or p = 7, q = 2", "(7, 2), (5, 2)"),
    ],
    "signs in braces": [
        (r"\{-4, 2\pm\sqrt3\}", r"\{2-\sqrt3, -4, 2+\sqrt3\}"),
        (r"\{\pm4\}", "4, -4"),
        (r"x \in \{\pm1, 4\}", "-1, 1, 4"),
    ],
    "dates": [
        ("03/08/2031", "3/8/2031"),
        ("2031-03-08", r"\text{2031-03-08}"),
        ("x = 2031-03-08", "2031–03–08"),
        ("2031-03-08", "on 2031-03-08"),
        ("2031-03-08", "2031-3-08"),
        ("2031 - 10 - 12", "2009"),
        ("1000/10/5", "20"),
    ],
    "polar points": [
        ("(4,150)", r"(4,150^\circ)"),
        (r"(-4,150^{\circ})", "(-4, 150)"),
        ("(4,150°)", "(4,150)"),
    ],
    "Unicode": [
        ("β+1", r"\beta+1"),
        ("Δ", r"\Delta"),
        ("∛64", "4"),
        ("∜16", "2"),
        ("3√5", r"3\sqrt5"),
        ("x ⩽ 4", r"x \le 4"),
        ("xᵃ⁺ᵇ", "x^{a+b}"),
        ("aₖ", "a_k"),
        ("\u200e7\u200f", "7"),
        ("\u20667\u2069", "7"),
        ("𝑥 + 𝟐", "x + 2"),
        ("⌊y⌋", r"\lfloor y\rfloor"),
        ("ℝ∖{0}", r"\mathbb{R}\setminus\{0\}"),
        ("4∶9", "4:9"),
        ("7。", "7"),
        ("Ha\u0300 No\u0323\u0302i", "H\u00e0 N\u1ed9i"),
        ("\u1109\u1165\u110b\u116e\u11af", "\uc11c\uc6b8"),
        ("=\u03383", r"\ne 3"),
        (r"\varphi", r"\phi"),
    ],
    "per cent": [("35 pct", r"35\%"), (r"\text{35 pct}", "35"), ("35 pct", "0.35")],
    "repeating decimals": [
        (r"0.{\overline{3}}", "1/3"),
        (r"0.\overline{{3}}", "1/3"),
        (r"{0.\overline{3}}", "1/3"),
        (r"0{.}\overline{3}", "1/3"),
        (r"0,\overline{3}", "1/3"),
        (r"0.\bar 3", "1/3"),
        ("0.1(6) = 1/6", "1/6"),
        ("0.15(60) = 9", "9"),
        (r"1.05(200) = \$210", "210"),
    ],
    "numbers of other scripts": [
        ("७२", "72"),
        ("৭২", "72"),
        ("౭౨", "72"),
        ("๗๒", "72"),
        ("٧٢", "72"),
        ("７２", "72"),
        ("2.345,67", "2345.67"),
        ("2 345,67", "2345.67"),
        ("4、9", "4, 9"),
    ],
    "choices with their wording": [
        ("E: A polygenic trait", "E"),
        ("E - A polygenic trait", "E"),
        ("D) All of A, B and C", "D"),
        ("J. 15", "J"),
        ("C. Force F acts", "C"),
        ("C) vitamin D", "C"),
        ("A) both", "A"),
        ("A) both", "both"),
    ],
}
DIFFERENT = {
    "labelled parts": [
        ("(a) 4, (b) 9", "9, 4"),
        ("(a) 4, (b) 9", "(9, 4)"),
        ("(a) 4, (b) 9", "(a) 9, (b) 4"),
        ("(a) 4, (b) 9", "4"),
        ("(a) 4, (b) 9", "9"),
        ("(a) 4, (c) 9", "4, 9"),
        ("(a) x = 4, (b) y = 9", "x = 9, y = 4"),
        ("(1) 4, (2) 9", "9, 4"),
        ("(a) 4, (b) 9", "4, 9, 1"),
    ],
    "chains": [
        ("5", "6 = 5"),
        ("7 = 3a+b", "3a+b"),
        ("7 = 3a+b", "7"),
        ("4 + 5 = 8", "8"),
        ("10/3 = 3.4", "3.4"),
        ("x = 4 + 5 = 9", "x = 4"),
        ("a + b = 7", "7"),
    ],
    "glued words": [("x=3orx=7", "7"), ("x=3orx=7", "3"), ("x=3orx=7", "3, 8")],
    "leading conditions": [
        ("for all t, g(t) = 5t", "g(t) = 4t"),
        ("for t = 2, 5", "5"),
        ("if n is even, 2", "2"),
        ("if t > 3, 5", "5"),
        ("for t > 0, y = 5t", "y = 5t, t < 0"),
    ],
    "groups of names": [
        ("p = 5, q = 2; p = 7, q = 2", "(2, 5), (2, 7)"),
        ("p = 5, q = 2; p = 7, q = 2", "x = 5, y = 2; x = 7, y = 2"),
        ("p = 5, q = 2 or p = 7, q = 3", "(5, 3), (7, 2)"),
        ("p = 5, q = 2; p = 7, q = 2", "(5, 2)"),
    ],
    "signs in braces": [
        (r"\{-4, 2\pm\sqrt3\}", r"\{2-\sqrt3, -4\}"),
        (r"\{-4, 2\pm\sqrt3\}", r"\{4, 2\pm\sqrt3\}"),
        (r"\{\pm4\}", "4"),
    ],
    "dates": [
        ("2031-03-08", "2031-08-03"),
        ("2031-03-08", "2020"),
        ("2031-03-08", "on 2031-08-03"),
        ("03/08/2031", "06/16/2031"),
        ("3/8/2031", "8/3/2031"),
        ("2031/2/6", "2031/3/4"),
    ],
    "polar points": [
        ("(4,150)", "4150"),
        (r"(4,150^\circ)", r"(4,105^\circ)"),
        (r"4,150^\circ", "(4, 150)"),
        (r"(150,4^\circ)", "(4, 150)"),
    ],
    "Unicode": [
        ("β", r"\gamma"),
        ("∛64", "8"),
        ("x ⩽ 4", "x < 4"),
        ("xᵃ", "xa"),
        ("Δ", r"\delta"),
        ("⌊y⌋", r"\lceil y\rceil"),
        ("𝑥 + 𝟐", "x + 3"),
        ("Ha\u0300 No\u0323\u0302i", "Ha Noi"),
    ],
    "per cent": [("35 pct", r"36\%"), ("35 pct", "3.5")],
    "repeating decimals": [
        (r"0.{\overline{3}}", "0.3"),
        (r"0,\overline{3}", "0, 3"),
        (r"0.1\overline{3}", "1/3"),
        ("0.15(60) = 10", "10"),
        ("0." + 5000 * "1" + "(6) = " + 5000 * "7", "7"),
    ],
    "numbers of other scripts": [
        ("७२", "73"),
        ("2.345,67", "2.345"),
        ("2.345,67", "234567"),
        ("2.345,67", "2.345, 67.1"),
        ("4、9", "49"),
    ],
    "choices with their wording": [
        ("C) vitamin D", "D"),
        ("D) All of A, B and C", "C"),
        ("A) or B)", "B"),
        ("A) is wrong, B) is right", "A"),
        ("(A) then (B)", "A"),
        ("A) no, B", "A"),
        ("A. B", "A"),
        ("C - 14", "C"),
        ("B - x", "B"),
        ("E: A polygenic trait", "A"),
    ],
}


@pytest.mark.parametrize("kind", SAME)
def test_the_same(kind: str) -> None:
    assert both_ways(SAME[kind], are_same=True) == []


@pytest.mark.parametrize("kind", DIFFERENT)
def test_not_the_same(kind: str) -> None:
    assert both_ways(DIFFERENT[kind], are_same=False) == []


@pytest.mark.parametrize(
    "response",
    [
        *["Die Antwort lautet 72 Euro.", "Antwort: 72", "La respuesta es 72 dólares."],
        *["Respuesta: 72", "La réponse est 72.", "Réponse : 72 $", "Ответ: 72 доллара."],
        *["Ответ — 72", "答案是72美元。", "答案：72", "最终答案为 72。", "答えは72ドルです。"],
        *["答え: 72", "Jibu ni 72.", "Jibu: 72", "উত্তর হল 72", "উত্তর: ৭২", "సమాధానం: 72"],
        *["คำตอบคือ 72 ดอลลาร์", "คำตอบ: 72", "정답은 72입니다.", "답: 72", "A resposta é 72."],
        *[
            "La risposta è 72",
            "Đáp án là 72.",
            "الإجابة هي ٧٢",
            "सही उत्तर: ७२",
            "Jawabannya adalah 72",
        ],
    ],
)
def test_answers_in_other_languages(response: str) -> None:
    text = f"36 + 36 = 72, 5.\n{response}"
    assert equal_strict(extract_answer(text) or "", "72")
    assert not equal_strict(extract_answer(text) or "", "5")
    assert not equal_strict(extract_answer(text.replace("36 + 36 = 72, ", "")) or "", "73")


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("They line up in 5! ways.", "120"),
        ("There are 5! / 2! orders.", "60"),
        ("so $3 \\cdot 4 = 12$ it is", "12"),
        ("That costs 2.345,67 Euro.", "2345.67"),
        ("The rest - 48 dollars", "48"),
        ("It goes down to - 48", "-48"),
        ("The area is 49 pi square units.", r"49\pi"),
        ("The angle is pi/9 radians.", r"\frac{\pi}{9}"),
        ("With pi = 3.14 it is 43.96.", "43.96"),
    ],
)
def test_numbers_in_prose(response: str, answer: str) -> None:
    assert equal_strict(extract_answer(response) or "", answer)


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        ("They line up in 5! ways.", "5"),
        ("The area is 49pi.", "49"),
        ("It is $7 = 3a + b$", "3a + b"),
        ("The rest - 48 dollars", "-48"),
    ],
)
def test_numbers_in_prose_that_are_not_the_answer(response: str, gold: str) -> None:
    assert not equal_strict(extract_answer(response) or "", gold)


@pytest.mark.parametrize(
    "piece",
    [
        "(a) 1, ",
        "a) ",
        "1 = ",
        "for x, ",
        "1orx=",
        "p=1, q=2; ",
        r"\{\pm1, ",
        r".\overline{{",
        "1.234,",
    ],
)
def test_long_answers_come_to_an_end(piece: str) -> None:
    with bounded(piece):
        assert not equal_strict(piece * (15_000 // len(piece)) + "y", "6")
