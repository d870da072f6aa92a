"""Checks of updates on a mesh of eight devices, which learner/test_train_mesh.py runs in a process.

Prints the name of each check that held.
"""

import dataclasses
import re
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from helpers.applied import policy_objective
from helpers.loop_cases import assert_close
from helpers.model_oracles import random_model
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config, MeshConfig, ModelConfig, OptimizerConfig, PPOConfig
from vinejax.core.types import Batch
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.policy import PolicyObjective
from vinejax.learner.score import score
from vinejax.learner.update import (
    apply_gradients,
    fresh_state,
    gradients,
    state_shardings,
    update_step,
)
from vinejax.methods.known import find_method
from vinejax.model.decoder import Decoder, Params
from vinejax.model.sharding import check_rows, make_mesh, param_shardings
from vinejax.runtime.compiles import num_compiles
from vinejax.tasks.base import load_task
from vinejax.training.startup import rows_per_pass
from vinejax.training.warmup import fresh_model

B, T, V, D = 16, 32, 52, 40  # sizes that nothing else in a program has
CHUNK = 10  # of the 26 columns that a device of two on `tensor` has
EVEN: dict[str, Any] = dict(vocab_size=V, width=D, num_heads=4, num_kv_heads=2)
# KV heads, vocabulary and width that divide over nothing.
ODD: dict[str, Any] = dict(vocab_size=51, width=39, num_heads=6, num_kv_heads=3)
# A step in proportion to the gradient, nearly: Adam's own would multiply what rounding loses.
SMOOTH = OptimizerConfig(learning_rate=0.1, eps=1.0, warmup="linear")
OPTIMIZER = make_optimizer(SMOOTH, 4)


def mesh_of(data: int, fsdp: int, tensor: int) -> Mesh:
    return make_mesh(MeshConfig(data=data, fsdp=fsdp, tensor=tensor))


def objective(model: Decoder) -> PolicyObjective:
    return policy_objective(model, Config(ppo=PPOConfig(minibatch=B, microbatch=B // 2)))


def batch(seed: int = 0) -> Batch:
    """Rows of unlike lengths on the host, with log-probabilities near those of `random_model`."""
    rng = np.random.default_rng(seed)
    at, lengths = np.arange(T), rng.integers(8, T + 1, (B, 1))
    segment_ids = (at < lengths).astype(np.int32)
    mask = (at >= 5) & (at < lengths)
    rows = [rng.normal(size=(B, T)).astype(np.float32) * mask for _ in range(3)]
    arrays: Any = (
        rng.integers(0, 50, (B, T), np.int32),
        segment_ids,
        at * segment_ids,
        mask,
        rows[0],
        rows[1] * 0.1 - 4 * mask,
        rows[2] * 0.1 - 4 * mask,
    )
    return Batch(*arrays)


def placed(mesh: Mesh, **fields: Any) -> tuple[Decoder, Params]:
    model, params, _ = random_model(**fields)
    model = dataclasses.replace(model, mesh=mesh)
    return model, jax.device_put(params, param_shardings(mesh, params))


def two_updates(mesh: Mesh, **fields: Any) -> Any:
    """Parameters after two updates, the sums of both, and the scores after them."""
    model, params = placed(mesh, **fields)
    state, sums = fresh_state(params, OPTIMIZER, mesh), []
    for i in range(2):
        state, update = update_step(objective(model), OPTIMIZER, state, batch(i))
        sums.append((update.sums, update.grad_norm))
        assert update.accepted
    return state.params, sums, score(model, state.params, batch(), 0.8)


def same_numbers() -> None:
    tied = EVEN | dict(tied_head=True, windows=(7, None))
    many = EVEN | dict(num_heads=8)  # sums over `tensor` of MANY_PARTS parts
    for fields, sizes, remat in (
        (EVEN, (2, 2, 2), "full"),
        (ODD, (2, 2, 2), "dots"),
        (tied, (1, 8, 1), "none"),
        (many, (1, 1, 8), "dots"),
    ):
        alone = two_updates(mesh_of(1, 1, 1), **fields)
        assert_close(two_updates(mesh_of(*sizes), remat=remat, **fields), alone, 1e-5)


def lies(x: jax.Array, sharding: Any) -> bool:
    return x.sharding.is_equivalent_to(sharding, x.ndim)


def one_program() -> None:
    """A second update takes the state that the first one returned, and compiles nothing.

    The programs are those of `same_numbers`, which comes after it: each is compiled once.
    """
    mesh = mesh_of(2, 2, 2)
    for fields, remat in ((EVEN, "full"), (ODD, "dots")):
        model, params = placed(mesh, remat=remat, **fields)
        first = fresh_state(params, OPTIMIZER, mesh)
        expected = state_shardings(params, OPTIMIZER, mesh)
        assert jax.tree.all(jax.tree.map(lies, first, expected))
        state, _ = update_step(objective(model), OPTIMIZER, first, batch())
        compiles = num_compiles()
        state, _ = update_step(objective(model), OPTIMIZER, state, batch(1))
        fresh_state(params, make_optimizer(dataclasses.replace(SMOOTH), 4), mesh)
        assert num_compiles() == compiles
        assert jax.tree.all(jax.tree.map(lies, state, expected))


def adafactor_as_one() -> None:
    """The factors of two sides lie whole on every device, and the steps are those of one."""
    optimizer = make_optimizer(OptimizerConfig(name="adafactor", learning_rate=0.1), 4)

    def two_steps(mesh: Mesh) -> Any:
        _, params = placed(mesh, **EVEN)
        state = fresh_state(params, optimizer, mesh)
        expected = state_shardings(params, optimizer, mesh)
        apply = jax.jit(apply_gradients, static_argnums=(0, 3))
        for seed in range(2):
            rng = np.random.default_rng(seed)
            grads = jax.tree.map(lambda x, r=rng: r.normal(size=x.shape).astype("f"), params)
            state, norm, accepted = apply(optimizer, state, grads, mesh)
            assert accepted and norm > 0
        assert jax.tree.all(jax.tree.map(lies, state, expected))
        return state

    alone, split = two_steps(mesh_of(1, 1, 1)), two_steps(mesh_of(2, 2, 2))
    assert_close(split.params, alone.params, 1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-6), split, alone)
    sizes = {x.shape for x in jax.tree.leaves(alone.opt_state)}
    assert {(V,), (D,)} < sizes and (V, D) not in sizes, "embed has factors"


def readable_everywhere() -> None:
    mesh = mesh_of(2, 2, 2)
    model, params = placed(mesh, **EVEN)
    assert score(model, params, batch(), 1.0).is_fully_replicated
    compute = jax.jit(gradients, static_argnames="objective")
    grads, sums = compute(objective(model), params, batch())
    assert all(x.is_fully_replicated for x in jax.tree.leaves(sums))
    for x, y in zip(jax.tree.leaves(grads), jax.tree.leaves(params), strict=True):
        assert lies(x, y.sharding)


def computations(text: str) -> dict[str, list[str]]:
    """The lines of each computation of a compiled program by name; the outermost is ENTRY."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if match := re.match(r"(ENTRY )?%?([\w.-]+) .*\{$", line):
            lines = found.setdefault("ENTRY" if match[1] else match[2], [])
        elif found:
            lines.append(line)
    return found


def no_silly_collectives() -> None:
    """Searches the compiled update of two microbatches."""
    mesh = mesh_of(2, 2, 2)
    model, params = placed(mesh, remat="full", vocab_chunk=CHUNK, **EVEN)
    state = fresh_state(params, OPTIMIZER, mesh)
    program = update_step.lower(objective(model), OPTIMIZER, state, batch()).compile().as_text()
    assert program is not None
    # No place ever has all of the vocabulary, of logits or of a weight.
    assert not re.search(rf"\[(\d+,)+{V}\]|\[{V},\d+", program)
    tokens = B // 2 // 4 * T  # of a microbatch on one of four shards
    assert f"f32[{tokens},{CHUNK}]" in program, "logits of a chunk, as they should be"
    assert not re.search(rf"\[({tokens}|\d+,{T}),{V // 2}\]", program), "all logits"
    # Embedding and output matrix are brought together once, before the microbatches.
    gathers = {
        name: [line for line in lines if re.search(r"= \S+ all-gather(-start)?\(", line)]
        for name, lines in computations(program).items()
    }
    for shape in (f"f32[{D},{V // 2}]", f"f32[{V // 2},{D}]"):
        where = [name for name, lines in gathers.items() for line in lines if shape in line]
        assert where == ["ENTRY"], (shape, where)
    assert not re.search(r"= \S+ all-to-all\(", program)


def refusals() -> None:
    mesh = mesh_of(2, 2, 2)
    refused = {
        "ppo.minibatch = 6": Config(ppo=PPOConfig(minibatch=6), model=ModelConfig(path="x")),
        "ppo.microbatch = 2": Config(ppo=PPOConfig(minibatch=8, microbatch=2)),
        "sft.batch = 6": dataclasses.replace(
            Config(ppo=PPOConfig(minibatch=8)), sft=dataclasses.replace(Config().sft, batch=6)
        ),
    }
    for start, cfg in refused.items():
        rule = "must be a multiple of mesh.data x mesh.fsdp = 4, which share the rows"
        assert (
            message(check_rows, mesh, rows_per_pass(cfg, find_method(cfg.method)))
            == f"{start}: {rule}"
        )
    fitting = Config(ppo=PPOConfig(minibatch=8, microbatch=4))
    check_rows(mesh, rows_per_pass(fitting, find_method(fitting.method)))
    sizes = dataclasses.replace(Config().model, num_heads=3)
    found = message(fresh_model, Config(model=sizes), load_task(Config().data), mesh)
    assert found.startswith("mesh.tensor = 2: does not divide the model's 3 query heads"), found


def message(check: Any, *args: Any) -> str:
    try:
        check(*args)
    except ConfigError as error:
        return str(error)
    raise AssertionError(f"{check.__name__} let it pass")


CHECKS = (
    one_program,
    same_numbers,
    adafactor_as_one,
    readable_everywhere,
    no_silly_collectives,
    refusals,
)

if __name__ == "__main__":
    assert jax.device_count() == 8
    for check in CHECKS:
        check()
        print(check.__name__, flush=True)
