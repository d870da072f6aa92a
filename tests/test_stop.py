"""The automaton of stop strings against looking for them in the text, and what it saves."""

import random

import numpy as np
import pytest
from model_oracles import Model, assert_same

from vinejax.config import SampleConfig
from vinejax.rollout.branches import Branch
from vinejax.rollout.engine import Engine
from vinejax.rollout.stop import HIT, stop_table, token_texts

TEXTS = ["", "a", "b", "c", "ab", "ba", "abc", "aab", "bab", "cab" * 5, "\ufffd", "x y"]
STOPS = [
    ("a",), ("ab",), ("aab",), ("abab", "ba"), ("bc", "cab"), ("abcab", "aa", "c"), ("y",), (" y",),
    ("aaaa", "aab"), ("never",),
]  # fmt: skip


@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_a_walk_hits_with_the_token_that_completes_a_stop_string(stop):
    table = stop_table(stop, TEXTS)
    draw = random.Random(0)
    hits = 0
    for _ in range(500):
        state, text = 0, ""
        for _ in range(12):
            token = draw.randrange(len(TEXTS))
            state, text = table[state, token], text + TEXTS[token]
            assert (state == HIT) == any(s in text for s in stop), text
            if state == HIT:
                hits += 1
                break
    assert hits > 100 or stop == ("never",)


def test_no_stop_strings_need_no_table():
    assert stop_table((), TEXTS).shape == (0, len(TEXTS))


def test_token_texts_are_what_tokens_add_to_a_text(stories):
    """SentencePiece: a token at the beginning of a text would lose its space."""
    tokenizer, size = stories.tokenizer, stories.decoder.cfg.vocab_size
    texts = token_texts(tokenizer, size)
    assert len(texts) == size
    ids = tokenizer.encode("a Once upon a time, there was a little girl", add_special_tokens=False)
    assert "".join(texts[i] for i in ids[1:]) in tokenizer.decode(ids)
    assert texts[tokenizer.eos_token_id] == ""
    assert any(text.startswith(" ") for text in texts)


def grow(model: Model, stop: tuple[str, ...], table: np.ndarray | None = None):
    """Twelve greedy stories from the BOS token alone and from a few words on."""
    sampling = SampleConfig(temperature=0.7, max_tokens=32, stop=stop)
    engine = Engine(model.decoder, sampling, model.tokenizer, slots=4, chunk=8)
    if table is not None:
        engine.__dict__["_stops"] = np.asarray(table)
    trunk = [1, *model.tokenizer.encode("Once upon a time", add_special_tokens=False)]
    branches = [Branch(0, 1 + i % len(trunk), seed=i) for i in range(12)]
    return engine.grow(model.params, [trunk], branches), engine.stats


def test_the_device_ends_a_branch_at_its_stop_string(stories):
    found, stats = grow(stories, ("he",))
    assert {x.finish for x in found} >= {"stop"}
    assert stats.decoded_tokens == stats.useful_tokens == sum(len(x.tokens) for x in found)
    # The same results without its help, when the host alone looks for it, and more tokens.
    size = stories.decoder.cfg.vocab_size
    by_host, without = grow(stories, ("he",), np.zeros((0, size), np.int32))
    assert_same(by_host, found)
    assert without.decoded_tokens > stats.decoded_tokens
    assert without.useful_tokens == stats.useful_tokens


def test_a_branch_that_was_ended_by_mistake_goes_on(stories):
    """A table that takes a token in the middle for the end: the text decides, nothing changes."""
    found, stats = grow(stories, ("he",))
    wrong = np.zeros((1, stories.decoder.cfg.vocab_size), np.int32)
    wrong[:, max(found, key=lambda x: len(x.tokens)).tokens[2]] = HIT
    again, with_others = grow(stories, ("he",), wrong)
    assert_same(again, found)
    assert with_others.prefill_tokens > stats.prefill_tokens, "it went on, from its own trunk"
    assert with_others.useful_tokens == stats.useful_tokens
