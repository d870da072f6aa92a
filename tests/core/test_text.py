"""The search for stop strings in a continuation, against a loop over its tokens."""

import numpy as np
from helpers import loop_cases as cases

from vinejax.core.text import cut_at_stop, decode, tail

SYMBOLS = "12+=\n"


def found_by_loop(before: str, words: str, stop: tuple[str, ...]) -> tuple[int, str, int, bool]:
    """One token a character: the first one with which a stop string ends."""
    for n in range(1, len(words) + 1):
        text = before + words[:n]
        ends = [s for s in stop if text.endswith(s)]
        if ends:
            start = min(len(text) - len(s) - len(before) for s in ends)
            return n, words[: max(start, 0)], max(-start, 0), True
    return len(words), words, 0, False


def test_a_stop_string_is_found_where_a_loop_finds_it():
    """Within the continuation, and where it begins in the text before it."""
    rng, tokenizer, overlaps = np.random.default_rng(0), cases.tokenizer(), 0
    for _ in range(600):
        drawn = ["".join(rng.choice(list(SYMBOLS), n)) for n in rng.integers(1, 9, 2)]
        stop = tuple("".join(rng.choice(list(SYMBOLS), n)) for n in rng.integers(1, 4, 2))
        if any(s in drawn[0] for s in stop):
            continue  # the continuation would not have begun
        before, words = drawn
        prefix = cases.encode(before)
        given = tail(decode(tokenizer, prefix), stop)
        cut = cut_at_stop(
            tokenizer, prefix, decode(tokenizer, prefix), cases.encode(words), stop, given
        )
        expected = found_by_loop(before, words, stop)
        assert (cut.kept, cut.text, cut.overlap, cut.hit) == expected, (before, words, stop)
        overlaps += cut.overlap > 0
    assert overlaps > 10


def test_the_tail_is_as_long_as_a_stop_string_may_have_begun():
    assert tail("1+2=3", ("=3\n", "\n")) == "=3" and tail("1", ("=3\n",)) == "1"
    assert tail("1+2", ()) == "" and tail("1\ufffd", ("ab",)) == "1"
