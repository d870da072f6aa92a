"""Reads matrices, and their sums, products and multiples. Determinants become formulas."""

import re
from collections.abc import Callable

from vinejax.grading.strict import latex
from vinejax.grading.strict.algebra.syntax_trees import Product, Sum, Tree, number
from vinejax.grading.strict.answers.nodes import Collection, Formula, Matrix, Node, open_lists
from vinejax.grading.strict.marks import CLOSE, MATRIX, MATRIX_END, OPEN, ROW

MAX_CELLS = 3000
MAX_MATRICES = 8  # matrices in one expression
MAX_PRODUCT = 36  # cells of a matrix that is multiplied
MAX_ORDER = 4  # rows of a determinant that is expanded

Read = Callable[[str, int], Node]
Grid = tuple[tuple[Node, ...], ...]

_MATRIX = re.compile(
    r"(?s)(.*?)[(\[]?\s*(\|?)\s*\\begin\s*\{([pbvVB]?(?:small)?matrix|array|cases)\*?\}\s*(.*)"
    r"\\end\s*\{\3\*?\}\s*\|?\s*[)\]]?"
)
_DET = re.compile(rf"(.*?)(?:\\det|{OPEN}det{CLOSE}|\bdet)\s*", re.DOTALL)
_TIMES = re.compile(r"(?:\\cdot|\\times|\*)\s*$")
_GROUP, _SUM = re.compile(r"\([^()]*\)|\{[^{}]*\}"), re.compile(r"(?<=.)[-+]")
_ONE = re.compile(r"\\begin\s*\{(\w+)\*?\}(?:(?!\\begin|\\end).)*\\end\s*\{\1\*?\}", re.DOTALL)
_ARRAY_SPEC = re.compile(r"^\s*(?:\[\w\])?\{[lcr|@{}\s]*\}")
_ROW, _CELL = re.compile(ROW), re.compile("&")
# In an expression a matrix is replaced by its number between two marks; ^T may follow.
_MARK = MATRIX + "{}" + MATRIX_END
_POWER = r"(?:\s*\^\s*(?:T|\\top|\{\s*(?:T|\\top|\\mathbb:T)\s*\}))"
_FACTOR = re.compile(
    rf"\s*[(\[]?\s*{MATRIX}(\d+){MATRIX_END}\s*[)\]]?({_POWER})?\s*(?:\\cdot|\\times|\*)?"
)
_TERM = re.compile(
    rf"\s*([-+]?)\s*((?:[^-+{MATRIX}{MATRIX_END}]|\([^(){MATRIX}]*\))*?)\s*(?=[(\[]?\s*{MATRIX})"
)


def read_matrix(s: str, depth: int, read: Read) -> Node | None:
    """Reads a matrix, a determinant (as a formula) or `cases` (as a list); None for other texts.

    A matrix without cells is no matrix. `read` reads the text of a cell, whose depth of nesting is
    `depth`.
    """
    if "\\begin" not in s:
        return None
    match = _MATRIX.fullmatch(s)
    factor, bar, kind, body = match.groups() if match else ("", "", "", "")
    if not match or "\\begin" in factor + body:
        return _expression(s, depth, read) if len(s) < 5000 else None
    body = _ARRAY_SPEC.sub("", body, count=1) if kind == "array" else body
    rows = [r for r in latex.split_outside_brackets(body, _ROW)[0] if r.strip()]
    cells = [[c.strip() for c in latex.split_outside_brackets(r, _CELL)[0]] for r in rows]
    if not 0 < sum(map(len, cells)) <= MAX_CELLS:
        return None
    if kind == "cases":
        return Collection(s, "list", open_lists([read(" ".join(c), depth) for c in cells]))
    named = _DET.fullmatch(factor)
    factor = _TIMES.sub("", named[1] if named else factor).strip()
    factor = "-1" if factor == "-" else factor
    is_matrix = not (named or bar or kind[0] in "vV")
    if factor and is_matrix:
        cells = [[f"({factor})*({c})" for c in row] for row in cells]
    grid = tuple(tuple(read(c, depth) for c in row) for row in cells)
    if not is_matrix:
        value = None if kind[0] == "V" else _determinant(grid, read(factor or "1", depth))
        if value is not None and not _SUM.search(_GROUP.sub("", factor)):
            return Formula(s, value)
        return None if named or factor else Matrix(s, grid, bars=True)
    return Matrix(s, grid)


def _determinant(grid: Grid, factor: Node) -> Tree | None:
    """`factor` times the determinant of a small grid of formulas; None for any other grid."""
    cells = _formulas(Matrix("", grid))
    if not cells or len(cells) != len(cells[0]) or len(cells) > MAX_ORDER:
        return None
    return Product((factor.tree, _expanded(cells))) if isinstance(factor, Formula) else None


def _expanded(cells: "Cells") -> Tree:
    """The determinant, by expansion along the first row; 1 for a matrix without rows."""
    if not cells:
        return number(1)
    first, *below = cells
    minors = [_expanded([row[:i] + row[i + 1 :] for row in below]) for i in range(len(first))]
    return Sum(tuple(Product((number((-1) ** i), first[i], m)) for i, m in enumerate(minors)))


def _expression(s: str, depth: int, read: Read) -> Node | None:
    """The matrix that an expression such as `2A + B C^T` stands for; None for other texts."""
    matrices = list(_ONE.finditer(s))
    if not 1 <= len(matrices) <= MAX_MATRICES:
        return None
    grids = [_formulas(read_matrix(m.group(), depth, read)) for m in matrices]
    marked, at = "", 0
    for i, match in enumerate(matrices):
        marked += s[at : match.start()] + _MARK.format(i)
        at = match.end()
    marked = (marked + s[at:]).strip()
    total, at = None, 0
    while at < len(marked):
        term = _TERM.match(marked, at)
        if not term or (at and not term.group(1)):
            return None
        grid, at = _product(marked, term.end(), grids)
        scale = read(term.group(2), depth) if term.group(2).strip() else Formula("", number(1))
        if grid is None or not isinstance(scale, Formula):
            return None
        sign = number(-1 if term.group(1) == "-" else 1)
        scaled: Cells = [[Product((sign, scale.tree, cell)) for cell in row] for row in grid]
        if total is None:
            total = scaled
        elif (len(total), len(total[0])) != (len(scaled), len(scaled[0])):
            return None
        else:
            pairs = zip(total, scaled, strict=True)
            total = [[Sum(pair) for pair in zip(*rows, strict=True)] for rows in pairs]
    if total is None:
        return None
    return Matrix(s, tuple(tuple(Formula("", cell) for cell in row) for row in total))


Cells = list[list[Tree]]


def _formulas(node: Node | None) -> Cells | None:
    if not isinstance(node, Matrix) or node.bars or len({len(row) for row in node.rows}) != 1:
        return None
    cells = [[c.tree for c in row if isinstance(c, Formula)] for row in node.rows]
    return cells if list(map(len, cells)) == list(map(len, node.rows)) else None


def _product(s: str, at: int, grids: list[Cells | None]) -> tuple[Cells | None, int]:
    """The product of the adjacent matrices from `s[at]` on, and the index in `s` behind them.

    In `s` each matrix is written as a mark with its index in `grids`. The product is None if it
    does not exist or is too large.
    """
    result: Cells | None = None
    while factor := _FACTOR.match(s, at):
        grid, at = grids[int(factor.group(1))], factor.end()
        if grid is not None and factor.group(2):
            grid = [list(column) for column in zip(*grid, strict=True)]
        if grid is None:
            return None, at
        if result is None:
            result = grid
            continue
        if len(result[0]) != len(grid) or max(len(result), len(grid[0])) ** 2 > MAX_PRODUCT:
            return None, at
        columns = list(zip(*grid, strict=True))
        result = [
            [Sum(tuple(map(Product, zip(row, column, strict=True)))) for column in columns]
            for row in result
        ]
    return result, at
