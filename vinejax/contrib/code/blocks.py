"""The fenced blocks of a response, as Markdown defines them and as models write them.

A block begins with a line of three or more backticks or tildes, perhaps followed by a label, and
ends with a line of at least as many. Models also open a block at the end of a line of text, end it
behind the last line of code, or open the next block without ending the one before.
"""

import ast
import re
import threading
import warnings
from typing import NamedTuple

from vinejax.contrib.code.integers import long_integers

Span = tuple[int, int]

LINE = re.compile(r"[^\n]*\n|[^\n]+\Z")
OPENING = re.compile(r"^(?P<blanks>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<label>[^`\n]*)$")
# In the middle of a line, only behind a blank, a colon or a tag, and with at most one word.
OPENING_IN_TEXT = re.compile(
    r"^(?P<blanks>)(?:(?!```).)*[\s:>](?P<fence>`{3,})(?P<label>[\w+#.-]*)[ \t]*$"
)
LABEL = re.compile(r"[ \t]*\{?[.=]?[A-Za-z][\w+#.-]*\}?[ \t]*")
PYTHON_LABEL = re.compile(r"[{.=\s]*(?:(?:i|c)?py(?:thon|py)?[\d.]*(?![\w+#-])|[\w/.-]+\.py\b)")
LONGEST_LABEL = 100  # characters of a label that are read
MOST_CLOSINGS = 5  # lines of a block in which a closing fence behind code is looked for
DEEPER = 3  # blanks by which a fence may be indented deeper than the fence that it ends
_parsing = threading.Lock()  # because `catch_warnings` changes the whole process


class FencedBlock(NamedTuple):
    """The spans of a fenced block with its fences (`outer`) and without its fences (`inner`).

    A span has indices of characters in the response.
    """

    outer: Span  # the block with its fences
    inner: Span  # the block without its fences
    label: str = ""  # the word behind the opening fence, such as 'python'
    blanks: int = 0  # number of blanks before the opening fence
    is_closed: bool = True  # False if the response ends within the block

    @property
    def is_python(self) -> bool:
        """Whether the label names Python, or is missing."""
        return not self.label or bool(PYTHON_LABEL.match(self.label[:LONGEST_LABEL].lower()))

    def code(self, text: str) -> str:
        """The contents of the block in the response `text`.

        In a list, a block and its fences are indented. The contents lose the indentation of the
        opening fence.
        """
        inner = text[slice(*self.inner)]
        return re.sub(rf"(?m)^[ \t]{{0,{self.blanks}}}", "", inner) if self.blanks else inner

    def shifted(self, by: int) -> "FencedBlock":
        """The same block of a text that has `by` more characters before it."""
        (a, b), (c, d) = self.outer, self.inner
        return self._replace(outer=(a + by, b + by), inner=(c + by, d + by))


class _Open(NamedTuple):
    """A block whose end is not yet known."""

    outer: int
    inner: int
    fence: str
    label: str
    blanks: int

    def ended(self, inner: int, outer: int, is_closed: bool = True) -> FencedBlock:
        spans = (self.outer, outer), (self.inner, inner)
        return FencedBlock(*spans, self.label, self.blanks, is_closed)


def fenced_blocks(text: str, begins_inside: bool = False) -> list[FencedBlock]:
    """The fenced blocks of a text, in order. The last block may lack its closing fence.

    If `begins_inside`, the text begins within a block that was opened before it.
    """
    blocks: list[FencedBlock] = []
    current = _Open(0, 0, "```", "", 0) if begins_inside else None
    start = closings = 0
    for line in LINE.findall(text):
        end = start + len(line)
        if current is None:
            current, closings = _opened(line.rstrip("\r\n"), start, end), 0
        elif (rest := _closing(line, current)) is not None:
            reopens = LABEL.fullmatch(rest)
            blocks.append(current.ended(start, start if reopens else end))
            current = _opened(line.rstrip("\r\n"), start, end) if reopens else None
            closings = 0
        elif closings < MOST_CLOSINGS and line.rstrip().endswith(current.fence):
            closings += 1
            if inner := _closing_in_line(text, line, start, current):
                blocks.append(current.ended(inner, end))
                current = None
        start = end
    if current is not None:
        blocks.append(current.ended(len(text), len(text), is_closed=False))
    return blocks


def _opened(line: str, start: int, end: int) -> _Open | None:
    """The block that a line opens, or None. The line is text[start:end]."""
    found = OPENING.match(line) or OPENING_IN_TEXT.match(line)
    if not found:
        return None
    outer = start if OPENING.match(line) else start + found.start("fence")
    return _Open(outer, end, found["fence"], found["label"].strip(), len(found["blanks"]))


def _closing(line: str, block: _Open) -> str | None:
    """What follows the closing fence of `block` in a line; None if the line has no such fence."""
    content = line.lstrip(" \t")
    marks = len(content) - len(content.lstrip(block.fence[0]))
    is_deep = len(line) - len(content) > block.blanks + DEEPER
    return None if is_deep or marks < len(block.fence) else content[marks:].strip("\r\n")


def _closing_in_line(text: str, line: str, start: int, block: _Open) -> int:
    """The index of the fence that ends a line; 0 if what is before it in the block is no Python."""
    inner = start + len(line.rstrip().rstrip(block.fence[0]))
    return inner if parsed(text[block.inner : inner]) is not None else 0


def parsed(code: str) -> ast.Module | None:
    """The syntax tree of Python code; None if it is no Python."""
    with _parsing, long_integers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as those about backslashes in texts
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
