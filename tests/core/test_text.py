"""The search for stop strings in a continuation, against a loop over its tokens."""

import numpy as np
import pytest
from helpers import loop_cases as cases

from vinejax.core.text import (
    cut_at_stop,
    opens_thinking,
    prefix_end,
    tail,
    tail_before,
    without_escapes,
    without_thinking,
)

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
        given = tail_before(tokenizer, prefix, 0, stop)
        end = prefix_end(tokenizer, prefix)
        cut = cut_at_stop(tokenizer, end, cases.encode(words), stop, given)
        expected = found_by_loop(before, words, stop)
        assert (cut.num_tokens, cut.text, cut.overlap, cut.hit) == expected, (before, words, stop)
        overlaps += cut.overlap > 0
    assert overlaps > 10


def test_the_tail_is_as_long_as_a_stop_string_may_have_begun():
    assert tail("1+2=3", ("=3\n", "\n")) == "=3" and tail("1", ("=3\n",)) == "1"
    assert tail("1+2", ()) == "" and tail("1\ufffd", ("ab",)) == "1"


@pytest.mark.parametrize(
    "text, said",
    [
        ("fold", "fold"),
        (" fold\n", " fold\n"),
        ("<think>raise?</think> fold\n", "fold\n"),
        ("<think>\n\n</think>\n\nfold", "fold"),
        ("<THINKING>raise?</THINKING>fold", "fold"),
        ("◁think▷raise?◁/think▷fold", "fold"),
        ("<seed:think>raise?</seed:think>fold", "fold"),
        ("raise?</think>fold", "fold"),
        ("raise? call?</think><think>no</think>fold", "fold"),
        ("fold <think>or raise?</think> now", "fold  now"),
        ("<think>a<think>b</think>fold", "fold"),
        ("<think>a</think>b</think>fold", "fold"),
        ("<think>raise", ""),
        ("fold<think>raise", "fold"),
        ("<think>a</think>fold<think>", "fold"),
        ("x < y, a thought > b", "x < y, a thought > b"),
        ("", ""),
    ],
)
def test_thinking_is_no_part_of_what_is_said(text: str, said: str):
    assert without_thinking(text) == said


@pytest.mark.parametrize(
    "text, said",
    [
        ("raise?</think>\nfold", "fold"),
        ("raise?", ""),
        ("", ""),
        ("<think>raise?</think>fold", "fold"),
        ("</think>fold", "fold"),
    ],
)
def test_thinking_may_begin_before_a_text(text: str, said: str):
    assert without_thinking(text, is_thinking=True) == said


def test_a_prompt_may_end_in_thinking():
    assert opens_thinking("a:<think>\n") and opens_thinking("<think></think> <Thought>")
    for text in ("", "a:", "<think>\n\n</think>\n\n", "think in <think> and </think>", "<think> a"):
        assert not opens_thinking(text)


@pytest.mark.parametrize(
    "text, plain",
    [
        ("\x1b[31mred\x1b[0m, \x1b[1;38;5;12mblue\x1b[m", "red, blue"),
        ("\x1b[2J\x1b[H\x1b[?25lup\x1b[K\n", "up\n"),
        ("\x9b4mline\x9b24m", "line"),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b\x1b]8;;\x1b\\", "ab"),
        ("\x1b(Ba\x1b7b\x1bMc\x1b", "abc"),
        ("\x1b]never ended\nnext", "\nnext"),
        ("[31m is no code, \t nor is\r this", "[31m is no code, \t nor is\r this"),
    ],
)
def test_escape_codes_are_left_out(text: str, plain: str):
    assert without_escapes(text) == plain
