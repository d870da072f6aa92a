"""A mixture of experts against a plain loop over all of them, on one device and on several."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import eight_devices
from helpers.model_oracles import TINY, random_model
from helpers.refusals import refuses
from jax.sharding import AbstractMesh

from vinejax.core.settings import PROJECTIONS, ModelConfig
from vinejax.engine.split import check_tensor
from vinejax.model import decoder
from vinejax.model.config import compute_as_set
from vinejax.model.decoder import Decoder, Params, apply
from vinejax.model.experts import Experts, Kernels, mixture
from vinejax.model.lora import fresh_adapters, kernel_shapes, with_adapters
from vinejax.model.sharding import AXES, mesh_over

EXPERTS = Experts(count=6, per_token=2, ffn=10, renormalised=True)
ATTENTION = ("q", "k", "v", "out")
TOKENS = np.random.default_rng(0).integers(0, 20, (3, 12))


def looped(
    x: jax.Array, kernels: Kernels, experts: Experts, activation: Any, axis: None = None
) -> jax.Array:
    """Every expert on every token; the weight of an expert that a token does not use is 0."""
    shares = jax.nn.softmax(x @ kernels.router)
    least = jnp.sort(shares)[..., -experts.per_token, None]
    weights = jnp.where(shares >= least, shares, 0)
    if experts.renormalised:
        weights /= weights.sum(axis=-1, keepdims=True)
    total = jnp.zeros_like(x)
    for e in range(experts.count):
        hidden = activation(x @ kernels.gate[e]) * (x @ kernels.up[e])
        total += weights[..., e, None] * (hidden @ kernels.down[e])
    return total


def drawn_kernels(experts: Experts, width: int = 7, seed: int = 0) -> Kernels:
    rng = np.random.default_rng(seed)
    shape = (experts.count, width, experts.ffn)
    shapes = ((width, experts.count), shape, shape, (shape[0], shape[2], width))
    return Kernels(*(rng.normal(size=x).astype(np.float32) for x in shapes))  # pyright: ignore


def updated(model: Decoder, params: Params) -> tuple[Params, Params]:
    """(gradient of a policy loss, parameters after a step of plain gradient descent)."""
    tokens, advantages = jnp.asarray(TOKENS), jnp.asarray([[1.0], [-0.5], [2.0]])

    def loss(params: Params) -> jax.Array:
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        x, _ = model.hidden(params, tokens, positions, jnp.ones_like(tokens))
        logprobs, entropy, _ = model.scores_of(params, x, jnp.roll(tokens, -1, axis=1), None, 1.0)
        return -jnp.mean(advantages * logprobs) - 0.01 * jnp.mean(entropy)

    @jax.jit
    def step(params: Params) -> tuple[Params, Params]:
        gradient = jax.grad(loss)(params)
        return gradient, jax.tree.map(lambda x, g: x - 0.5 * g, params, gradient)

    return jax.device_get(step(params))


@pytest.mark.parametrize("renormalised", [True, False])
def test_an_update_is_that_of_a_loop_over_experts(renormalised: bool, monkeypatch: Any):
    experts = dataclasses.replace(EXPERTS, renormalised=renormalised)
    model, params, _ = random_model(experts=experts)
    ours, after = updated(model, params)
    monkeypatch.setattr(
        decoder, "mixture_over_mesh", lambda mesh, x, *arguments: looped(x, *arguments)
    )
    theirs, expected = updated(dataclasses.replace(model, generation_config="loop"), params)
    for one, other in ((ours, theirs), (after, expected)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5, rtol=0), one, other)
    assert all(np.abs(x).max() > 1e-4 for x in jax.tree.leaves(ours["layers"])), "routers learn"


def test_no_pair_is_dropped_if_all_tokens_choose_the_same_experts():
    kernels = drawn_kernels(EXPERTS)
    router = np.zeros_like(kernels.router)
    router[0] = 0, 9, 0, 0, 8, 0
    x = np.random.default_rng(1).normal(size=(2, 5, 7)).astype(np.float32)
    x[..., 0] = 1
    arguments = x, kernels._replace(router=router)
    found, expected = (
        jax.jit(function, static_argnums=(2, 3))(*arguments, EXPERTS, jax.nn.silu)
        for function in (mixture, looped)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_parts_of_devices_add_up_to_the_whole():
    """Each of three devices has two experts; some of them get no token at all."""
    kernels = drawn_kernels(EXPERTS)
    x = np.random.default_rng(1).normal(size=(2, 7)).astype(np.float32)

    def whole(x: jax.Array, kernels: Kernels) -> tuple[jax.Array, jax.Array]:
        y = mixture(x, kernels, EXPERTS, jax.nn.silu)
        return jnp.sum(y**2), y

    def summed(x: jax.Array, kernels: Kernels) -> tuple[jax.Array, jax.Array]:
        def part(*parts: jax.Array) -> jax.Array:
            mine = Kernels(kernels.router, *parts)
            return mixture(x, mine, EXPERTS, jax.nn.silu, "tensor")

        parts = [kernel.reshape(3, 2, *kernel.shape[1:]) for kernel in kernels[1:]]
        y = jax.vmap(part, axis_name="tensor")(*parts).sum(axis=0)
        return jnp.sum(y**2), y

    found, expected = (
        jax.jit(jax.value_and_grad(function, (0, 1), has_aux=True))(x, kernels)
        for function in (summed, whole)
    )
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4),
        found,
        expected,
    )


def test_adapters_are_on_attention_alone():
    model, params, _ = random_model(experts=EXPERTS)
    assert tuple(kernel_shapes(model)) == ATTENTION
    settings = ModelConfig(lora_rank=2)
    compute = compute_as_set(settings, model.cfg, "cpu")
    model = dataclasses.replace(model, compute=compute)
    mesh = mesh_over((1, 1, 1), jax.devices()[:1])
    adapters = fresh_adapters(model, mesh, 2, PROJECTIONS)
    assert sorted(adapters["layers"]) == sorted(ATTENTION)
    adapters = jax.tree.map(lambda x: x + np.float32(0.1), jax.device_get(adapters))
    forward = jax.jit(apply, static_argnums=0)
    own = forward(model, with_adapters(params, adapters), TOKENS)
    assert np.abs(np.subtract(own, forward(model, params, TOKENS))).max() > 0.1
    with refuses("model.lora_targets"):
        compute_as_set(ModelConfig(lora_rank=2, lora_targets=("q", "gate")), model.cfg, "cpu")
    compute_as_set(ModelConfig(lora_targets=("q", "gate")), model.cfg, "cpu")  # without adapters
    compute_as_set(ModelConfig(lora_rank=2, lora_targets=("q", "gate")), TINY, "cpu")


def test_experts_that_the_mesh_cannot_split_are_refused():
    model = Decoder(dataclasses.replace(TINY, experts=EXPERTS, ffn=7))
    mesh: Any = AbstractMesh((1, 1, 2), AXES)
    check_tensor(model, mesh)  # 7 feed-forward columns of an MLP that there is not
    mesh = AbstractMesh((1, 1, 4), AXES)
    with pytest.raises(ValueError, match="mesh.tensor = 4.* does not divide the model's 6 experts"):
        check_tensor(model, mesh)


ON_EIGHT_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from helpers.model_oracles import random_model
from vinejax.core.settings import MeshConfig, SampleConfig
from vinejax.engine.engine import Branch, Engine
from vinejax.model.decoder import apply
from vinejax.model.experts import Experts
from vinejax.model.sharding import ROWS, make_mesh, param_shardings
from vinejax.tasks.arithmetic import Arithmetic
import dataclasses

fields = dict(
    experts=Experts(8, 3, 12, True), num_kv_heads=1, qk_norm=True, joint_qk_norm=True,
    unturned=(1,), residual_scale=0.7, logit_divisor=0.8,
)
alone, params, _ = random_model(**fields)
mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
model = dataclasses.replace(alone, mesh=mesh)
split = jax.device_put(params, param_shardings(mesh, params))
kernel = split["layers"]["expert_up"]["kernel"]
assert kernel.addressable_shards[0].data.shape == (2, 4, 16, 12), "experts over tensor"
tokens = np.random.default_rng(0).integers(0, 20, (8, 15))

def loss(model, params, tokens):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    x, _ = model.hidden(params, tokens, positions, jnp.ones_like(tokens))
    return model.scores_of(params, x, tokens, None, 1.0).logprob.mean()

of = jax.jit(jax.value_and_grad(loss, 1), static_argnums=0)
for length in (15, 12):  # `tensor` divides the second number of positions, and not the first
    rows = jax.device_put(tokens[:, :length], NamedSharding(mesh, PartitionSpec(ROWS, None)))
    one, gradient = of(alone, params, jnp.asarray(tokens[:, :length]))
    other, sharded = of(model, split, rows)
    np.testing.assert_allclose(one, other, rtol=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-6), gradient, sharded)
trunks = tokens[:3].tolist()
branches = [Branch(i % 3, 2 + i % 4, seed=i) for i in range(12)]
grown = [
    Engine(alone, SampleConfig(), Arithmetic().tokenizer(), where, slots=4).grow(
        weights, trunks, branches, 9
    )
    for where, weights in ((None, params), (mesh, split))
]
assert [x.tokens for x in grown[0]] == [x.tokens for x in grown[1]]
for x, y in zip(*grown):
    np.testing.assert_allclose(x.logprobs, y.logprobs, atol=1e-5)
print("same")
"""


@pytest.mark.slow
def test_eight_devices_train_and_decode_as_one_does():
    """Also norms over heads that are split, and one KV head that is repeated."""
    assert eight_devices.printed("-c", ON_EIGHT_DEVICES) == ["same"]
