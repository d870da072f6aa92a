"""GSPO, CISPO, SAPO and the dual clip against the authors' numbers and plain loops."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vinejax.learner.policy import token_weights
from vinejax.rl import ratio_losses as losses
from vinejax.rl.losses import is_clipped, ppo_clip

MASK = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], bool)
IDS = np.ones(MASK.shape, np.int32)  # one solution per row
OLD = np.array([[-1, -0.5, -2, 0], [-0.25, -1.5, -1, -0.75]], np.float32)
NOW = OLD + np.array([[0.1, -0.2, 0.4, 0], [-0.3, 0.05, 0.2, -0.6]], np.float32)
GOOD_AND_BAD = np.array([[1.5] * 4, [-0.5] * 4], np.float32)

# verl 0.9.1's functions (core_algos.py) on these arrays, with its own mean: loss and gradient.
VERL: dict[str, tuple[Callable[[Any], jax.Array], str, float, list[list[float]]]] = {
    "gspo": (
        lambda x: losses.gspo(x, OLD, GOOD_AND_BAD, MASK, (0.05, 0.15), IDS),
        *("sequence", -0.591378),
        [[-0.276293, -0.276293, -0.276293, 0.0], [0.0, 0.0, 0.0, 0.0]],
    ),
    "cispo": (
        lambda x: losses.cispo(x, OLD, GOOD_AND_BAD, (1.0, 0.3)),
        *("token", 0.520963),
        [[-0.236822, -0.175442, -0.278571, 0.0], [0.052916, 0.075091, 0.087243, 0.039201]],
    ),
    "sapo": (
        lambda x: losses.sapo(x, OLD, GOOD_AND_BAD, (1.0, 1.05)),
        *("sequence", -1.152224),
        [[-0.27553, -0.20301, -0.351281, 0.0], [0.045454, 0.065657, 0.075316, 0.032446]],
    ),
    "dual clip": (
        lambda x: ppo_clip(x, OLD, GOOD_AND_BAD, (0.2, 0.3), 1.1),
        *("token", -0.422888),
        [[-0.236822, -0.175442, 0.0, 0.0], [0.0, 0.075091, 0.0, 0.0]],
    ),
}


@pytest.mark.parametrize("name", VERL)
def test_the_authors_vectors(name: str):
    loss, reduction, expected, gradient = VERL[name]
    weights = token_weights(jnp.asarray(MASK), jnp.asarray(IDS), reduction)

    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(weights * jnp.where(MASK, loss(x), 0.0))

    found, grad = jax.jit(jax.value_and_grad(total))(NOW)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_allclose(grad, gradient, atol=2e-6)


def test_step_credit_keeps_each_tokens_own_advantage():
    """GSPO has one ratio per solution; a loss of whole solutions would average the advantages."""
    advantages = np.array([[3.0, -1.0, 0.5, 9.0], [0.0, 2.0, -2.0, 1.0]], np.float32)
    mean = [math.exp(np.mean((NOW - OLD)[row][MASK[row]])) for row in range(2)]
    factor = np.repeat(np.array(mean)[:, None], 4, 1)
    gspo = jax.grad(lambda x: losses.gspo(x, OLD, advantages, MASK, (9.0, 9.0), IDS).sum())(NOW)
    np.testing.assert_allclose(gspo[MASK], (-advantages * factor)[MASK], rtol=1e-5)


def test_solutions_of_one_row_are_as_in_rows_of_their_own():
    ids = np.where(MASK, [[1], [2]], 3).reshape(1, -1)
    now, old, advantages, mask = (x.reshape(1, -1) for x in (NOW, OLD, GOOD_AND_BAD, MASK))
    apart = np.asarray(losses.gspo(NOW, OLD, GOOD_AND_BAD, MASK, (0.05, 0.3), IDS))
    in_one_row = losses.gspo(now, old, advantages, mask, clip=(0.05, 0.3), segment_ids=ids)
    in_one_row = np.asarray(in_one_row).reshape(MASK.shape)
    np.testing.assert_allclose(in_one_row[MASK], apart[MASK], rtol=1e-6)


def named_loss(name: str, logprobs: Any, old: Any, advantages: Any, mask: Any) -> jax.Array:
    """The loss of this name, with bounds that suit it; GSPO alone reads the mask."""
    if name == "gspo":
        ids = np.ones(mask.shape, np.int32)
        return losses.gspo(logprobs, old, advantages, mask, (0.1, 0.1), ids)
    if name == "cispo":
        return losses.cispo(logprobs, old, advantages, clip=(1.0, 4.0))
    return losses.sapo(logprobs, old, advantages, tau=(1.0, 1.05))


@pytest.mark.parametrize("name", ["gspo", "cispo", "sapo"])
def test_at_the_policy_that_sampled_the_gradient_is_reinforce(name: str):

    def total(x: jax.Array) -> jax.Array:
        return jnp.where(MASK, named_loss(name, x, OLD, GOOD_AND_BAD, MASK), 0).sum()

    grad = jax.jit(jax.grad(total))(OLD)
    np.testing.assert_allclose(grad[MASK], -GOOD_AND_BAD[MASK], rtol=1e-6)


def test_a_dual_clipped_token_has_no_gradient():
    ratios = np.log(np.array([[0.5, 1.0, 1.5, 4.0]], np.float32))
    bad, old = np.full((1, 4), -2.0, np.float32), np.zeros((1, 4))
    grad = jax.grad(lambda x: ppo_clip(x, old, bad, 0.2, 3.0).sum())(ratios)
    np.testing.assert_allclose(grad, [[0.0, 2.0, 3.0, 0.0]], rtol=1e-6)
    clipped = is_clipped(ratios, old, bad, 0.2, 3.0)
    np.testing.assert_array_equal(clipped, [[True, False, False, True]])
    np.testing.assert_array_equal(is_clipped(ratios, old, -bad, 0.2, 3.0), ratios > np.log(1.2))
    plain = ppo_clip(ratios, old, -bad, 0.2)
    np.testing.assert_array_equal(ppo_clip(ratios, old, -bad, 0.2, 3.0), plain)


@pytest.mark.parametrize("name", ["gspo", "cispo", "sapo"])
def test_ratios_beyond_float32_leave_finite_gradients(name: str):
    far = np.array([[-1e4, 1e4, 100.0, -100.0]], np.float32)
    old, mask = np.zeros((1, 4), np.float32), np.ones((1, 4), bool)
    gradient = jax.jit(jax.grad(lambda x, a: named_loss(name, x, old, a, mask).sum()))
    for advantage in (1.0, -1.0, 0.0):
        assert np.isfinite(gradient(far, np.full((1, 4), advantage, np.float32))).all()
