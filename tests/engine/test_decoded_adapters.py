"""Adapters in decoding: the sampler uses the policy that the learner trains."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import eight_devices
from helpers.model_oracles import Model, assert_same, random_model

from vinejax.core.settings import ModelConfig, SampleConfig
from vinejax.engine.branches import Branch
from vinejax.engine.engine import Engine
from vinejax.model.decoder import Params, apply
from vinejax.model.lora import abstract_adapters, merge_adapters, with_adapters

SCALE, RANK = 2.0, 3
TRUNKS = [[4, 5, 6, 9, 12, 3, 17], [7, 8, 11]]
BRANCHES = [Branch(i % 2, 1 + i % 2, seed) for i, seed in enumerate(range(24))]
merging = jax.jit(merge_adapters, static_argnames="scale")
SAMPLING = SampleConfig(temperature=0.8, top_p=0.95)


def adapting(model: Model) -> Model:
    compute = dataclasses.replace(model.decoder.compute, lora_scale=SCALE)
    return model._replace(decoder=dataclasses.replace(model.decoder, compute=compute))


def adapters_of(model: Model, size_b: float = 0.3) -> Params:
    """Adapters with the initial size of lora_a, and lora_b of size `size_b`."""
    rng = np.random.default_rng(2)

    def draw(path: Any, x: jax.ShapeDtypeStruct) -> np.ndarray:
        size = size_b if path[-1].key == "lora_b" else model.decoder.cfg.width**-0.5
        return (size * rng.choice([-1, 1], x.shape)).astype(np.float32)

    abstract = abstract_adapters(model.decoder, ModelConfig(lora_rank=RANK))
    return jax.tree_util.tree_map_with_path(draw, abstract)


def grow(model: Model, params: Params, **settings: Any) -> list[Any]:
    settings = {"skip_repeats": False} | settings
    engine = Engine(model.decoder, SAMPLING, model.tokenizer, slots=8, **settings)
    return engine.stream(params, TRUNKS, BRANCHES, 12).in_order()


OTHER = dict(num_kv_heads=1, qkv_bias=True, tied_head=True)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, OTHER])
def test_the_sampler_is_the_model_with_its_adapters(fields: dict[str, Any], tiny: Model):
    model = random_model(tokenizer=tiny.tokenizer, **fields)
    policy = with_adapters(model.params, adapters_of(model))
    found = grow(adapting(model), policy, skip_repeats=True)
    assert_same(found, grow(model, merging(policy, SCALE)))
    assert [x.tokens for x in found] != [x.tokens for x in grow(model, model.params)]


def test_a_change_smaller_than_the_rounding_of_a_kernel_is_sampled(tiny: Model):
    """A change of 1e-5 beside kernels in bfloat16, as the learner stores them."""
    model = adapting(tiny)

    def stored(path: Any, x: jax.Array) -> np.ndarray:
        return np.asarray(x).astype(jnp.bfloat16 if path[-1].key == "kernel" else np.float32)

    base = jax.tree_util.tree_map_with_path(stored, tiny.params)
    policies = [with_adapters(base, adapters_of(tiny, size)) for size in (0.0, 1e-5)]

    def of_sampler(params: Params) -> np.ndarray:
        engine = Engine(model.decoder, SampleConfig(), tiny.tokenizer, slots=8)
        stream = engine.stream(params, TRUNKS, [], scored=True)
        assert list(stream) == []
        return np.concatenate([logprobs[1:] for logprobs in stream.trunk_logprobs])

    @jax.jit
    def of_learner(params: Params) -> jax.Array:
        whole = jax.tree.map(lambda x: x.astype(jnp.float32), params)
        logprobs = [jax.nn.log_softmax(apply(model.decoder, whole, [ids]))[0] for ids in TRUNKS]
        pairs = zip(logprobs, map(np.array, TRUNKS), strict=True)
        return jnp.concatenate([x[np.arange(len(ids) - 1), ids[1:]] for x, ids in pairs])

    trained = np.subtract(*jax.device_get([of_learner(params) for params in policies]))
    sampled = np.subtract(*map(of_sampler, policies))
    assert np.abs(trained).max() > 1e-5
    assert trained @ sampled / (trained @ trained) == pytest.approx(1, abs=0.05)


PROGRAM = """
from helpers import model_oracles
from test_decoded_adapters import adapters_of, adapting, grow
import jax
from vinejax.model.lora import merge_adapters, with_adapters
from vinejax.model.sharding import make_mesh, param_shardings
from vinejax.core.settings import MeshConfig
from vinejax.tasks.arithmetic import Arithmetic

for sizes, fields in (((2, 1, 2), {}), ((1, 2, 4), {})):
    model = model_oracles.random_model(Arithmetic().tokenizer(), **fields)
    mesh = make_mesh(MeshConfig(*sizes))
    policy = with_adapters(model.params, adapters_of(model))
    placed = jax.device_put(policy, param_shardings(mesh, policy))
    found = grow(adapting(model), placed, mesh=mesh)
    model_oracles.assert_same(found, grow(adapting(model), policy))
print("done")
"""


@pytest.mark.slow
def test_on_meshes():
    """Adapters split over `tensor` like their kernels, and repeated KV heads."""
    program = f"import sys; sys.path.append('engine'){PROGRAM}"
    assert eight_devices.printed("-c", program)[-1] == "done"
