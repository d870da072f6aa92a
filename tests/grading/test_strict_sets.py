"""The strict comparison of sets, progressions, determinants and numbers that nearly agree."""

import re

import pytest
from helpers import data
from helpers.answer_pairs import both_ways
from helpers.bounded import bounded

from vinejax.grading.strict.compare import equal_strict

VANDERMONDE = r"\begin{vmatrix}1&1&1\\a&b&c\\a^2&b^2&c^2\end{vmatrix}"
SQUARE = r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"

SAME = {
    "unions, intersections and differences": [
        (r"(0,2)\cap(1,3)\cup(5,6)", r"(1,2)\cup(5,6)"),
        (r"(5,6)\cup((0,2)\cap(1,3))", r"(1,2)\cup(5,6)"),
        (r"[1,4]\cap[2,6]\cap[3,9]", "[3,4]"),
        (r"(0,1)\cap(1,2)\cup\{1\}", r"\{1\}"),
        (r"\{1,2,3\}\cap\{2,3,4\}", r"\{2,3\}"),
        (r"\{1,2,3\}\setminus\{2\}", r"\{1,3\}"),
        (r"\mathbb{R}\setminus[0,1]", r"(-\infty,0)\cup(1,\infty)"),
        (r"\mathbb{R}\setminus(0,1)", r"(-\infty,0]\cup[1,\infty)"),
        (r"x\in\mathbb{R}\setminus[0,1]", r"x<0 \text{ or } x>1"),
        (r"[0,5]\setminus(1,2)", r"[0,1]\cup[2,5]"),
        (r"[0,5]\setminus\{9\}", "[0,5]"),
        (r"[0,5]\setminus\{2\}\cup\{7\}", r"[0,2)\cup(2,5]\cup\{7\}"),
        (r"\mathbb{R}\setminus\{0,1\}", r"x\ne0,1"),
        (r"x\ne0, x\ne1", r"x\ne0,1"),
        (r"x\ge2, x\ne5", r"[2,5)\cup(5,\infty)"),
        (r"x>5, x\ne3", "x>5"),
        ("x>1, x<2", "(1,2)"),
        (r"x\le1, x\ge1", "x=1"),
        (r"x=1 \text{ or } x>3", r"\{1\}\cup(3,\infty)"),
        ("x<1, x>2", r"(-\infty,1)\cup(2,\infty)"),
        (r"(-\infty,1),(2,\infty)", r"(-\infty,1)\cup(2,\infty)"),
    ],
    "determinants": [
        (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", "-2"),
        (rf"\det{SQUARE}", "-2"),
        (rf"2\det\left({SQUARE}\right)", "-4"),
        (rf"\left|{SQUARE}\right|", "-2"),
        (r"\left|\begin{array}{cc}1&2\\3&4\end{array}\right|", "-2"),
        (r"-\begin{vmatrix}1&2\\3&4\end{vmatrix}", "2"),
        (r"(1-3)\cdot\begin{vmatrix}1&2\\3&4\end{vmatrix}", "4"),
        (r"\begin{vmatrix}5\end{vmatrix}", "5"),
        (VANDERMONDE, "(b-a)(c-a)(c-b)"),
        (r"\begin{vmatrix}0&0&0&1\\0&2&0&0\\0&0&3&0\\4&0&0&0\end{vmatrix}", "-24"),
    ],
    "dots": [
        (r"\{1,2,\ldots,10\}", r"\{1,2,3,\dots,10\}"),
        (r"\{1,2,...,5\}", r"\{5,4,3,2,1\}"),
        (r"1,3,\ldots,9", "1,3,5,7,9"),
        (r"k\in\{0,\ldots,4\}", r"k\in\{0,1,2,3,4\}"),
        (r"1,2,4,\ldots,64", "1,2,4,8,16,32,64"),
        (r"\{\frac12,1,\ldots,2\}", r"\{\frac12,1,\frac32,2\}"),
        (r"(1,2,\ldots,5)", "(1,2,3,4,5)"),
        (r"\{1,2,\ldots\}", r"\{1,2,3,\ldots\}"),
        (r"1,2,\ldots,n", r"1,2,3,\ldots,n"),
        (r"\{1,2,\ldots,10^9\}", r"\{1,2,3,\ldots,10^9\}"),
        (r"\{1,2,\ldots,5\}\cup[7,8]", r"\{1,2,3,4,5\}\cup[7,8]"),
    ],
    "large and small numbers": [
        (r"2^{2013}\sqrt3", r"\sqrt3\cdot 4^{1006}\cdot2"),
        (r"\sin\pi", "0"),
        (r"\pi+\sin\pi", r"\pi"),
        (r"\pi+10^{-160}", r"10^{-160}+\pi"),
        (r"e^x+\sin^2x+\cos^2x-1", "e^x"),
        (r"2e^{100x}+e^{-x}", "e^{-x}+2e^{100x}"),
        (r"y=2e^x+10^{-70}", r"5y=10e^x+5\cdot10^{-70}"),
        (r"\tanh x", r"\frac{e^{2x}-1}{e^{2x}+1}"),
    ],
    "digits and commas": [
        ("100,200", "100, 200"),
        ("100,200", "200, 100"),
        ("45,135,225", r"45^\circ, 135^\circ, 225^\circ"),
        ("1,200, 300", "1200, 300"),
        ("$5$", "5"),
        (r"\left(5\right)", "5"),
        ("$1{,}234$", "1234"),
        ("3 1/2", "7/2"),
    ],
}

DIFFERENT = {
    "unions, intersections and differences": [
        (r"(0,2)\cap(1,3)\cup(5,6)", r"(0,3)\cup(5,6)"),
        (r"(5,6)\cup((0,2)\cap(1,3))", r"(0,3)\cup(5,6)"),
        (r"(0,1)\cap(1,2)\cup\{1\}", "(0,2)"),
        (r"(a,b)\cap(c,d)", r"(a,b)\cup(c,d)"),
        (r"\{1,2,3\}\cap\{2,3,4\}", r"\{1,2,3,4\}"),
        (r"\mathbb{R}\setminus(0,1)", r"(-\infty,0)\cup(1,\infty)"),
        (r"[0,1]\setminus[2,3]", "[0,1)"),
        (r"[0,5]\setminus\{9\}", r"[0,5]\setminus\{3\}"),
        (r"x>5, x\ne3", r"x\ne3"),
        ("x>1, x>3", "x>1"),
        (r"x=1 \text{ or } x>3", r"\{2\}\cup(3,\infty)"),
        (r"x=5\text{ cm or }x=5\text{ m}", r"x=5\text{ cm}"),
        ("(1,3),(2,4)", "(1,4)"),
        ("[1,2],[2,3]", "[1,3]"),
        (r"\{5\text{ cm},5\text{ m}\}", r"\{5\text{ cm}\}"),
    ],
    "determinants": [
        (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", "2"),
        (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", SQUARE),
        (r"\begin{Vmatrix}1&2\\3&4\end{Vmatrix}", "-2"),
        (r"\begin{vmatrix}1&2\end{vmatrix}", "1"),
        (r"1-3\begin{vmatrix}1&2\\3&4\end{vmatrix}", "4"),
        (VANDERMONDE, "(a-b)(c-a)(c-b)"),
    ],
    "matrices without cells": [
        (r"\begin{pmatrix}\end{pmatrix}", "(1,2)"),
        (r"\begin{bmatrix} \\ \end{bmatrix}", "(1,2)"),
        (r"\begin{vmatrix}\end{vmatrix}", "(1,2)"),
        (r"\begin{pmatrix}\end{pmatrix}", SQUARE),
    ],
    "dots": [
        (r"\{1,2,\ldots,10\}", r"\{1,2,3,\dots,11\}"),
        (r"\{1,2,\ldots,100\}", r"\{1,2,100\}"),
        (r"1,3,\ldots,9", "1,2,3,4,5,6,7,8,9"),
        (r"1,2,4,\ldots,64", r"1,2,\ldots,64"),
        (r"\{2,3,5,\ldots,97\}", r"\{2,3,4,\ldots,97\}"),
        (r"\{1,2,\ldots\}", r"\{1,3,\ldots\}"),
        (r"1,2,\ldots", "1,2"),
        (r"1,2,\ldots,n", r"1,2,\ldots,m"),
        (r"(1,2,\ldots,5)", "(5,4,3,2,1)"),
        (r"1,10^{500},10^{1000},\ldots,10^{4000000}", "1,2"),
    ],
    "large and small numbers": [
        ("e^x+10^{-70}", "e^x"),
        (r"\pi+10^{-160}", r"\pi"),
        (r"\sqrt2+10^{-200}", r"\sqrt2"),
        (r"\sqrt{2+10^{-160}}", r"\sqrt2"),
        (r"\cos(10^{-100})", "1"),
        (r"\sin(10^{-100})", "10^{-100}"),
        (r"\pi\tanh 300", r"\pi"),
        (r"\arctan(10^{200})", r"\frac{\pi}{2}"),
        (r"\lfloor4-\pi-10^{-200}+\pi\rfloor", "4"),
        (r"10^{300}\pi+1", r"10^{300}\pi"),
        (rf"1.{'0' * 200}1\pi", r"\pi"),
        (r"y=e^x+10^{-70}", "y=e^x"),
        ("xe^{-200}", "0"),
        (r"\pi+10^{-5000}", r"\pi"),
        ("|x-10^{5000}|<1", "|x-10^{5000}|<2"),
    ],
    "digits and commas": [
        ("1,000", "1, 0"),
        ("1,000", "1,00"),
        ("12,050", "12, 50"),
        ("1,000, 2,000", "1,0,2,0"),
        ("x=1,234", "x=1, x=234"),
        ("$5$ $6$", "56"),
        ("5$6$", "56"),
        ("$5$$6$", "56"),
        ("$1$,$234$", "1234"),
    ],
}


@pytest.mark.parametrize("kind", SAME)
def test_the_same(kind: str) -> None:
    assert both_ways(SAME[kind], are_same=True) == []


@pytest.mark.parametrize("kind", DIFFERENT)
def test_not_the_same(kind: str) -> None:
    assert both_ways(DIFFERENT[kind], are_same=False) == []


def test_no_union_of_a_gold_may_become_an_intersection() -> None:
    golds = set()
    for name in ("answer_forms", "near_miss_negatives", "grader_cases"):
        golds |= {row["gold"] for row in data.rows(f"grading/{name}")}
    pairs = [
        (gold[: at.start()] + r"\cap" + gold[at.end() :], gold)
        for gold in golds
        for at in re.finditer(r"\\cup(?![a-z])", gold)
    ]
    assert len(pairs) > 30
    assert [pair for pair in pairs if equal_strict(*pair)] == []


@pytest.mark.parametrize(
    "terms",
    [
        [rf"\sin(10^{{-{i + 200}}}x)" for i in range(60)],
        [rf"\ln({i + 2}+10^{{-1000}}x)x^{{\pi}}" for i in range(60)],
        [rf"\sin(\sqrt{{{i + 2}}}+10^{{-1900}})" for i in range(100)],
    ],
)
def test_more_digits_come_to_an_end(terms: list[str]) -> None:
    with bounded(terms[0]):
        assert not equal_strict("+".join(terms), "+".join([*terms, "10^{-4000}"]))
