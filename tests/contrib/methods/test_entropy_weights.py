"""Weights by entropy, compared with the papers' formulas by hand and in loops."""

import itertools
import math

import jax
import numpy as np

from vinejax.contrib.methods.equations.entropy_weights import (
    clip_with_gradient,
    entropy_clip,
    relative_entropy,
    token_group_advantages,
    uncertain_advantages,
)
from vinejax.rl.losses import ppo_clip

# --- HAPO


def test_entropy_is_relative_to_its_quantile_and_keeps_its_sign():
    """Low entropies are negative here; the released code makes them positive."""
    entropy = np.exp(np.array([[-3.0, -2.0, -1.0, 0.0, 1.0, 9.0]], np.float32))
    mask = np.array([[True] * 5 + [False]])
    found = relative_entropy(entropy, mask, 0.5)
    np.testing.assert_allclose(found, [[-1.0, -0.5, 0.0, 0.5, 1.0, 0.0]], atol=1e-6)
    high = relative_entropy(entropy, mask, 0.75)
    np.testing.assert_allclose(high, [[-1, -2 / 3, -1 / 3, 0, 1, 0]], atol=1e-6)
    assert not relative_entropy(np.ones((1, 6), np.float32), mask, 0.5).any()
    assert not relative_entropy(entropy, np.zeros((1, 6), bool), 0.5).any()
    assert np.isfinite(relative_entropy(np.zeros((1, 6), np.float32), mask, 0.5)).all()


def by_hand(ratio: float, a: float, h: float) -> tuple[float, float]:
    """(loss, derivative by the ratio) of a token, with the bounds 0.2 and 0.28."""
    inside = 0.9 <= ratio <= 1.14
    if (h > 0 and not inside) or (h <= 0 and inside):
        a *= 1 + h
    low = 0.2 * (1 - h) if h <= 0 else 0.2
    high = 0.28 * (1 + h) if h > 0 else 0.28
    bounded = min(max(ratio, 1 - low), 1 + high)
    if -a * ratio >= -a * bounded:
        return -a * ratio, -a
    return -a * bounded, 0.0


@jax.jit
def losses_and_slopes(logratio, advantages, relative):
    def loss(x):
        found = entropy_clip(x, 0.0 * x, advantages, relative, (0.2, 0.28))
        return found[0].sum(), found

    gradient, (losses, clipped) = jax.grad(loss, has_aux=True)(logratio)
    return losses, clipped, gradient


def test_advantages_and_bounds_by_entropy():
    modulated = [  # (h̃, ratio, A) -> A'
        (0.5, 1.3, 1.0, 1.5),
        (0.5, 1.05, 1.0, 1.0),
        (-0.5, 1.05, 1.0, 0.5),
        (-0.5, 0.8, -1.0, -1.0),
        (0.5, 0.85, -2.0, -3.0),
    ]
    grid = itertools.product((-1.0, -0.5, 0.0, 0.5, 1.0), (0.5, 0.65, 0.95, 1.2, 1.5), (1.0, -1.0))
    cases = [case[:3] for case in modulated] + list(grid)
    h, ratio, a = (np.array(x, np.float32) for x in zip(*cases, strict=True))
    losses, clipped, gradient = map(np.asarray, losses_and_slopes(np.log(ratio), a, h))
    for (_, r, _, expected), loss in zip(modulated, losses, strict=False):
        np.testing.assert_allclose(loss, -expected * r, rtol=1e-6)
    for n, (x, r, y) in enumerate(cases):
        expected, slope = by_hand(r, y, x)
        np.testing.assert_allclose(losses[n], expected, rtol=1e-5)
        np.testing.assert_allclose(gradient[n], slope * r, atol=1e-5)
        assert clipped[n] == (slope == 0.0 and expected != 0.0)
    bounds = {(-1.0, 0.65): False, (-0.5, 0.65): True, (0.5, 1.2): False, (1.0, 1.5): False}
    for (x, r), expected in bounds.items():
        assert clipped[cases.index((x, r, 1.0 if r > 1 else -1.0))] == expected


def test_a_solution_counts_by_its_tokens():
    rewards, lengths = np.array([1, 0, 1, 1], np.float32), np.array([2, 6, 3, 4])
    found = token_group_advantages(rewards, lengths, np.array([5, 5, 9, 9]))
    np.testing.assert_allclose(found, [1.732051, -0.57735, 0, 0], atol=5e-6)


# --- AEPO


def test_advantages_grow_with_entropy():
    """Entropies of 1, 2 and 3 on the mask are -1, 0 and 1 standard deviations of the sample."""
    entropy = np.array([[1, 9, 2], [3, 9, 9]], np.float32)
    mask = np.array([[1, 0, 1], [1, 0, 0]], bool)
    advantages = np.array([[2, 2, 2], [-5, -5, -5]], np.float32)
    found = uncertain_advantages(advantages, entropy, mask, 0.2)
    np.testing.assert_allclose(found, [[1.6, 0, 2], [-6, 0, 0]], rtol=1e-6)
    same = uncertain_advantages(advantages, np.ones((2, 3), np.float32), mask, 0.2)
    assert (same == np.where(mask, advantages, 0)).all()
    assert not uncertain_advantages(advantages, entropy, np.zeros((2, 3), bool), 0.2).any()


def test_a_clip_with_a_gradient_has_that_of_its_upper_bound():
    """The value of the loss is that of PPO."""
    clip = (0.2, 0.3)
    old = np.array([[-1, -0.5, -2, -1], [-0.25, -1.5, -1, -0.75]], np.float32)
    now = old + np.array([[0.1, -0.2, 0.4, 0], [-0.3, 0.05, 0.2, -0.6]], np.float32)
    advantages = np.array([[1.5] * 4, [-0.5] * 4], np.float32)

    def two_losses(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        plain = ppo_clip(x, old, advantages, clip).sum()
        return plain, clip_with_gradient(x, old, advantages, clip).sum()

    plain, value = jax.jit(two_losses)(now)
    slope, grad = jax.jit(jax.jacrev(two_losses))(now)
    np.testing.assert_allclose(value, plain, rtol=1e-6)
    risen = (now - old > math.log(1.3)) & (advantages > 0)
    fallen = (now - old < math.log(0.8)) & (advantages < 0)
    assert risen.sum() == 1 and fallen.sum() == 2
    np.testing.assert_allclose(grad, np.where(risen, -1.5 * 1.3, slope), rtol=1e-6)
    assert not np.asarray(grad)[fallen].any()
