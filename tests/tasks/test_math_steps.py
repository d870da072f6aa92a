"""The MATH splitter: the reference's cases, each rule, and bounded time for any text."""

import json
from typing import Any

import pytest
from helpers import data
from helpers.bounded import bounded
from helpers.tokenizer_cases import NAMES, load
from hypothesis import given, settings
from hypothesis import strategies as st

from vinejax.tasks.math_steps import FILLER, mask, split_math
from vinejax.tasks.prompts import encode_prompt, encode_response
from vinejax.tasks.steps import split_steps, step_ends

PIECES = (
    r"$ $$ \$ \( \) \[ \] \begin{a} \end{a} \begin{tabular} \end{tabular} [asy] [/asy] x=1 + , : ."
    r" \equiv .$ A. Dr. \\ seven é \cancelto ,$ and to"
).split() + ["\n", ". The", " and ", ". A", "a long run of small words that goes on ", " ", "\t"]
any_text = st.text() | st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


def steps_of(text: str) -> list[str]:
    boundaries = split_math(text)
    return [text[a:b] for a, b in zip(boundaries, boundaries[1:], strict=False)]


# --- the reference's boundaries


def test_boundaries_are_the_reference_ones_on_its_cases():
    cases = json.loads(data.path("grading/vineppo_splitter_cases.json").read_text(encoding="utf-8"))
    cases = [c for c in cases if c["name"][0] in "MR"]
    kept = {c["name"]: c["indices"] for c in cases if c["input"] and c["indices"] is not None}
    assert len(cases) == 32 and len(kept) == 29
    assert {c["name"]: split_math(c["input"]) for c in cases if c["name"] in kept} == kept
    raising = [c["input"] for c in cases if c["indices"] is None]
    assert [split_math(text) for text in raising] == [[0, len(text)] for text in raising]


# A separate implementation, which replaces formulas by text of 60 characters as the reference does,
# computed these steps. It also agreed with ours on 200,000 random texts.
@pytest.mark.parametrize(
    "steps",
    [
        [
            "\nTwenty people sit at the table, four of them from the U.K. Each of the others "
            "shakes hands once,",
            r" so $\binom{16}{2}=120$ handshakes happen.",
            r" The answer is $\boxed{120}$.",
        ],
        [  # a comma inside a formula counts in the math pass, not in the language pass
            "\n" r"By Vieta, the sum of the roots is $-\frac{b}{a}=-\frac{-7}{1}=7,$ and",
            r" their product is $\frac{c}{a}=\frac{12}{1}=12,$",
            r" so that the sum of their squares is $7^2-2\cdot12=49-24=\boxed{25}.$",
        ],
        [  # no '=', and '\equiv' comes before '+'; commas of the text after it do not count
            "\nWe see that $$1+2+3+4+5+6+7+8+9+10+11+12+13+14+15+16+17+18+19+20+",
            r"21+22+23+24+25+26+27+28+29+30+31+32+33+34+35+36+37+38+39+40 \equiv",
            r" 820 \equiv 0 \pmod{4}.$$",
            " Done, with no remainder.",
        ],
        [
            "\n" r"First note that $\begin{tabular}{c|c}",
            "\n" r" & a \\",
            "\n" r"\hline",
            "\nb & c",
            "\n" r"\end{tabular}$ is a table with no entry that is a number.",
            "\n" r"Next it is filled in by rows: $\boxed{4}$.",
        ],
        [
            "\nThe fraction is\n"
            r"\[\frac{\cancelto{1}{6}\cdot\cancelto{2}{14}\cdot\cancelto",
            r"{3}{27}\cdot x\cdot y\cdot z\cdot w\cdot\cancelto",
            r"{5}{25}}{\cancelto{1}{7}\cdot\cancelto{1}{3}}\]" "\nwhich is seven.",
        ],
        [  # neither an escaped dollar nor a lone one opens a formula
            "\n" r"It costs \$5 and $x, and \$6.",
            "\nThe total of these is $11 and no more than that. Really.",
        ],
        [
            "\n" r"\begin{align*}" "\n" r"a&=b\\",
            "\n" r"\end{align}",
            "\n c&=d. Now this is",
            "\n" r"\end{align*} the end of a mismatched environment.",
        ],
        [
            "\n$$\n$$ empty display.",
            " Then comes text that goes on for a little while longer.\n" r"\[",
            "\nx\n" r"\]" "\n",
        ],
        [
            "\n$a,b,c,d$, and then the numbers $e$, $f$ and",
            " $g$ in this order to the very end of the longest list:",
            " it has $h$ as its last member and so we stop.",
        ],
        [
            "\nSet A. B is next. Is it? Yes.",
            " No. It ends x.\n Y. The end of this one is near.",
            "  Next one here, indented. 5 apples.",
        ],
        [
            "\n[asy]\nsize(100); draw((0,0)--(3,0)--(3,4)--cycle); " r'label("$A$",(0,0),',
            r'SW); label("$B$",(3,0),SE); label("$C$",(3,4),NE);',
            "\n[/asy]",
            "\n" r"By Pythagoras the hypotenuse is $\sqrt{3^2+4^2}=\boxed{5}.$",
        ],
        [
            "\n" r"\begin{gather*}" "\n\n" r"x=1 \\",
            "\n\ny=2",
            "\n" r"\end{gather*}",
            "\nSo we find that $x+y=3$.\n",
        ],
        ["\nThen $n=1.$", " Also $m=2.$", r" Finally $\boxed{3}.$" "\n"],
        [
            "\nAdding the equations gives $(a+b+c)+(a-b+c)+(a+b-c)+(a-b-c)+(2a+2b+2c)+"
            "(2a-2b+2c)=12+8+4+0+24+16$,",
            " so $8a+2b+6c=64$ and we get $4a+b+3c=32$ to be used below.",
        ],
    ],
)
def test_steps_of_whole_solutions(steps: list[str]):
    assert steps_of("".join(steps)) == steps


# --- thresholds, each from both sides


@pytest.mark.parametrize(
    "text, boundaries",
    [
        ("a" * 39 + "," + "b" * 60, [0, 100]),  # at the limit of length
        ("a" * 39 + "," + "b" * 61, [0, 40, 101]),
        ("a" * 38 + "," + "b" * 62, [0, 101]),  # 39 on the left
        ("a" * 61 + "," + "b" * 39, [0, 101]),  # 39 on the right
        ("a" * 49 + ",x," + "b" * 50, [0, 50, 102]),  # equally near: the earlier
        ("a" * 50 + ",x" + "b" * 10 + "," + "c" * 60, [0, 63, 123]),  # the later is nearer
        ("a" * 50 + " and" + " b" * 4 + ":" + "c" * 50, [0, 54, 113]),  # 'and' goes before ':'
        ("a" * 50 + ":" + "c" * 4 + " to " + "b" * 50, [0, 51, 109]),  # ':' goes before 'to'
        ("a" * 10 + "," + "b" * 50 + " to " + "c" * 50, [0, 64, 115]),  # a comma too near the end
        ("a" * 45 + " and and " + "b" * 60, [0, 49, 114]),  # occurrences do not overlap
        ("a" * 19 + "=" + "b" * 81, [0, 20, 101]),
        ("a" * 18 + "=" + "b" * 82, [0, 101]),
        ("a" * 40 + "=" + "b" * 30 + ",$" + "c" * 30, [0, 73, 103]),  # ',$' goes before '='
        # A formula counts as 60 characters. Otherwise the second comma were nearer to the middle.
        ("$x$" + "a" * 47 + "," + "b" * 30 + "," + "c" * 60, [0, 51, 142]),
        ("a" * 46 + "," + "b" * 30 + "," + "c" * 60, [0, 78, 138]),
        ("a" * 18 + "\n" + "b" * 30, [0, 49]),  # 18 characters without a full stop
        ("a" * 20 + "\n" + "b" * 30, [0, 20, 51]),
        ("a" * 30 + "\n" + "b" * 18, [0, 49]),
        ("a" * 30 + "\n" + "b" * 19, [0, 30, 50]),
        ("$a.$" + "b" * 19, [0, 23]),
        ("$a.$" + "b" * 20, [0, 4, 24]),
        ("a" * 15 + ".\n" + "b" * 30, [0, 47]),
        (r"\[a.\]" + "b" * 20, [0, 6, 26]),
        (r"\(a.\)" + "b" * 20, [0, 6, 26]),
        ("$$a.$$" + "b" * 20, [0, 6, 26]),
        ("$.$.$\n", [0, 3, 6]),  # text that looks like the end of a formula
        (r".$+.$$\begin{tabular}\end{tabular}$", [0, 5, 35]),  # the dollar belongs to the table
        # The middle break leaves a comma on each side. The left part is broken at '=', the right
        # part at the comma, because the range of breaks in formulas ends with the left part.
        ("a" * 60 + "=" + "b" * 50 + "," + "c" * 60 + "," + "d" * 60, [0, 61, 112, 173, 233]),
        # After a break in a formula a comma does not count. Far enough into the part it does,
        # because the range is stored relative to the broken piece.
        ("a" * 60 + ",$" + "b" * 60 + "=" + "c" * 50 + ", " + "d" * 60 + "$", [0, 61, 123, 236]),
        (
            "a" * 250 + ",$" + "b" * 60 + "=" + "c" * 60 + ", " + "d" * 60 + "$",
            [0, 251, 313, 374, 436],
        ),
    ],
)
def test_thresholds(text: str, boundaries: list[int]):
    assert split_math(text) == boundaries


@pytest.mark.parametrize(
    "before, is_end",
    [("six", True), ("is", False), ("a is", False), ("U.S", False), ("x-y", False), ("é", True),
     ("12", True), ("is7", True), ("(b", False)],
)  # fmt: skip
def test_what_ends_a_sentence(before: str, is_end: bool):
    text = f"This is the sentence of {before}. Another one comes after it."
    assert (len(split_math(text)) == 3) == is_end


# --- formulas


@pytest.mark.parametrize(
    "text, formulas",
    [
        ("a $x$ b $$y$$ c", ["$x$", "$$y$$"]),
        (r"\(a\) \[b\] \(c", [r"\(a\)", r"\[b\]"]),
        (r"\$5 $x\$y$ $", [r"$x\$y$"]),
        ("$$", []),
        ("$$$", ["$$$"]),
        ("$x$$", ["$x$$"]),
        ("$a$$b$", ["$a$$"]),
        (r"\begin{a}\begin{b}\end{a}\end{b}", [r"\begin{a}\begin{b}\end{a}"]),
        (r"\begin{a}\begin{b}\end{b}", [r"\begin{b}\end{b}"]),
        (r"\end{a}\begin{a}\begin{a}\end{a}\end{a}", [r"\begin{a}\begin{a}\end{a}"]),
        (r"\begin{\begin{a}\end{a}", [r"\begin{a}\end{a}"]),
        (r"\begin{a}$x$ and \(y\)\end{a}", [r"\begin{a}$x$ and \(y\)\end{a}"]),
        (r"[asy] $ [/asy] $x$", ["[asy] $ [/asy]", "$x$"]),
        (r"$[asy]x[/asy]$[asy]", ["$[asy]x[/asy]$"]),
        (r"$\begin{tabular} $x$ \end{tabular}$", [r"$\begin{tabular} $x$ \end{tabular}$"]),
    ],
)
def test_formulas_by_hand(text: str, formulas: list[str]):
    masked, spans = mask(text)
    assert [text[a:b] for a, b in spans] == formulas
    assert len(masked) == len(text)
    for i, (hidden, shown) in enumerate(zip(masked, text, strict=True)):
        assert hidden == (FILLER if any(a <= i < b for a, b in spans) else shown)


def test_a_formula_inside_another_is_one_formula():
    """The reference raises in this case, and loses the response."""
    text = (
        "\nWe solve the system\n\\begin{align*}\nx&=1 \\text{ if $y=2$}\n\\end{align*}\nand go on."
    )
    assert steps_of(text) == [
        "\nWe solve the system",
        "\n\\begin{align*}\nx&=1 \\text{ if $y=2$}",
        "\n\\end{align*}\nand go on.",
    ]


# --- any text


@settings(max_examples=400, deadline=None)
@given(text=any_text)
def test_any_text_is_split_without_loss(text: str):
    boundaries = split_math(text)
    if text:
        assert boundaries[0] == 0 and boundaries[-1] == len(text)
        assert all(a < b for a, b in zip(boundaries, boundaries[1:], strict=False))
    else:
        assert boundaries == [0, 0]


@pytest.mark.parametrize("text", ["\n", "5", "\nSo $5$.", " \n\n ", "$", "\nabc.\ndef.", "[asy]"])
def test_a_short_response_is_one_step(text: str):
    assert split_math(text) == [0, len(text)]


SIZE = 100_000
UNITS = [
    "$", "$x", "$x$", "$,$", r"\$", r"\(", r"\[", "[asy]", r"\begin{", r"\begin{a}", r"\end{",
    r"\begin{\begin{", r"\begin{tabular}", r"\begin{a}x\end{b}", "$\\begin{tabular}", "\n", ". ",
    ". A", ",", ":", "=", " and ", ", = and to : +", "$\n", "$$\n$$", "\\begin{a}\n", "a", "\0",
]  # fmt: skip
HOSTILE = {unit: (unit * SIZE)[:SIZE] for unit in UNITS} | {
    "blank lines after an opener": r"\begin{" + "a" * 50_000 + "}" + "\n" * 50_000,
    "blank lines in a formula": "$a" + "\n" * SIZE + "$",
    "blank lines in a display": r"\begin{a}" + "\n" * SIZE + r"\end{a}",
    "blanks after a period": "." + " " * SIZE,
    "names that never close": "".join(rf"\begin{{{i}}}" for i in range(8_000)),
    "names that close in the same order": "".join(
        rf"\{side}{{{i}}}" for side in ("begin", "end") for i in range(4_000)
    ),
    "breaks at both ends only": ("=" + "x" * 45) * 400 + "y" * 60_000 + ("=" + "x" * 45) * 400,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_take_no_longer(name: str):
    with bounded(name):
        boundaries = split_math(HOSTILE[name])
    assert boundaries[-1] == len(HOSTILE[name])


# --- tokens


@pytest.mark.parametrize("name", NAMES)
def test_steps_end_with_the_token_that_reaches_their_end(name: str):
    tokenizer: Any = load(name)
    prompt = encode_prompt(tokenizer, "[MATH_TASK] Problem:\nHow many?\n\nSolution:", False)
    text = (
        "\nThe sum of the angles 🎉 is $a+b=180.$ Dividing by two gives\n"
        "\\[\nx = \\frac{180}{2}\n\\]\nwhich is a right angle. The answer is $\\boxed{90}$."
    )
    boundaries = split_steps(text)
    assert len(boundaries) == 7
    response = encode_response(tokenizer, text)
    ends = step_ends(tokenizer, prompt, response, boundaries, text)
    assert len(ends) == 6 and ends[-1] == len(response)

    def so_far(count: int) -> str:
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        before = len(tokenizer.decode(prompt, **options))
        return tokenizer.decode(prompt + response[:count], **options)[before:]

    for end, boundary in zip(ends[:-1], boundaries[1:-1], strict=True):
        assert so_far(end).startswith(text[:boundary])
        assert not so_far(end - 1).startswith(text[:boundary])
