"""Computes values of trees at a point: rational values exactly, others to a number of bits.

Sizes are bounded before a number is computed: a tower of powers or a factorial raises `TooLarge`
instead of filling the memory.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import mpmath

from vinejax.grading.strict.algebra import syntax_trees as trees
from vinejax.grading.strict.algebra.syntax_trees import Tree

MAX_BITS = 60_000  # bits of an exact number
MAX_MAGNITUDE = 20_000  # largest binary exponent, in absolute value
MAX_FACTORIAL = 5_000

_FLAT = ("tanh", "coth")
Value = Any  # Fraction, or a real or complex number of mpmath


class TooLarge(ArithmeticError):
    """Raised before a number is computed that would be too large."""


class Undefined(ArithmeticError):
    """Raised where a tree has no value, as after division by zero or a log of zero."""


class Evaluator:
    """Computes values of trees to `bits` bits at `point`, which has a value for every variable.

    `counted` is a subset of {"deg", "pct", "log"}, the notations that are taken literally: a degree
    mark is pi/180, a per cent sign 1/100, and a log without a base is decimal. A mark that is
    not in `counted` changes nothing, because people often leave marks out. If "log" is not in
    `counted`, a log without a base is natural.

    `span` is the largest binary exponent, in absolute value, of the rounded numbers so far: a sum
    of such numbers needs more than `span` bits to keep its smallest term.
    """

    def __init__(self, point: Mapping[str, Fraction], bits: int, counted: frozenset[str]) -> None:
        self.mp = _context(bits)
        self.point, self.counted = point, counted
        self.span = 0

    def __call__(self, tree: Tree) -> Value:
        """The value of a tree. Raises TooLarge or Undefined."""
        match tree:
            case trees.Number(value):
                return value
            case trees.Symbol(name):
                return self.symbol(name)
            case trees.Product((first, *others)) | trees.Sum((first, *others)):
                operation = operator.mul if isinstance(tree, trees.Product) else operator.add
                total = self(first)
                for other in others:
                    total = self.combine(total, self(other), operation)
                return total
            case trees.Quotient(top, bottom):
                return self.divide(self(top), self(bottom))
            case trees.Power(base, exponent):
                return self.power(self(base), self(exponent))
            case trees.Negative(inner):
                return -self(inner)
            case trees.Call(name, arguments):
                return self.call(name, [self(argument) for argument in arguments])
            case trees.Marked("deg", inner):
                value = self(inner)
                return self.to_mp(value) * self.mp.pi / 180 if "deg" in self.counted else value
            case trees.Marked("pct", inner):
                return self.divide(self(inner), Fraction(100 if "pct" in self.counted else 1))
        raise Undefined("a sum or product of nothing")

    def pair(self, a: Tree, b: Tree) -> tuple[Value, Value]:
        """The values of two trees, both as Fractions or both as numbers of mpmath."""
        x, y = self(a), self(b)
        if isinstance(x, Fraction) and isinstance(y, Fraction):
            return x, y
        return self.to_mp(x), self.to_mp(y)

    def symbol(self, name: str) -> Value:
        match name:
            case "pi" | "e":
                return +getattr(self.mp, name)
            case "i":
                return self.mp.mpc(0, 1)
            case "inf":
                raise Undefined("infinity")
        return self.point[name]

    def to_mp(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            self.span = max(self.span, bits_of(value))
            return self.mp.mpf(value.numerator) / value.denominator
        if value:
            self.span = max(self.span, abs(self.mp.mag(value)))
        return value

    def combine(self, a: Value, b: Value, operation: Callable[[Value, Value], Value]) -> Value:
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return _bounded(operation(a, b))
        return operation(self.to_mp(a), self.to_mp(b))

    def divide(self, a: Value, b: Value) -> Value:
        if b == 0:
            raise Undefined("division by zero")
        return self.combine(a, b, operator.truediv)

    def power(self, base: Value, exponent: Value) -> Value:
        if isinstance(exponent, Fraction) and exponent.denominator == 1:
            n = exponent.numerator
            if base == 0 and n <= 0:
                raise Undefined("0 to a power that is not positive")
            if isinstance(base, Fraction):
                size = bits_of(base)
                if size > 1 and size * abs(n) > MAX_BITS:
                    raise TooLarge
                return base**n
            self.check(abs(n) * (1 + abs(self.mp.mag(base)) if base else 1))
            return base**n
        if base == 0:
            if isinstance(exponent, Fraction) and exponent > 0:
                return Fraction(0)
            raise Undefined("0 to a power")
        if isinstance(base, Fraction) and isinstance(exponent, Fraction):
            exact = _exact_power(base, exponent)
            if exact is not None:
                return exact
            # An odd root of a negative number is real: (-8)^{1/3} is -2.
            if base < 0 and exponent.denominator % 2 and exponent.denominator < 1000:
                return self.power(-base, exponent) * (-1) ** (exponent.numerator % 2)
        x, y = self.to_mp(base), self.to_mp(exponent)
        self.check(abs(self.mp.mag(x)) + 1, self.mp.mag(y) if y else 0)
        return self.mp.power(x, y)

    def check(self, size: Value, shift: int = 0) -> None:
        """Raises TooLarge if size * 2**shift, a bound on the exponent of a result, is too large."""
        if shift > 40 or size * 2 ** max(0, int(shift)) > MAX_MAGNITUDE:
            raise TooLarge

    def call(self, name: str, args: list[Value]) -> Value:
        match name, *args:
            case (("max" | "min"), *_):
                values = [self.to_mp(v) for v in args]
                if any(getattr(v, "imag", 0) != 0 for v in values):
                    raise Undefined("no order")
                return args[values.index(max(values) if name == "max" else min(values))]
            case (("gcd" | "lcm"), *_):
                if any(not isinstance(v, Fraction) or v.denominator != 1 for v in args):
                    raise Undefined(f"{name} of numbers that are not whole")
                return _bounded(Fraction(getattr(math, name)(*map(int, args))))
            case "root", radicand, index:
                if not isinstance(index, Fraction) or index == 0:
                    raise Undefined("a root whose index is 0 or no rational number")
                return self.power(radicand, 1 / index)
            case "abs", x:
                return abs(x)
            case "fact", x:
                return self.factorial(x)
            case "binom", n, k:
                return self.binomial(n, k)
            case (("floor" | "ceil"), Fraction() as x):
                return Fraction(getattr(math, name)(x))
            case (("floor" | "ceil"), x):
                self.check(0, self.mp.mag(x) if x else 0)
                return Fraction(int(getattr(self.mp, name)(x)))
        return self.transcendental(name, args)

    def transcendental(self, name: str, args: list[Value]) -> Value:
        x = self.to_mp(args[0])
        if x and self.mp.mag(x) > 14 and name not in ("log", "ln"):
            raise TooLarge
        if name in ("log", "ln"):
            if x == 0:
                raise Undefined("log of zero")
            decimal = name == "log" and "log" in self.counted
            base = self.to_mp(args[1]) if len(args) > 1 else self.mp.mpf(10) if decimal else None
            if base is not None and (base == 0 or base == 1):
                raise Undefined("log to base 0 or 1")
            return self.mp.log(x) if base is None else self.mp.log(x) / self.mp.log(base)
        names = {"arcsin": "asin", "arccos": "acos", "arctan": "atan"}
        function = getattr(self.mp, names.get(name, name), None)
        if function is None:
            raise Undefined(name)
        if name in _FLAT:
            self.span = max(self.span, 3 * int(abs(x)))  # 1 - tanh x is about e^{-2x}
        return function(x)

    def factorial(self, n: Value) -> Value:
        if isinstance(n, Fraction) and n.denominator == 1:
            if n < 0:
                raise Undefined("factorial of a negative number")
            if n > MAX_FACTORIAL:
                raise TooLarge
            return Fraction(math.factorial(int(n)))
        x = self.to_mp(n)
        if x and self.mp.mag(x) > 10:
            raise TooLarge
        return self.mp.gamma(x + 1)

    def binomial(self, n: Value, k: Value) -> Value:
        if isinstance(n, Fraction) and isinstance(k, Fraction):
            if n.denominator == k.denominator == 1 and 0 <= n <= MAX_FACTORIAL and k >= 0:
                return Fraction(math.comb(int(n), int(k)))
        x, y = self.to_mp(n), self.to_mp(k)
        if max(self.mp.mag(v) if v else 0 for v in (x, y)) > 10:
            raise TooLarge
        return self.mp.binomial(x, y)


@functools.cache
def _context(bits: int) -> Any:
    """An mpmath context with `bits` bits; the global precision is unchanged."""
    context = mpmath.mp.clone()
    context.prec = bits
    return context


def bits_of(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _bounded(value: Fraction) -> Fraction:
    if bits_of(value) > MAX_BITS:
        raise TooLarge
    return value


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """base**exponent if it is rational, as 4^{1/2} is; else None."""
    index, n = exponent.denominator, exponent.numerator
    if base < 0 or index > 64 or max(abs(n), base.numerator, base.denominator) > 10**15:
        return None
    root = Fraction(*(round(part ** (1 / index)) for part in base.as_integer_ratio()))
    if root**index != base:
        return None
    if bits_of(root) * abs(n) > MAX_BITS:
        raise TooLarge
    return root**n
