"""Policy and value losses, and KL estimates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import rl_oracles as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from vinejax.learner.policy import K3_MAX
from vinejax.rl.losses import EXP_LIMIT, is_clipped, kl, ppo_clip, probability_ratio, value_clip

B, T = 4, 16
KINDS = ["k1", "k2", "k3"]


def random_tokens(seed=0):
    """Log-probabilities under two policies with clipped ratios, and advantages."""
    rng = np.random.default_rng(seed)
    old = -rng.exponential(1.0, (B, T)).astype(np.float32)
    return old + rng.normal(0, 0.4, (B, T)).astype(np.float32), old, rng.normal(size=(B, T))


def gradient_of_sum(loss, x):
    return np.asarray(jax.grad(lambda x: loss(x).sum())(jnp.float32(x)))


# --- ppo_clip ---


@pytest.mark.parametrize(("clip", "low", "high"), [(0.2, 0.2, 0.2), ((0.1, 0.3), 0.1, 0.3)])
def test_ppo_clip_matches_the_loop(clip, low, high):
    logprobs, old, advantages = random_tokens()
    out = ppo_clip(logprobs, old, advantages, clip)
    assert out.dtype == jnp.float32
    expected = oracle.ppo_clip(logprobs, old, advantages, low, high)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_ppo_clip_by_hand():
    """Ratios of 2 and ½ with advantages of both signs: the larger loss counts."""
    logprobs = np.log([2.0, 2.0, 0.5, 0.5])
    advantages = np.array([1, -1, 1, -1])
    out = ppo_clip(logprobs, np.zeros(4), advantages, (0.25, 0.5))
    np.testing.assert_allclose(out, [-1.5, 2.0, -0.5, 0.75], rtol=1e-6)
    clipped = is_clipped(logprobs, np.zeros(4), 1.0 * advantages, (0.25, 0.5))
    assert clipped.tolist() == [True, False, False, True]


@pytest.mark.parametrize("clip", [0.2, (0.1, 0.3), [0.1, 0.3], np.float64(0.2)])
def test_at_ratio_one_the_gradient_is_reinforce(clip):
    _, old, advantages = random_tokens()
    gradient = gradient_of_sum(lambda x: ppo_clip(x, old, advantages, clip), old)
    np.testing.assert_allclose(gradient, -advantages, rtol=1e-5)


def test_only_clipped_tokens_have_no_gradient():
    logprobs, old, advantages = random_tokens()
    gradient = gradient_of_sum(lambda x: ppo_clip(x, old, advantages, (0.1, 0.3)), logprobs)
    ratio = np.exp(logprobs - old)
    is_clipped = np.where(advantages > 0, ratio > 1.3, ratio < 0.9)
    assert 0 < is_clipped.sum() < is_clipped.size
    np.testing.assert_array_equal(gradient[is_clipped], 0.0)
    expected = (-advantages * ratio)[~is_clipped]
    np.testing.assert_allclose(gradient[~is_clipped], expected, rtol=1e-4)


def test_ppo_clip_computes_in_float32_from_bfloat16():
    old, logprobs = jnp.bfloat16([-1.0]), jnp.bfloat16([-1.0078125])
    out = ppo_clip(logprobs, old, np.ones(1), 0.2)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, -np.exp(np.float32(-0.0078125)), rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.floats(-2, 2), st.floats(-3, 3), st.floats(0.01, 0.9))
def test_clipping_never_lowers_the_loss(log_ratio, advantage, clip):
    out = ppo_clip(np.array([log_ratio]), np.zeros(1), np.array([advantage]), clip)
    unclipped = -advantage * np.exp(log_ratio)
    assert float(out[0]) >= unclipped - 1e-5 * (1 + abs(unclipped))


FAR = np.array([-1e4, -100, 100, 1e4])  # log-ratios at which float32's exp is 0 or overflows


def ratio_beyond(d):
    """(exp(d), its derivative) in float64, with the tangent at 40 above 40."""
    slope = np.exp(np.minimum(d, EXP_LIMIT))
    return slope * (1 + np.maximum(d - EXP_LIMIT, 0)), slope


@pytest.mark.parametrize("advantage", [2.5, 0.0, -2.5])
def test_ratios_beyond_float32_are_clipped_without_nan(advantage):
    """A clipped token has the value at the bound and no gradient; others have both in full."""
    advantages = np.full(4, advantage)
    ratio, slope = ratio_beyond(FAR)
    counts = np.array([advantage > 0, advantage > 0, advantage < 0, advantage < 0])
    at_clip = -advantage * np.array([0.9, 0.9, 1.3, 1.3])
    expected = np.where(counts, -advantage * ratio, at_clip)
    out = ppo_clip(FAR, np.zeros(4), advantages, (0.1, 0.3))
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-37)
    gradient = gradient_of_sum(lambda x: ppo_clip(x, np.zeros(4), advantages, (0.1, 0.3)), FAR)
    expected = np.where(counts, -advantage * slope, 0.0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-37)
    clipped = is_clipped(FAR, np.zeros(4), advantages, (0.1, 0.3))
    np.testing.assert_array_equal(clipped, ~counts & (advantage != 0))


def test_a_ratio_beyond_float32_goes_on_as_a_tangent():
    d = np.array([*FAR, 0.5, 39.5, EXP_LIMIT, 40.5])
    ratio, slope = ratio_beyond(np.float32(d).astype(np.float64))
    np.testing.assert_allclose(probability_ratio(d, np.zeros(8)), ratio, rtol=1e-5, atol=1e-37)
    gradient = gradient_of_sum(lambda x: probability_ratio(x, np.zeros(8)), d)
    np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-37)


# --- value_clip ---


def test_value_clip_matches_the_loop():
    rng = np.random.default_rng(1)
    values, old, returns = rng.normal(0.5, 0.3, (3, B, T))
    out = value_clip(values, old, returns, 0.2)
    assert out.dtype == jnp.float32
    expected = oracle.value_clip(values, old, returns, 0.2)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-6)


def test_value_clip_by_hand():
    """Values that moved past the bound towards the target, away from it, and not at all."""
    values, old = np.array([0.75, 0.25, 0.5]), np.full(3, 0.5)
    out = value_clip(values, old, np.ones(3, int), 0.125)
    np.testing.assert_allclose(out, [0.5 * 0.375**2, 0.5 * 0.75**2, 0.125], rtol=1e-6)


def test_value_gradient_is_the_error_or_nothing():
    old = np.full(3, 0.5)
    gradient = gradient_of_sum(lambda v: value_clip(v, old, np.ones(3), 0.125), [0.75, 0.25, 0.5])
    np.testing.assert_allclose(gradient, [0.0, -0.75, -0.5], rtol=1e-6)


# --- kl ---


@pytest.mark.parametrize("kind", KINDS)
def test_kl_matches_the_loop(kind):
    logprobs, ref, _ = random_tokens()
    out = kl(logprobs, ref, kind)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, oracle.kl(logprobs, ref, kind), rtol=1e-4, atol=1e-6)


def test_kl_by_hand():
    """With p = ½ and q = ¼; k1 and k3 depend on the direction."""
    p, q = np.log([0.5]), np.log([0.25])
    np.testing.assert_allclose(kl(p, q, "k1"), np.log(2), rtol=1e-6)
    np.testing.assert_allclose(kl(p, q, "k2"), 0.5 * np.log(2) ** 2, rtol=1e-6)
    np.testing.assert_allclose(kl(p, q, "k3"), np.log(2) - 0.5, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_policies_have_no_divergence(kind):
    logprobs, _, _ = random_tokens()
    np.testing.assert_array_equal(kl(logprobs, logprobs, kind), 0.0)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_the_expectation_is_the_kl_divergence(kind):
    """The sum over a whole vocabulary, weighted by π, of k1 or k3 is KL(π ‖ π_ref)."""
    rng = np.random.default_rng(2)
    p, q = rng.dirichlet(np.ones(T)), rng.dirichlet(np.ones(T))
    estimate = np.sum(p * np.asarray(kl(np.log(p), np.log(q), kind)))
    np.testing.assert_allclose(estimate, np.sum(p * np.log(p / q)), rtol=1e-4)


def test_k3_keeps_its_digits_near_zero():
    """The plain formula exp(d) - d - 1 has no right digit, as exp(d) rounds to steps of 2^-23."""
    difference = np.array([1e-3, -1e-3, 1e-4, -1e-4])
    np.testing.assert_allclose(kl(-difference, np.zeros(4), "k3"), difference**2 / 2, rtol=5e-3)


def test_kl_is_not_clamped():
    out = np.asarray(kl(np.array([-20.0]), np.zeros(1), "k3"))
    np.testing.assert_allclose(out, np.exp(20.0) - 21, rtol=1e-5)
    assert kl(np.array([-20.0]), np.zeros(1), "k1") == -20.0


def test_capped_k3_is_flat_where_exp_overflows():
    """With the learner's cap, the value is the cap and the gradient 0; without, both are finite."""
    capped = jax.jit(lambda x: jnp.clip(kl(x, np.zeros(4), "k3"), 0.0, K3_MAX))
    np.testing.assert_array_equal(capped(FAR), K3_MAX)
    np.testing.assert_array_equal(gradient_of_sum(capped, FAR), 0.0)
    ratio, slope = ratio_beyond(-FAR)
    np.testing.assert_allclose(kl(FAR, np.zeros(4), "k3"), ratio - 1 + FAR, rtol=1e-5)
    gradient = gradient_of_sum(lambda x: kl(x, np.zeros(4), "k3"), FAR)
    np.testing.assert_allclose(gradient, 1 - slope, rtol=1e-5)


def test_unknown_kl_kind_names_the_allowed_ones():
    with pytest.raises(ValueError, match="'k4'.*'k1'.*'k2'.*'k3'"):
        kl(np.zeros(1), np.zeros(1), "k4")


@settings(max_examples=40, deadline=None)
@given(st.floats(-20, 0, width=32), st.floats(-20, 0, width=32))
def test_k2_and_k3_are_never_negative(p, q):
    p, q = np.array([p]), np.array([q])
    assert kl(p, q, "k2") >= 0 and kl(p, q, "k3") >= 0
