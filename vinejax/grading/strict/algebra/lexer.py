"""The tokens that are read as mathematics: a whitelist, so that code in any language is refused.

Numbers, single letters, words in their markers, commands and a few operators. No names, no
attributes, no quotes.
"""

import re

from vinejax.grading.strict.marks import CLOSE, OPEN

MAX_TOKENS = 1500

_TOKEN = re.compile(
    r"\s*(?:(?P<rep>\d*\.\d*\\(?:overline|dot)\s*\{?\s*\d+\s*\}?)"
    r"|(?P<num>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+(?![\d.]))?)"
    r"|(?P<cmd>\\[A-Za-z]+)"
    rf"|{OPEN}(?P<text>[^{CLOSE}]*){CLOSE}"
    r"|(?P<sym>[A-Za-zα-ωΑ-Ω])"
    r"|(?P<op>[-+*/^_!%|(){}\[\]',]))\s*"
)


class Malformed(ValueError):
    """Not an expression of the subset that is read, or one past the bounds."""


def tokenise(text: str) -> list[tuple[str, str]]:
    """(kind, text) for each token; raises Malformed on the first character that is not known."""
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match or len(tokens) >= MAX_TOKENS:
            raise Malformed(f"unknown token at {at}" if not match else "too long")
        kind = str(match.lastgroup)
        tokens.append((kind, match.group(kind)))
        at = match.end()
    return tokens
