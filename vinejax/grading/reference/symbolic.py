"""The comparisons that the reference leaves to sympy, without running text of a model as code.

The reference turns LaTeX into text (pylatexenc), and gives the text to sympy's `parse_expr`,
which builds Python code from it and runs `eval`. Here the first half is the same, so that
implicit products, mixed numbers and factorials are read alike: sympy's own token transformations
make the code. But the code is never run. It is parsed to a syntax tree, and `_Builder` walks the
tree: numbers, symbols, `+ - * / ** or`, factorials and the functions listed below, nothing else.
No attribute, subscript, comprehension, string operation, keyword or other name gets through; each
is `Refused`, as is whatever is too large (the limits are below). To be called in a process that may
be killed, because `simplify` has no limit of its own.

Sources: `_parse_latex`, `_sympy_parse` and `should_allow_eval` in
`src/treetune/tasks/math_grader.py`, `symbolic_equal` in `math_grader_minerva.py`. A `Refused` text
is unequal; the reference mostly fails with an exception there and says the same.
"""

import ast
import builtins
import functools
import math
import re
import tokenize
import types
import warnings
from typing import Any

import sympy
from pylatexenc.latex2text import LatexNodes2Text
from sympy.parsing import sympy_parser as sp

LONGEST_TEXT = 2000
MOST_DIGITS = 300  # of a number as written
MOST_BITS = 50_000  # of a power of numbers
LARGEST_POWER = 200  # exponent of anything that is not a number
LARGEST_FACTORIAL = 1000

# The reference's own guards: it leaves such texts alone because sympy may hang on them.
_GUARDED = re.compile(
    r"\^[{(]|\^[0-9]+\^|\^-?[0-9][0-9]+|\*\*[0-9]+\*\*|\*\*-?[0-9][0-9]+|[0-9][0-9][0-9]+!"
)
# In this order: taking 'cos' out of 'arccos' leaves 'arc', which counts.
_KNOWN_WORDS = ("sqrt", "frac", "pi", "inf", "cos", "sin", "tan", "cot", "log", "ln", "exp")
_UNICODE = {"√": "sqrt", "π": "pi", "∞": "inf", "∪": "U", "·": "*", "×": "*"}
_MIXED_NUMBER = re.compile(r"([0-9]) +([0-9])")
_LONG_EXPONENT = re.compile(r"[0-9.]e[+-]?[0-9]{4,}", re.IGNORECASE)

_IMPLICIT = (*sp.standard_transformations, sp.implicit_multiplication_application)
_EXPLICIT = (*sp.standard_transformations, sp.convert_xor)
_CONSTANTS = {"pi": sympy.pi, "E": sympy.E, "I": sympy.I, "oo": sympy.oo}
_FUNCTIONS = {
    name: getattr(sympy, name)
    for name in (
        *("sqrt", "exp", "log", "ln", "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos"),
        *("atan", "acot", "sinh", "cosh", "tanh", "coth"),
    )
}
_OPERATORS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}


class Refused(ValueError):
    """The text is not a formula of the kinds above, or is too large."""


def latex_to_text(latex: str) -> str:
    """The reference's text for LaTeX: `\\frac{a}{b}` is `a/b`, braces vanish. Raises Refused."""
    latex = latex.replace("\\tfrac", "\\frac").replace("\\dfrac", "\\frac")
    try:
        text = LatexNodes2Text().latex_to_text(latex.replace("\\frac", " \\frac"))
    # A `\\sqrt` with nothing behind it, a matrix with an empty row.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Refused("no LaTeX") from error
    for symbol, name in _UNICODE.items():
        text = text.replace(symbol, name)
    return text.strip()


def is_allowed(text: str) -> bool:
    """Whether the reference would let sympy see this text: two unknown letters at most."""
    letters = text
    for word in _KNOWN_WORDS:
        letters = letters.replace(word, "")
    return len({c for c in letters if c.isalpha()}) <= 2 and not _GUARDED.search(text)


def difference_is_zero(a: str, b: str) -> bool:
    """Whether sympy simplifies a - b to 0; both are texts from `latex_to_text`."""
    text = _MIXED_NUMBER.sub(r"\1+\2", f"({a})-({b})").replace(" ", "").replace("^", "**")
    try:
        return bool(sympy.simplify(build_formula(text)) == 0)
    except (ArithmeticError, AttributeError, NotImplementedError, TypeError, ValueError):
        return False


def nearly_equal(a: str, b: str) -> bool:
    """Whether both texts are real numbers at most 1e-3 apart."""
    try:
        numbers = [float(build_formula(text, implicit=False).evalf()) for text in (a, b)]
    except (ArithmeticError, AttributeError, NotImplementedError, TypeError, ValueError):
        return False
    return math.isclose(*numbers, abs_tol=1e-3)


def build_formula(text: str, implicit: bool = True) -> Any:
    """The sympy expression of a text; `implicit`: `2x` is a product. Raises Refused."""
    if len(text) > LONGEST_TEXT or _LONG_EXPONENT.search(text):
        raise Refused("too long")
    if re.search(rf"[0-9]{{{MOST_DIGITS + 1}}}", text):
        raise Refused("too many digits")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # '2or 3': an invalid literal, soon refused
        try:
            code = sp.stringify_expr(text, {}, _names(), _IMPLICIT if implicit else _EXPLICIT)
            return _Builder().visit(ast.parse(code.strip(), mode="eval").body)
        # The Python tokenizer and parser, on text that is no formula.
        except (SyntaxError, tokenize.TokenError, IndexError, RecursionError, MemoryError) as error:
            raise Refused("not a formula") from error


@functools.cache
def _names() -> dict[str, Any]:
    """The names that the reference's parser knows; looked up by the tokenizer, never run."""
    known = {name: getattr(sympy, name) for name in sympy.__all__}
    kinds = types.BuiltinFunctionType
    return known | {k: v for k, v in vars(builtins).items() if isinstance(v, kinds)}


class _Builder(ast.NodeVisitor):
    """Syntax tree to sympy expression; any node without a method here is refused."""

    def generic_visit(self, node: ast.AST) -> Any:
        raise Refused(type(node).__name__)

    def visit_Constant(self, node: ast.Constant) -> Any:
        if type(node.value) not in (int, float):
            raise Refused("a string")
        return sympy.sympify(node.value)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id not in _CONSTANTS:
            raise Refused(node.id)
        return _CONSTANTS[node.id]

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.visit(node.operand)
        if isinstance(node.op, ast.USub):
            return -value
        if isinstance(node.op, ast.UAdd):
            return value
        raise Refused("an operator")

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) not in _OPERATORS:
            raise Refused("an operator")
        return _OPERATORS[type(node.op)](left, right)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """'2 or 3' is Python's `or` to the reference, and so its first number that is not 0."""
        if not isinstance(node.op, ast.Or):
            raise Refused("an operator")
        values = [self.visit(value) for value in node.values]
        return next((value for value in values if value), values[-1])

    def visit_Call(self, node: ast.Call) -> Any:
        if node.keywords:
            raise Refused("a keyword")
        if isinstance(node.func, ast.Call):
            return self._undefined_function(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("Symbol", "Float", "Number", "Integer"):
            return self._leaf(name, node.args)
        arguments = [self.visit(argument) for argument in node.args]
        if name in ("factorial", "factorial2") and len(arguments) == 1:
            return _factorial(getattr(sympy, name), arguments[0])
        if name in _FUNCTIONS and 1 <= len(arguments) <= 2:
            return _FUNCTIONS[name](*arguments)
        raise Refused(name or "a call")

    def _leaf(self, name: str, arguments: list[ast.expr]) -> Any:
        """`Symbol('x')`, `Float('0.5')`, `Number('2')`, `Integer(2)`: written by the tokenizer."""
        if len(arguments) != 1 or not isinstance(arguments[0], ast.Constant):
            raise Refused(name)
        value = arguments[0].value
        if type(value) is not (int if name == "Integer" else str):
            raise Refused(name)
        return getattr(sympy, name)(value)

    def _undefined_function(self, node: ast.Call) -> Any:
        """`Function('f')(x)`: a letter in front of a bracket that nothing multiplied."""
        maker = node.func
        assert isinstance(maker, ast.Call)
        ours = isinstance(maker.func, ast.Name) and maker.func.id == "Function"
        if not ours or len(maker.args) != 1 or not isinstance(maker.args[0], ast.Constant):
            raise Refused("a call")
        return sympy.Function(str(maker.args[0].value))(*map(self.visit, node.args))


def _power(base: Any, exponent: Any) -> Any:
    """base ** exponent, unless its size is beyond the limits."""
    if exponent.is_number:
        size = abs(complex(exponent))
        if base.is_Rational:
            bits = max(abs(base.p), base.q).bit_length() * size
            if bits > MOST_BITS:
                raise Refused("too large")
        elif size > LARGEST_POWER:
            raise Refused("too large")
    return base**exponent


def _factorial(function: Any, argument: Any) -> Any:
    if argument.is_number and not abs(argument) <= LARGEST_FACTORIAL:
        raise Refused("too large")
    return function(argument)
