"""Splits formulas into tokens by a whitelist, so that code in any language is refused.

Tokens are numbers, single letters, words in marks, LaTeX commands and a few operators. Names
of several letters, attributes and strings are refused.
"""

import re

from vinejax.grading.strict.marks import CLOSE, OPEN

MAX_TOKENS = 1500

_TOKEN = re.compile(
    r"\s*(?:(?P<rep>\d*\.\d*\\(?:overline|dot)\s*\{?\s*\d+\s*\}?)"
    r"|(?P<num>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE]\d+(?![\d.]))?)"
    r"|(?P<cmd>\\[A-Za-z]+)"
    rf"|{OPEN}(?P<text>[^{CLOSE}]*){CLOSE}"
    r"|(?P<sym>[A-Za-zα-ωΑ-Ω])"
    r"|(?P<op>[-+*/^_!%|(){}\[\]',]))\s*"
)


class Malformed(ValueError):
    """Raised for text that is not a formula of the supported subset, or exceeds the bounds."""


def tokenise(text: str) -> list[tuple[str, str]]:
    """The kind and the text of each token; raises Malformed at the first unknown character."""
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match or len(tokens) >= MAX_TOKENS:
            raise Malformed(f"unknown token at {at}" if not match else "too long")
        kind = str(match.lastgroup)
        tokens.append((kind, match.group(kind)))
        at = match.end()
    return tokens
