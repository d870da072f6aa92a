"""The gradient of every `ppo.loss`, with token weights and entropy bonus."""

import jax
import numpy as np
import pytest
from helpers import eight_devices, loss_cases
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.applied import applied

from vinejax.methods.known import find_method


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
    assert made("dapo", loss="gspo") == ("gspo", (3e-4, 4e-4), "sequence")
    assert made("dr_grpo", loss="clip") == ("clipped_loss", (0.2, 0.2), "budget")
    assert made("grpo", loss="cispo") == ("cispo", (1.0, 4.0), "token")
    assert made("grpo", loss="gspo", reduction="token") == ("gspo", (3e-4, 4e-4), "token")
    assert made("vineppo", loss="sapo") == ("sapo", (1.0, 1.05), "sequence")
