"""The GPU's kernel that draws tokens, interpreted, compared with `sampling.sample`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from vinejax.engine.gpu import drawing
from vinejax.engine.sampling import kept_probs, sample

V = 1300  # three tiles of 512, the last one not full
ROWS = 48


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drawing, "TILE", 512)


def many_rows(seed: int) -> np.ndarray:
    """Logits f32[ROWS, V]: peaked, flat, with ties, with -inf, of few tokens, and of one token."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(ROWS, V)) * rng.choice([0.01, 1.0, 4.0, 12.0], (ROWS, 1))
    logits[4:12] = np.round(logits[4:12])
    logits[12:20][rng.random((8, V)) < 0.9] = -np.inf
    logits[20:24, 5:] = -np.inf
    logits[24] = 0.0
    logits[25, 1:] = logits[26, :-1] = -np.inf
    logits[27:30] += 100.0  # whose exp has no float32
    return logits.astype(np.float32)


def drawn(logits: np.ndarray, u: np.ndarray, *settings: float, by_kernel: bool) -> list[np.ndarray]:
    draw = functools.partial(drawing.draw, interpret=True) if by_kernel else sample
    return [*map(np.asarray, jax.jit(draw, static_argnums=(2, 3, 4))(logits, u, *settings))]


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"),
    [
        (0.6, 0.9, 50),
        pytest.param(0.6, 0.9, 0, marks=pytest.mark.slow),
        pytest.param(1.0, 1.0, 0, marks=pytest.mark.slow),
        pytest.param(2.0, 0.3, 0, marks=pytest.mark.slow),
        pytest.param(0.35, 0.999, 0, marks=pytest.mark.slow),
        pytest.param(1.0, 1.0, 3, marks=pytest.mark.slow),
        pytest.param(0.6, 0.9, 2000, marks=pytest.mark.slow),
        pytest.param(0.8, 0.9, 50, marks=pytest.mark.slow),
        (0.0, 0.9, 2),
    ],
)
def test_tokens_are_those_of_sample(temperature: float, top_p: float, top_k: int):
    for seed in range(2):
        logits = many_rows(seed)
        u = np.random.default_rng(seed + 100).random(ROWS).astype(np.float32)
        expected, found = (
            drawn(logits, u, temperature, top_p, top_k, by_kernel=by_kernel)
            for by_kernel in (False, True)
        )
        np.testing.assert_array_equal(found[0], expected[0])
        # A rounding of the largest scaled logit is one of every log-probability of its row.
        rounding = np.spacing(np.max(logits, axis=1) / np.float32(temperature or 1))
        error = np.abs(found[1] - expected[1]) - 5e-7 * np.abs(expected[1])
        assert np.all(error < 3e-6 + 2 * np.abs(rounding))


def test_ends_of_u_draw_the_first_and_the_last_kept_token():
    """Also with tokens of weight 0 at both ends of the vocabulary and of a tile."""
    logits = np.full((ROWS, V), -np.inf, np.float32)
    first, last = np.random.default_rng(0).integers(1, V - 1, (2, ROWS))
    first[:4], last[:4] = 511, 512
    rows = np.arange(ROWS)
    logits[rows, first] = logits[rows, last] = 1.0
    for u, expected in ((0.0, np.minimum(first, last)), (1 - 2**-24, np.maximum(first, last))):
        tokens, _ = drawn(logits, np.full(ROWS, u, np.float32), 0.6, 0.9, 0, by_kernel=True)
        np.testing.assert_array_equal(tokens, expected)


def test_logits_that_are_not_numbers_give_a_token_and_a_logprob_that_is_none():
    logits = many_rows(0)
    logits[0], logits[1, 7], logits[2, V - 1], logits[3] = np.nan, np.nan, np.inf, -np.inf
    u = np.linspace(0, 1, ROWS, endpoint=False, dtype=np.float32)
    tokens, logprobs = drawn(logits, u, 0.6, 0.9, 0, by_kernel=True)
    assert np.isnan(logprobs[:4]).all() and np.isfinite(logprobs[4:]).all()
    assert ((tokens >= 0) & (tokens < V)).all()


def searched(logits: np.ndarray, top_p: float) -> list[np.ndarray]:
    """The kept tokens bool[ROWS, V], and the sum of their probabilities, by the kernel's search."""

    def of_row(probs: jax.Array) -> tuple[jax.Array, jax.Array]:
        def tile(i: jax.Array) -> jax.Array:
            return lax.dynamic_slice(padded, [i * drawing.TILE], [drawing.TILE])

        padded = jnp.pad(probs, (0, -V % drawing.TILE))
        kept = drawing._Kept(tile, -(-V // drawing.TILE), jnp.float32(0), probs.sum())
        kept = kept.share(top_p)
        return kept.weights(probs) > 0, kept.mass

    return [*map(np.asarray, jax.jit(jax.vmap(of_row))(jax.nn.softmax(logits)))]


def test_a_search_that_ends_early_keeps_the_same_tokens(monkeypatch: pytest.MonkeyPatch):
    """The sum of their probabilities is equal to the bit, so that the same token is drawn."""
    logits = np.concatenate([many_rows(seed) for seed in range(4)])
    early = searched(logits, 0.9)
    monkeypatch.setattr(drawing, "ROUNDING", np.inf)  # no difference of sums is known well enough
    for one, other in zip(early, searched(logits, 0.9), strict=True):
        np.testing.assert_array_equal(one, other)
    expected = kept_probs(jax.nn.softmax(logits), 0.9, 0)
    np.testing.assert_array_equal(early[0], np.asarray(expected) > 0)
