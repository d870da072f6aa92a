"""How branches end, their texts, the errors for bad input, and the statistics."""

import dataclasses
import itertools
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data
from helpers.model_oracles import Model, assert_same, random_model

from vinejax.core.settings import SampleConfig
from vinejax.engine import decode
from vinejax.engine.branches import Branch, Grown, branch_set_of
from vinejax.engine.engine import Engine
from vinejax.engine.stats import EngineStats
from vinejax.runtime.compiles import num_compiles

EOS = 1
TRUNKS = [[3, 8, 9, 4], [7, 5, 6, 8, 2, 9, 11]]
BRANCHES = [Branch(i % 2, 1 + i % 4, seed=i) for i in range(24)]


def tiny_engine(tiny: Model, skip_repeats: bool = True, **fields) -> Engine:
    """All of these share their compiled programs."""
    sampling = SampleConfig(**fields)
    return Engine(tiny.decoder, sampling, tiny.tokenizer, slots=4, skip_repeats=skip_repeats)


@pytest.fixture(scope="module")
def grown(tiny: Model) -> list[Grown]:
    """Continuations of which some end in EOS and some fill their 16 tokens."""
    found = tiny_engine(tiny).grow(tiny.params, TRUNKS, BRANCHES, 16)
    assert {x.finish for x in found} == {"eos", "length"}
    return found


@pytest.fixture(scope="module")
def greedy(stories: Model):
    """Continues a list of ids with the most likely text; SentencePiece, several letters a token."""

    def write(ids: list[int], at: list[int], **fields) -> list[Grown]:
        sampling = SampleConfig(temperature=0, max_tokens=32, **fields)
        engine = Engine(stories.decoder, sampling, stories.tokenizer, slots=8)
        return engine.grow(stories.params, [ids], [Branch(0, n, 0) for n in at])

    return write


def golden() -> dict:
    return json.loads(data.path("stories260K/golden.json").read_text())


# --- the program ---


def test_on_a_gpu_a_chunk_is_one_graph_unless_the_flags_say(monkeypatch: pytest.MonkeyPatch):
    """Compiled here for a CPU, which accepts and rejects the same names in the flag as a GPU."""
    flag, given, jit = "xla_gpu_enable_command_buffer", {}, jax.jit

    def recorded(function: Any, **settings: Any) -> Any:
        given.update(settings)
        return jit(function)

    monkeypatch.setattr(decode.jax, "jit", recorded)
    of_platform = decode.chunk_program.__wrapped__
    of_platform("cpu")
    assert not given["compiler_options"]
    of_platform("gpu")
    options = given["compiler_options"]
    monkeypatch.setenv("XLA_FLAGS", f"--{flag}=")
    of_platform("gpu")
    assert not given["compiler_options"]
    monkeypatch.undo()
    assert {"WHILE", "CONDITIONAL"} < set(options[flag].split(","))
    assert jax.jit(lambda x: x + 1, compiler_options=options)(1) == 2
    with pytest.raises(jax.errors.JaxRuntimeError, match="valid enum"):
        jax.jit(lambda x: x + 2, compiler_options={flag: "WHILES"})(1)


# --- EOS and length ---


def test_eos_is_the_last_token_and_counts_as_the_last_permitted_one(tiny, grown):
    ended = [(b, x) for b, x in zip(BRANCHES, grown, strict=True) if x.finish == "eos"]
    for _, found in ended:
        assert found.tokens[-1] == EOS and EOS not in found.tokens[:-1]
        assert len(found.logprobs) == len(found.tokens)
        assert "<eos>" not in found.text
    branches = [branch for branch, _ in ended]
    sizes = [len(found.tokens) for _, found in ended]
    engine = tiny_engine(tiny)
    for again, (_, found) in zip(
        engine.grow(tiny.params, TRUNKS, branches, sizes), ended, strict=True
    ):
        assert (again.tokens, again.finish) == (found.tokens, "eos")
    short = engine.grow(tiny.params, TRUNKS, branches, [size - 1 for size in sizes])
    for one, (_, found) in zip(short, ended, strict=True):
        assert (one.tokens, one.finish) == (found.tokens[:-1], "length")


def test_the_ids_that_end_a_text_are_the_model_s_and_the_tokenizer_s(tiny):
    model, _, _ = random_model(eos_ids=(5, 3))
    assert Engine(model, SampleConfig(), tiny.tokenizer).eos_ids == (1, 3, 5)


def test_budgets(tiny, grown):
    """One for all branches, one per branch, or the configuration's; 0 gives an empty result."""
    engine = tiny_engine(tiny, max_tokens=3)
    first_three = engine.grow(tiny.params, TRUNKS, BRANCHES)
    assert [x.tokens for x in first_three] == [x.tokens[:3] for x in grown]
    assert engine.grow(tiny.params, TRUNKS, BRANCHES, 3) == first_three
    limits = [i % 4 for i in range(len(BRANCHES))]
    found = engine.grow(tiny.params, TRUNKS, BRANCHES, limits)
    assert [x.tokens for x in found] == [x.tokens[:n] for x, n in zip(grown, limits, strict=True)]
    assert found[0] == Grown([], [], "", "length")


def test_nothing_to_grow(tiny):
    engine = tiny_engine(tiny)
    assert engine.grow(tiny.params, TRUNKS, []) == []
    assert engine.grow(tiny.params, [], []) == []
    assert engine.grow(tiny.params, TRUNKS, BRANCHES[:2], 0) == [Grown([], [], "", "length")] * 2
    assert engine.stats == EngineStats()


@pytest.mark.slow
def test_the_context_is_the_last_limit(tiny):
    trunk = [4] * 96
    branches = [Branch(0, at, seed) for at in (96, 95, 90) for seed in range(4)]
    engine = tiny_engine(tiny, skip_repeats=False)
    found = engine.grow(tiny.params, [trunk], branches, 16)
    assert found[:4] == [Grown([], [], "", "length")] * 4
    assert {len(x.tokens) for x in found[4:8]} == {1}
    assert max(len(x.tokens) for x in found[8:]) == 6
    assert all(x.finish == "eos" or len(x.tokens) == 6 for x in found[8:])


# --- stop strings and text ---


def first_stop(tiny: Model, branch: Branch, found: Grown, stop: tuple[str, ...]) -> Grown:
    """The result with stop strings, found by a search after every token of the plain result."""
    prefix = TRUNKS[branch.trunk][: branch.position]
    before = len(tiny.tokenizer.decode(prefix, skip_special_tokens=True))
    for n in range(1, len(found.tokens) + 1):
        text = tiny.tokenizer.decode(prefix + found.tokens[:n], skip_special_tokens=True)[before:]
        places = [text.find(s) for s in stop if s in text]
        if places:
            return Grown(found.tokens[:n], found.logprobs[:n], text[: min(places)], "stop")
    return found


@pytest.mark.slow
def test_stop_strings_end_the_text_before_and_the_tokens_with_their_last_token(tiny, grown):
    """At the beginning, over several tokens, two stop strings, and one before EOS."""
    by_eos = next(x for x in grown if x.finish == "eos" and len(x.text) > 4)
    long = max(grown, key=lambda x: len(x.text)).text
    stops = [(long[0],), (long[5:8],), (long[9:11], long[2:4]), (long[2:4], long[3:6])]
    stops += [(by_eos.text[-2:],), ("never said",), *itertools.combinations("0123456789", 2)]
    kinds = []
    for stop in stops:
        found = tiny_engine(tiny, stop=stop).grow(tiny.params, TRUNKS, BRANCHES, 16)
        for branch, one, plain in zip(BRANCHES, found, grown, strict=True):
            expected = first_stop(tiny, branch, plain, stop)
            assert (one.tokens, one.text, one.finish) == (
                expected.tokens, expected.text, expected.finish
            ), stop  # fmt: skip
            np.testing.assert_allclose(one.logprobs, expected.logprobs, atol=1e-4)
            kinds.append((plain.finish, one.finish, one.text == ""))
            if one.finish == "stop":
                assert EOS not in one.tokens
    wanted = [("eos", "stop", False), ("eos", "eos", False), ("length", "length", False)]
    assert {*wanted, ("length", "stop", True)} <= set(kinds)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (("ittle g",), "Once upon a time, there was a l"),
        (("Once",), ""),
        ((".",), "Once upon a time, there was a little girl named Lily"),
        (("pon", " up"), "Once"),
        ((" there was a", "time"), "Once upon a "),
    ],
)
def test_stop_strings_within_and_across_tokens_of_several_letters(stop, text, greedy, stories):
    (found,) = greedy([1], [1], stop=stop)
    assert (found.text, found.finish) == (text, "stop")
    plain = greedy([1], [1])[0].tokens
    assert found.tokens == plain[: len(found.tokens)]
    said = stories.tokenizer.decode(found.tokens)
    assert any(s in said for s in stop), "the token that completes it is kept"
    assert not any(s in stories.tokenizer.decode(found.tokens[:-1]) for s in stop)


def test_the_text_of_a_continuation_keeps_its_spaces(greedy, stories):
    """Decoded alone, a first SentencePiece token would lose the space that it begins with."""
    ids = golden()["greedy_ids_from_bos"][:30]
    whole = golden()["greedy_text"]
    at = list(range(1, 30))
    spaces = 0
    for n, found in zip(at, greedy(ids, at), strict=True):
        prefix = stories.tokenizer.decode(ids[:n], skip_special_tokens=True)
        assert found.text and whole.startswith(prefix + found.text)
        spaces += found.text.startswith(" ")
    assert spaces > 5


# --- errors ---


@pytest.mark.parametrize(
    ("trunks", "branch", "message"),
    [
        ([[3], []], Branch(0, 1, 0), "trunk 1 is empty"),
        ([[3], [4] * 97], Branch(0, 1, 0), "trunk 1 has 97 tokens, the context is 96"),
        ([[3], [4, 20]], Branch(0, 1, 0), r"trunk 1 has ids outside 0 \.\. 19"),
        ([[3], [-1]], Branch(0, 1, 0), "trunk 1 has ids outside"),
        (TRUNKS, Branch(2, 1, 0), "branch 1: no trunk 2 among 2"),
        (TRUNKS, Branch(-1, 1, 0), "branch 1: no trunk -1"),
        (TRUNKS, Branch(0, 0, 0), r"branch 1: position 0 is outside 1 \.\. 4"),
        (TRUNKS, Branch(1, 8, 0), r"branch 1: position 8 .* 1 \.\. 7, the length of trunk 1"),
        (TRUNKS, Branch(0, 1, -1), "branch 1: seed -1"),
        (TRUNKS, Branch(0, 1, 2**64), "branch 1: seed 18446744073709551616"),
        (TRUNKS, Branch(0, 2, 0, 3), r"branch 1: response 3 is outside 0 \.\. 2, its position"),
        ([[3], np.array([4.0])], Branch(0, 1, 0), "trunk 1 is no sequence of token ids"),
    ],
)
def test_bad_input_is_named(trunks, branch, message, tiny):
    engine = tiny_engine(tiny)
    with pytest.raises(ValueError, match=message):
        engine.stream(tiny.params, trunks, [Branch(0, 1, 0), branch])  # at the call
    with pytest.raises(ValueError, match=message):
        engine.grow(tiny.params, trunks, [Branch(0, 1, 0), branch])
    assert engine.stats == EngineStats(), "something was computed before the error"


def test_as_many_budgets_as_branches(tiny):
    with pytest.raises(ValueError, match="3 entries of max_tokens for 24 branches"):
        tiny_engine(tiny).grow(tiny.params, TRUNKS, BRANCHES, [1, 2, 3])
    with pytest.raises(ValueError, match="max_tokens = .* must be an integer"):
        tiny_engine(tiny).grow(tiny.params, TRUNKS, BRANCHES[:1], np.array([1.5]))


@pytest.mark.parametrize("kind", [tuple, np.array, lambda ids: [np.int32(i) for i in ids]])
def test_ids_and_budgets_of_any_kind(kind, tiny, grown):
    trunks, budgets = tuple(map(kind, TRUNKS)), kind([16] * len(BRANCHES))
    engine = tiny_engine(tiny)
    assert engine.grow(tiny.params, trunks, tuple(BRANCHES), budgets) == grown
    assert engine.grow(tiny.params, trunks, BRANCHES, np.int64(16)) == grown
    square = np.array([trunk[:4] for trunk in TRUNKS])
    assert_same(engine.grow(tiny.params, square, BRANCHES, 16), grown)  # shorter trunks


def test_branches_of_short_integers_overflow_nowhere(tiny):
    """A seed is divided into halves of 32 bits, and tokens after the position are a draft."""
    cfg, branch = dataclasses.replace(tiny.decoder.cfg, context=512), Branch(0, 250, 5, 2)
    short = {"position": np.uint8(250), "seed": np.int32(5), "response": np.uint8(2)}
    for name, value in short.items():  # the constructor checks types in tests
        object.__setattr__(branch, name, value)
    found = branch_set_of([[3] * 400], [branch], 16, cfg, scored=False, reach=64)
    assert list(map(len, found.trunks)) == [250 + 64]
    assert found.branches == [Branch(0, 250, 5, 2)]
    assert {type(x) for x in vars(found.branches[0]).values()} == {int}


@pytest.mark.parametrize(
    "wrong",
    [
        *({"temperature": x} for x in (-1.0, 1e-40, math.nan, math.inf)),
        *({"top_p": 0.0}, {"top_p": 1e-46}, {"top_p": 1.1}, {"top_p": math.nan}, {"top_k": -1}),
    ],
)
def test_sampling_settings_out_of_range(wrong: dict, tiny):
    with pytest.raises(ValueError, match="top_p <= 1"):
        Engine(tiny.decoder, SampleConfig(**wrong), tiny.tokenizer)


@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_stop_ids_that_are_no_tokens(wrong: int, tiny):
    with pytest.raises(ValueError, match=rf"stop_ids = \(2, {wrong}\) must be token ids, below"):
        Engine(tiny.decoder, SampleConfig(stop_ids=(2, wrong)), tiny.tokenizer)


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ("ab", r"stop = 'ab' must be a tuple of strings: \('ab',\)"),
        (["a"], r"stop = \['a'\] must be a tuple of strings: \('a',\)"),
        (("a", ""), "empty string"),
    ],
)
def test_stop_strings_that_are_none(stop, message, tiny):
    cfg = SampleConfig()
    object.__setattr__(cfg, "stop", stop)  # the class does not check the type
    with pytest.raises(ValueError, match=message):
        Engine(tiny.decoder, cfg, tiny.tokenizer)


@pytest.mark.parametrize("name", ["slots", "window_rows", "chunk"])
def test_sizes_out_of_range(name, tiny):
    with pytest.raises(ValueError, match=f"{name} = 0 must be at least 1"):
        sizes: Any = {name: 0}
        Engine(tiny.decoder, SampleConfig(), tiny.tokenizer, None, **sizes)


def test_weights_that_have_diverged_are_an_error_that_names_the_trunk(tiny):
    """The embedding of token 11 is NaN; only trunk 1 has the token."""
    params = {**tiny.params, "embed": tiny.params["embed"].at[11].set(jnp.nan)}
    engine = tiny_engine(tiny)
    sound = [Branch(0, 4, 0), Branch(1, 6, 0)]
    assert len(engine.grow(params, TRUNKS, sound, 1)) == 2
    with pytest.raises(FloatingPointError, match="on trunk 1: .* token 1 are not finite"):
        engine.grow(params, TRUNKS, [*sound, Branch(1, 7, 0)], 1)
    with pytest.raises(FloatingPointError, match="branch 1 on trunk 1"):  # the longest trunk
        engine.grow({**tiny.params, "head": tiny.params["head"] * jnp.nan}, TRUNKS, BRANCHES, 4)
    with pytest.raises(FloatingPointError, match="trunk 1: .* its own tokens are not finite"):
        engine.stream(params, [TRUNKS[0], [*TRUNKS[1], 3]], sound[:1], 1, scored=True).in_order()


# --- statistics ---


@pytest.mark.slow
def test_counts(tiny, grown):
    engine = tiny_engine(tiny, skip_repeats=False, stop=("1",))
    engine.grow(tiny.params, TRUNKS, BRANCHES, 16)
    taken = engine.stats.cache_bytes
    stats = engine.stats.mark()
    assert stats.cache_bytes == taken > 0 == engine.stats.cache_bytes
    # Each trunk is prefilled once, up to its last branch: 3 tokens of trunk 0, 4 of trunk 1.
    assert stats.prefill_tokens == 3 + 4
    sampled = sum(
        len(first_stop(tiny, *pair, ("1",)).tokens) for pair in zip(BRANCHES, grown, strict=True)
    )
    assert stats.decoded_tokens == sampled == stats.useful_tokens, "nothing after a stop string"
    assert stats.slot_steps == 4 * stats.decode_steps
    assert 0.5 < stats.slot_utilisation <= 1
    assert stats.slot_utilisation == sampled / stats.slot_steps

    engine.grow(tiny.params, TRUNKS, BRANCHES[:1], 1)
    since = engine.stats.minus(stats)
    assert (since.prefill_tokens, since.decoded_tokens, since.decode_steps) == (1, 1, 1)
    assert since.slot_utilisation == 0.25
    assert 0 < since.cache_bytes < taken, "a phase of one branch takes less"


@pytest.mark.slow
def test_a_trunk_of_several_rows_is_prefilled_once(tiny):
    engine = tiny_engine(tiny, skip_repeats=False)
    engine.grow(tiny.params, TRUNKS, [Branch(1, 5, seed) for seed in range(40)], 4)
    assert engine.stats.prefill_tokens == 5


def test_slots_take_the_next_branch_at_once(tiny):
    """One long branch, and short ones that pass through the slots beside it meanwhile."""
    engine = tiny_engine(tiny, skip_repeats=False)
    branches = [Branch(0, 2, 5), *[Branch(i % 2, 2, seed=i) for i in range(1, 20)]]
    found = engine.grow(tiny.params, TRUNKS, branches, [16, *[1] * 19])
    assert len(found[0].tokens) > 10
    assert engine.stats.decode_steps == len(found[0].tokens)


@pytest.mark.slow
def test_other_lengths_in_the_same_buckets_compile_nothing(tiny):
    engine = tiny_engine(tiny, skip_repeats=False)
    engine.grow(tiny.params, TRUNKS, BRANCHES, 16)
    engine.grow(tiny.params, [[4] * 29, [5] * 18, [6] * 4], [Branch(2, 4, 0), Branch(0, 29, 7)], 9)
    first = tiny_engine(tiny, skip_repeats=False, stop=("8",), max_tokens=5)
    first.grow(tiny.params, TRUNKS, BRANCHES * 2)
    compiled, counted = num_compiles(), engine.stats.compiles
    engine.grow(tiny.params, [[4] * 32, [5] * 20, [6] * 3], [Branch(2, 3, 0), Branch(0, 32, 7)], 9)
    other = tiny_engine(tiny, skip_repeats=False, stop=("7",), max_tokens=5)
    other.grow(tiny.params, TRUNKS, BRANCHES * 3)
    assert (num_compiles(), engine.stats.compiles) == (compiled, counted)
    assert other.stats.compiles == 0

    engine.grow(tiny.params, [[4] * 33], [Branch(0, 33, 0)], 9)  # the next bucket of trunks
    assert num_compiles() > compiled
    assert engine.stats.compiles - counted == num_compiles() - compiled
