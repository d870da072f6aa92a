"""Whether two trees are the same function of their variables, or multiples of each other.

Rational constants are compared exactly. Everything else is compared at fixed points: an identity
holds at all of them, and two different answers of the size people write never agree at one to a
hundred digits. This needs no simplifier, so it takes milliseconds and cannot run away.
"""

import itertools
import operator
import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from vinejax.tasks.grading import evaluate, numbers
from vinejax.tasks.grading.expression import Tree

CONSTANT_BITS = 500  # for constants: 150 digits
POINT_BITS = 240
POINTS = 10
ENOUGH = 3  # points at which both sides have a value
MAX_VARIABLES = 20
INFINITY = float("inf")

_CONSTANTS = {"pi", "e", "i", "inf"}
_FAILURES = (ArithmeticError, ValueError, TypeError, KeyError, RecursionError)


def variables(tree: Tree) -> set[str]:
    """The names of the symbols that are no constants."""
    return {n[1] for n in _nodes(tree) if n[0] == "sym" and n[1] not in _CONSTANTS}


def _nodes(tree: Tree) -> Iterator[Tree]:
    stack: list[Any] = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, tuple):
            yield item
            stack.extend(item[1:])


def _readings(*trees: Tree) -> Iterator[frozenset[str]]:
    """Which marks count: first all of them, then every other choice that makes a difference."""
    found = set()
    for node in itertools.chain.from_iterable(map(_nodes, trees)):
        if node[0] in ("deg", "pct"):
            found.add(node[0])
        elif node[0] == "call" and node[1] == "log" and len(node[2]) == 1:
            found.add("log")
    ordered = sorted(found)
    for keep in itertools.product([True, False], repeat=len(ordered)):
        yield frozenset(mark for mark, kept in zip(ordered, keep, strict=True) if kept)


def is_infinite(tree: Tree) -> int:
    """1 for infinity, -1 for minus infinity, 0 for any other tree."""
    if tree == ("sym", "inf"):
        return 1
    return -is_infinite(tree[1]) if tree[0] == "neg" else 0


def same(a: Tree, b: Tree) -> bool:
    """Whether two trees have the same value for all values of their variables."""
    if a == b:
        return True
    if is_infinite(a) or is_infinite(b):
        return is_infinite(a) == is_infinite(b)
    return any(_same(a, b, marks) for marks in _readings(a, b))


def _same(a: Tree, b: Tree, marks: frozenset[str]) -> bool:
    names = sorted(variables(a) | variables(b))
    try:
        if not names:
            return _same_constant(a, b, marks)
        if len(names) > MAX_VARIABLES:
            return False
        pairs = _sample(a, b, names, marks)
        return len(pairs) >= ENOUGH and all(_near(x, y, POINT_BITS, floor=1) for x, y in pairs)
    except _FAILURES:
        return False


def _same_constant(a: Tree, b: Tree, marks: frozenset[str]) -> bool:
    x, y = (evaluate.Evaluator({}, CONSTANT_BITS, marks)(t) for t in (a, b))
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        decimals = all(t[0] == "num" or (t[0] == "neg" and t[1][0] == "num") for t in (a, b))
        return x == y or (not decimals and (_rounds(a, y) or _rounds(b, x)))
    if _near(x, y, CONSTANT_BITS):
        return True
    if _rounds(a, y) or _rounds(b, x):
        return True
    if max(abs(x), abs(y)) * 2 ** (CONSTANT_BITS // 2) > 1:
        return False
    # Both are tiny: noise, which shrinks with more bits, or numbers, which do not.
    x2, y2 = (evaluate.Evaluator({}, 4 * CONSTANT_BITS, marks)(t) for t in (a, b))
    return abs(x2 - y2) * 2**CONSTANT_BITS < abs(x - y)


def _rounds(tree: Tree, exact: Any) -> bool:
    """Whether the tree is a long decimal and `exact` the number it was printed from."""
    sign = 1
    while tree[0] == "neg":
        tree, sign = tree[1], -sign
    if tree[0] != "num" or numbers.significant(tree[2]) < numbers.LONG_DECIMAL:
        return False
    if not isinstance(exact, Fraction):
        if getattr(exact, "imag", 0) != 0:
            return False
        places = len(tree[2].partition(".")[2]) + 5
        exact = Fraction(int(exact.real * 10**places), 10**places)
    return numbers.rounds_to(exact * sign, tree[2])


def _near(x: Any, y: Any, bits: int, floor: int = 0) -> bool:
    """Equal, exactly if both are exact, else but for the last digits of `bits`.

    `floor` is the least size that the digits are counted from.
    """
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return x == y
    mp = (y if isinstance(x, Fraction) else x).context
    x, y = (mp.mpf(v.numerator) / v.denominator if isinstance(v, Fraction) else v for v in (x, y))
    return bool(abs(x - y) <= max(abs(x), abs(y), floor) * mp.mpf(2) ** (40 - bits))


def _points(names: list[str]) -> Iterator[dict[str, Fraction]]:
    """Fixed rational points; half of them positive, where roots and logarithms are real."""
    generator = random.Random(" ".join(names))
    for index in range(POINTS):
        yield {
            name: Fraction(generator.randint(17, 997), generator.choice([101, 211, 307]))
            * (1 if index % 2 == 0 else generator.choice([1, -1]))
            for name in names
        }


def _sample(a: Tree, b: Tree, names: list[str], marks: frozenset[str]) -> list[tuple[Any, Any]]:
    """Both values at the points that count: the real ones, or all if nothing is real."""
    real, other = [], []
    for point in _points(names):
        measure = evaluate.Evaluator(point, POINT_BITS, marks)
        try:
            pair = measure(a), measure(b)
        except (evaluate.Undefined, ZeroDivisionError):
            continue
        # sqrt(1/n) and 1/sqrt(n) differ where they are imaginary, which nobody means.
        is_real = [isinstance(v, Fraction) or v.imag == 0 for v in pair]
        (real if all(is_real) else other).append(pair)
    imaginary = any(n == ("sym", "i") for t in (a, b) for n in _nodes(t))
    return [*real, *other] if imaginary or len(real) < ENOUGH else real


def real_value(tree: Tree) -> Any:
    """A number of mpmath, or infinity, for a real constant; None for anything else."""
    sign = is_infinite(tree)
    if sign or variables(tree):
        return sign * INFINITY if sign else None
    try:
        measure = evaluate.Evaluator({}, POINT_BITS, frozenset({"deg", "pct", "log"}))
        value = measure(tree)
        if getattr(value, "imag", 0) != 0:
            return None
        # Equal ends that were computed differently must be equal.
        return round(Fraction(value) if isinstance(value, Fraction) else _fraction(value), 50)
    except _FAILURES:
        return None


def _fraction(value: Any) -> Fraction:
    """A real number of mpmath to 60 decimals."""
    return Fraction(int(value.real * 10**60), 10**60)


def constant(tree: Tree) -> Tree | None:
    """The number that a tree is for all values of its variables; None if it varies."""
    names = sorted(variables(tree))
    try:
        values = [
            evaluate.Evaluator(point, POINT_BITS, frozenset())(tree)
            for point in itertools.islice(_points(names), ENOUGH)
        ]
    except _FAILURES:
        return None
    first = values[0]
    if not isinstance(first, Fraction) or any(v != first for v in values):
        return None
    return ("num", first, str(first))


def ratio(a: Tree, b: Tree) -> int:
    """The sign of the constant c with a = c b; 0 if there is none, or if c is not real."""
    names = sorted(variables(a) | variables(b))
    if len(names) > MAX_VARIABLES:
        return 0
    try:
        pairs = _sample(a, b, names, frozenset({"deg", "pct", "log"}))
        if not names or len(pairs) < ENOUGH or any(x == 0 or y == 0 for x, y in pairs):
            return 0
        x0, y0 = pairs[0]
        measure = evaluate.Evaluator({}, POINT_BITS, frozenset())
        times = operator.mul
        if not all(
            _near(measure.combine(x, y0, times), measure.combine(x0, y, times), POINT_BITS)
            for x, y in pairs
        ):
            return 0
        c = measure.divide(x0, y0)
        return 0 if getattr(c, "imag", 0) != 0 else 1 if c > 0 else -1
    except _FAILURES:
        return 0
