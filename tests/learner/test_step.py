"""The update: its gradient against a plain oracle, and changes that must not affect it."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import loop_cases as cases
from helpers import rl_oracles as oracle

from vinejax.core.types import Batch, TrainState
from vinejax.learner.batch import collate, minibatches
from vinejax.learner.packing import Passes
from vinejax.learner.policy import PolicyLoss, PolicyObjective, PolicySums, clipped_loss
from vinejax.learner.score import policy_outputs, score, with_logprobs
from vinejax.learner.update import Update, gradients, num_accepted, update_step
from vinejax.model.decoder import Params
from vinejax.runtime.compiles import num_compiles

T_SAMPLE = 0.6
PLAIN = PolicyObjective(
    model=cases.model(), temperature=T_SAMPLE, loss=clipped_loss, kl_coef=0.1, kl_reduction="token"
)
# (prompt, response) lengths of 7 episodes; the eighth row is empty.
LENGTHS = [(4, 9), (2, 3), (4, 9), (5, 0), (3, 10), (2, 3), (4, 1)]
TOKENS = sum(r for _, r in LENGTHS)
CLAMPED = (0, 6)  # (row, position) of a token whose k3 is above 10

grads_of = jax.jit(gradients, static_argnames="objective")


@functools.cache
def make_batch() -> Batch:
    """Advantages and log-probabilities that reach both bounds of the clip, and the clamp.

    No token is near either: there the gradient jumps, and rounding would decide.
    """
    rng = np.random.default_rng(0)
    batch = jax.device_get(collate(cases.random_episodes(LENGTHS), rows=8))
    assert batch.tokens.shape == (8, 32) and not batch.mask[7].any()
    current = np.asarray(score(cases.model(), cases.params(), batch, T_SAMPLE))
    old = current + rng.choice([-0.4, -0.1, 0.05, 0.3], size=current.shape)
    ref = current + rng.choice([-0.8, -0.3, 0.2, 0.6], size=current.shape)
    ref[CLAMPED] = current[CLAMPED] + 4.0
    arrays = (0.5 + rng.normal(size=current.shape), old, ref)
    advantages, old, ref = (np.where(batch.mask, x, 0.0).astype(np.float32) for x in arrays)
    return batch._replace(advantages=advantages, old_logprobs=old, ref_logprobs=ref)


@functools.cache
def oracle_sums() -> tuple[np.ndarray, Any]:
    """(Σ policy loss, Σ k3) of `make_batch()` and their gradients, from logits without padding."""
    batch = make_batch()
    lengths = {sum(pair) for pair in LENGTHS}
    places = [(b, t) for b, (p, r) in enumerate(LENGTHS) for t in range(p, p + r)]

    def sums(params):
        policy, k3 = 0.0, 0.0
        for length in lengths:
            rows = [b for b, pair in enumerate(LENGTHS) if sum(pair) == length]
            at = [(b, t) for b, t in places if b in rows]
            z = cases.logits(params, batch.tokens[rows, :length]) / T_SAMPLE
            everything = z - jnp.log(jnp.exp(z).sum(axis=-1, keepdims=True))
            index = np.array([(rows.index(b), t - 1, batch.tokens[b, t]) for b, t in at])
            logprobs = everything[tuple(index.T)]
            arrays = (batch.old_logprobs, batch.ref_logprobs, batch.advantages)
            old, ref, advantages = (x[tuple(np.array(at).T)] for x in arrays)
            ratio, d = jnp.exp(logprobs - old), ref - logprobs
            gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)
            policy -= gain.sum()
            k3 += jnp.minimum(jnp.exp(d) - d - 1, 10.0).sum()
        return jnp.stack([policy, k3])

    @jax.jit
    def values_and_gradients(params):
        values, pulled_back = jax.vjp(sums, params)
        return values, jax.vmap(pulled_back)(jnp.eye(2))[0]

    return jax.device_get(values_and_gradients(cases.params()))


@pytest.mark.first
@pytest.mark.parametrize("reduction", ["token", "sequence", "policy"])
def test_loss_and_gradient_equal_the_oracle(reduction):
    """L = Σ policy / tokens + coef · Σ k3 / (tokens | sequences)."""
    # Row 3 has no response, and row 7 is empty.
    weights = np.array([1 / TOKENS, 0.1 / (6 if reduction == "sequence" else TOKENS)])
    values, expected = oracle_sums()
    objective = dataclasses.replace(PLAIN, kl_reduction=reduction)
    grads, stats = grads_of(objective, cases.params(), make_batch())
    np.testing.assert_allclose([stats.loss, stats.kl], values, rtol=1e-5)
    cases.assert_close(
        grads, jax.tree.map(lambda x: np.tensordot(weights, x, 1), expected), cases.ROUNDING
    )


def test_without_advantages_only_the_kl_moves_the_policy():
    batch = make_batch()
    batch = batch._replace(advantages=np.zeros_like(batch.advantages))
    grads, _ = grads_of(PLAIN, cases.params(), batch)
    of_k3 = jax.tree.map(lambda x: 0.1 * x[1] / TOKENS, oracle_sums()[1])
    cases.assert_close(grads, of_k3, cases.ROUNDING)


@pytest.mark.parametrize("distance", [100.0, 1e4])
def test_tokens_whose_ratio_overflows_count_as_clipped(distance):
    """The gradient does not depend on how far a token is beyond clip and cap."""
    near = make_batch()
    advantages, old, ref = (
        np.array(x) for x in (near.advantages, near.old_logprobs, near.ref_logprobs)
    )
    row, t = 0, 7
    advantages[row, t] = 1.0
    old[row, t] -= 2.0
    near = near._replace(advantages=advantages, old_logprobs=old)
    old, ref = old.copy(), ref.copy()
    old[row, t] -= distance
    ref[CLAMPED] += distance
    expected, sums = grads_of(PLAIN, cases.params(), near)
    grads, far_sums = grads_of(
        PLAIN, cases.params(), near._replace(old_logprobs=old, ref_logprobs=ref)
    )
    jax.tree.map(np.testing.assert_array_equal, grads, expected)
    assert (far_sums.loss, far_sums.kl) == (sums.loss, sums.kl)
    assert np.isfinite(far_sums.ratio) and not PLAIN.accepts(far_sums)


def test_sums_equal_the_loops():
    batch = make_batch()
    mask = batch.mask
    _, stats = grads_of(PLAIN, cases.params(), batch)
    logprobs = np.asarray(score(cases.model(), cases.params(), batch, T_SAMPLE))[mask]
    old, ref, advantages = (
        x[mask] for x in (batch.old_logprobs, batch.ref_logprobs, batch.advantages)
    )
    ratio = np.exp(logprobs - old)
    k3 = oracle.kl(logprobs, ref, "k3")
    # A token is clipped if the clipped term is the larger loss, not if its ratio is out of bounds.
    branches = -advantages * ratio, -advantages * np.clip(ratio, 0.8, 1.2)
    is_clipped = branches[1] > branches[0]
    assert k3.max() > 10 and 0 < is_clipped.sum() < (np.abs(ratio - 1) > 0.2).sum()
    expected = {
        "loss": oracle.ppo_clip(logprobs, old, advantages, 0.2, 0.2).sum(),
        "kl": np.minimum(k3, 10).sum(),
        "old_kl": oracle.kl(logprobs, old, "k3").sum(),
        "ratio": ratio.sum(),
        "clipped": is_clipped.sum(),
        "tokens": TOKENS,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(stats, name), value, rtol=1e-4, err_msg=name)
    assert 0 < stats.entropy <= stats.tokens * np.log(cases.VOCAB)

    lengths = mask.sum(axis=1)  # a response per row
    eighth = np.concatenate([8 * np.arange(n) // n for n in lengths if n])
    for name, values in {"ratio": ratio, "clipped": is_clipped, "tokens": np.ones(TOKENS)}.items():
        by_eighth = np.bincount(eighth, weights=values, minlength=8)
        found = getattr(stats.by_eighth, name)
        np.testing.assert_allclose(found, by_eighth, rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(stats.by_eighth.entropy.sum(), stats.entropy, rtol=1e-5)


def assert_sums(found: PolicySums, expected: PolicySums) -> None:
    """Compares two reports, in which eighths of short responses may be 0."""
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-6), found, expected)


@pytest.mark.first
@pytest.mark.parametrize("size", [2, 1])
def test_microbatches_change_nothing(size: int):
    batch, params = make_batch(), cases.params()
    whole, sums = grads_of(PLAIN, params, batch)  # one microbatch of 8
    grads, stats = grads_of(dataclasses.replace(PLAIN, microbatch=size), params, batch)
    cases.assert_close(grads, whole, cases.ROUNDING)
    assert_sums(stats, sums)


@pytest.mark.slow
def test_padding_changes_nothing():
    """Empty rows, longer rows, and NaN where the mask is False."""
    batch, params = make_batch(), cases.params()
    expected, sums = grads_of(PLAIN, params, batch)
    wide = jax.tree.map(lambda x: np.pad(x, ((0, 4), (0, 16))), batch)
    names = ("advantages", "old_logprobs", "ref_logprobs")
    nan = np.float32(np.nan)
    nan_off = {name: np.where(wide.mask, getattr(wide, name), nan) for name in names}
    grads, stats = grads_of(PLAIN, params, wide._replace(**nan_off))
    cases.assert_close(grads, expected, cases.ROUNDING)
    assert_sums(stats, sums)


def test_an_eos_that_is_also_the_pad_id_gets_its_gradient():
    eos = pad = 0
    batch = collate([cases.episode([5, 6], [7, 8, eos]), cases.episode([5], [9])], rows=8)
    assert int(batch.tokens[1, 5]) == pad
    mask = np.zeros((8, 32), bool)
    mask[0, 2:5] = mask[1, 1] = True  # from the lengths
    np.testing.assert_array_equal(batch.mask, mask)
    logprobs = score(cases.model(), cases.params(), batch, T_SAMPLE)
    only_eos = np.zeros((8, 32), np.float32)
    only_eos[0, 4] = 1.0
    batch = batch._replace(advantages=only_eos, old_logprobs=logprobs, ref_logprobs=logprobs)
    grads, stats = grads_of(PLAIN, cases.params(), batch)
    assert stats.tokens == 4 and logprobs[0, 4] < 0
    np.testing.assert_allclose(stats.loss, -1.0, rtol=1e-5)
    assert np.linalg.norm(np.asarray(grads["head"])[:, eos]) > 0.1


@pytest.mark.first
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_ratio_is_1_and_kl_0_before_the_first_update(temperature):
    objective = dataclasses.replace(PLAIN, temperature=temperature)
    params, episodes = cases.params(), cases.random_episodes(LENGTHS * 2)
    batch = collate(episodes, rows=8)
    outputs = policy_outputs(cases.model(), params, batch, episodes, temperature, Passes(8))
    batch = with_logprobs(cases.model(), params, batch, outputs, temperature, Passes(8))
    for minibatch in minibatches(batch, 8, seed=0, iteration=0, epoch=0):
        _, stats = grads_of(objective, params, minibatch)
        assert stats.tokens > 10 and stats.clipped == 0
        assert abs(stats.ratio / stats.tokens - 1) <= 1e-5
        assert 0 <= stats.kl / stats.tokens <= 1e-5 and 0 <= stats.old_kl / stats.tokens <= 1e-5


# The first update leaves its gradient in the momentum.
OPTIMIZER = optax.sgd(1e-3, momentum=0.9)


@jax.jit
def fresh_state(params: Params) -> TrainState:
    return TrainState(jnp.int32(0), params, OPTIMIZER.init(params))


def update(
    batch: Batch, objective: PolicyObjective = PLAIN, state: TrainState | None = None
) -> tuple[TrainState, Update]:
    return update_step(objective, OPTIMIZER, state or fresh_state(cases.params()), batch)


@pytest.mark.first
@pytest.mark.parametrize("shift_mean", [True, False])
def test_whitening_of_minibatches_equals_whitening_by_hand(shift_mean):
    batch = make_batch()
    whitening = dataclasses.replace(PLAIN, whiten="minibatch", shift_mean=shift_mean)
    state, made = update(batch, whitening)
    by_hand = oracle.whiten(batch.advantages, batch.mask, shift_mean)
    by_hand = batch._replace(advantages=by_hand.astype(np.float32))
    grads, sums = grads_of(PLAIN, cases.params(), by_hand)
    cases.assert_close(state.opt_state[0].trace, grads, cases.ROUNDING)
    np.testing.assert_allclose(made.sums.loss, sums.loss, rtol=1e-5)
    norm = np.linalg.norm([np.linalg.norm(x) for x in jax.tree.leaves(grads)])
    np.testing.assert_allclose(made.grad_norm, norm, rtol=1e-5)
    assert made.accepted and state.step == 1


def scaled_ratio(mean: float) -> Batch:
    """The batch, changed so that the mean probability ratio is this one."""
    batch = make_batch()
    _, stats = grads_of(PLAIN, cases.params(), batch)
    by = np.log(mean / np.float32(stats.ratio / stats.tokens))
    return batch._replace(old_logprobs=np.where(batch.mask, batch.old_logprobs - by, 0.0))


def test_max_ratio_bounds_the_mean_of_the_minibatch():
    assert [bool(update(scaled_ratio(x))[1].accepted) for x in (1.0, 9.99, 10.01)] == [
        True,
        True,
        False,
    ]


def reinforce(logprobs, batch, objective):
    """A loss without a probability ratio, as AsymRE has it."""
    return PolicyLoss(-batch.advantages * logprobs)


def test_a_loss_without_a_ratio_is_not_bounded_by_it():
    """Such losses are meant to go far from the policy that sampled."""
    state, made = update(scaled_ratio(12.0), dataclasses.replace(PLAIN, loss=reinforce))
    assert made.accepted and state.step == 1 and made.sums.clipped is None


def spoiled(how: str) -> Batch:
    batch, at = make_batch(), (0, 5)
    assert batch.mask[at]
    if how == "ratio":
        return scaled_ratio(12.0)
    name = "old_logprobs" if how == "infinite ratio" else how
    values = getattr(batch, name).copy()
    values[at] = -1e4 if how == "infinite ratio" else np.nan
    return batch._replace(**{name: values})


@pytest.mark.parametrize("how", ["ratio", "infinite ratio", "advantages", "old_logprobs"])
def test_a_spoiled_update_changes_nothing_and_is_counted(how):
    state, _ = update(make_batch())
    before = jax.tree.map(np.array, state)
    state, refused = update(spoiled(how), state=state)
    cases.assert_equal(state, before)
    assert not refused.accepted and refused.grad_norm == 0
    state, made = update(make_batch(), state=state)
    assert made.accepted and state.step == 2 and num_accepted([refused, made]) == 1


def test_a_second_step_compiles_nothing():
    state, _ = update(make_batch())
    compiles = num_compiles()
    for _ in range(2):
        state, _ = update(make_batch(), state=state)
    assert num_compiles() == compiles and state.step == 3
