"""Every method's gradient, and the identities that tie the methods to one another."""

import dataclasses
from typing import Any
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import eight_devices
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers import rl_oracles as oracle
from helpers.applied import applied, policy_objective
from helpers.whole_logits import whole

from vinejax.core.settings import Config, MeshConfig
from vinejax.core.types import Rollout, RunState, TrainState
from vinejax.credit.assign import Credit
from vinejax.learner.batch import step_layout
from vinejax.learner.policy import PolicyObjective, clipped_loss, token_weights
from vinejax.learner.update import Update
from vinejax.methods import ppo
from vinejax.methods.ppo import Targets, fresh_critic, token_values
from vinejax.model.config import Compute
from vinejax.model.sharding import make_mesh
from vinejax.session.iteration import Iteration

# --- what must not change a gradient


@pytest.mark.slow  # VinePPO's microbatches are in test_step.py too
def test_microbatches_and_chunks_of_the_vocabulary_change_nothing():
    """The gradient equals that of one pass with log-probabilities from all logits at once."""
    by_chunks = dataclasses.replace(cases.model(), compute=Compute(vocab_chunk=7))
    expected = methods.gradient("vineppo", None, model=whole(cases.model()))
    for size in (None, 1):
        found = methods.gradient("vineppo", size, model=by_chunks)
        cases.assert_close(found, expected, cases.ROUNDING)


@pytest.mark.slow
def test_devices_packing_microbatches_and_chunks_change_no_method():
    """The same over meshes of each kind, with several passes and parts of the vocabulary."""
    program = f"from helpers import over_devices; over_devices.check({methods.PROGRAMS})"
    assert eight_devices.printed("-c", program) == methods.PROGRAMS


# --- advantages, against loops


def objective_of(cfg: Config) -> PolicyObjective:
    return policy_objective(cases.model(), cfg)


def test_group_methods_equal_the_loops():
    rewards, groups = np.array(methods.REWARDS), np.arange(8) // 4
    for method, kind in (("grpo", "grpo"), ("rloo", "rloo")):
        found = methods.credit(methods.config(method))
        expected = oracle.group_advantages(rewards, groups, kind)
        assert np.ptp(expected) > 1
        np.testing.assert_allclose(found.advantages, methods.spread(expected), atol=1e-6)
        np.testing.assert_allclose(np.asarray(found.by_step)[:, 0], expected, atol=1e-6)
    mean = np.repeat([rewards[:4].mean(), rewards[4:].mean()], 4)
    found = methods.credit(methods.config("dr_grpo"))
    np.testing.assert_allclose(found.advantages, methods.spread(rewards - mean), atol=1e-6)
    found = methods.credit(methods.config("grpo", reward={"scale": "batch"}))
    expected = (rewards - mean) / rewards.std()
    np.testing.assert_allclose(found.advantages, methods.spread(expected), atol=1e-6)


def test_reinforce_pp_pays_the_kl_from_the_reward():
    cfg = methods.config("reinforce++", kl={"coef": 0.1}, ppo={"whiten": "none"})
    batch = methods.batch()
    found = methods.credit(cfg).advantages
    expected = np.zeros((8, 32))
    for b, (p, r) in enumerate(methods.LENGTHS):
        total = methods.REWARDS[b]
        for t in reversed(range(p, p + r)):
            total -= 0.1 * float(batch.old_logprobs[b, t] - batch.ref_logprobs[b, t])
            expected[b, t] = total
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert objective_of(cfg).kl_coef == 0.0
    whitened = methods.credit(methods.config("reinforce++", kl=cfg.kl.__dict__))
    expected = oracle.whiten(expected, np.asarray(batch.mask))
    np.testing.assert_allclose(whitened.advantages, expected, atol=1e-5)


@pytest.mark.parametrize("lam", [1.0, 0.95])
def test_ppo_equals_the_loop(lam):
    cfg = methods.config("ppo", critic={"lam": lam}, ppo={"whiten": "none", "gamma": 0.99})
    batch, values = methods.batch(), np.asarray(methods.values())
    found = methods.credit(cfg, methods.values())
    rewards = np.zeros((8, 32))
    for b, (p, r) in enumerate(methods.LENGTHS):
        rewards[b, p + r - 1] = methods.REWARDS[b]
    advantages, returns = oracle.gae(rewards, values, np.asarray(batch.mask), 0.99, lam)
    np.testing.assert_allclose(found.advantages, advantages, atol=1e-5)
    assert found.returns is not None
    np.testing.assert_allclose(found.returns, returns, atol=1e-5)


# --- identities


@pytest.mark.slow
def test_a_group_of_equal_rewards_gives_nothing():
    equal = [cases.episode(e.prompt, e.response, problem_id="p", reward=0.3)
             for e in methods.episodes()]  # fmt: skip
    for method in ("grpo", "rloo", "dr_grpo", "dapo"):
        cfg = methods.config(method)
        credit = methods.credit(cfg, solutions=equal)
        assert not np.asarray(credit.advantages).any() and not np.asarray(credit.by_step).any()
        objective = objective_of(methods.config(method, kl={"coef": 0.0}))
        rows = methods.batch()._replace(advantages=credit.advantages)
        grads, _ = methods.grads_of(objective, cases.params(), rows)
        assert not any(np.asarray(x).any() for x in jax.tree.leaves(grads))


def policy_gradient(batch, credit):
    objective = PolicyObjective(model=cases.model(), temperature=0.8, loss=clipped_loss)
    batch = batch._replace(advantages=credit.advantages)
    return methods.grads_of(objective, cases.params(), batch)[0]


@pytest.mark.slow
def test_vineppo_with_one_step_is_reinforce_with_a_monte_carlo_baseline():
    values = np.random.default_rng(4).uniform(0, 1, 8).astype(np.float32)
    whole = [
        cases.episode(e.prompt, e.response, reward=e.reward, values=values[i : i + 1])
        for i, e in enumerate(methods.episodes())
    ]
    cfg = methods.config("vineppo", ppo={"whiten": "none"})
    batch = methods.at_ratio_1(methods.batch())
    credit = methods.credit(cfg, rows=batch, solutions=whole)
    expected = methods.reinforce_gradient(methods.spread(np.array(methods.REWARDS) - values))
    cases.assert_close(policy_gradient(batch, credit), expected, cases.ROUNDING)


@pytest.mark.slow
def test_ppo_with_a_constant_critic_is_reinforce():
    """λ = γ = 1, ratio 1."""
    cfg = methods.config("ppo", ppo={"whiten": "none"})
    batch = methods.at_ratio_1(methods.batch())
    credit = methods.credit(cfg, np.full((8, 32), 0.5, np.float32), batch)
    expected = methods.reinforce_gradient(methods.spread(np.array(methods.REWARDS) - 0.5))
    cases.assert_close(policy_gradient(batch, credit), expected, cases.ROUNDING)


def test_the_weights_of_the_three_means():
    mask = np.zeros((4, 6), bool)
    mask[0, 1:5] = mask[1, 2] = mask[3, :6] = True  # 4, 1, 0 and 6 tokens
    lengths = mask.sum(axis=1, keepdims=True)
    expected = {
        "token": mask / 11,
        "sequence": np.where(mask, 1 / np.maximum(lengths, 1) / 3, 0),
        "budget": mask / (3 * 10),
    }
    ids = np.ones((4, 6), np.int32)
    for reduction, weights in expected.items():
        found = token_weights(jnp.asarray(mask), jnp.asarray(ids), reduction, 10)
        np.testing.assert_allclose(found, weights, rtol=1e-6)
    # The same with all sequences in one row.
    for reduction, weights in expected.items():
        one_row = jnp.repeat(jnp.arange(1, 5), 6)[None]
        found = token_weights(jnp.asarray(mask.reshape(1, -1)), one_row, reduction, 10)
        np.testing.assert_allclose(np.asarray(found).reshape(4, 6), weights, rtol=1e-6)


# --- the critic


def test_the_critic_reads_the_value_at_the_token_before():
    model, batch = cases.model(), methods.batch()
    critic = methods.critic_params()
    values = np.asarray(token_values(model, critic, batch))
    changed = batch._replace(tokens=batch.tokens.at[:, 9].add(1) % cases.VOCAB)
    moved = np.abs(np.asarray(token_values(model, critic, changed)) - values) > 1e-6
    valid = np.asarray(batch.segment_ids) > 0
    assert not moved[:, :10][valid[:, :10]].any()  # the value before token 9 does not see it
    assert moved[:, 10][valid[:, 10]].all()
    assert not values[:, 0].any()


def test_a_fresh_critic_has_the_start_and_a_small_head():
    model, params = cases.model(), cases.params()
    critic = fresh_critic(model, params, 7, make_mesh(MeshConfig()))
    assert "head" not in critic["backbone"]
    cases.assert_equal(critic["backbone"], {k: v for k, v in params.items() if k != "head"})
    assert critic["head"]["kernel"].shape == (32,) and critic["head"]["bias"] == 0
    wide = cases.model(width=4000)
    head = fresh_critic(wide, params, 7, make_mesh(MeshConfig()))["head"]["kernel"]
    assert np.std(head) == pytest.approx(4001**-0.5, rel=0.05)
    assert abs(np.mean(head)) < 1e-3
    none = fresh_critic(wide, params, 7, make_mesh(MeshConfig()), head_scale=0.0)["head"]["kernel"]
    assert not np.any(none)


def test_critic_values_by_hand():
    """The final norm, then a linear head. What a model does to its logits does not matter."""
    model = cases.model(logit_softcap=0.5, logit_divisor=2.0)
    critic, batch = methods.critic_params(), methods.batch()
    x, _ = model.hidden(critic["backbone"], batch.tokens, batch.positions, batch.segment_ids)
    x = np.asarray(x, np.float64)
    x /= np.sqrt((x**2).mean(axis=-1, keepdims=True) + model.cfg.norm_eps)
    x *= np.asarray(critic["backbone"]["norm"]["scale"])
    expected = x[:, :-1] @ np.asarray(critic["head"]["kernel"])
    found = token_values(model, critic | {"head": critic["head"] | {"bias": 0.5}}, batch)
    after_first = np.asarray(batch.positions)[:, 1:] > 0
    expected = np.where(after_first, expected + 0.5, 0.0)
    np.testing.assert_allclose(found[:, 1:], expected, atol=1e-5)


def test_the_loss_and_the_metrics_of_a_critic_equal_the_loop(monkeypatch: pytest.MonkeyPatch):
    """The values stand in for the critic's weights."""
    monkeypatch.setattr(ppo, "token_values", lambda model, critic, batch: critic["values"])
    batch, mask = methods.batch(), np.asarray(methods.batch().mask)
    values, old, returns = np.random.default_rng(6).normal(0, 0.2, (3, 8, 32)).astype(np.float32)
    cfg = methods.config("ppo", critic={"clip": 0.1})
    rows, loss = ppo.critic_objective(cases.model(), cfg).loss_over((batch, Targets(old, returns)))
    loss_and_slope = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (total, sums), slope = loss_and_slope({"values": values}, rows)
    expected = oracle.value_clip(values, old, returns, 0.1)[mask].mean()
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    bounded = np.clip(values, old - np.float32(0.1), old + np.float32(0.1))
    is_bounded = (bounded - returns) ** 2 > (values - returns) ** 2
    slopes = np.where(mask & ~is_bounded, values - returns, 0) / mask.sum()
    np.testing.assert_allclose(slope["values"], slopes, rtol=1e-4, atol=1e-8)
    found = ppo.critic_metrics(jax.device_get([Update(sums, jnp.float32(3), jnp.bool_(True))]))
    assert found == pytest.approx(
        {
            "critic/loss": expected,
            "critic/value": values[mask].mean(),
            "critic/error": ((values - returns)[mask] ** 2).mean(),
            "critic/clip_frac": (np.abs(values - old) > 0.1)[mask].mean(),
            "critic/grad_norm": 3.0,
        },
        rel=1e-4,
    )


def test_a_critic_learns_the_returns_at_its_own_rate(monkeypatch: pytest.MonkeyPatch):
    trained, rates = [], []

    def train_on(objective: Any, optimizer: Any, critic: Any, stream: Any, base: Any) -> Any:
        trained.extend(stream)
        return critic, []

    def make_optimizer(settings: Any, num_updates: int) -> Any:
        rates.append(settings.learning_rate)
        return optax.identity()

    monkeypatch.setattr(ppo, "train_on", train_on)
    monkeypatch.setattr(ppo, "make_optimizer", make_optimizer)
    cfg = applied(methods.config("ppo", critic={"learning_rate": 0.25}))
    iteration = MagicMock(spec=Iteration, cfg=cfg, session=MagicMock(), number=0, metrics={})
    iteration.session.model, iteration.minibatch_rows.return_value = cases.model(), 4
    batch = jax.device_get(methods.batch())
    rollout = Rollout(methods.episodes(), batch, step_layout(batch, methods.episodes()))
    values = methods.values()
    credit = Credit(values + 1, mask=batch.mask, returns=2 * values)
    kept = TrainState(jnp.int32(0), {}, ())
    ppo.Critic().learn(iteration, RunState(kept, kept), rollout._replace(values=values), credit)
    assert rates == [0.25] and len(trained) == 2 * cfg.ppo.epochs
    for rows, targets in trained:
        np.testing.assert_array_equal(rows.advantages, targets.old_values + 1)
        np.testing.assert_array_equal(targets.returns, 2 * targets.old_values)
    assert iteration.metrics["critic/explained_variance"] == pytest.approx(0.75)
