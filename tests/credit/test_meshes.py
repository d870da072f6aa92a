"""Rules of step credit give equal results on one device, on a mesh, and after a restart."""

import pytest
from helpers import eight_devices

PROGRAM = """
import dataclasses
import jax
import numpy as np
from helpers.paths import REPO
from vinejax.config.load import from_dict, from_file
from vinejax.model.hf.weights import load_pretrained
from vinejax.model.sharding import make_mesh, param_shardings
from vinejax.engine.engine import Engine
from helpers.applied import sample_episodes
from helpers.applied import fill_values
from vinejax.core.settings import MeshConfig
from vinejax.tasks.arithmetic import Arithmetic
from vinejax.tasks.graded import GradedTask

RULES = (
    {},
    {"positions": "tokens", "every": 6, "merge": 2},
    {"positions": "low_probability", "every": 2},
    {"reuse": True, "num_states": 2, "backup": True},
    {"allocation": "bisection", "positions": "tokens", "every": 2, "reuse": True},
)
folder = str(REPO / "configs" / "tiny_start")
model, params, tokenizer = load_pretrained(folder)
mesh = make_mesh(MeshConfig(1, 2, 2))
placed = jax.device_put(params, param_shardings(mesh, params))
task = Arithmetic()
problems = [
    (p, tokenizer.encode(task.prompt(p), add_special_tokens=False)) for p in task.load("train")[:3]
]
fields = from_file(str(REPO / "configs" / "tiny.py"), "tiny.py")
fields.rollout.per_prompt = 3
fields.values.k = 3
cfg = from_dict(fields)
graded = GradedTask(task, cfg.grader)


def engine(**settings):
    return Engine(model, cfg.sample, tokenizer, **settings)


alone, again = engine(slots=32), engine(slots=32)
split = engine(mesh=mesh, slots=16, chunk=5)
episodes = sample_episodes(alone, params, graded, problems, cfg, 4)
for rules in RULES:
    of_rules = dataclasses.replace(cfg, values=dataclasses.replace(cfg.values, **rules))
    found = [
        fill_values(one, weights, graded, problems, episodes, of_rules, 4)
        for one, weights in ((alone, params), (again, params), (split, placed))
    ]
    for one, other in [*zip(found[0], found[1]), *zip(found[0], found[2])]:
        assert one.step_ends == other.step_ends and one.continuations == other.continuations
        for name in ("values", "value_counts", "value_errors", "reused"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    sampled = sum(int((episode.value_counts > 0).sum()) for episode in found[0])
    print(rules, sampled)
    assert sampled > 0
    assert bool(rules.get("reuse")) == any(episode.reused.any() for episode in found[0])
print("done")
"""


@pytest.mark.slow
def test_values_do_not_depend_on_the_mesh():
    assert eight_devices.printed("-c", PROGRAM)[-1] == "done"
