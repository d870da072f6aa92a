"""Masks: the tokens that are trained on; no other token counts in whitening, means or the KL."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import rl_oracles as oracle
from helpers.applied import applied, assign_credit

from vinejax.core.settings import Config, CreditConfig
from vinejax.core.types import Batch, Episode, Rollout
from vinejax.credit.assign import Credit, assigned, trained_tokens
from vinejax.credit.mask import all_tokens, low_probability, top_entropy
from vinejax.learner.batch import collate, step_layout
from vinejax.learner.policy import PolicyObjective, clipped_loss, token_weights
from vinejax.learner.score import score
from vinejax.learner.update import gradients

LENGTHS = [(4, 9), (2, 3), (4, 9), (5, 0), (3, 10), (2, 3), (4, 1)]
OBJECTIVE = PolicyObjective(model=cases.model(), temperature=0.6, loss=clipped_loss, kl_coef=0.1)

grads_of = jax.jit(gradients, static_argnames="objective")


def config(**fields) -> Config:
    values = {"k": 9, "max_states": None}
    return cases.config(values=values, credit={"mask": "low_probability"} | fields)


@functools.cache
def episodes() -> list[Episode]:
    """Probabilities on both sides of 0.9; all of the second response above, of the sixth below."""
    rng, found = np.random.default_rng(0), []
    for i, plain in enumerate(cases.random_episodes(LENGTHS)):
        n = len(plain.response)
        p = np.where(rng.random(n) < 0.5, rng.uniform(0.91, 1, n), rng.uniform(0.1, 0.89, n))
        p = {1: np.full(n, 0.99), 5: np.full(n, 0.2)}.get(i, p)
        ends = [n // 2, n] if n > 1 else [n] * n
        fields = {"logprobs": np.log(p).tolist(), "step_ends": ends, "reward": float(i % 2)}
        values = rng.random(len(ends)).astype(np.float32)
        found.append(dataclasses.replace(plain, **fields, values=values))
    return found


def rollout() -> Rollout:
    batch = collate(episodes(), rows=8)
    return Rollout(episodes(), batch, step_layout(batch, episodes()))


def mask_by_hand() -> np.ndarray:
    mask = np.zeros((8, 32), bool)
    for row, one in enumerate(episodes()):
        for t, logprob in enumerate(one.logprobs):
            mask[row, len(one.prompt) + t] = np.exp(logprob) < 0.9
    return mask


def test_rules_by_hand():
    one = cases.episode([0], [3] * 4, logprobs=np.log([0.2, 0.95, 0.6, 1.0]).tolist())
    assert all_tokens(one, CreditConfig()).tolist() == [True] * 4
    assert low_probability(one, CreditConfig()).tolist() == [True, False, True, False]
    assert low_probability(one, CreditConfig(mask_above=0.5)).tolist() == [True] + [False] * 3
    assert low_probability(one, CreditConfig(mask_above=0.0)).tolist() == [False] * 4
    assert low_probability(one, CreditConfig(mask_above=1.0)).tolist() == [True] * 3 + [False]
    empty = cases.episode([0], [])
    for rule in (all_tokens, low_probability):
        assert rule(empty, CreditConfig()).shape == (0,)
        assert rule(empty, CreditConfig()).dtype == bool


def test_tokens_of_highest_entropy_are_those_of_the_whole_iteration():
    entropy = np.random.default_rng(1).uniform(0, 2, (8, 32)).astype(np.float32)
    cfg = cases.config(method="grpo", values={"k": 9, "max_states": None},
                       credit={"mask": "top_entropy", "mask_share": 0.25})  # fmt: skip
    given = rollout()._replace(entropy=entropy)
    found = trained_tokens(given, applied(cfg))
    of_tokens = np.sort(entropy[given.batch.mask])
    assert found.sum() == -(-of_tokens.size // 4)
    np.testing.assert_array_equal(entropy[found].min(), of_tokens[-found.sum()])
    assert not (found & ~given.batch.mask).any()
    equal = np.array([[True, True, False], [False, False, True]])
    np.testing.assert_array_equal(top_entropy(np.ones((2, 3)), equal, CreditConfig()), equal)
    empty = np.zeros((2, 3), bool)
    assert not top_entropy(np.ones((2, 3)), empty, CreditConfig()).any()


def test_only_response_tokens_are_trained_on():
    given = rollout()
    np.testing.assert_array_equal(trained_tokens(given, applied(config())), mask_by_hand())
    assert not (mask_by_hand() & ~given.batch.mask).any() and not mask_by_hand()[1].any()
    assert 10 < mask_by_hand().sum() < given.batch.mask.sum() - 5
    np.testing.assert_array_equal(trained_tokens(given, applied(cases.config())), given.batch.mask)
    given.batch.mask.setflags(write=False)  # the batch keeps its own mask
    trained_tokens(given, applied(config()))


def test_a_token_is_trained_on_if_the_rule_and_the_method_select_it():
    given = rollout()
    even = given.batch.mask & (np.arange(32) % 2 == 0)
    credit = Credit(np.zeros(even.shape, np.float32), mask=even)
    found = assigned(credit, given, applied(config())).mask
    np.testing.assert_array_equal(found, even & mask_by_hand())


@pytest.mark.parametrize("shift_mean", [True, False])
def test_an_iteration_is_whitened_over_the_trained_tokens(shift_mean: bool):
    cfg = dataclasses.replace(
        config(), ppo=dataclasses.replace(config().ppo, shift_mean=shift_mean)
    )
    plain, white = (assign_credit(rollout(), cfg, how) for how in ("none", "iteration"))
    assert white.mask is not None
    np.testing.assert_array_equal(white.mask, mask_by_hand())
    expected = oracle.whiten(plain.advantages, mask_by_hand(), shift_mean)
    np.testing.assert_allclose(white.advantages, expected, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(white.by_step), np.asarray(plain.by_step))
    everything = oracle.whiten(plain.advantages, rollout().batch.mask, shift_mean)
    assert np.abs(everything - expected)[mask_by_hand()].max() > 0.01


@functools.cache
def masked_batch() -> Batch:
    """The batch of an update, with this mask, and NaN wherever the mask is False."""
    rng, given = np.random.default_rng(1), rollout()
    current = np.asarray(score(cases.model(), cases.params(), given.batch, 0.6))
    credit = assign_credit(given, config(), "none")
    arrays = {
        "advantages": credit.advantages,
        "old_logprobs": current + rng.choice([-0.4, -0.1, 0.05, 0.3], size=current.shape),
        "ref_logprobs": current + rng.choice([-0.8, -0.3, 0.2, 0.6], size=current.shape),
    }
    assert (mask := credit.mask) is not None
    masked = {k: np.where(mask, x, np.nan).astype(np.float32) for k, x in arrays.items()}
    return jax.tree.map(jnp.asarray, given.batch._replace(mask=credit.mask, **masked))


@pytest.mark.parametrize("shift_mean", [True, False])
def test_a_minibatch_is_whitened_over_the_trained_tokens(shift_mean: bool):
    objective = dataclasses.replace(OBJECTIVE, whiten="minibatch", shift_mean=shift_mean)
    (rows, weights), _ = objective.loss_over(masked_batch())
    expected = oracle.whiten(np.asarray(masked_batch().advantages), mask_by_hand(), shift_mean)
    np.testing.assert_allclose(rows.advantages, expected, atol=1e-5)
    np.testing.assert_allclose(weights, mask_by_hand() / mask_by_hand().sum(), rtol=1e-6)


def test_loss_and_gradient_are_those_of_the_trained_tokens():
    """Loss and KL are divided by the number of trained tokens, in one program.

    The oracle is the gradient over all response tokens, which tests/learner/test_step.py compares
    with that of plain sums. In the oracle the other tokens have no advantage and do not differ
    from the reference model. Its sum is therefore the same, and only its divisor differs.
    """
    masked, mask, everything = masked_batch(), mask_by_hand(), rollout().batch.mask
    grads, sums = grads_of(OBJECTIVE, cases.params(), masked)
    assert sums.tokens == mask.sum()
    current = np.asarray(score(cases.model(), cases.params(), rollout().batch, 0.6))
    advantages, old, ref = (
        np.asarray(x) for x in (masked.advantages, masked.old_logprobs, masked.ref_logprobs)
    )
    loss = oracle.ppo_clip(current[mask], old[mask], advantages[mask], 0.2, 0.2)
    np.testing.assert_allclose(sums.loss, loss.sum(), rtol=1e-4)
    np.testing.assert_allclose(sums.kl, oracle.kl(current[mask], ref[mask], "k3").sum(), rtol=1e-4)
    np.testing.assert_allclose(sums.ratio, np.exp(current[mask] - old[mask]).sum(), rtol=1e-4)

    def elsewhere(x: np.ndarray, other: np.ndarray | float) -> jax.Array:
        return jnp.asarray(np.where(mask, x, np.where(everything, other, 0.0)), jnp.float32)

    whole = masked._replace(
        mask=jnp.asarray(everything),
        advantages=elsewhere(advantages, 0.0),
        old_logprobs=elsewhere(old, current),
        ref_logprobs=elsewhere(ref, current),
    )
    of_all, all_sums = grads_of(OBJECTIVE, cases.params(), whole)
    np.testing.assert_allclose(all_sums.loss, sums.loss, rtol=1e-5)
    factor = everything.sum() / mask.sum()
    assert factor > 1.3 and all_sums.tokens == everything.sum()
    cases.assert_close(grads, jax.tree.map(lambda x: factor * x, of_all), 1e-5)


def test_weights_of_means_count_the_trained_tokens():
    mask = mask_by_hand()
    lengths, rows = mask.sum(axis=1), (mask.any(axis=1)).sum()
    assert rows == 5  # one response has no such token, one no token at all
    for reduction, expected in (
        ("token", mask / mask.sum()),
        ("sequence", mask / np.maximum(lengths, 1)[:, None] / rows),
        ("budget", mask / (16 * rows)),
    ):
        ids = jnp.ones(mask.shape, jnp.int32)
        found = token_weights(jnp.asarray(mask), ids, reduction, 16)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
