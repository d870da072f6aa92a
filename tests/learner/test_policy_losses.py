"""The losses of `ppo.loss` by hand, and their gradients with token weights and entropy bonus."""

import jax
import numpy as np
import pytest
from helpers import eight_devices, loss_cases
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.applied import applied

from vinejax.core.types import Batch
from vinejax.learner.policy import PolicyObjective
from vinejax.learner.policy_losses import LOSSES
from vinejax.methods.known import find_method

# Two solutions in one row: their tokens, ratios and advantages. Bounds of ratios are 0.9 and 1.2.
IDS = np.array([[1, 1, 1, 2, 2, 2, 2, 0]])
MASK = np.array([[0, 1, 1, 0, 1, 1, 1, 0]], bool)
RATIO = np.array([[1, 1.5, 1.1, 1, 0.6, 1.3, 0.8, 1]])
ADVANTAGES = np.array([[9, 1, -2, 9, -1, 0.5, 2, 9]])
BY_SOLUTION = np.sqrt(1.5 * 1.1), np.cbrt(0.6 * 1.3 * 0.8)  # geometric means: 1.28 and 0.85
SOLUTIONS = np.repeat(BY_SOLUTION, [3, 5])[None]
CLIPPED = {
    "clip": [[0, 1, 0, 0, 1, 1, 0, 0]],
    "gspo": [[0, 1, 0, 0, 1, 0, 0, 0]],
    "cispo": [[0, 1, 0, 0, 1, 1, 1, 0]],
    "sapo": [[0] * 8],
}


def losses_by_hand(name: str, logprobs: np.ndarray) -> np.ndarray:
    ratio = SOLUTIONS if name == "gspo" else RATIO
    if name == "sapo":
        tau = np.where(ADVANTAGES > 0, 0.9, 1.2)
        return -ADVANTAGES * 4 / tau / (1 + np.exp(-tau * (ratio - 1)))
    bounded = np.clip(ratio, 0.9, 1.2)
    if name == "cispo":
        return -ADVANTAGES * bounded * logprobs
    return -np.minimum(ADVANTAGES * ratio, ADVANTAGES * bounded)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_clipped_tokens_by_hand(name: str):
    old = np.linspace(-2, -0.5, 8)[None]
    logprobs, none = old + np.log(RATIO), np.zeros((1, 8), np.float32)
    batch = Batch(
        tokens=IDS,
        segment_ids=IDS,
        positions=IDS,
        mask=MASK,
        advantages=np.float32(ADVANTAGES),
        old_logprobs=np.float32(old),
        ref_logprobs=none,
    )
    clip = (0.9, 1.2) if name == "sapo" else (0.1, 0.2)
    function = LOSSES[name].function
    objective = PolicyObjective(model=cases.model(), temperature=1.0, loss=function, clip=clip)
    loss, clipped = jax.jit(function, static_argnums=2)(np.float32(logprobs), batch, objective)
    expected = losses_by_hand(name, logprobs)
    np.testing.assert_allclose(loss[MASK], expected[MASK], rtol=1e-5)
    assert (clipped & MASK).astype(int).tolist() == CLIPPED[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", loss_cases.NAMES)
def test_gradients_in_packed_microbatches_are_those_of_plain_loops(name: str):
    objective = loss_cases.objective(name, cases.model(), microbatch=4)
    assert objective.packed and objective.microbatch == 4
    packed = objective.pack(jax.device_get(loss_cases.rows()))
    assert np.asarray(packed.segment_ids).max() > 1, "rows are shared"
    grads, sums = methods.grads_of(objective, cases.params(), packed)
    cases.assert_close(grads, loss_cases.expected(name), cases.ROUNDING)
    mask = np.asarray(loss_cases.rows().mask)
    assert sums.tokens == mask.sum()
    assert (0 < sums.clipped < mask.sum()) == (name != "sapo")


DEVICES = """
import dataclasses
import jax
from helpers import loop_cases as cases, loss_cases, method_cases as methods
from vinejax.model.sharding import mesh_over, param_shardings

mesh = mesh_over((2, 2, 2), jax.devices())
model = dataclasses.replace(cases.model(), mesh=mesh)
params = jax.device_put(cases.params(), param_shardings(mesh, cases.params()))
for name in loss_cases.NAMES:
    objective = loss_cases.objective(name, model, microbatch=4)
    packed = objective.pack(jax.device_get(loss_cases.rows()))
    found, _ = methods.grads_of(objective, params, packed)
    cases.assert_close(jax.device_get(found), loss_cases.expected(name), cases.ROUNDING)
    print(name)
"""


@pytest.mark.slow
def test_gradients_on_a_mesh_are_those_of_plain_loops():
    assert eight_devices.printed("-c", DEVICES) == list(loss_cases.NAMES)


def test_a_loss_brings_its_authors_bounds_and_mean():
    def made(method: str, **ppo: object) -> tuple[object, ...]:
        cfg = applied(methods.config(method, ppo=ppo))
        found = find_method(method).objective(cases.model(), cfg)
        return found.loss.__name__, found.clip, found.reduction

    assert made("grpo") == ("clipped_loss", (0.2, 0.2), "token")
    assert made("dapo") == ("clipped_loss", (0.2, 0.28), "token")
    assert made("dapo", loss="gspo") == ("gspo", (3e-4, 4e-4), "sequence")
    assert made("dr_grpo", loss="clip") == ("clipped_loss", (0.2, 0.2), "budget")
    assert made("grpo", loss="cispo") == ("cispo", (1.0, 4.0), "token")
    assert made("grpo", loss="gspo", reduction="token") == ("gspo", (3e-4, 4e-4), "token")
    assert made("vineppo", loss="sapo") == ("sapo", (1.0, 1.05), "sequence")
