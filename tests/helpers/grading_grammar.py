"""What the fuzzers of grading and splitting make texts of, and what they check of any text."""

import functools
from collections.abc import Callable
from typing import Any

from helpers.bounded import bounded
from vinejax.grading.extract import extract_answer, extract_reference
from vinejax.grading.reference.compare import (
    bare_answers,
    cheap_reference,
    equal_reference,
    readable_reference,
)
from vinejax.grading.strict.compare import cheap_strict, equal_strict, readable_strict
from vinejax.tasks.steps import STYLES, split_steps

LIMIT_S = 1.0  # of processor time, for one call

# Each "@" is a part made in the same way, one level down.
FORMS = [
    *[r"\frac{@}{@}", r"\sqrt{@}", r"\sqrt[@]{@}", "(@)", "[@,@)", r"\{@,@\}", "{@}", "|@|", "@^@"],
    *["@^{@}", "@_@", "@_{@}", "@+@", "@-@", r"@\cdot @", "@*@", "@/@", "@@", "@, @", "@;@", "@:@"],
    *["@=@", "@<@", r"@\le @", r"@ \in @", r"@\cup @", r"@\pm @", "@!", r"@\%", r"@^\circ", "-@"],
    *[r"\sin @", r"\log_@ @", r"\ln(@)", r"\cos^@ @", "e^{@}", r"\binom{@}{@}", r"\text{@}"],
    *[r"\left(@\right)", r"\begin{pmatrix}@&@\\@&@\end{pmatrix}", r"\overline{@}", r"@\text{ cm}"],
    *[r"\begin{cases}@\\@\end{cases}", r"\boxed{@}", "$@$", r"\[@\]", r"@ \text{ and } @"],
    *["x=@", "The answer is @.", r"Thus $\boxed{@}$.", "@. Then @\n@", "@\n#### @", "@ or @"],
    *[r"\mathbb{R}\setminus\{@\}", r"\lfloor @\rfloor", "(@,@)", "@ to @", r"\text{(@) }@"],
    *[r"\$@", "@,000", r"@\cap @", r"|x-@|<@", r"{@ \over @}", r"\max(@,@)"],
    *["(B) @", "A. @", r"@ \land @", "x<@ and x>@", "x>@ or x<@", "@(@)", r"@\text{m}"],
    *["negative @", "@ hundred", r"@\text{ tenths}", "@ squared", r"x\approx @", r"\text{ }@"],
    *["@ for all x", r"@, x \ne @", "@ where k>@", "the square root of @", "0.(@)", '["@", "@"]'],
    *[
        "@ is wrong",
        "anything but @",
        "2e-1+@",
        "x₁@",
        "@²",
        "<think>@</think>@",
        "<answer>@</answer>",
    ],
    *["@_{(2)}", "@ radians", "@ boys, @ girls", "loss of @", "{}@", "1'@", "@:@=@:@"],
]
PIECES = [
    *["0", "1", "2", "3", "7", "10", "12", "0.5", "1.25", "1,000", "99", "100", "-1", "3.14159265"],
    *["x", "y", "n", "a", "i", "e", r"\pi", r"\theta", r"\infty", r"\alpha", "A", "B", "AB"],
    *["even", "Evelyn", "no", "three", "third", "cm", "p.m.", "degrees", "percent", "million"],
    *["{", "}", "(", ")", "[", "]", "$", "\\", r"\\", "&", "_", "^", "%", "'", '"', ".", ",", " "],
    *[r"\left", r"\right", r"\begin{", r"\end{", r"\frac", r"\sqrt", r"\text{", r"\boxed", "####"],
    *["²", "½", "°", "−", "٣", "①", "é", "🎉", "\u202e", "\ue000", "\u2983", "\ud800", "\x00"],
    *["10^{10}", "9^9", "x^{99}", "1e9", "100!", r"\ldots", r"\not", r"\!", r"\,", "\t", "=="],
    *["f(x)", "and", "\n", "~", "Ⅷ", "<=>", "9!!!", "0.333...", "45^o", "8:05", "base 3", "5'10\""],
]


def timed(call: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call; raises TooSlow where it takes more than LIMIT_S, or does not end."""
    with bounded(f"{call.__name__}{arguments!r}", LIMIT_S):
        return call(*arguments)


@functools.cache
def warm_up() -> None:
    """Import what a comparison needs, as a worker does before its first pair."""
    equal_strict("\\frac{x}{2}", "0.5x")
    equal_reference(["\\frac{x}{2}"], ["0.5x"])


def check_text(text: str) -> None:
    """Extraction gives an answer that can be graded; steps lose nothing, in every style."""
    for style in ("math", "gsm8k"):
        answer = timed(extract_answer, text, style)
        assert answer is None or (isinstance(answer, str) and answer == answer.strip())
    assert all(isinstance(answer, str) for answer in timed(extract_reference, text, text))
    for style in STYLES:
        boundaries = timed(split_steps, text, style)
        assert boundaries[0] == 0 and boundaries[-1] == len(text) and len(boundaries) >= 2
        rising = all(a < b for a, b in zip(boundaries, boundaries[1:], strict=False))
        assert rising or boundaries == [0, 0] and not text


def check_strict(a: str, b: str) -> None:
    """A verdict, the same both ways; the cheap one agrees; what is readable equals itself."""
    warm_up()
    verdict = timed(equal_strict, a, b)
    assert verdict == timed(equal_strict, b, a)
    assert timed(cheap_strict, a, b) in (None, verdict)
    if timed(readable_strict, a):
        assert timed(equal_strict, a, a)


def check_reference(a: str, b: str) -> None:
    """A verdict, and the cheap one agrees."""
    warm_up()
    left, right = timed(bare_answers, a), timed(bare_answers, b)
    timed(readable_reference, a)
    verdict = timed(equal_reference, left, right)
    assert timed(cheap_reference, left, right) in (None, verdict)
