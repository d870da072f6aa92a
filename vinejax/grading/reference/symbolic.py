"""VinePPO's comparison by sympy, without running text of a model as code.

VinePPO's grader turns LaTeX into text (pylatexenc), and gives the text to sympy's `parse_expr`,
which builds Python code from it and runs `eval`. Here the first half is the same, so that
implicit products, mixed numbers and factorials are read alike: sympy's own token transformations
make the code. But the code is never run. It is parsed to a syntax tree, and `_Builder` walks the
tree. It knows numbers, symbols, `+ - * / ** or`, factorials and the functions listed below.
Attributes, subscripts, comprehensions, string operations, keywords and other names are `Refused`,
and so is a text or number beyond the limits below. Call this in a process that can be killed,
because `simplify` has no time limit.

Sources: `_parse_latex`, `_sympy_parse` and `should_allow_eval` in
`src/treetune/tasks/math_grader.py`, `symbolic_equal` in `math_grader_minerva.py`. A `Refused` text
is unequal to all others; VinePPO's grader mostly raises there, with the same verdict.
"""

import ast
import builtins
import functools
import math
import operator
import re
import types
import warnings
from tokenize import TokenError
from typing import Any

import sympy
from pylatexenc.latex2text import LatexNodes2Text
from sympy.parsing import sympy_parser as sp

LONGEST_TEXT = 2000
MAX_DIGITS = 300  # digits of a number as written
MAX_BITS = 50_000  # bits of the result of a power
LARGEST_POWER = 200  # exponent of a base that is not a rational number
LARGEST_FACTORIAL = 1000

# VinePPO's own guards: it gives sympy no such text, because sympy may hang on it.
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
_FUNCTION_NAMES = """
    sqrt exp log ln sin cos tan cot sec csc asin acos atan acot sinh cosh tanh coth""".split()
_FUNCTIONS = {name: getattr(sympy, name) for name in _FUNCTION_NAMES}


class Refused(ValueError):
    """Raised for text that is too large, or is not a formula of the kinds that `_Builder` knows."""


def latex_to_text(latex: str) -> str:
    """LaTeX as VinePPO's plain text: `\\frac{a}{b}` is `a/b`, braces vanish. Raises Refused."""
    latex = latex.replace("\\tfrac", "\\frac").replace("\\dfrac", "\\frac")
    try:
        text = LatexNodes2Text().latex_to_text(latex.replace("\\frac", " \\frac"))
    # For example a `\\sqrt` with nothing behind it, or a matrix with an empty row.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Refused("no LaTeX") from error
    for symbol, name in _UNICODE.items():
        text = text.replace(symbol, name)
    return text.strip()


def is_allowed(text: str) -> bool:
    """Whether VinePPO's grader gives this text to sympy.

    The grader does not do this for a text with three different unknown letters, for example.
    """
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
    """The sympy expression of a text; with `implicit`, `2x` is a product. Raises Refused."""
    if len(text) > LONGEST_TEXT or _LONG_EXPONENT.search(text):
        raise Refused("too long")
    if re.search(rf"[0-9]{{{MAX_DIGITS + 1}}}", text):
        raise Refused("too many digits")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # '2or 3': an invalid literal, soon refused
        try:
            code = sp.stringify_expr(text, {}, _names(), _IMPLICIT if implicit else _EXPLICIT)
            return _Builder().visit(ast.parse(code.strip(), mode="eval").body)
        # Errors of Python's tokenizer and parser for other texts, and of look-ups in `_Builder`.
        except (SyntaxError, TokenError, LookupError, RecursionError, MemoryError) as error:
            raise Refused("not a formula") from error


@functools.cache
def _names() -> dict[str, Any]:
    """The names that VinePPO's parser knows. The tokenizer only looks names up and runs nothing."""
    known = {name: getattr(sympy, name) for name in sympy.__all__}
    kinds = types.BuiltinFunctionType
    return known | {k: v for k, v in vars(builtins).items() if isinstance(v, kinds)}


class _Builder(ast.NodeVisitor):
    """Builds a sympy expression from a syntax tree; refuses nodes that have no method here."""

    def generic_visit(self, node: ast.AST) -> Any:
        raise Refused(type(node).__name__)

    def visit_Constant(self, node: ast.Constant) -> Any:
        if type(node.value) not in (int, float):
            raise Refused("a string")
        return sympy.sympify(node.value)

    def visit_Name(self, node: ast.Name) -> Any:
        return _CONSTANTS[node.id]

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        return _OPERATORS[type(node.op)](self.visit(node.operand))

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        return _OPERATORS[type(node.op)](self.visit(node.left), self.visit(node.right))

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """VinePPO's grader reads '2 or 3' as Python's `or`: the first number that is not 0."""
        if not isinstance(node.op, ast.Or):
            raise Refused("an operator")
        values = [self.visit(value) for value in node.values]
        return next((value for value in values if value), values[-1])

    def visit_Call(self, node: ast.Call) -> Any:
        """Reads a call of a listed function, or a call that the tokenizer has written.

        The tokenizer writes `Symbol('x')` for x. For f(x) it writes `Function('f')(x)`, if this is
        not read as a product.
        """
        match node:
            case ast.Call(keywords=[_, *_]):
                raise Refused("a keyword")
            case ast.Call(ast.Call(ast.Name("Function"), [ast.Constant(name)]), arguments):
                return sympy.Function(str(name))(*map(self.visit, arguments))
            case ast.Call(ast.Name("Symbol" | "Float" | "Number" as name), [ast.Constant(str(x))]):
                return getattr(sympy, name)(x)
            case ast.Call(ast.Name("Integer"), [ast.Constant(value)]) if type(value) is int:
                return sympy.Integer(value)
            case ast.Call(ast.Name("factorial" | "factorial2" as name), [argument]):
                value = self.visit(argument)
                if value.is_number and not abs(value) <= LARGEST_FACTORIAL:
                    raise Refused("too large")
                return getattr(sympy, name)(value)
            case ast.Call(ast.Name(name), [_] | [_, _]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](*map(self.visit, node.args))
        raise Refused("a call")


def _power(base: Any, exponent: Any) -> Any:
    """base ** exponent. Raises Refused if the result would be too large."""
    if exponent.is_number:
        size = abs(complex(exponent))
        if base.is_Rational:
            bits = max(abs(base.p), base.q).bit_length() * size
            if bits > MAX_BITS:
                raise Refused("too large")
        elif size > LARGEST_POWER:
            raise Refused("too large")
    return base**exponent


_OPERATORS = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: _power,
}
