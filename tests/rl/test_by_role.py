"""Step advantages from values by role."""

import jax
import numpy as np
import pytest

from vinejax.rl.advantages import step_advantages
from vinejax.rl.by_role import role_advantages

NAN = np.nan
THREE, LAST = [0.25, 0.75, 0.5], [0.0, 0.0, 1.0]
# values, rewards, λ, w, v, μ -> advantages; worked out by hand.
VECTORS = [
    (THREE, LAST, 0.0, 0.0, None, 0.0, [0.5, -0.25, 0.5]),
    (THREE, LAST, 0.5, 0.5, None, 0.0, [0.5, 0.25, 0.5]),
    (THREE, LAST, 1.0, 0.0, None, 0.0, [0.75, 0.25, 0.5]),
    (THREE, LAST, 0.5, 0.5, [0.35, 0.45, 0.65], 0.6, [0.44, 0.28, 0.41]),
    (
        [0.0, 0.5, 0.5, 0.0],
        [0.25, 0.0, 0.0, 0.5],
        0.5,
        0.25,
        None,
        0.0,
        [0.6875, 0.0625, -0.203125, 0.386719],
    ),
]


@pytest.mark.parametrize("values, rewards, lam, filter, prior, weight, expected", VECTORS)
def test_vectors(values, rewards, lam, filter, prior, weight, expected):
    prior = None if prior is None else [prior]
    found = role_advantages(
        [values], [rewards], [len(values)], lam, filter, prior=prior, weight=weight
    )
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


def by_loop(values, rewards, n, lam, w, gamma, sampled, prior, mu):
    """The equations in float64, over U, the discounted rewards before a state plus its value."""
    out = np.zeros(len(values))
    earned = np.cumsum([0.0, *(gamma**c * rewards[c] for c in range(n))])
    u = [earned[c] + gamma**c * values[c] for c in range(n)]  # read where it was sampled
    for c in range(n):
        known = [i for i in range(c + 1, n) if sampled[i]]
        chances = [(1 - lam) * lam**i for i in range(len(known))] + [lam ** len(known)]
        later = np.dot(chances, [*(u[i] for i in known), earned[n]])
        b = None
        for i in range(c + 1):
            if sampled[i]:
                b = u[i] if b is None else (1 - w) * u[i] + w * b
        v = 0.0 if prior is None else prior[c]
        if b is None:
            b = earned[c] + gamma**c * v
        elif prior is not None:
            b = (1 - mu) * b + mu * (earned[c] + gamma**c * v)
        out[c] = (later - b) / gamma**c
    return out


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("with_prior", [False, True])
def test_matches_the_loop(gamma, with_prior):
    """States without a value, and entries past the last step, are never read."""
    rng, num_steps = np.random.default_rng(3), np.array([7, 4, 0, 1, 6])
    is_step = np.arange(7) < num_steps[:, None]
    sampled = rng.random((5, 7)) < 0.6
    values = np.where(is_step & sampled, rng.random((5, 7)), NAN).astype(np.float32)
    rewards = np.where(is_step, rng.normal(size=(5, 7)), NAN).astype(np.float32)
    prior = np.where(is_step, rng.random((5, 7)), NAN).astype(np.float32) if with_prior else None
    found = role_advantages(
        values,
        rewards,
        num_steps,
        lam=0.7,
        filter=0.3,
        gamma=gamma,
        is_sampled=sampled,
        prior=prior,
        weight=0.75,
    )
    for row, n in enumerate(num_steps):
        v = None if prior is None else prior[row]
        expected = by_loop(values[row], rewards[row], n, 0.7, 0.3, gamma, sampled[row], v, 0.75)
        np.testing.assert_allclose(found[row], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gamma", [1.0, 0.0])
def test_without_averages_it_is_vineppo_to_the_bit(gamma):
    rng = np.random.default_rng(4)
    values, rewards = rng.random((2, 64, 12)).astype(np.float32)
    num_steps = rng.integers(0, 13, size=64)
    found = role_advantages(values, rewards[:, 0], num_steps, lam=0.0, filter=0.0, gamma=gamma)
    plain = step_advantages(values, rewards[:, 0], num_steps, gamma)
    np.testing.assert_array_equal(found, plain)


def test_without_any_value_it_is_the_return_less_the_prior():
    def advantages(prior: list[list[float]] | None) -> jax.Array:
        return role_advantages(
            values=[[NAN, NAN, NAN]],
            rewards=[1.0],
            num_steps=[3],
            lam=0.5,
            filter=0.5,
            gamma=1.0,
            is_sampled=np.zeros((1, 3), bool),
            prior=prior,
        )

    np.testing.assert_array_equal(advantages([[0.25, 0.5, 0.75]]), [[0.75, 0.5, 0.25]])
    np.testing.assert_array_equal(advantages(None), [[1.0, 1.0, 1.0]])


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"role_advantages: prior is float32 \[1, 2\]"):
        role_advantages([THREE], [1.0], [3], prior=np.zeros((1, 2), np.float32))
