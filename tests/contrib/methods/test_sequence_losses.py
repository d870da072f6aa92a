"""Losses of whole steps and solutions, compared with formulas by hand and in packed rows."""

import jax
import jax.numpy as jnp
import numpy as np

from vinejax.contrib.methods.equations.sequence_losses import advantage_regression, opmd

# Two rows; steps of 2 and 3 tokens in the first, with a token off the mask between, and of 1 and 4.
IDS = jnp.array([[1, 1, 2, 3, 3, 3, 0], [4, 5, 5, 5, 5, 0, 0]])
MASK = jnp.array([[1, 1, 0, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0, 0]], bool)
OWNERS = [[(0, 0), (0, 1)], [(0, 3), (0, 4), (0, 5)], [(1, 0)], [(1, n) for n in (1, 2, 3, 4)]]


def random_case(seed: int) -> tuple[np.ndarray, ...]:
    """(log-probabilities, old log-probabilities, advantages of the four segments)."""
    rng = np.random.default_rng(seed)
    logprobs = rng.normal(-1, 0.4, (2, 7)).astype(np.float32)
    old = (logprobs + rng.normal(0, 0.2, (2, 7))).astype(np.float32)
    return logprobs, old, rng.normal(size=4).astype(np.float32)


def spread(by_segment: np.ndarray) -> np.ndarray:
    out = np.zeros((2, 7), np.float32)
    for places, x in zip(OWNERS, by_segment, strict=True):
        for place in places:
            out[place] = x
    return out


# --- advantage_regression


def test_a_step_is_drawn_to_its_advantage_by_hand():
    ids, mask = jnp.array([[1, 1, 2]]), jnp.ones((1, 3), bool)
    advantages = jnp.array([[0.4, 0.4, -0.1]])

    def loss(logprobs):
        return advantage_regression(logprobs, jnp.zeros((1, 3)), advantages, mask, 0.5, ids)

    logprobs = jnp.array([[0.1, 0.2, -0.2]])
    parts = np.asarray(loss(logprobs))[0]
    np.testing.assert_allclose([parts[:2].sum(), parts[2]], [0.125, 0.0], atol=1e-6)
    gradient = jax.grad(lambda x: loss(x).sum())(logprobs)
    np.testing.assert_allclose(gradient, [[-0.5, -0.5, 0.0]], atol=1e-6)


def test_steps_of_packed_rows_equal_a_loop():
    @jax.jit
    def results(logprobs, old, advantages, by_segment):
        def formula(x):
            total = 0.0
            for n, places in enumerate(OWNERS):
                d = sum(x[place] - old[place] for place in places)
                total += 0.5 * (d - by_segment[n] / 0.7) ** 2
            return total

        def loss(x):
            found = advantage_regression(x, old, advantages, MASK, 0.7, IDS)
            return found.sum(), jnp.where(MASK, 0.0, found)

        return jax.value_and_grad(loss, has_aux=True)(logprobs), jax.value_and_grad(formula)(
            logprobs
        )

    for seed in range(20):
        logprobs, old, advantages = random_case(seed)
        ((found, off), gradient), (expected, true) = results(
            logprobs, old, spread(advantages), advantages
        )
        assert not np.asarray(off).any()
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        np.testing.assert_allclose(gradient, true, atol=1e-5)


# --- opmd


def test_opmd_of_solutions_that_share_rows():
    rng = np.random.default_rng(0)
    # One solution per row.
    logprobs, old, advantages = rng.normal(-1, 0.5, (3, 4, 6)).astype(np.float32)
    mask = np.arange(6) < np.array([6, 1, 0, 4])[:, None]
    expected = opmd(logprobs, old, advantages, mask, 0.7, np.ones((4, 6), np.int32))
    found = opmd(
        logprobs.reshape(2, 12),
        old.reshape(2, 12),
        advantages.reshape(2, 12),
        mask.reshape(2, 12),
        tau=0.7,
        segment_ids=np.repeat([[1, 2], [1, 2]], 6, axis=1),
    )
    np.testing.assert_allclose(np.asarray(found).reshape(4, 6), expected, rtol=1e-5, atol=1e-6)
