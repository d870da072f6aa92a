"""Assertions of a data set as tests whose expected values stay outside the sandbox.

An assertion has calls of the solution with constant arguments, and an expression over the results
of these calls. The sandbox makes the calls. This process evaluates the expression over plain data,
so that neither an `__eq__` of the solution nor an early exit can make a test pass.
"""

import ast
import contextlib
import copy
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from vinejax.contrib.code.integers import long_integers, readable_tests
from vinejax.contrib.code.sandbox.runner import MOST_ITEMS, encode

Call = tuple[str, Any]  # (function of the solution, encoded (positional, named) arguments)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(abs, all, any, bin, bool, chr, complex, dict, divmod, enumerate, float, frozenset, hex),
        *(int, len, list, max, min, oct, ord, range, reversed, round, set, sorted, str, sum, tuple),
        zip,
    )
}
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


class Assertion(NamedTuple):
    """An assertion whose `condition` is an expression over the results of `calls`.

    In the expression the names 'result 0', 'result 1'... stand for the results.
    """

    source: str  # text of the assertion
    calls: tuple[Call, ...]
    shown: tuple[str, ...]  # texts of the calls
    condition: ast.expr

    def holds(self, results: Sequence[Any]) -> bool:
        """Whether the assertion holds for these results; False if its evaluation fails."""
        named = {f"result {i}": result for i, result in enumerate(results)}
        try:
            with long_integers():
                return bool(evaluate(self.condition, named))
        except (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError):
            return False


@functools.lru_cache(maxsize=4096)
def read_asserts(
    source: str, entry: str, redefined: frozenset[str] = frozenset()
) -> tuple[Assertion, ...]:
    """The assertions of a text, or of its function `check(candidate)`, if it has this function.

    The candidate is the solution's function `entry`. Without `check`, every function that is not in
    FUNCTIONS belongs to the solution. A function of FUNCTIONS belongs to it, too, in an assertion
    that would otherwise call nothing of the solution: the first function that is among `redefined`,
    the names that the solution defines, unless the assertion cannot be read with calls of it; or
    else the first one, if the assertion does not hold for Python's own function, or if the text
    calls nothing else of the solution.

    Raises ValueError for a text without assertions, for an assertion that `evaluate` cannot read,
    and for any other statement that must not be ignored (`_is_idle`).
    """
    with readable_tests():
        return _read_asserts(_statements(source), entry, redefined)


def _statements(source: str) -> Sequence[ast.stmt]:
    try:
        return ast.parse(source).body
    except SyntaxError as error:
        raise ValueError(f"the tests are no Python: {error}") from None


def _read_asserts(
    statements: Sequence[ast.stmt], entry: str, redefined: frozenset[str]
) -> tuple[Assertion, ...]:
    renamed: dict[str, str] | None = None
    for statement in statements:
        if isinstance(statement, ast.FunctionDef) and statement.name == "check":
            if not statement.args.args:
                raise ValueError("the function check has no argument for the candidate")
            renamed = {statement.args.args[0].arg: entry, entry: entry}
            statements = statement.body
    for statement in statements:
        if not isinstance(statement, ast.Assert) and not _is_idle(statement):
            raise ValueError(f"{ast.unparse(statement)!r:.80} is no assertion")
    tests = [statement for statement in statements if isinstance(statement, ast.Assert)]
    found = [_assertion(test, renamed) for test in tests]
    is_bare = not any(assertion.calls for assertion in found)
    for i, test in enumerate(tests):
        if not found[i].calls and renamed is None:
            found[i] = _with_redefined(test, found[i], redefined, is_bare)
        if not found[i].calls and not found[i].holds(()):
            raise ValueError(f"{found[i].source!r:.80} is false for every solution")
    found = [assertion for assertion in found if assertion.calls]
    if not found:
        raise ValueError("there is no assertion")
    return tuple(found)


def _with_redefined(
    test: ast.Assert, assertion: Assertion, redefined: frozenset[str], is_bare: bool
) -> Assertion:
    """`assertion`, which has no calls, or else `test` with calls of one of FUNCTIONS.

    See `read_asserts` for `redefined`. `is_bare` says that no assertion of the text has calls.
    """
    called = [node.func for node in ast.walk(test) if isinstance(node, ast.Call)]
    calls = [x.id for x in called if isinstance(x, ast.Name) and x.id in FUNCTIONS]
    if own := [name for name in calls if name in redefined]:
        # Whether the tests can be read must not depend on the solution.
        with contextlib.suppress(ValueError):
            return _assertion(test, None, own[0])
    if calls and (is_bare or not assertion.holds(())):
        return _assertion(test, None, calls[0])
    return assertion


def _is_idle(statement: ast.stmt) -> bool:
    """Whether a statement can be ignored.

    This holds for a constant, `pass`, an import and an assignment to METADATA.
    """
    if isinstance(statement, ast.Assign):
        return all(isinstance(x, ast.Name) and x.id == "METADATA" for x in statement.targets)
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass | ast.Import | ast.ImportFrom)


def _assertion(
    statement: ast.Assert, renamed: Mapping[str, str] | None, own: str = ""
) -> Assertion:
    """The assertion in a statement. The function `own` is the solution's, even if in FUNCTIONS."""
    calls = _Calls(renamed, own)
    source = ast.unparse(statement)
    condition = calls.visit(copy.deepcopy(statement.test))
    assertion = Assertion(source, tuple(calls.made), tuple(calls.shown), condition)
    try:
        evaluate(condition, {f"result {i}": 0 for i in range(len(calls.made))})
    except Unreadable as error:
        raise ValueError(f"{source!r:.80}: {error}") from None
    except Exception:  # the stand-in 0 may have the wrong type
        pass
    return assertion


class _Calls(ast.NodeTransformer):
    """Replaces each call of the solution by the name of its result."""

    def __init__(self, renamed: Mapping[str, str] | None, own: str):
        self._renamed, self._own = renamed, own
        self.made: list[Call] = []
        self.shown: list[str] = []

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = node.func.id if isinstance(node.func, ast.Name) else None
        is_own = name == self._own or name in (self._renamed or ())
        if name is None or name in FUNCTIONS and not is_own:
            self.generic_visit(node)
            return node
        if self._renamed is not None and name not in self._renamed:
            raise ValueError(f"{name!r} is no function of the solution")
        function = name if self._renamed is None else self._renamed[name]
        shown = function + ast.unparse(node).removeprefix(name)
        try:
            positional = [evaluate(x, {}) for x in node.args]
            named: dict[str, Any] = {}
            for keyword in node.keywords:
                value = evaluate(keyword.value, {})
                named |= value if keyword.arg is None else {keyword.arg: value}  # None: **value
        except Exception as error:
            raise ValueError(f"{shown!r:.80}: an argument is no constant: {error}") from None
        self.made.append((function, encode((positional, named))))
        self.shown.append(shown)
        return ast.Name(f"result {len(self.made) - 1}", ast.Load())


class Unreadable(ValueError):
    """An expression of a kind that `evaluate` does not know."""


def evaluate(node: ast.expr, named: Mapping[str, Any]) -> Any:
    """The value of an expression over constants and the values in `named`.

    Raises Unreadable for an expression of another kind, and the error of a failed operation. Values
    in `named` come from a program, which could choose them to fill the memory. They are therefore
    multiplied only if they are numbers, and never raised to a power or used to format a text: such
    an expression raises Unreadable. A range of them has MOST_ITEMS numbers at most.
    """

    def value(inner: ast.expr) -> Any:
        return evaluate(inner, named)

    match node:
        case ast.Constant(value=constant):
            return constant
        case ast.Name(id=name) if name in named:
            return named[name]
        case ast.List(elts=items):
            return [value(x) for x in items]
        case ast.Tuple(elts=items):
            return tuple(value(x) for x in items)
        case ast.Set(elts=items):
            return {value(x) for x in items}
        case ast.Dict(keys=keys, values=items) if None not in keys:
            return {value(k): value(x) for k, x in zip(keys, items, strict=True) if k}
        case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
            return UNARY[type(op)](value(operand))
        case ast.BinOp(op=ast.Pow()) if _has_result(node, named):
            raise Unreadable(f"{ast.unparse(node)!r:.80} is a power of a result")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            has_result = _has_result(node, named)
            return _operation_result(type(op), value(left), value(right), has_result)
        case ast.BoolOp(op=op, values=[*firsts, last]):
            for item in firsts:
                operand = value(item)
                if bool(operand) == isinstance(op, ast.Or):
                    return operand
            return value(last)
        case ast.Compare(left=left, ops=ops, comparators=items):
            around = [value(x) for x in (left, *items)]
            tests = zip(ops, around, around[1:], strict=False)
            return all(COMPARISONS[type(op)](a, b) for op, a, b in tests)
        case ast.Subscript(value=inner, slice=ast.Slice(lower=low, upper=high, step=step)):
            return value(inner)[slice(*(x and value(x) for x in (low, high, step)))]
        case ast.Subscript(value=inner, slice=index):
            return value(inner)[value(index)]
        case ast.Call(func=ast.Name(id="range"), args=items, keywords=[]):
            numbers = range(*(value(x) for x in items))
            if _has_result(node, named) and len(numbers) > MOST_ITEMS:
                raise ValueError(f"a range of more than {MOST_ITEMS} numbers")
            return numbers
        case ast.Call(func=ast.Name(id=name), args=items, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(value(x) for x in items))
        case ast.Attribute(value=ast.Name(id="math"), attr=("pi" | "e" | "inf" | "nan") as name):
            return getattr(math, name)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr="isclose")):
            close = {x.arg or "": value(x.value) for x in node.keywords}
            return math.isclose(*(value(x) for x in node.args), **close)
    raise Unreadable(f"{ast.unparse(node)!r:.80} is not understood")


def _has_result(node: ast.expr, named: Mapping[str, Any]) -> bool:
    return any(isinstance(x, ast.Name) and x.id in named for x in ast.walk(node))


def _operation_result(op: type[ast.operator], left: Any, right: Any, has_result: bool) -> Any:
    if has_result and op in (ast.Mult, ast.Mod):
        if not all(isinstance(x, int | float | complex) for x in (left, right)):
            raise Unreadable("a result multiplies or formats what is no number")
    return BINARY[op](left, right)
