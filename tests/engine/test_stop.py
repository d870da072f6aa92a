"""The automaton of stop strings, compared with a search in the text, and its savings."""

import dataclasses
import json
import random
import time
from typing import Any

import numpy as np
import pytest
from helpers.model_oracles import Model, assert_same
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from vinejax.core.settings import SampleConfig
from vinejax.core.text import continuation_text, prefix_end, token_text
from vinejax.engine.branches import Branch, BranchSet, Grown
from vinejax.engine.engine import Engine
from vinejax.engine.stats import EngineStats
from vinejax.engine.stop import HIT, first_states, stop_table

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


def test_a_branch_starts_in_the_state_after_its_part_of_the_response():
    """A walk from the response's first token; after a whole stop string it goes on in state 0.

    A branch without a budget starts nowhere: its trunk may end before it.
    """
    table = stop_table(("abab", "bc"), TEXTS)
    draw = random.Random(0)
    trunks = [draw.choices(range(1, 6), k=12) for _ in range(20)]
    branches, expected = [], []
    for trunk, tokens in enumerate(trunks):
        for position in draw.sample(range(1, 13), 6):
            response = draw.choice([None, 0, draw.randrange(position + 1)])
            branches.append(Branch(trunk, position, seed=0, response=response))
            state = 0
            for token in [] if response is None else tokens[response:position]:
                state = int(table[state, token])
                state = 0 if state == HIT else state
            expected.append(state)
        branches.append(Branch(trunk, 99, seed=0, response=0))
        expected.append(0)
    budgets = [0 if branch.position == 99 else 4 for branch in branches]
    branch_set = BranchSet(trunks, branches, budgets, 12, [False] * len(trunks))
    assert first_states(table, branch_set) == expected
    assert len(set(expected)) > 3
    none = stop_table((), TEXTS)
    assert first_states(none, branch_set) == [0] * len(branches)


def next_state(stop: tuple[str, ...], prefix: str, text: str) -> str | None:
    """The text of the state after a token, by definition; None if a stop string is complete."""
    if any((prefix + text[:n]).endswith(stop) for n in range(1, len(text) + 1)):
        return None
    ends = [(prefix + text)[i:] for i in range(len(prefix + text) + 1)]
    return next(end for end in ends if any(s.startswith(end) for s in stop))


@pytest.mark.parametrize("seed", range(20))
def test_every_entry_is_the_state_of_its_definition(seed: int):
    draw = random.Random(seed)
    signs = draw.choice(["ab", "a\x00", "]^-\\[", "ab\n\U0001f389"])
    stop = tuple("".join(draw.choices(signs, k=draw.randint(1, 4))) for _ in range(3))
    texts = ["".join(draw.choices(signs + "x\x01", k=draw.randint(0, 8))) for _ in range(80)]
    table = stop_table(stop, texts)
    states = sorted({s[:n] for s in stop for n in range(len(s) + 1)}, key=lambda s: (len(s), s))
    assert table.dtype == np.int32 and table.shape == (len(states), len(texts))
    for state, prefix in enumerate(states):
        for token, text in enumerate(texts):
            after = next_state(stop, prefix, text)
            assert table[state, token] == (HIT if after is None else states.index(after))


def test_a_large_vocabulary_takes_seconds_at_most():
    """150,000 tokens, one of 128 spaces; a walk for each token took 20 to 70 seconds."""
    draw = random.Random(0)
    letters = "etaoinshrdlcumwfgypbvk ETAOIN.:\n"
    texts = ["".join(draw.choices(letters, k=draw.randint(1, 9))) for _ in range(150_000)]
    start = time.process_time()
    table = stop_table(("\n\n\nProblem:", "\nQuestion:", "[MATH_TASK]"), [*texts, " " * 128])
    assert time.process_time() - start < 6.0
    assert table.shape[1] == 150_001 and table[:, -1].tolist() == [0] * len(table)


def test_no_stop_strings_need_no_table():
    assert stop_table((), TEXTS).shape == (0, len(TEXTS))


def test_token_texts_are_what_tokens_add_to_a_text(stories):
    """SentencePiece: a token at the beginning of a text would lose its space."""
    tokenizer, size = stories.tokenizer, stories.decoder.cfg.vocab_size
    texts = list(map(token_text(tokenizer), range(size)))
    assert len(texts) == size
    ids = tokenizer.encode("a Once upon a time, there was a little girl", add_special_tokens=False)
    assert "".join(texts[i] for i in ids[1:]) in tokenizer.decode(ids)
    assert texts[tokenizer.eos_token_id] == ""
    assert any(text.startswith(" ") for text in texts)


@pytest.fixture
def give_table(monkeypatch: pytest.MonkeyPatch):
    """Engines that are made afterwards take this automaton for that of their stop strings."""

    def give(table: np.ndarray) -> None:
        monkeypatch.setattr("vinejax.engine.engine.stop_table", lambda stop, texts: table)

    return give


def engine_of(model: Model, stop: tuple[str, ...] = (), **fields) -> Engine:
    sampling = SampleConfig(temperature=0.7, max_tokens=32, stop=stop, **fields)
    return Engine(model.decoder, sampling, model.tokenizer, slots=4, chunk=8, skip_repeats=False)


def stories_by(engine: Engine, model: Model) -> list[Grown]:
    """Twelve stories from the BOS token alone and from a few words on."""
    trunk = [1, *model.tokenizer.encode("Once upon a time", add_special_tokens=False)]
    branches = [Branch(0, 1 + i % len(trunk), seed=i) for i in range(12)]
    return engine.grow(model.params, [trunk], branches)


def grow(model: Model, stop: tuple[str, ...] = (), **fields) -> tuple[list[Grown], EngineStats]:
    engine = engine_of(model, stop, **fields)
    return stories_by(engine, model), engine.stats


@pytest.mark.slow
def test_the_device_ends_a_branch_at_its_stop_string(stories, give_table):
    found, stats = grow(stories, ("he",))
    assert {x.finish for x in found} >= {"stop"}
    drawn = stats.decoded_tokens + stats.repeated_tokens
    assert drawn == stats.useful_tokens == sum(len(x.tokens) for x in found)
    # If the host alone searches for it, results are the same, and more tokens are decoded.
    size = stories.decoder.cfg.vocab_size
    give_table(np.zeros((0, size), np.int32))
    by_host, without = grow(stories, ("he",))
    assert_same(by_host, found)
    assert without.decoded_tokens > stats.decoded_tokens
    assert without.useful_tokens == stats.useful_tokens


def with_special(model: Model, piece: str, content: str) -> tuple[Model, int]:
    """The model with a tokenizer that writes a special token for `piece`, and that token's id."""
    old: Any = model.tokenizer
    raw = json.loads(old.backend_tokenizer.to_str())
    vocab, token = raw["model"]["vocab"], old.convert_tokens_to_ids(piece)
    del vocab[piece]
    vocab[content] = token
    merges = [merge for merge in raw["model"]["merges"] if piece not in "".join(merge)]
    raw["model"]["merges"] = merges
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    raw["added_tokens"].append({"id": token, "content": content, "special": True} | flags)
    backend = Backend.from_str(json.dumps(raw))
    new = PreTrainedTokenizerFast(tokenizer_object=backend, **old.special_tokens_map)
    return model._replace(tokenizer=new), token


def test_a_special_token_is_text_or_a_stop(stories):
    model, token = with_special(stories, ".", "<|dot|>")
    whole, _ = grow(model)
    hidden, _ = grow(model, skip_special_tokens=True)
    plain, _ = grow(stories)
    for one, skipped, before in zip(whole, hidden, plain, strict=True):
        assert one.tokens == skipped.tokens == before.tokens
        assert one.text.count("<|dot|>") == one.tokens.count(token)
        assert skipped.text == one.text.replace("<|dot|>", "")
        assert "</s>" not in one.text
    assert sum(one.text.count("<|dot|>") for one in whole) > 5
    for skip in (False, True):
        stopped, stats = grow(model, ("never", "<|dot|>"), skip_special_tokens=skip)
        for one, cut in zip(whole, stopped, strict=True):
            ends = one.tokens.index(token) + 1 if token in one.tokens else len(one.tokens)
            assert cut.tokens == one.tokens[:ends]
            assert cut.text == one.text.partition("<|dot|>")[0]
            assert cut.finish == ("eos" if token in one.tokens else one.finish)
        assert stats.decoded_tokens + stats.repeated_tokens == stats.useful_tokens
    skipping, showing = (engine_of(model, skip_special_tokens=skip) for skip in (True, False))
    for engine, expected in ((skipping, hidden), (showing, whole)):  # the newest goes last
        assert [x.text for x in stories_by(engine, model)] == [x.text for x in expected]


def test_a_response_ends_at_a_stop_id_as_at_eos_and_before_its_text(stories):
    (comma,) = stories.tokenizer.convert_tokens_to_ids([","])
    found, _ = grow(stories, stop_ids=(comma,))
    plain, _ = grow(stories)
    assert sum(comma in one.tokens for one in plain) > 3
    for one, cut in zip(plain, found, strict=True):
        ends = one.tokens.index(comma) + 1 if comma in one.tokens else len(one.tokens)
        assert cut.tokens == one.tokens[:ends]
        np.testing.assert_allclose(cut.logprobs, one.logprobs[:ends], atol=1e-5)
        assert cut.finish == ("eos" if comma in one.tokens else one.finish)
        assert cut.text == (one.text.partition(",")[0] if comma in one.tokens else one.text)


@pytest.mark.slow
def test_a_branch_that_was_ended_by_mistake_goes_on(stories, give_table):
    """A wrong table ends branches at a token in the middle; the text decides, so results agree."""
    found, stats = grow(stories, ("he",))
    wrong = np.zeros((1, stories.decoder.cfg.vocab_size), np.int32)
    wrong[:, max(found, key=lambda x: len(x.tokens)).tokens[2]] = HIT
    give_table(wrong)
    again, with_others = grow(stories, ("he",))
    assert_same(again, found)
    assert with_others.prefill_tokens > stats.prefill_tokens, "it went on, from its own trunk"
    assert with_others.useful_tokens == stats.useful_tokens


@pytest.mark.slow
@pytest.mark.parametrize("by_device", [True, False], ids=["device", "host alone"])
def test_from_every_state_of_a_solution_its_own_draws_end_as_it_did(by_device, stories, give_table):
    """A value is then that of the policy with its stop strings, which may begin before a branch."""
    tokenizer, budget = stories.tokenizer, 24
    stop = (" named L", "oy named", "dog named Max")
    if not by_device:
        give_table(np.zeros((1, stories.decoder.cfg.vocab_size), np.int32))
    sampling = SampleConfig(temperature=0.7, max_tokens=budget, stop=stop)
    engine = Engine(stories.decoder, sampling, tokenizer, slots=4, window_rows=4, chunk=8)
    prompt = [1, *tokenizer.encode("Once upon a time", add_special_tokens=False)]
    at, prompt_end = len(prompt), prefix_end(tokenizer, prompt)
    solutions = engine.grow(stories.params, [prompt], [Branch(0, at, seed) for seed in range(8)])
    assert {x.finish for x in solutions} == {"stop", "length"}

    trunks = [prompt + x.tokens for x in solutions]
    states = [(i, n) for i, x in enumerate(solutions) for n in range(len(x.tokens))]
    branches = [Branch(i, at + n, seed=i, response=at) for i, n in states]
    before = dataclasses.replace(engine.stats)
    found = engine.grow(stories.params, trunks, branches, [budget - n for _, n in states])
    for (i, n), one in zip(states, found, strict=True):
        whole = solutions[i]
        so_far = continuation_text(tokenizer, prompt_end, whole.tokens[:n])
        assert (one.tokens, one.finish) == (whole.tokens[n:], whole.finish)
        assert so_far[: len(so_far) - one.overlap] + one.text == whole.text
    assert max(x.overlap for x in found) > 6 and min(len(x.tokens) for x in found) == 1
    since = engine.stats.minus(before)
    assert (since.decoded_tokens + since.repeated_tokens == since.useful_tokens) == by_device

    # A response that begins with the branch does not end at a stop string that begins before it.
    i, n = next(state for state, x in zip(states, found, strict=True) if x.overlap)
    (alone,) = engine.grow(stories.params, trunks, [Branch(i, at + n, seed=i)], budget - n)
    assert len(alone.tokens) > len(solutions[i].tokens) - n and alone.overlap == 0
