"""Decides whether two trees are the same function of their variables, or multiples of each other.

Rational constants are compared exactly, and other trees by their values at fixed points. Equal
trees agree at all points, and others practically never agree to a hundred digits. More digits are
compared where the numbers in the trees are very small or large. No simplifier is needed, so that a
comparison takes milliseconds and always ends.
"""

import itertools
import math
import operator
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from vinejax.grading.strict import numbers
from vinejax.grading.strict.algebra import evaluate
from vinejax.grading.strict.algebra import syntax_trees as trees
from vinejax.grading.strict.algebra.syntax_trees import Tree, nodes_of, variables

CONSTANT_BITS = 500  # for constants: 150 digits
POINT_BITS = 240
POINTS = 10
ENOUGH = 3  # least number of points at which both sides have a value
SLACK = 40  # last bits that rounding may have changed
# Bits needed per bit of span: sin x differs from x by x^3/6, whose exponent is three times that.
DEPTH = 4
MAX_WORK = 1_000_000  # bits times nodes; trees that need more count as different
MAX_VARIABLES = 20
MAX_WRITTEN = 6_000  # bits of a number that is written down

_FAILURES = (ArithmeticError, ValueError, TypeError, KeyError, RecursionError)


def _readings(a: Tree, b: Tree) -> Iterator[frozenset[str]]:
    """Yields the sets to try as `counted` of `Evaluator`.

    The first set has those of "deg", "pct" and "log" that occur in the trees. The proper subsets of
    this set follow.
    """
    present = set()
    for node in itertools.chain(nodes_of(a), nodes_of(b)):
        match node:
            case trees.Marked(mark, _):
                present.add(mark)
            case trees.Call("log", (_,)):
                present.add("log")
    ordered = sorted(present)
    for keep in itertools.product([True, False], repeat=len(ordered)):
        yield frozenset(mark for mark, kept in zip(ordered, keep, strict=True) if kept)


def is_infinite(tree: Tree) -> int:
    """Returns 1 for infinity, -1 for minus infinity, and 0 for any other tree."""
    if tree == trees.INFINITY:
        return 1
    return -is_infinite(tree.inner) if isinstance(tree, trees.Negative) else 0


def same_value(a: Tree, b: Tree, counting: frozenset[str] = frozenset()) -> bool:
    """Whether two trees have the same value for all values of their variables.

    The notations in `counting` are always taken literally (`counted` of `Evaluator`).
    """
    if a == b:
        return True
    if is_infinite(a) or is_infinite(b):
        return is_infinite(a) == is_infinite(b)
    return any(_same(a, b, counted | counting) for counted in _readings(a, b))


def _same(a: Tree, b: Tree, counted: frozenset[str]) -> bool:
    names = sorted(variables(a) | variables(b))
    try:
        if not names:
            return _same_constant(a, b, counted)
        if len(names) > MAX_VARIABLES:
            return False

        def near(bits: int) -> tuple[bool, int]:
            pairs, span = _sample(a, b, names, counted, bits)
            return all(_near(x, y, bits, floor=1) for x, y in pairs), span

        return _confirmed(near, (a, b), POINT_BITS)
    except _FAILURES:
        return False


def _confirmed(
    near: Callable[[int], tuple[bool, int]], compared: tuple[Tree, Tree], bits: int
) -> bool:
    """Whether `near` finds the trees equal with `bits` bits, and with more bits if they are needed.

    `near` takes a number of bits, and returns its verdict and the `span` of the numbers
    (`Evaluator`). A large span needs more bits. For example, `e^x + 10^{-70}` equals `e^x` to
    240 bits, but not to 1,200.
    """
    verdict, span = near(bits)
    if not verdict or DEPTH * span <= bits - SLACK:
        return verdict
    bits += DEPTH * span
    return bits * sum(1 for tree in compared for _ in nodes_of(tree)) <= MAX_WORK and near(bits)[0]


def _same_constant(a: Tree, b: Tree, counted: frozenset[str]) -> bool:
    def near(bits: int) -> tuple[bool, int]:
        measure = evaluate.Evaluator({}, bits, counted)
        x, y = measure.pair(a, b)
        if _near(x, y, bits) or max(abs(x), abs(y)) * 2 ** (bits // 2) > 1:
            return _near(x, y, bits), measure.span
        # Both are tiny. More bits make rounding errors smaller, but not exact differences.
        x2, y2 = evaluate.Evaluator({}, 4 * bits, counted).pair(a, b)
        return abs(x2 - y2) * 2**bits < abs(x - y), measure.span

    if _confirmed(near, (a, b), CONSTANT_BITS):
        return True
    both_literal = _is_literal(a) and _is_literal(b)
    return not both_literal and (_rounds(a, b, counted) or _rounds(b, a, counted))


def _is_literal(tree: Tree) -> bool:
    """Whether a tree is a number as written, with or without a minus sign."""
    return isinstance(tree.inner if isinstance(tree, trees.Negative) else tree, trees.Number)


def _rounds(tree: Tree, other: Tree, counted: frozenset[str]) -> bool:
    """Whether `tree` is a long decimal that the value of `other` rounds to."""
    sign = 1
    while isinstance(tree, trees.Negative):
        tree, sign = tree.inner, -sign
    if not isinstance(tree, trees.Number):
        return False
    if numbers.significant_digits(tree.shown) < numbers.LONG_DECIMAL:
        return False
    exact = evaluate.Evaluator({}, CONSTANT_BITS, counted)(other)
    if exact.imag != 0:
        return False
    places = len(tree.shown.partition(".")[2]) + 5
    return numbers.rounds_to(_fraction(exact, places) * sign, tree.shown)


def _near(x: Any, y: Any, bits: int, floor: int = 0) -> bool:
    """Whether x equals y; unless both are Fractions, the last few of `bits` bits may differ.

    The difference is relative to the larger magnitude, or to `floor` if that is greater.
    """
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return x == y
    mp = (y if isinstance(x, Fraction) else x).context
    x, y = (mp.mpf(v.numerator) / v.denominator if isinstance(v, Fraction) else v for v in (x, y))
    return bool(abs(x - y) <= max(abs(x), abs(y), floor) * mp.mpf(2) ** (SLACK - bits))


def _points(names: list[str]) -> Iterator[dict[str, Fraction]]:
    """Yields fixed rational points, which have a value for each name.

    At every second point all values are positive, so that roots and logs are real.
    """
    generator = random.Random(" ".join(names))
    for index in range(POINTS):
        yield {
            name: Fraction(generator.randint(17, 997), generator.choice([101, 211, 307]))
            * (1 if index % 2 == 0 else generator.choice([1, -1]))
            for name in names
        }


def _sample(
    a: Tree, b: Tree, names: list[str], counted: frozenset[str], bits: int
) -> tuple[list[tuple[Any, Any]], int]:
    """The values of both trees at several points, as pairs, and the largest `span` that occurred.

    `names` are the variables of the trees; `Evaluator` explains `counted`, `bits` and `span`.
    Points where a value is not real are left out, unless too few points remain or a tree has the
    imaginary unit. Raises Undefined if both trees have values at too few points.
    """
    real, other, span = [], [], 0
    for point in _points(names):
        measure = evaluate.Evaluator(point, bits, counted)
        try:
            pair = measure.pair(a, b)
        except (evaluate.Undefined, ZeroDivisionError):
            continue
        # sqrt(1/n) and 1/sqrt(n) differ where they are imaginary, which nobody means.
        is_real = [isinstance(v, Fraction) or v.imag == 0 for v in pair]
        (real if all(is_real) else other).append(pair)
        span = max(span, measure.span)
    imaginary = any(node == trees.IMAGINARY_UNIT for tree in (a, b) for node in nodes_of(tree))
    pairs = [*real, *other] if imaginary or len(real) < ENOUGH else real
    if len(pairs) < ENOUGH:
        raise evaluate.Undefined("at too many points")
    return pairs, span


def real_value(tree: Tree) -> Any:
    """The value of a real constant as a Fraction, or infinity; None for any other tree."""
    sign = is_infinite(tree)
    if sign or variables(tree):
        return sign * math.inf if sign else None
    try:
        value = evaluate.Evaluator({}, POINT_BITS, frozenset({"deg", "pct", "log"}))(tree)
        # Rounded, so that interval ends of the same value compare equal even if they were computed
        # in different ways.
        return round(_fraction(value, 60), 50) if value.imag == 0 else None
    except _FAILURES:
        return None


def _fraction(value: evaluate.Value, places: int) -> Fraction:
    """The real part of `value` as a Fraction; a number of mpmath is cut to `places` decimals."""
    if isinstance(value, Fraction):
        return value
    return Fraction(int(value.real * 10**places), 10**places)


def as_rational(tree: Tree) -> trees.Number | None:
    """The rational number that equals the tree at all points.

    None if there is no such number, or if it has more than MAX_WRITTEN bits.
    """
    names = sorted(variables(tree))
    try:
        values = [
            evaluate.Evaluator(point, POINT_BITS, frozenset())(tree)
            for point in itertools.islice(_points(names), ENOUGH)
        ]
    except _FAILURES:
        return None
    first = values[0]
    is_constant = isinstance(first, Fraction) and all(v == first for v in values)
    return trees.number(first) if is_constant and evaluate.bits_of(first) <= MAX_WRITTEN else None


def sign_of_ratio(a: Tree, b: Tree) -> int:
    """The sign of the constant c with a = c b; 0 if there is none, or if c is not real."""
    names = sorted(variables(a) | variables(b))
    if not names or len(names) > MAX_VARIABLES:
        return 0
    quotients = []

    def proportional(bits: int) -> tuple[bool, int]:
        pairs, span = _sample(a, b, names, frozenset({"deg", "pct", "log"}), bits)
        if any(x == 0 or y == 0 for x, y in pairs):
            return False, span
        x0, y0 = pairs[0]
        measure, times = evaluate.Evaluator({}, bits, frozenset()), operator.mul
        quotients.append(measure.divide(x0, y0))
        crossed = ((measure.combine(x, y0, times), measure.combine(x0, y, times)) for x, y in pairs)
        return all(_near(x, y, bits) for x, y in crossed), span

    try:
        confirmed = _confirmed(proportional, (a, b), POINT_BITS)
    except _FAILURES:
        return 0
    if not confirmed or quotients[0].imag != 0:
        return 0
    return 1 if quotients[0] > 0 else -1
