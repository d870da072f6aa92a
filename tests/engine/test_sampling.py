"""Sampling, compared with its definition by sorting; a grid of `u` makes frequencies exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import model_oracles as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from vinejax.core.settings import SampleConfig
from vinejax.engine.sampling import BLOCK, FORMS, PLAIN, inverse_cdf, sample, threshold

SIZES = [5, BLOCK - 1, BLOCK, BLOCK + 1, 300]
ENDS = np.array([0.0, 1 - 2**-24], np.float32)  # least and largest uniform float32
SETTINGS = [  # temperature, top_p, top_k
    (1.0, 1.0, 0), (0.6, 0.9, 0), (2.0, 0.5, 0), (1.0, 0.01, 0), (0.6, 1.0, 1), (2.0, 1.0, 3),
    (1.0, 1.0, 1000), (0.6, 0.8, 4), (2.0, 0.3, 30),
]  # fmt: skip

jitted_sample = jax.jit(sample, static_argnums=(2, 3, 4, 5, 6))
jitted_inverse_cdf = jax.jit(inverse_cdf)


def random_probs(size: int, seed: int = 0) -> np.ndarray:
    weights = np.random.default_rng(seed).exponential(size=size) ** 2
    return (weights / weights.sum()).astype(np.float32)


def drawn(logits: np.ndarray, u: np.ndarray, temperature=1.0, top_p=1.0, top_k=0):
    """Tokens and log-probabilities for each u, all from the same logits.

    They are computed in parts of 64 rows, so that the tests share their programs.
    """
    rows = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (64, len(logits)))
    parts = np.pad(u, (0, -len(u) % 64)).astype(np.float32).reshape(-1, 64)
    found = [jitted_sample(rows, part, temperature, top_p, top_k) for part in parts]
    return [np.concatenate(x)[: len(u)] for x in zip(*found, strict=True)]


def grid(n: int) -> np.ndarray:
    """The middles of n equal parts of [0, 1)."""
    return ((np.arange(n) + 0.5) / n).astype(np.float32)


# --- threshold ---


def sorted_threshold(probs: np.ndarray, weights: np.ndarray, target: float) -> float:
    order = np.argsort(-probs, kind="stable")
    mass = np.cumsum(weights[order].astype(np.float64))
    return float(probs[order][np.argmax(mass >= target)])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("p", [0.02, 0.5, 0.9, 0.999])
def test_threshold_is_the_sorted_one(size, p):
    probs = np.stack([random_probs(size, seed) for seed in range(8)])
    found = threshold(jnp.asarray(probs), jnp.asarray(probs), jnp.full(8, p, jnp.float32))
    expected = [sorted_threshold(row, row, p) for row in probs]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))


@pytest.mark.first
@pytest.mark.parametrize("bits", [2, 3, 5])
def test_threshold_is_the_same_however_many_bits_a_pass_settles(bits):
    """Equal to the bit, with ties, zeros, a row of one token, and targets that no token reaches."""
    probs = np.stack([random_probs(2000, seed) for seed in range(12)])
    probs[:4] = np.round(probs[:4], 3)
    probs[4] = np.eye(2000)[7]
    targets = [0.0, 1e-6, 0.5, 0.9, 1.0, 2.0]
    for weights in (probs, np.ones_like(probs)):
        for target in targets:
            goal = jnp.full(12, target, jnp.float32)
            found = threshold(jnp.asarray(probs), jnp.asarray(weights), goal, bits=bits)
            expected = threshold(jnp.asarray(probs), jnp.asarray(weights), goal)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.first(2)
@pytest.mark.parametrize("form", [form for form in FORMS.values() if form != PLAIN])
@pytest.mark.parametrize("rows", [64, 20])  # whole tiles of a TPU, and not
def test_tokens_are_the_same_in_every_form(form, rows):
    rng = np.random.default_rng(6)
    for size in (300, 4 * BLOCK):
        logits = jnp.asarray(rng.normal(size=(rows, size)) * 3, jnp.float32)
        u = jnp.asarray(rng.random(rows), jnp.float32)
        plain = jitted_sample(logits, u, 0.8, 0.9, 50, None, PLAIN)
        for expected, found in zip(
            plain, jitted_sample(logits, u, 0.8, 0.9, 50, None, form), strict=True
        ):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.9, 0), (1.0, 3), (0.8, 4)])
def test_tokens_are_the_same_in_blocks_of_sequences(top_p, top_k):
    """Also with ties, with a row of one token, and with a row of NaN."""
    rng = np.random.default_rng(7)
    logits = rng.normal(size=(24, 700)).astype(np.float32) * 3
    logits[:8] = np.round(logits[:8])
    logits[8, 1:] = -np.inf
    logits[9] = np.nan
    u = jnp.asarray(rng.random(24), jnp.float32)
    for temperature in (0.0, 0.8):
        expected, found = (
            jitted_sample(jnp.asarray(logits), u, temperature, top_p, top_k, None, form)
            for form in (PLAIN, PLAIN._replace(cached=4 * 700))
        )
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-6, atol=1e-6)


def test_blocks_of_sequences_fit_the_cache_of_a_cpu_alone():
    """A tiny vocabulary needs no blocks; blocks of a large one have as few sequences as needed."""
    sizes = {(64, 512): 64, (64, 49_152): 4, (20, 49_152): 4, (33, 49_152): 1, (64, 2**20): 1}
    for (rows, vocab), size in sizes.items():
        assert FORMS["cpu"].sequences(rows, vocab) == size
        assert FORMS["gpu"].sequences(rows, vocab) == FORMS["tpu"].sequences(rows, vocab) == rows


def test_threshold_by_count():
    probs = np.stack([random_probs(50, seed) for seed in range(4)])
    for k in (1, 2, 49, 50):
        found = threshold(jnp.asarray(probs), jnp.ones((4, 50)), jnp.full(4, float(k)))
        np.testing.assert_array_equal(found, np.sort(probs, axis=1)[:, -k])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=6, max_size=6), st.integers(1, 16))
def test_threshold_with_ties_and_zeros(counts, sixteenths):
    """Small integers over 64: sums are exact, ties and zeros common."""
    probs = np.array(counts, np.float32) / 64
    target = min(sixteenths / 64, float(probs.sum()))
    if target:
        row = jnp.asarray(probs)[None]
        found = threshold(row, row, jnp.array([target], jnp.float32))
        assert float(found[0]) == sorted_threshold(probs, probs, target)


def test_ties_at_the_threshold_are_all_kept():
    logits = np.log([0.4, 0.2, 0.2, 0.1, 0.1])
    for settings_, kept in [
        (dict(top_p=0.5), {0, 1, 2}),
        (dict(top_p=0.7), {0, 1, 2}),
        (dict(top_k=2), {0, 1, 2}),
        (dict(top_k=3, top_p=0.4), {0}),
    ]:
        assert set(drawn(logits, grid(97), **settings_)[0]) == kept, settings_


# --- tokens ---


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), SETTINGS)
def test_tokens_and_logprobs_match_the_sorting_oracle(temperature, top_p, top_k):
    """With any filter, log-probabilities are those of the whole, scaled softmax."""
    logits = np.random.default_rng(1).normal(size=40).astype(np.float32) * 2
    tokens, logprobs = drawn(logits, grid(1000), temperature, top_p, top_k)
    cfg = SampleConfig(temperature=temperature, top_p=top_p, top_k=top_k)
    expected = [oracle.draw(logits, float(u), cfg) for u in grid(1000)]
    np.testing.assert_array_equal(tokens, [token for token, _ in expected])
    np.testing.assert_allclose(logprobs, [x for _, x in expected], atol=2e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.8, 3)])
def test_frequencies_are_the_kept_probabilities(size, top_p, top_k):
    """Of n evenly spread u, a token of probability p gets n p to within one."""
    n = 4096
    logits = np.log(random_probs(size, seed=3))
    tokens, _ = drawn(logits, grid(n), 1.0, top_p, top_k)
    probs = np.exp(logits.astype(np.float64))
    kept = oracle.kept_tokens(probs / probs.sum(), top_p, top_k)
    expected = n * kept / kept.sum()
    counts = np.bincount(tokens, minlength=size)
    assert np.abs(counts - expected).max() < 1.01


def test_frequencies_of_independent_draws():
    """Chi-square of 20,000 draws with the uniform numbers that the engine uses; 99.9% is 27.9."""
    probs, n = random_probs(10, seed=4), 20_000
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(5), i))(jnp.arange(n))
    tokens, _ = drawn(np.log(probs), np.asarray(jax.vmap(jax.random.uniform)(keys)))
    counts = np.bincount(tokens, minlength=10)
    assert np.sum((counts - n * probs) ** 2 / (n * probs)) < 27.9


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.8, 3)])
def test_only_kept_tokens_are_ever_drawn(size, top_p, top_k):
    """At both ends of u, with tokens of probability 0 at both ends of the vocabulary."""
    for seed in range(20):
        logits = np.random.default_rng(seed).normal(size=size).astype(np.float32) * 3
        logits[[0, -1]] = -np.inf
        logits[np.random.default_rng(seed).random(size) < 0.3] = -1e4  # exp gives 0
        logits[size // 2] = 1.0
        probs = np.exp(logits.astype(np.float64))
        kept = oracle.kept_tokens(probs / probs.sum(), top_p, top_k).astype(np.float32)
        tokens, logprobs = drawn(logits, np.concatenate([ENDS, grid(30)]), 1.0, top_p, top_k)
        assert (kept[tokens] > 0).all()
        first, last = np.flatnonzero(kept)[[0, -1]]
        assert tokens[0] == first
        # A last token lighter than float32 can tell from 1 is out of reach of every u.
        assert tokens[1] == last or kept[last:].sum() < 2**-22
        assert np.isfinite(logprobs).all()


def test_no_weightless_token_over_a_thousand_blocks():
    """For every u near a block's end; a sum this long is not monotone to the last bit."""
    rng = np.random.default_rng(0)
    weights = rng.random((1002, BLOCK)).astype(np.float32) ** 4
    weights[:, 0] = 0
    weights[rng.random(1002) < 0.5] = 0
    ends = np.cumsum(weights.sum(axis=1, dtype=np.float64))
    near = ends[:, None] / ends[-1] * 2**23 + np.arange(-2, 3)
    u = np.clip(np.unique(np.floor(near)) / 2**23, 0, 1 - 2**-23).astype(np.float32)
    weights = weights.reshape(-1)
    exact = np.cumsum(weights, dtype=np.float64)
    # In parts: the weights are repeated for every u.
    for part in u[: len(u) // 100 * 100].reshape(-1, 100):
        tokens = jitted_inverse_cdf(jnp.broadcast_to(weights, (100, len(weights))), part)
        assert (weights[np.asarray(tokens)] > 0).all()
        # And u lies in the token's own stretch, to the rounding of the sum.
        end, start = exact[np.asarray(tokens)], exact[np.asarray(tokens) - 1]
        assert (start / exact[-1] < part + 2e-6).all() and (part - 2e-6 < end / exact[-1]).all()


@pytest.mark.parametrize("size", SIZES)
def test_one_possible_token_is_always_drawn(size):
    for token in {0, size // 2, size - 1}:
        logits = np.full(size, -np.inf)
        logits[token] = -3.0
        tokens, logprobs = drawn(logits, ENDS)
        assert (tokens == token).all() and (logprobs == 0).all()


# --- log-probabilities and temperature ---


def test_temperature_0_is_argmax_scored_at_1():
    logits = np.random.default_rng(2).normal(size=30).astype(np.float32)
    tokens, logprobs = drawn(logits, grid(7), 0.0, top_p=0.5, top_k=2)
    assert (tokens == logits.argmax()).all()
    whole = logits.astype(np.float64)
    expected = whole.max() - np.log(np.exp(whole).sum())
    np.testing.assert_allclose(logprobs, expected, atol=2e-6)


def test_a_low_temperature_nears_argmax_and_a_high_one_uniform():
    logits = np.random.default_rng(2).normal(size=16).astype(np.float32)
    assert (drawn(logits, grid(100), 1e-3)[0] == logits.argmax()).all()
    counts = np.bincount(drawn(logits, grid(1600), 1e4)[0], minlength=16)
    assert np.abs(counts - 100).max() <= 1


def test_logits_that_are_not_numbers_give_a_logprob_that_is_none():
    logits = np.full(20, np.nan)
    for temperature in (0.0, 1.0):
        assert np.isnan(drawn(logits, ENDS, temperature)[1]).all()
