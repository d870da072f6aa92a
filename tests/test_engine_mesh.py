"""The engine on meshes of eight virtual devices: what one device samples."""

import eight_devices
import pytest

PROGRAM = """
import sys
import jax
import numpy as np
import model_oracles
from vinejax.config import MeshConfig, SampleConfig
from vinejax.model.sharding import make_mesh, param_shardings
from vinejax.rollout.branches import Branch
from vinejax.rollout.engine import Engine
from vinejax.tasks.arithmetic import Arithmetic

assert jax.device_count() == 8
tokenizer = Arithmetic().tokenizer()
draw = np.random.default_rng(0)
TRUNKS = [draw.integers(2, 20, n).tolist() for n in (9, 30, 17, 5, 12)]
BRANCHES = [
    Branch(t, int(draw.integers(1, len(TRUNKS[t]) + 1)), i << 40 | i)
    for i, t in enumerate(draw.integers(0, 5, 40).tolist())
]
BUDGETS = draw.integers(1, 17, 40).tolist()


def grow(model, params, mesh, **settings):
    sampling = SampleConfig(temperature=0.8, top_p=0.9, top_k=12)
    engine = Engine(model, sampling, tokenizer, mesh, **{"slots": 16, **settings})
    grown, scored = engine.grow_scored(params, TRUNKS, BRANCHES, BUDGETS)
    return grown, scored, engine.stats


def check(name, sizes, **fields):
    model, params, _ = model_oracles.random_model(**fields)
    expected, expected_scored, _ = grow(model, params, None)
    mesh = make_mesh(MeshConfig(*sizes))
    placed = jax.device_put(params, param_shardings(mesh, params))
    found, scored, stats = grow(model, placed, mesh, **(dict(chunk=5) if sizes[0] > 1 else {}))
    for one, other in zip(found, expected):
        assert (one.tokens, one.finish) == (other.tokens, other.finish), name
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
    for one, other in zip(scored, expected_scored):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert 0.3 < stats.slot_utilisation <= 1
    print("same", name, sizes)


for sizes in ((2, 1, 1), (4, 1, 1), (8, 1, 1), (2, 4, 1), (2, 2, 2), (1, 1, 4)):
    check("gqa", sizes)
check("mqa, tied head", (1, 2, 2), num_kv_heads=1, tied_head=True)
# Neither of the heads' number and the places' divides the other.
check("3 KV heads on 2 places", (1, 1, 2), num_heads=6, num_kv_heads=3, qkv_bias=True)
check("6 KV heads on 4 places", (2, 1, 4), num_heads=12, num_kv_heads=6)
check("odd vocabulary", (2, 1, 4), vocab_size=21)
check("biases", (1, 1, 2), qkv_bias=True, out_bias=True, mlp_bias=True, num_kv_heads=4)
check("windows", (2, 1, 2), windows=(5, None), attention_softcap=3.0, logit_softcap=4.0)
print("done")
"""


@pytest.mark.slow
def test_tokens_do_not_depend_on_the_mesh():
    assert eight_devices.printed("-c", PROGRAM)[-1] == "done"
