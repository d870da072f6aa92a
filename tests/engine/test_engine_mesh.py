"""The engine on meshes of eight virtual devices samples the same tokens as on one device."""

import pytest
from helpers import eight_devices

PROGRAM = """
import sys
import tempfile
import jax
import numpy as np
from helpers import fed_cases, gpu_kernel, kept_cases, model_oracles
import vinejax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from vinejax.core.settings import MeshConfig, SampleConfig
from vinejax.model.sharding import AXES, make_mesh, param_shardings
from vinejax.model.hf.weights import load_pretrained
from vinejax.engine.branches import Branch
from vinejax.engine import memory as arrays, drain, phase
from vinejax.engine.tpu import kernel_body, page_body, paged, pages, ragged, row_body, schedule
from vinejax.engine.engine import Engine
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
    stream = engine.stream(params, TRUNKS, BRANCHES, BUDGETS, scored=True)
    return stream.in_order(), stream.trunk_logprobs, engine.stats


def check(name, sizes, settings=None, **fields):
    model, params, _ = model_oracles.random_model(**fields)
    expected, expected_scored, _ = grow(model, params, None)
    mesh = make_mesh(MeshConfig(*sizes))
    placed = jax.device_put(params, param_shardings(mesh, params))
    chunk = dict(chunk=5) if sizes[0] > 1 else {}
    found, scored, stats = grow(model, placed, mesh, **chunk, **(settings or {}))
    for one, other in zip(found, expected):
        assert (one.tokens, one.finish) == (other.tokens, other.finish), name
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
    for one, other in zip(scored, expected_scored):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert 0.3 < stats.slot_utilisation <= 1
    print("same", name, sizes)
    return stats


def check_fed(sizes):
    # Fed continuations enter all shards; the result equals that of two calls on one device.
    model, params, _ = model_oracles.random_model()
    mesh = make_mesh(MeshConfig(*sizes))
    placed = jax.device_put(params, param_shardings(mesh, params))
    sampling = SampleConfig(temperature=0.8)
    expected = fed_cases.two_calls(Engine(model, sampling, tokenizer, slots=8), params)
    engine = Engine(model, sampling, tokenizer, mesh, slots=16, chunk=3)
    fed_cases.assert_same(fed_cases.as_fed(engine, placed), expected)
    assert engine.stats.calls == 1
    print("fed", sizes)


def check_kept(sizes):
    # Turns enter the shard that has their beginning; the result equals that of whole trunks.
    model, params, _ = model_oracles.random_model()
    mesh = make_mesh(MeshConfig(*sizes))
    placed = jax.device_put(params, param_shardings(mesh, params))
    starts = kept_cases.solutions()
    one = Engine(model, SampleConfig(temperature=0.8), tokenizer, slots=8)
    expected = kept_cases.played(one, params, kept_cases.PROMPTS, starts, is_fed=False)
    engine = Engine(model, SampleConfig(temperature=0.8), tokenizer, mesh, slots=16, chunk=3)
    found = kept_cases.played(engine, placed, kept_cases.PROMPTS, starts)
    kept_cases.assert_same(found, expected)
    assert engine.stats.prefill_tokens < sum(map(len, found.tokens))
    print("kept", sizes)


def check_pages(sizes):
    # The interpreted kernel, with small blocks and fewer pages than slots can hold.
    for module in (kernel_body, page_body, paged, pages, ragged, row_body, schedule):
        module.BLOCK = 8
    model, *_ = model_oracles.random_model()
    columns = 2 * 32 + 6 * 8  # per shard two rows, and six pages for eight slots
    room = arrays.cache_bytes(model, make_mesh(MeshConfig(*sizes)), columns) / 2**30
    settings = dict(attention="kernel", memory_gib=room, window_rows=2, skip_repeats=False)
    stats = check("pages", sizes, settings=settings)
    assert stats.restarted_tokens > 0


def check_kernel_for_gpu():
    # Interpreted, with KV heads that `tensor` splits or repeats, also in the drain.
    storage_for, arrays.storage_for = arrays.storage_for, lambda *args: gpu_kernel.STORAGE
    kernel = dict(attention="kernel", skip_repeats=False)
    check("kernel for GPU", (2, 1, 2), settings=kernel)
    check("kernel for GPU, repeated KV heads", (1, 2, 4), settings=kernel, **windows)
    arrays.storage_for = storage_for


def check_given_meshes(folder):
    # The mesh is an argument of the loader or of the engine; weights may be on other devices.
    plain_model, plain_params, _ = load_pretrained(folder)
    expected, *_ = grow(plain_model, plain_params, None)
    mesh = jax.make_mesh((2, 1, 2), AXES)
    assert AxisType.Explicit in mesh.axis_types
    split_model, split_params, _ = load_pretrained(folder, mesh=mesh)
    assert {x.sharding.mesh.size for x in jax.tree.leaves(split_params)} == {4}
    places = NamedSharding(mesh, PartitionSpec())
    everywhere = jax.tree.map(lambda x: jax.device_put(x, places), plain_params)
    reversed_mesh = Mesh(mesh.devices[::-1], AXES)
    on_second = jax.device_put(plain_params, jax.devices()[1])
    cases = [
        (plain_model, plain_params, mesh), (split_model, split_params, None),
        (split_model, split_params, mesh), (plain_model, everywhere, mesh),
        (split_model, split_params, reversed_mesh), (plain_model, on_second, None),
        (plain_model, split_params, None),
    ]
    for model, params, of_engine in cases:
        for one, other in zip(grow(model, params, of_engine)[0], expected):
            assert (one.tokens, one.finish) == (other.tokens, other.finish)
    tokens = [TRUNKS[0][:8]] * 2
    found = vinejax.apply(split_model, split_params, tokens)
    expected = vinejax.apply(plain_model, plain_params, tokens)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    try:
        grow(plain_model, plain_params, jax.make_mesh((2, 2), ("data", "model")))
    except ValueError as error:
        assert "wanted are ('data', 'fsdp', 'tensor')" in str(error), error
    else:
        raise AssertionError("a mesh of other axes was taken")
    print("given meshes")


for sizes in ((2, 2, 2), (1, 1, 4)):
    check("gqa", sizes)
windows = dict(windows=(5, None), attention_softcap=3.0, logit_softcap=4.0)
check("mqa, tied head, windows", (1, 2, 2), num_kv_heads=1, tied_head=True, **windows)
# The size of `tensor` divides neither the number of KV heads nor the vocabulary.
biases = dict(qkv_bias=True, out_bias=True, mlp_bias=True)
odd = dict(num_heads=6, num_kv_heads=3, vocab_size=21)
check("3 KV heads on 2 places, odd vocabulary, biases", (2, 1, 2), **odd, **biases)
with tempfile.TemporaryDirectory() as folder:
    model, params, _ = model_oracles.random_model()
    vinejax.save_pretrained(folder, model, params, tokenizer)
    check_given_meshes(folder)
check_fed((4, 2, 1))
check_kept((2, 1, 2))
drain.MIN_SLOTS, drain.MIN_TOKENS, moved = 4, 0, []
phase.to_drain = lambda *args: moved.append(args) or drain.to_drain(*args)
for sizes in ((2, 2, 1), (1, 2, 2)):  # 4 slots of a shard, then 1; 8, then 2
    check("in the drain", sizes, settings=dict(skip_repeats=False))
sizes = [args[0].size for args in moved if args[0].size > 1]
assert sizes == [4, 4], sizes
check_kernel_for_gpu()
check_pages((1, 2, 2))
print("done")
"""


@pytest.mark.slow
def test_tokens_do_not_depend_on_the_mesh():
    assert eight_devices.printed("-c", PROGRAM)[-1] == "done"
