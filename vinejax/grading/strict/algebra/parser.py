"""A recursive descent parser for arithmetic and algebra: cleaned LaTeX or plain text to a tree.

No text is ever run as code: tokens are split by a whitelist of numbers, single letters, words in
marks, LaTeX commands and a few operators, and anything else, such as a name of several letters, is
`Malformed`. The tree is made of the classes in `syntax_trees.py`. Length and depth are bounded
before anything is built.
"""

import re
from collections.abc import Callable
from fractions import Fraction

from vinejax.grading.strict import numbers
from vinejax.grading.strict.algebra import syntax_trees as trees
from vinejax.grading.strict.algebra.syntax_trees import Tree
from vinejax.grading.strict.english.words import FUNCTIONS
from vinejax.grading.strict.marks import CLOSE, OPEN

MAX_TOKENS = 1500
MAX_DEPTH = 40

_TOKEN = re.compile(
    r"\s*(?:(?P<rep>\d*\.\d*\\(?:overline|dot)\s*\{?\s*\d+\s*\}?)"
    r"|(?P<num>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE]\d+(?![\d.]))?)"
    r"|(?P<cmd>\\[A-Za-z]+)"
    rf"|{OPEN}(?P<text>[^{CLOSE}]*){CLOSE}"
    r"|(?P<sym>[A-Za-zα-ωΑ-Ω])"
    r"|(?P<op>[-+*/^_!%|(){}\[\]',]))\s*"
)
_NAMES = {"\\pi": "pi", "\\infty": "inf", "\\Pi": "Pi", "\\imath": "i"}
_GREEK = set(
    """alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi
    rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi
    Omega ell hbar emptyset odot circ prime max min oplus perp parallel triangle angle""".split()
)
_STOP = {"+", "-", ")", "}", "]", ",", "/", "%", "\\pm", "\\mp", "\\rfloor", "\\rceil"}
_STOP |= {"\\over", "\\choose", ""}  # "" is the end of the text
_PRODUCT = {"*", "\\cdot", "\\times"}
_OF_SEVERAL = {"max", "min", "gcd", "lcm"}
_WRAPPERS = {"\\overline", "\\mathbb", "\\bar", "\\dot", "\\mathrm"}


class Malformed(ValueError):
    """Raised for text that is not a supported formula, or exceeds the bounds."""


def tokenise(text: str) -> list[tuple[str, str]]:
    """The kind and the text of each token. Raises Malformed at the first unknown character."""
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match or len(tokens) >= MAX_TOKENS:
            raise Malformed(f"unknown token at {at}" if not match else "too long")
        kind = str(match.lastgroup)
        tokens.append((kind, match.group(kind)))
        at = match.end()
    return tokens


def parse_formula(text: str) -> Tree:
    """The tree of an expression; raises Malformed for anything else."""
    if len(text) > 4 * MAX_TOKENS:
        raise Malformed("too long")
    is_number = numbers.SIGNED_POWER.fullmatch(text)
    parser = _Parser([("num", text.strip())] if is_number else tokenise(text))
    tree = parser.whole()
    if parser.at < len(parser.tokens):
        raise Malformed(f"left over: {parser.peek()}")
    return tree


class _Parser:
    """A parser with one token of look-ahead; each method of the grammar returns a tree."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = False  # inside |..|, where the next bar closes the first one

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at][1] if at < len(self.tokens) else ""

    def kind(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        if self.at >= len(self.tokens) or (expected and self.peek() != expected):
            raise Malformed(f"expected {expected or 'more'}")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def accept(self, *expected: str) -> bool:
        """Takes the next token if it is one of `expected`; returns whether it was."""
        accepted = self.peek() in expected
        self.at += accepted
        return accepted

    def deeper(self, read: Callable[[], Tree]) -> Tree:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Malformed("too deep")
        tree = read()
        self.depth -= 1
        return tree

    def whole(self) -> Tree:
        """Reads a sum, or two sums with `\\over` or `\\choose` between them."""
        tree = self.sum()
        if self.accept("\\over"):
            return trees.Quotient(tree, self.sum())
        if self.accept("\\choose"):
            return trees.Call("binom", (tree, self.sum()))
        return tree

    def sum(self) -> Tree:
        terms = []
        while True:
            sign = 1
            while self.peek() in ("+", "-") and self.kind() == "op":
                sign = -sign if self.take() == "-" else sign
            term = self.product()
            terms.append(trees.Negative(term) if sign < 0 else term)
            if self.peek() not in ("+", "-"):
                return terms[0] if len(terms) == 1 else trees.Sum(tuple(terms))

    def product(self) -> Tree:
        tree = self.deeper(self.power)
        while True:
            if self.accept(*_PRODUCT):
                tree = trees.Product((tree, self.signed()))
            elif self.kind() == "op" and self.accept("/"):
                tree = trees.Quotient(tree, self.signed())
            elif self.ends_factor():
                return tree
            elif self.peek() == "(" and self.kind() == "op":
                tree = trees.Product((tree, self.deeper(self.power)))
            else:
                tree = self.join(tree, self.deeper(self.power))

    def ends_factor(self) -> bool:
        """Whether the next token cannot begin a factor."""
        if self.kind() == "text":
            return False
        return self.peek() in _STOP or (self.peek() == "|" and self.bars)

    def signed(self) -> Tree:
        if self.accept("-"):
            return trees.Negative(self.deeper(self.signed))
        return self.deeper(self.power)

    def join(self, left: Tree, right: Tree) -> Tree:
        """The mixed number that `left` and `right` look like, as in 2 1/3; else their product."""
        last = left.factors[-1] if isinstance(left, trees.Product) else left
        is_word = isinstance(last, trees.Symbol) and last.name[0] == "'"
        if isinstance(right, trees.Number) and (isinstance(last, trees.Number) or is_word):
            raise Malformed("a number right after a number or a word")
        match left, right:
            case trees.Number(), trees.Marked(mark, inner):
                return trees.Marked(mark, self.join(left, inner))
            case trees.Number(whole), trees.Quotient(trees.Number(top), trees.Number(bottom)):
                if whole.denominator == 1 and 0 < top < bottom:
                    return trees.Sum((left, right))
        return trees.Product((left, right))

    def power(self) -> Tree:
        tree = self.postfix(self.atom())
        if not self.accept("^"):
            return tree
        if self.is_degree():
            return self.postfix(trees.Marked("deg", tree))
        exponent = self.exponent()
        if isinstance(tree, trees.Symbol) and self.peek() == "_":  # v^2_0
            tree = self.symbol(tree.name)
        return self.postfix(trees.Power(tree, exponent))

    def is_degree(self) -> bool:
        braced = self.peek() == "{"
        if self.peek(braced) != "\\circ" or (braced and self.peek(2) != "}"):
            return False
        self.at += 3 if braced else 1
        return True

    def exponent(self) -> Tree:
        if self.accept("-"):
            return trees.Negative(self.deeper(self.exponent))
        tree = self.atom() if self.peek() == "{" else self.deeper(self.power)
        if self.accept("^"):
            return trees.Power(tree, self.deeper(self.exponent))
        return tree

    def postfix(self, tree: Tree) -> Tree:
        while self.peek() in ("!", "%") and self.kind() == "op":
            tree = trees.Call("fact", (tree,)) if self.take() == "!" else trees.Marked("pct", tree)
        return tree

    def argument(self) -> Tree:
        """Reads an argument of a command such as \\frac: a group, or one token as in TeX."""
        if self.peek() == "{":
            return self.atom()
        if self.kind() == "num" and len(self.peek()) > 1:
            digits = self.peek()
            self.tokens[self.at : self.at + 1] = [("num", digits[0]), ("num", digits[1:])]
        return self.deeper(self.atom)

    def atom(self) -> Tree:
        kind = self.kind()
        token = self.take()
        if kind == "num":
            value = numbers.read_decimal(token)
            if value is None:
                raise Malformed("too many digits")
            return trees.Number(value, token)
        if kind == "rep":
            return _repeating(token)
        if kind == "text":
            return self.symbol(f"'{token.strip()}'")
        if kind == "sym":
            return self.symbol(token)
        if kind == "cmd":
            return self.command(token)
        closing = {"(": ")", "[": "]", "{": "}", "|": "|"}.get(token)
        if closing is None:
            raise Malformed(f"unexpected {token}")
        outer, self.bars = self.bars, token == "|"
        tree = self.deeper(self.whole)
        self.take(closing)
        self.bars = outer
        return trees.Call("abs", (tree,)) if token == "|" else tree

    def symbol(self, name: str) -> Tree:
        """The symbol `name` with its primes and subscripts; a bare e or i is a constant."""
        while self.peek() in ("_", "'") and self.kind() == "op":
            name += self.subscript() if self.take() == "_" else "'"
        return trees.Symbol(name)

    def subscript(self) -> str:
        if self.peek() != "{":
            return "_" + self.take().lstrip("\\").strip()
        parts, depth = [], 0
        while True:
            token = self.take()
            depth += (token == "{") - (token == "}")
            parts.append(token.strip("{}\\ "))
            if depth == 0:
                return "_" + "".join(parts)

    def command(self, token: str) -> Tree:
        if token == "\\frac":
            return trees.Quotient(self.argument(), self.argument())
        if token == "\\binom":
            return trees.Call("binom", (self.argument(), self.argument()))
        if token == "\\sqrt":
            return self.root()
        if token in ("\\lfloor", "\\lceil"):
            tree = self.deeper(self.sum)
            self.take("\\r" + token[2:])
            return trees.Call(token[2:], (tree,))
        if token in _NAMES:
            return trees.Symbol(_NAMES[token])
        if token in _WRAPPERS:
            return self.wrapped(token)
        if token[1:] in FUNCTIONS:
            return self.function(token[1:])
        if token[1:] in _GREEK:
            return self.symbol(token)
        raise Malformed(f"unknown command {token}")

    def wrapped(self, token: str) -> Tree:
        """Reads `\\mathbb{R}` or `\\overline{AB}` as one symbol, named by its whole source."""
        start = self.at
        self.argument()
        inner = "".join(text for _, text in self.tokens[start : self.at]).strip("{}")
        return self.symbol(f"{token[1:]}:{inner}")

    def root(self) -> Tree:
        index: Tree = trees.number(2)
        if self.accept("["):
            index = self.deeper(self.sum)
            self.take("]")
        # \sqrt12 is meant as the root of 12, whatever TeX prints.
        radicand = self.atom() if self.kind() == "num" else self.argument()
        return trees.Call("root", (radicand, index))

    def function(self, name: str) -> Tree:
        """Reads what follows the name of a function, as in `\\sin^2 2x` or `\\log_2 8`.

        An argument without brackets ends before an operator or another function.
        """
        power: Tree | None = None
        base: Tree | None = None
        if name == "lg":
            name, base = "log", trees.number(10)
        if name in _OF_SEVERAL:
            return trees.Call(name, self.arguments())
        while self.peek() in ("^", "_"):
            if self.take() == "^":
                power = self.exponent()
            else:
                base = self.argument()
        argument = self.function_argument()
        if power == trees.Negative(trees.number(1)):
            return trees.Call(f"arc{name}", (argument,))
        tree = trees.Call(name, (argument,) if base is None else (argument, base))
        return tree if power is None else trees.Power(tree, power)

    def arguments(self) -> tuple[Tree, ...]:
        """Reads arguments in brackets, such as `(12, 18)`."""
        self.take("(")
        arguments = [self.deeper(self.whole)]
        while self.accept(","):
            arguments.append(self.deeper(self.whole))
        self.take(")")
        return tuple(arguments)

    def function_argument(self) -> Tree:
        if self.peek() in ("(", "{", "["):
            return self.deeper(self.atom)
        if self.accept("-"):
            return trees.Negative(self.deeper(self.function_argument))
        tree = self.deeper(self.power)
        while not (self.ends_factor() or self.peek() in _PRODUCT or self.peek()[1:] in FUNCTIONS):
            tree = self.join(tree, self.deeper(self.power))
        return tree


def _repeating(token: str) -> trees.Number:
    """The exact number of a repeating decimal such as `0.1\\overline{6}`."""
    head, _, tail = token.partition("\\")
    whole, _, part = head.partition(".")
    block = re.sub(r"\D", "", tail)
    if len(token) > 200:
        raise Malformed("too many digits")
    fixed = Fraction(int((whole or "0") + part), 10 ** len(part))
    period = Fraction(int(block), (10 ** len(block) - 1) * 10 ** len(part))
    return trees.Number(fixed + period, token)
