"""The losses and advantages against TRL's numbers, at TRL's settings.

`fixtures/make_trl.py` made them, with TRL's own code; the versions are in the file.
"""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.paths import FIXTURES

from vinejax.core.types import Batch
from vinejax.learner import policy
from vinejax.model.token_logprobs import TokenScores
from vinejax.rl.advantages import gae, group_advantages
from vinejax.rl.losses import dpo_positive, ppo_clip, value_clip
from vinejax.rl.masked import masked_mean, whiten


@dataclasses.dataclass(frozen=True)
class Fixture:
    settings: dict[str, Any]
    inputs: dict[str, np.ndarray]
    results: dict[str, np.ndarray]  # TRL's results for these inputs


@pytest.fixture(scope="module")
def trl() -> Fixture:
    file = FIXTURES / "trl.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    assert record["versions"] == {"grpo, rloo": "trl 1.16.0", "ppo, dpo": "trl 0.11.4"}
    inputs = {name: np.array(x) for name, x in record["given"].items()}
    inputs["mask"] = inputs["mask"].astype(bool)
    results = {name: np.array(x) for name, x in record["found"].items()}
    return Fixture(record["settings"], inputs, results)


@pytest.mark.parametrize("name, kind", [("grpo", "grpo"), ("dr_grpo", "mean"), ("rloo", "rloo")])
def test_group_advantages(trl: Fixture, name, kind):
    """With the sample standard deviation, and 1e-4 as ε."""
    rewards = trl.inputs["rewards"]
    groups = np.arange(len(rewards)) // trl.settings["group"]
    advantages = group_advantages(rewards, groups, kind, ddof=1, eps=1e-4)
    expected = trl.results[f"{name}_advantages"]
    assert np.abs(expected).min() > 0.05
    np.testing.assert_allclose(advantages, expected, atol=1e-6)


@pytest.mark.parametrize(
    "name, reduction", [("bnpo", "token"), ("grpo", "sequence"), ("dr_grpo", "budget")]
)
def test_grpo_loss_and_gradient(trl: Fixture, monkeypatch: pytest.MonkeyPatch, name, reduction):
    """The loss of an update: both clips and k3, with three reductions.

    The log-probabilities stand in for the weights of a model, and for its results.
    """
    settings, inputs = trl.settings["grpo"], trl.inputs

    def scores(model: Any, x: dict[str, Any], *_: Any) -> TokenScores:
        return TokenScores(x["logprobs"], 0 * x["logprobs"], None)

    monkeypatch.setattr(policy, "batch_scores", scores)
    objective = policy.PolicyObjective(
        model=cases.model(), temperature=1.0, loss=policy.clipped_loss, reduction=reduction,
        clip=(settings["clip"], settings["clip_high"]), kl_coef=settings["beta"],
        max_tokens=settings["max_tokens"],
    )  # fmt: skip
    mask = jnp.asarray(inputs["mask"])
    zeros = jnp.zeros(mask.shape, jnp.int32)
    advantages = inputs["by_row"][:, None] + np.zeros(mask.shape)
    batch = Batch(
        tokens=zeros,
        segment_ids=zeros,
        positions=zeros,
        mask=mask,
        advantages=jnp.asarray(advantages, jnp.float32),
        old_logprobs=jnp.asarray(inputs["old"], jnp.float32),
        ref_logprobs=jnp.asarray(inputs["ref"], jnp.float32),
    )
    rows, loss = objective.loss_over(batch)
    logprobs = jnp.asarray(inputs["logprobs"], jnp.float32)
    stand_in = {"logprobs": logprobs}
    (total, _), grad = jax.value_and_grad(loss, has_aux=True)(stand_in, rows)
    np.testing.assert_allclose(total, trl.results[f"{name}_loss"], rtol=1e-5)
    np.testing.assert_allclose(grad["logprobs"], trl.results[f"{name}_grad"], atol=1e-6)


def test_ppo(trl: Fixture):
    settings, inputs, expected = trl.settings["ppo"], trl.inputs, trl.results
    mask = inputs["mask"]
    advantages, returns = gae(
        inputs["token_rewards"], inputs["values"], mask, settings["gamma"], settings["lam"]
    )
    whitened = whiten(advantages, mask)
    np.testing.assert_allclose(whitened, expected["ppo_advantages"], atol=2e-6)
    np.testing.assert_allclose(returns, expected["ppo_returns"], atol=2e-6)
    loss = ppo_clip(inputs["logprobs"], inputs["old"], whitened, settings["clip"])
    value = value_clip(inputs["new_values"], inputs["values"], returns, settings["clip_value"])
    np.testing.assert_allclose(masked_mean(loss, mask), expected["ppo_policy_loss"], rtol=1e-5)
    np.testing.assert_allclose(masked_mean(value, mask), expected["ppo_value_loss"], rtol=1e-5)


def test_dpo(trl: Fixture):
    """DPO-Positive without its penalty."""
    chosen, rejected, ref_chosen, ref_rejected = trl.results["dpo_sums"]
    losses = dpo_positive(
        chosen, rejected, ref_chosen, ref_rejected, beta=trl.settings["dpo"]["beta"]
    )
    assert np.ptp(trl.results["dpo_losses"]) > 0.1
    np.testing.assert_allclose(losses, trl.results["dpo_losses"], rtol=1e-5)
