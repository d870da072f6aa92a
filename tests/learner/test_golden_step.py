"""The numbers of one training step, written down, so that a test fails when one of them changes."""

import jax
import numpy as np
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.applied import policy_objective

from vinejax.core.settings import MeshConfig, OptimizerConfig
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.update import fresh_state, update_step
from vinejax.model.sharding import make_mesh
from vinejax.session.metrics import update_metrics

GOLDEN = {
    "actor/loss": 0.039128,
    "actor/kl": 0.115725,
    "actor/old_kl": 0.022835,
    "actor/ratio": 0.986967,
    "actor/entropy": 2.219536,
    "actor/grad_norm": 4.764323,
    "actor/skipped_updates": 0.0,
    "actor/clip_frac": 0.191489,
    "norm of the step": 0.140623,
}
WHEN_TO_UPDATE = """
One training step gives other numbers than before. That is right only if CHANGELOG.md describes an
intended change of the loss, of credit, of the optimizer or of the model's arithmetic. In that case,
replace GOLDEN by

{found}
"""


def test_one_step_of_vineppo():
    cfg = methods.config("vineppo", kl={"coef": 0.1}, ppo={"minibatch": 8, "microbatch": 4})
    batch = methods.batch()._replace(advantages=methods.credit(cfg).advantages)
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-3), 10)
    state = fresh_state(cases.params(), optimizer, make_mesh(MeshConfig()))
    objective = policy_objective(cases.model(), cfg)
    state, update = update_step(objective, optimizer, state, batch)
    metrics = update_metrics([jax.device_get(update)])
    found = {name: round(float(x), 6) for name, x in metrics.items() if "by_eighth" not in name}
    params = jax.device_get((state.params, cases.params()))
    moved = jax.tree.leaves(jax.tree.map(lambda new, old: np.linalg.norm(new - old), *params))
    found["norm of the step"] = round(float(np.linalg.norm(moved)), 6)
    message = WHEN_TO_UPDATE.format(found=found)
    assert found.keys() == GOLDEN.keys(), message
    for name, value in GOLDEN.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name + message)
