"""Reasoning steps of MATH-style responses: sentences, lines and the formulas inside them.

The rules are those of VinePPO's code (`src/treetune/tasks/math_extract_steps_inplace.py` of
McGill-NLP/VinePPO); citations such as (:21-67) give lines of that file. VinePPO's code replaces
each formula by a placeholder of 60 characters and splits the new text. Here a filler of the
formula's own length replaces the formula, and the filler counts as 60 characters.

The boundaries are those of VinePPO's code, with two exceptions. Where that code raises an error, a
response that is one short part is one step, a formula inside another is part of the outer formula,
and the text '' is one empty step. A LaTeX environment whose name has over 64 characters is no
formula here. The time is nearly linear in the length of any text.
"""

import bisect
import functools
import itertools
import re
from collections.abc import Callable

Span = tuple[int, int]

FILLER = "\0"  # matches no letter, space, sign or digit of the rules below
FORMULA = 60  # number of characters that a masked formula counts as
SHORT = 20  # length below which a part is joined to the next
LONG = 100  # length above which a part is broken
LANGUAGE_SIDE, MATH_SIDE = 40, 20  # minimum number of characters on either side of such a break
TAILS = (".$", ".$$", r".\)", r".\]")  # sentence ends with the period inside a formula

INLINE_OPEN = re.compile(r"(?<!\\)\$")
INLINE_CLOSE = re.compile(r"(?<!\\)\$(?!\$)")
# Lookaheads, because one environment's name can contain the beginning of another environment.
BEGIN = re.compile(r"\\begin\{(?=([^}]{0,64})\})")
END = re.compile(r"\\end\{(?=([^}]{0,64})\})")
NEWLINE = re.compile("\n")
# Does not match after 'A.M.', 'vertex A.', 'Dr.' or 'the US.'
SENTENCE_END = re.compile(r"(?<!\b[A-Za-z])(?<!\s[A-Za-z]{2})\.(?=\s+[A-Z])")
LONE_OPENER = re.compile(r"\s*(?:\$\$?|\\\(|\\\[|\\begin\{[^}]*\}|\[asy\])\s*")
INK = re.compile(r"\S")
# Patterns in order of preference; a break is at the end of group 1.
LANGUAGE_BREAKS = [re.compile(p) for p in (r"(,)", r"(\sand)\s", r"(:)", r"(\sto)\s")]
MATH_BREAKS = [
    re.compile(f"({re.escape(p)})")
    for p in (",$", r",\)", r",\]", "=", r"\equiv", "+", r"\cancelto")
]


def split_math(text: str) -> list[int]:
    """Increasing character boundaries [0, ..., len(text)] of a text's steps; [0, 0] for ''.

    Follows `split_solution_inplace`, lines 420-442 of VinePPO's file.
    """
    if not text:
        return [0, 0]
    masked, formulas = mask(text)
    ends = _sentences(masked, formulas)
    ends = _formula_periods(text, formulas, ends)
    ends = _formula_lines(text, formulas, ends)
    starts = [0, *ends[:-1]]
    return [0, *(c for a, b in zip(starts, ends, strict=True) for c in _break_long(text[a:b], a))]


# --- formulas


def mask(text: str) -> tuple[str, list[Span]]:
    """(the text with each character of a formula replaced by FILLER, the outermost formulas).

    The kinds of FORMULAS are searched in order, each in the text masked so far (:21-67). Unlike
    VinePPO's regular expressions, the search does not take quadratic time for unclosed brackets.
    """
    masked, spans = text, []
    for find in FORMULAS:
        new_spans = find(masked)
        spans += new_spans
        pieces, copied = [], 0
        for start, end in new_spans:
            pieces += [masked[copied:start], FILLER * (end - start)]
            copied = end
        masked = "".join(pieces) + masked[copied:]
    outer: list[Span] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        if not outer or start >= outer[-1][1]:
            outer.append((start, end))
    return masked, outer


def _between(opener: str, closer: str, masked: str) -> list[Span]:
    """Spans from every `opener` to the next `closer`, whatever lies between."""
    spans, start = [], masked.find(opener)
    while start >= 0 and (end := masked.find(closer, start + len(opener))) >= 0:
        end += len(closer)
        spans.append((start, end))
        start = masked.find(opener, end)
    return spans


def _inline(masked: str) -> list[Span]:
    r"""Non-empty spans $...$, where \$ is no delimiter.

    A row of several $ opens a span at its first $, and closes a span at its last.
    """
    spans, opener = [], INLINE_OPEN.search(masked)
    while opener and (closer := INLINE_CLOSE.search(masked, opener.start() + 2)):
        spans.append((opener.start(), closer.end()))
        opener = INLINE_OPEN.search(masked, closer.end())
    return spans


def _environments(masked: str) -> list[Span]:
    r"""Spans from every \begin{name} to the next \end{name} of the same name."""
    ends: dict[str, list[int]] = {}
    for match in END.finditer(masked):
        ends.setdefault(match[1], []).append(match.start())
    spans, last_end = [], 0
    for match in BEGIN.finditer(masked):
        start, name = match.start(), match[1]
        closers = ends.get(name, [])
        nearest = bisect.bisect_left(closers, start + len(rf"\begin{{{name}}}"))
        if start >= last_end and nearest < len(closers):
            last_end = closers[nearest] + len(rf"\end{{{name}}}")
            spans.append((start, last_end))
    return spans


FORMULAS: tuple[Callable[[str], list[Span]], ...] = (
    functools.partial(_between, "[asy]", "[/asy]"),
    functools.partial(_between, r"$\begin{tabular}", r"\end{tabular}$"),
    functools.partial(_between, r"\begin{tabular}", r"\end{tabular}"),
    functools.partial(_between, r"\(", r"\)"),
    functools.partial(_between, r"\[", r"\]"),
    functools.partial(_between, "$$", "$$"),
    _inline,
    _environments,
)


# --- parts: from here on `ends` has the ends of all parts, up to len(text)


def _join(ends: list[int], is_open: Callable[[int, int], bool]) -> list[int]:
    """The `ends` that remain after joining open parts to their neighbours.

    A part for which `is_open(start, end)` holds is joined to the next part. If the last part is
    open, it is joined to the part before it.
    """
    joined, start = [], 0
    for end in ends:
        if not is_open(start, end):
            joined.append(end)
            start = end
    if joined[-1:] != ends[-1:]:
        joined[-1:] = ends[-1:]
    return joined


def _sentences(masked: str, formulas: list[Span]) -> list[int]:
    """The ends of the parts of a text that is divided after sentences and before newlines.

    Follows :76-114. A short part without a formula and without a period at its end is joined to the
    next part.
    """
    cuts = {m.end() for m in SENTENCE_END.finditer(masked)}
    cuts |= {m.start() for m in NEWLINE.finditer(masked)} - {0}
    starts = [start for start, _ in formulas]

    def is_open(start: int, end: int) -> bool:
        if end == len(masked) or end - start >= SHORT or masked[end - 1] == ".":
            return False
        return bisect.bisect_left(starts, start) == bisect.bisect_left(starts, end)

    return _join([*sorted(cuts), len(masked)], is_open)


def _formula_periods(text: str, formulas: list[Span], ends: list[int]) -> list[int]:
    """Divides parts after each formula whose last character is a period (:117-162).

    `ends` are the ends of the given parts, and the result has the ends of the new parts. A short
    part that does not end with such a formula is joined to the next part.
    """
    cuts = {end for start, end in formulas if text.endswith(TAILS, start, end)}
    return _join(
        sorted(cuts.union(ends)),
        lambda start, end: end - start < SHORT and not text.endswith(TAILS, start, end),
    )


def _formula_lines(text: str, formulas: list[Span], ends: list[int]) -> list[int]:
    """Divides parts before each newline inside a formula (:165-220).

    `ends` are the ends of the given parts, and the result has the ends of the new parts. A part
    that is only the opening delimiter of a formula is joined to the next part. Of equal formulas in
    one part only the first is divided, as in VinePPO's code.
    """
    cuts, divided = set(ends), set()
    for start, end in formulas:
        formula = (bisect.bisect_right(ends, start), text[start:end])
        if formula not in divided:
            divided.add(formula)
            cuts.update(m.start() for m in NEWLINE.finditer(text, start, end))
    blank_until = 0  # end of the blank text after a lone opener, so that it is read only once

    def is_open(start: int, end: int) -> bool:
        nonlocal blank_until
        if end - start < 3 or end <= blank_until:
            return True
        if not LONE_OPENER.fullmatch(text, start, end):
            return False
        ink = INK.search(text, end)
        blank_until = ink.start() if ink else len(text)
        return True

    return _join(sorted(cuts), is_open)


# --- long parts


def _break_long(part: str, offset: int) -> list[int]:
    """Breaks a part into pieces, and returns the end of each piece plus `offset`.

    A piece is broken again while it is too long and has a place to break. After a break inside a
    formula, the rest of the piece is broken only at the matches of MATH_BREAKS. VinePPO's code
    (:330-417) stores the range of this rest as offsets in the piece, but compares it with offsets
    in the whole part. This function does so too, to give the same boundaries.
    """
    ends, math_start, math_end = [], len(part), 0
    pending = [(0, len(part))]
    while pending:
        start, end = pending.pop()
        piece, cut = part[start:end], None
        if len(piece) > LONG:
            if not math_start <= start < math_end:
                cut = _language_break(piece)
            if cut is None and (cut := _middle(piece, MATH_BREAKS, MATH_SIDE, lambda i: i)):
                math_start, math_end = min(math_start, cut), max(math_end, len(piece))
        if cut is None:
            ends.append(offset + end)
        else:
            pending += [(start + cut, end), (start, start + cut)]
    return ends


def _language_break(piece: str) -> int | None:
    """The index at which to break a long piece outside formulas (:223-290); None if there is none.

    Distances to the middle of the piece count every formula as FORMULA characters.
    """
    masked, formulas = mask(piece)
    ends = [end for _, end in formulas]
    growth = [FORMULA - (end - start) for start, end in formulas]
    shifts = list(itertools.accumulate(growth, initial=0))
    return _middle(
        masked,
        LANGUAGE_BREAKS,
        LANGUAGE_SIDE,
        lambda index: index + shifts[bisect.bisect_right(ends, index)],
    )


def _middle(
    piece: str, breaks: list[re.Pattern], side: int, measure: Callable[[int], int]
) -> int | None:
    """The index at which to break a piece near its middle; None if there is no such index.

    The patterns `breaks` are tried in order. Of a pattern's matches only the one nearest to the
    middle counts, the first in a tie. A break must leave at least `side` characters on both sides.
    `measure` maps an index to its distance from the start.
    """
    middle = measure(len(piece)) / 2
    for pattern in breaks:
        breaks_at = [match.end(1) for match in pattern.finditer(piece)]
        after = bisect.bisect_left(breaks_at, middle, key=measure)
        near = breaks_at[max(0, after - 1) : after + 1]
        if near:
            cut = min(near, key=lambda index: abs(measure(index) - middle))
            if side <= cut <= len(piece) - side:
                return cut
    return None
