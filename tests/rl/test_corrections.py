"""Importance weights of the sampler's tokens, against loops."""

import itertools
import math

import numpy as np
import pytest

from vinejax.rl.corrections import correction_weights

MASK = np.array([[1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]], bool)
SAMPLER = -np.random.default_rng(0).exponential(1.0, (3, 4)).astype(np.float32)
MOVED = np.array([[0.5, -1.5, 0.25, 9], [9, 1.0, 0.5, 0.75], [9] * 4], np.float32)
OLD = SAMPLER + MOVED


def loop(per: str, outside: str, low: float, high: float) -> np.ndarray:
    out = np.zeros(MASK.shape)
    for b, t in zip(*np.nonzero(MASK), strict=True):
        d = sum(float(MOVED[b, u]) for u in range(4) if MASK[b, u]) if per == "sequence" else 0.0
        weight = math.exp(d or float(MOVED[b, t]))
        if outside == "truncate":
            out[b, t] = min(max(weight, low), high)
        else:
            out[b, t] = weight if low <= weight <= high else 0.0
    return out


@pytest.mark.parametrize("per", ["token", "sequence"])
@pytest.mark.parametrize("outside", ["truncate", "mask"])
@pytest.mark.parametrize("low, high", [(0.0, math.inf), (0.0, 2.0), (0.5, 5.0), (0.6, 1.5)])
def test_weights_equal_the_loop(per: str, outside: str, low: float, high: float):
    """TRL's default is the sequence mask from 0 to 3; IcePop is the token mask from 0.5 to 5."""
    weights = correction_weights(OLD, SAMPLER, MASK, per, outside, low, high)
    np.testing.assert_allclose(weights, loop(per, outside, low, high), rtol=1e-5)


@pytest.mark.parametrize("per", ["token", "sequence"])
def test_equal_policies_have_a_weight_of_exactly_1(per: str):
    """A weight at a bound is not outside."""
    for outside in ("truncate", "mask"):
        for low, high in ((0.5, 3.0), (1.0, 1.0)):
            weights = correction_weights(OLD, OLD, MASK, per, outside, low, high)
            np.testing.assert_array_equal(weights, MASK.astype(np.float32))


def test_a_ratio_beyond_float32_is_finite():
    old, sampler = np.where(MASK, 0.0, np.nan), np.where(MASK, -500.0, np.nan)
    weights = np.asarray(correction_weights(old, sampler, MASK, "sequence", "truncate"))
    assert np.isfinite(weights).all() and (weights[MASK] > 1e17).all()
    masked = correction_weights(old, sampler, MASK, "sequence", "mask", low=0, high=3)
    assert not np.asarray(masked).any()


# --- the expected gradient of a policy, enumerated over all sequences of a sampler that lags

SYMBOLS, TOKENS = 3, 4
SEQUENCES = [*itertools.product(range(SYMBOLS), repeat=TOKENS)]
Logits = dict[tuple[int, ...], np.ndarray]  # by the symbols before a token


def random_logits(rng: np.random.Generator, spread: float) -> Logits:
    prefixes = (p for n in range(TOKENS) for p in itertools.product(range(SYMBOLS), repeat=n))
    return {prefix: rng.normal(size=SYMBOLS) * spread for prefix in prefixes}


def logprobs_of(logits: Logits) -> np.ndarray:
    """f64[sequences, T]"""
    rows = [[logits[s[:t]] for t in range(TOKENS)] for s in SEQUENCES]
    return np.array(
        [
            [z[s[t]] - np.log(np.exp(z).sum()) for t, z in enumerate(row)]
            for s, row in zip(SEQUENCES, rows, strict=True)
        ]
    )


def gradient(
    logits: Logits, chances: np.ndarray, weights: np.ndarray, rewards: np.ndarray
) -> np.ndarray:
    """Σ over sequences of chance · Σ_t w_t · reward · ∇logπ_t, by the logits."""
    parts = {prefix: np.zeros(SYMBOLS) for prefix in logits}
    for sequence, chance, row, reward in zip(SEQUENCES, chances, weights, rewards, strict=True):
        for t, weight in enumerate(row):
            prefix = sequence[:t]
            probabilities = np.exp(logits[prefix]) / np.exp(logits[prefix]).sum()
            drawn = np.eye(SYMBOLS)[sequence[t]]
            parts[prefix] += chance * weight * reward * (drawn - probabilities)
    return np.concatenate([*parts.values()])


def biases(seed: int, lag: float) -> list[float]:
    """[lag in nats a token, bias without weights, of tokens, of sequences], by the true norm."""
    rng = np.random.default_rng(seed)
    learner = random_logits(rng, 1.0)
    sampler = {k: learner[k] + change for k, change in random_logits(rng, lag).items()}
    old, drawn = logprobs_of(learner), logprobs_of(sampler)
    rewards = rng.integers(0, 2, len(SEQUENCES)).astype(float)
    rewards -= np.exp(old.sum(axis=1)) @ rewards
    true = gradient(learner, np.exp(old.sum(axis=1)), np.ones(old.shape), rewards)
    mask = np.ones(old.shape, bool)
    found = [float(np.sqrt(np.mean((old - drawn) ** 2)))]
    for per in ("", "token", "sequence"):
        weights = correction_weights(old, drawn, mask, per, "truncate") if per else mask
        biased = gradient(learner, np.exp(drawn.sum(axis=1)), np.asarray(weights, float), rewards)
        found.append(float(np.linalg.norm(biased - true) / np.linalg.norm(true)))
    return found


def test_under_a_lag_weights_of_tokens_leave_a_bias_and_weights_of_sequences_none():
    """The figures of docs/methods.md."""
    lag, plain, token, sequence = np.mean([biases(seed, 0.1) for seed in range(10)], axis=0)
    assert lag == pytest.approx(0.088, abs=5e-4)
    assert plain == pytest.approx(0.14, abs=5e-3) and token == pytest.approx(0.12, abs=5e-3)
    assert sequence < 1e-6
