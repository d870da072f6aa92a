"""Words in answers to the strict comparison: kind by kind, what is the same beside what is not."""

import pytest
from helpers.bounded import bounded

from vinejax.grading.strict import marks
from vinejax.grading.strict.compare import equal_strict, readable_strict

EQUAL, DIFFERENT = True, False

KINDS: dict[str, list[tuple[bool, str, str]]] = {
    "a label counts alone": [
        (EQUAL, "(B) 12", "B"),
        (EQUAL, "(B) 12", "12"),
        (EQUAL, r"\textbf{(B)}\ 12", "12"),
        (EQUAL, "B) 12", "(B)"),
        (EQUAL, "(B) blue", "blue"),
        (EQUAL, "(C) not enough information", "C"),
        (EQUAL, "(B) I and II", "B"),
        (EQUAL, r"\textbf{(A)}\ -1", "A"),
        (EQUAL, "(A), (C)", "(C), (A)"),
        (EQUAL, "(b)", "B"),
        (EQUAL, "option b", "B"),
        (EQUAL, r"\text{Choice b}", "(B)"),
        (EQUAL, "(B)", "b"),
        (EQUAL, r"\text{(b)}", "B) 12"),
        (DIFFERENT, "(b)", "A"),
        (DIFFERENT, "option b", "A"),
        (DIFFERENT, "b", "B"),  # a variable
        (DIFFERENT, "(x)", "X"),
        (DIFFERENT, "(B) 12", "(C) 12"),
        (DIFFERENT, "(B) 12", "(B) 13"),
        (DIFFERENT, "(A), (B), (C), (D), (E)", "A"),
        (DIFFERENT, "(A) or (B)", "(A)"),
        (DIFFERENT, "(A)(B)", "A"),
        (DIFFERENT, "A. B. C.", "A"),
        (DIFFERENT, "(A) 3 (B) 4", "A"),
        (DIFFERENT, r"\text{(A)}, \text{(B)}", "A"),
        (DIFFERENT, "(A) 12 or 13", "12"),
        (DIFFERENT, "(C) is not it", "C"),
        (DIFFERENT, r"(C) \text{ not } 5", "C"),
        (DIFFERENT, "A. wrong", "A"),
        *[(DIFFERENT, rf"\text{{(A)}}{more}", r"\text{(A)}") for more in ("+1", "-1", ",1", "^2")],
    ],
    "and, or": [
        (EQUAL, "x>1 or x<2", r"\mathbb R"),
        (EQUAL, "x>1 and x>3", "x>3"),
        (EQUAL, "x>1, x<2", "(1,2)"),
        (EQUAL, "x<1, x>2", r"x<1 \lor x>2"),
        (EQUAL, "x<1 or x>2 and x<3", r"(-\infty,1)\cup(2,3)"),
        (EQUAL, "x>a and x<b", "x<b and x>a"),
        (EQUAL, "x=1 or x=2", "x=1 and x=2"),
        (EQUAL, "x=1 and y=2 or x=3 and y=4", "(1,2), (3,4)"),
        (EQUAL, "100 and 200", "100,200"),
        (EQUAL, "1 hour and 30 minutes", "90 minutes"),
        (EQUAL, r"\frac{7}{8} \text{ or } 0.875", "7/8"),
        (EQUAL, "0.875, 7/8, or 87.5%", "0.875"),
        (DIFFERENT, "7/8 or 0.88", "7/8"),
        (DIFFERENT, "7/8 and 0.875", "7/8"),
        (DIFFERENT, "7 cm or 7 m", "7"),
        (DIFFERENT, "x=7 or y=7", "7"),
        (DIFFERENT, "x<1 and x>2", "x<1 or x>2"),
        (DIFFERENT, r"x<1 \land x>2", r"x<1 \lor x>2"),
        (DIFFERENT, "x>1 or x<2", "(1,2)"),
        (DIFFERENT, "x>1 and x>3", "x>1"),
        (DIFFERENT, "x<1 and x>2", r"(-\infty,1)\cup(2,\infty)"),
        (DIFFERENT, "x>a and x<b", "x>a or x<b"),
        (DIFFERENT, "x=1 or y=2", "(1,2)"),
        (DIFFERENT, "red and blue", "red or blue"),
        (DIFFERENT, r"p \land q", r"p \lor q"),
        (DIFFERENT, "(0,2) and (1,3)", "(0,3)"),
        (DIFFERENT, "1 hour or 30 minutes", "1.5 hours"),
        (EQUAL, r"\text{12 and 13}", "12, 13"),
        (EQUAL, r"\text{1,000 or -2,000}", "1000, -2000"),
        (EQUAL, r"\text{12 and }13", "12, 13"),
        (EQUAL, r"\text{12 apples and 13 pears}", "12, 13"),
        (EQUAL, r"\text{1 hour and 30 minutes}", "90 minutes"),
        (DIFFERENT, r"\text{12 and 13}", "12"),
        (DIFFERENT, r"\text{12 and 13}", "12, 14"),
        (EQUAL, r"x<2 \text{ or } x>3: (-\infty,2)\cup(3,\infty)", "x<2 or x>3"),
        (DIFFERENT, r"184 \text{ or } x<2: (-\infty,2)", r"(-\infty,2)"),
        (DIFFERENT, r"\{184, x<2: (-\infty,2)\}", "x<2"),
    ],
    "words of a formula": [
        (EQUAL, r"\triangle ABC", r"\triangle ABC"),
        (EQUAL, "5 apples", "5"),
        (EQUAL, "210 ways", "210 combinations"),
        *[(EQUAL, f"18 {noun}", "18") for noun in ("eggs", "cups", "cars", "kids", "fish", "ants")],
        (EQUAL, "3 sin x", r"3\sin x"),
        (EQUAL, "3 log 2", r"3\log 2"),
        (EQUAL, "2 xyz", "2zyx"),
        (EQUAL, "2abc", "2cba"),
        (DIFFERENT, "18 eggs", "19 eggs"),
        (EQUAL, "5 distinct real roots", "5 real roots"),
        (EQUAL, r"20\% increase", r"20\%"),
        (EQUAL, r"x\text{ dollars}", "x"),
        (EQUAL, "profit of 5", "5"),
        (EQUAL, "5 more apples", "5"),
        (EQUAL, "4 fewer", "4"),
        (EQUAL, "5 times", "5"),
        (EQUAL, r"3\text{ times as many}", "3"),
        (EQUAL, "5 feet tall", "5"),
        (EQUAL, "10 miles away", "10 miles"),
        (EQUAL, "3/4 of a mile", "3/4"),
        (EQUAL, r"\$10/hour", "10"),
        (EQUAL, r"\$2.50/\text{lb}", "2.50 dollars per pound"),
        (DIFFERENT, r"\$10/hour", "10 hours"),
        (DIFFERENT, r"\$10/2", "10"),
        (DIFFERENT, "5 more than x", "5"),
        (DIFFERENT, "5 less than 10", "5"),
        (DIFFERENT, "5 or more", "5"),
        (DIFFERENT, "5 times x", "5"),
        (DIFFERENT, "2 times the width", "2"),
        (DIFFERENT, "5 more apples", "5 fewer apples"),
        (DIFFERENT, "3/4 of a mile", "3/4 of a foot"),
        (DIFFERENT, r"\triangle ABC", r"\triangle DEF"),
        (DIFFERENT, r"\frac17\triangle ABC", r"\frac17\triangle DEF"),
        (DIFFERENT, r"n \text{ even}", r"n \text{ odd}"),
        (DIFFERENT, r"n \text{ even}", "n"),
        (DIFFERENT, r"20\% increase", r"20\% decrease"),
        (DIFFERENT, "5 miles north", "5 miles south"),
        (DIFFERENT, "loss of 5", "5"),
        (DIFFERENT, "down 5", "5"),
    ],
    "left-hand sides": [
        (EQUAL, "x=5", "5"),
        (EQUAL, "f(x)=2x", "2x"),
        (EQUAL, "f(x)=2x", "y=2x"),
        (EQUAL, r"\sin\theta=\frac12", r"\frac12"),
        (EQUAL, r"\sin x<\frac12", r"\frac12>\sin x"),
        (EQUAL, r"|x|<3", "-3<x<3"),
        (EQUAL, r"x=1, 2", "2, 1"),
        (EQUAL, r"x=1, 2", "x=2, x=1"),
        (EQUAL, "x=1, y=2", "1, 2"),
        (EQUAL, "(x,y)=(1,2)", "x=1, y=2"),
        (DIFFERENT, "x=5", "y=5"),
        (DIFFERENT, r"\sin(x)=a", r"\cos(x)=a"),
        (DIFFERENT, r"\sin(x)=1", r"\cos(x)=1"),
        (DIFFERENT, r"\sin\theta=\frac12", r"\cos\theta=\frac12"),
        (DIFFERENT, r"\sin x=1", "x=1"),
        (DIFFERENT, "|x|=5", "x=5"),
        (DIFFERENT, r"|x|\ne5", r"x\ne5"),
        (DIFFERENT, "1<|x|<3", "1<x<3"),
        (DIFFERENT, r"\sin x<1", r"\cos x<1"),
        (DIFFERENT, "f(2)=5", "f(3)=5"),
        (DIFFERENT, r"\angle ABC=30", r"\angle DEF=30"),
        (DIFFERENT, "x=1, y=2", "a=1, b=2"),
        (DIFFERENT, "(x,y)=(1,2)", "a=1, b=2"),
        (DIFFERENT, "x=1, 2", "y=1, 2"),
        (DIFFERENT, "x=1, 2", "y=1, y=2"),
    ],
    "items named by nouns": [
        (EQUAL, "5 rows and 3 columns", "3 columns and 5 rows"),
        (EQUAL, "5 boys, 3 girls", "5, 3"),
        (DIFFERENT, "5 rows and 3 columns", "3 rows and 5 columns"),
        (DIFFERENT, "5 boys, 3 girls", "3 boys, 5 girls"),
        (DIFFERENT, "5 kids, 3 cats", "3 kids, 5 cats"),
    ],
    "scales, parts and powers": [
        (EQUAL, "5 hundred", "500"),
        (EQUAL, r"2\text{ dozen}", "24"),
        (EQUAL, "two dozen", "24"),
        (EQUAL, r"3\text{ tenths}", "0.3"),
        (EQUAL, "3 quarters", "0.75"),
        (EQUAL, "7 quarters", "7"),  # coins
        (EQUAL, "5 squared", "25"),
        (EQUAL, "5 cm squared", r"5\text{ cm}^2"),
        (EQUAL, "5 factorial", "120"),
        (EQUAL, "10 ten-dollar bills", "10"),
        *[(DIFFERENT, f"5 {word}", "5") for word in ("hundred", "dozen", "score", "tenths")],
        *[
            (DIFFERENT, f"5 {word}", "5")
            for word in ("thousandths", "cubed", "factorial", "inverse")
        ],
        (DIFFERENT, "2 halves", "2"),
    ],
    "numbers in several words": [
        (EQUAL, "one hundred and five", "105"),
        (EQUAL, r"\text{Two Thousand and one}", "2001"),
        (EQUAL, "minus one hundred and five", "-105"),
        (EQUAL, "a hundred", "100"),
        (EQUAL, "a third", "1/3"),
        (EQUAL, "an eighth", "0.125"),
        (EQUAL, "three and a half", "3.5"),
        (EQUAL, "3 and three quarters", "15/4"),
        (EQUAL, "minus three and a half", "-7/2"),
        (EQUAL, "two thirds of the pie", "2/3"),
        (EQUAL, "half of the cake", "0.5"),
        (EQUAL, "a quarter of an hour", "1/4"),
        (EQUAL, "twenty and five", "5, 20"),
        (EQUAL, "2 and 1/2", "1/2, 2"),
        (DIFFERENT, "one hundred and five", "106"),
        (DIFFERENT, "twenty and five", "25"),
        (DIFFERENT, "three and four", "7"),
        (DIFFERENT, "2 and 1/2", "5/2"),
        (DIFFERENT, "a second", "2"),
        (DIFFERENT, "two thirds of x", "2/3"),
        (DIFFERENT, "half of 16", "0.5"),
        (DIFFERENT, "a cow and a half", "3/2"),
    ],
    "mixed numbers": [
        (EQUAL, "3 1/2 hours", "3.5"),
        (EQUAL, "-3 1/2 feet", "-3.5 feet"),
        (EQUAL, "2 1/2 pounds", "2.5 pounds"),
        (EQUAL, "profit of 3 1/2", "3.5"),
        (EQUAL, r"\$3 1/2", "3.5"),
        (DIFFERENT, "3 1/2", "1.5"),
        (DIFFERENT, "3 1/2 hours", "1.5"),
        (DIFFERENT, "3 1/2 hours", "3.5 minutes"),
    ],
    "money with a sign and a word": [
        (EQUAL, r"\$18 dollars", r"\$18"),
        (EQUAL, r"\$1{,}250\text{ dollars}", "1250 dollars"),
        (EQUAL, "€18 euros", "€18"),
        (EQUAL, r"\$1.50 dollars", "150 cents"),
        (DIFFERENT, r"\$18 dollars", "€18"),
        (DIFFERENT, r"\$18 cents", r"\$18"),
        (DIFFERENT, "€18 dollars", "€18"),
    ],
    "degrees and radians": [
        (EQUAL, r"45^{\degree}", r"45^\circ"),
        (EQUAL, r"\frac{45^°}{2}", "22.5"),
        (EQUAL, r"10^\degree, 50^{°}", r"50^\circ, 10^\circ"),
        (DIFFERENT, r"45^{\degree}", r"46^\circ"),
        (EQUAL, r"180^\circ", r"\pi\text{ radians}"),
        (EQUAL, "2 radians", "2"),
        (DIFFERENT, r"30^\circ", r"30\text{ radians}"),
        (DIFFERENT, "30 degrees", "30 radians"),
        (DIFFERENT, "5 radians", "5 cm"),
    ],
    "times of day": [
        (EQUAL, "5:30 P.M.", "17:30"),
        (EQUAL, "10:00 A.M.", "10:00 am"),
        (DIFFERENT, "5:30 P.M.", "5:30 A.M."),
        (DIFFERENT, "8:34 p.m.+1", "8:34 p.m."),
        (DIFFERENT, r"8:34\text{ p.m.}!", r"8:34\text{ p.m.}"),
    ],
    "units of one letter": [
        (EQUAL, r"5\text{m}", "5"),
        (EQUAL, r"5\,\mathrm{m}^2", "5"),
        (EQUAL, r"2\pi\,\mathrm{m}", r"2\pi"),
        (EQUAL, r"5\,\mathrm{N}", "5"),
        (EQUAL, r"5\text{m}", "500 cm"),
        (EQUAL, r"12\mathrm{V}", "12 V"),
        (EQUAL, r"9.8\,\mathrm{m}/\mathrm{s}^2", "9.8"),
        (EQUAL, "300 K", "300"),
        (EQUAL, "5 Hz", "5"),
        (EQUAL, r"5\,\mathrm{V}", "5 volts"),
        (EQUAL, "5 m", "5 meters"),
        (EQUAL, "5 m^2", r"5\text{ m}^2"),
        (EQUAL, "5 m²", "5 square metres"),
        (EQUAL, r"25\pi m^2", r"25\pi\,\mathrm{m}^2"),
        (EQUAL, "5 m^3", "5 cubic meters"),
        (EQUAL, "2 m^2", r"20000\text{ cm}^2"),
        (DIFFERENT, "5 m^2", "5 meters"),
        (DIFFERENT, "5 m", "5 square meters"),
        (DIFFERENT, "5 m^2", r"5\text{ m}^3"),
        (DIFFERENT, "3 x^2", r"3\text{ m}^2"),
        (DIFFERENT, r"5\,\mathrm{V}", r"5\,\mathrm{A}"),
        (DIFFERENT, r"5\text{m}", r"5\text{s}"),
        (DIFFERENT, "5m", "5"),  # a variable
        (DIFFERENT, r"1/2\,\mathrm{m}+1", "3/2"),
        (EQUAL, r"\text{5m}", "5"),
        (EQUAL, r"\mathbf{2k}", "2k"),
        (EQUAL, r"\mathbf{2m + 1}", "2m+1"),
        (EQUAL, r"\mathbf{4x^2\sqrt{3}}", r"4\sqrt3x^2"),
        (DIFFERENT, r"\mathbf{2k}", "2"),
        (DIFFERENT, r"\mathbf{2m+1}", "2"),
        (DIFFERENT, r"\mathrm{4x^2}", "4"),
        (DIFFERENT, "5 Hz", "5 s"),
    ],
    "nothing between": [
        (EQUAL, r"\text{ }5", "5"),
        (EQUAL, r"\text{~}5", "5"),
        (EQUAL, r"1,\text{ }2", "1,2"),
        (EQUAL, "{}5", "5"),
        (EQUAL, r"45{}^\circ", r"45^\circ"),
        (DIFFERENT, r"x^{}2", "x"),
        (DIFFERENT, "5{}6", "56"),
    ],
    "notations": [
        (EQUAL, "1 234.5", "1234.5"),
        (EQUAL, "1'234'567", "1234567"),
        (EQUAL, "1.234.567", "1234567"),
        (DIFFERENT, "1.234", "1234"),
        (DIFFERENT, "1'23", "123"),
        (EQUAL, "negative 5", "-5"),
        (EQUAL, r"\text{minus }\frac12", "-0.5"),
        (DIFFERENT, "negative 5", "5"),
        (EQUAL, r"x\approx5", "5"),
        (DIFFERENT, r"\pi\approx3.14", "3.14"),
        (EQUAL, "2(3)", "6"),
        (EQUAL, r"2(\frac34)", "1.5"),
        (DIFFERENT, r"2(\frac34)", r"2\frac34"),
        (EQUAL, "a:b=1:2", "1:2"),
        (DIFFERENT, "a:b=1:2", "2:1"),
        (EQUAL, "1011_{(2)}", "1011_2"),
        (EQUAL, r"1011_{\text{base }2}", "1011_2"),
        (DIFFERENT, "1011_{(2)}", "1011_3"),
        (EQUAL, "1112112", "1112112_3"),
        (EQUAL, "-221", "-221_3"),
        (EQUAL, "4776_{10}", "4776"),
        (EQUAL, "5, 6", "5_7, 6_7"),
        (DIFFERENT, "-221", "221_3"),
        (DIFFERENT, "4777_{10}", "4776"),
        (DIFFERENT, "5", "101_2"),
        (EQUAL, "2A_{16}", "2a_{16}"),
        (DIFFERENT, "2A_{16}", "2b_{16}"),
        (EQUAL, r"\mathbf i+2\mathbf j", r"\mathbf{i}+2\mathbf{j}"),
    ],
    "pairs": [
        (EQUAL, r"5\%, 5", "5, 0.05"),
        (EQUAL, "x+1, 2, 1/2", "0.5, 1+x, 2"),
        (DIFFERENT, r"\sqrt3, \sqrt3", r"\pm\sqrt3"),
        (DIFFERENT, r"5\%, 5\%", "5, 6"),
    ],
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_both_ways(kind: str) -> None:
    for expected, a, b in KINDS[kind]:
        assert equal_strict(a, b) == equal_strict(b, a) == expected, (a, b)


@pytest.mark.parametrize(
    "text", ["(A)", "B", "(B) 12", r"\textbf{(C)}\ \frac12", "C)", "5 boys, 3 girls"]
)
def test_a_gold_with_words_is_readable(text: str) -> None:
    assert readable_strict(text)


LISTED = {
    "the same text in another order": (r"\log x^\circ+{}\%", r"\log x^\circ+{}\%", 60, True),
    "other texts in another order": (r"\sin x+{}", r"{}+\sin x", 12, True),
    "no partners": (r"\log x^\circ+{}\%", r"\cos x^\circ+{}\%", 60, False),
}


@pytest.mark.parametrize("name", LISTED)
def test_long_lists_end(name: str) -> None:
    one, other, count, expected = LISTED[name]
    a = ",".join(one.replace("{}", str(i)) for i in range(count))
    b = ",".join(other.replace("{}", str(i)) for i in reversed(range(count)))
    with bounded(name):
        assert equal_strict(a, b) == equal_strict(b, a) == expected


@pytest.mark.parametrize("gap", [" ", "~", "\t \n", "{} ", "and ", r"\text{ }", marks.ALL])
def test_what_says_nothing_takes_no_time(gap: str) -> None:
    with bounded(gap):
        assert not equal_strict("5" + gap * (15_000 // len(gap)) + "x", "6")


def test_no_answer_holds_a_mark() -> None:
    matrix = r"\begin{pmatrix} 1 \end{pmatrix}"
    forged = f"{matrix} + {marks.MATRIX}5{marks.MATRIX_END}"
    assert not equal_strict(forged, r"\begin{pmatrix} 2 \end{pmatrix}")
