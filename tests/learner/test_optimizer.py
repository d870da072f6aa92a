"""The learning rate of every update; AdamW and Adafactor against loops."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import optax
import pytest

from vinejax.core.settings import OptimizerConfig
from vinejax.learner.optimizer import (
    duration_of,
    lasting_optimizer,
    learning_rate,
    make_optimizer,
    scale_by_factors,
)
from vinejax.runtime.compiles import num_compiles


def stepping(optimizer: optax.GradientTransformation) -> Any:
    """A compiled update: (gradients, state, params) -> (params, state)."""

    @jax.jit
    def step(gradients: Any, state: Any, params: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    return step


def float32(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, np.float32), tree)


def rates(
    warmup: Any, num_updates: int, fraction: float = 0.03, schedule: Any = "linear"
) -> np.ndarray:
    """The rates of all updates, divided by the peak rate; entry n - 1 is that of update n."""
    cfg = OptimizerConfig(
        learning_rate=2e-3, warmup=warmup, warmup_fraction=fraction, schedule=schedule
    )
    rate = jax.jit(jax.vmap(learning_rate(cfg, duration_of(cfg, num_updates))))
    return np.asarray(rate(np.arange(num_updates))) / 2e-3


@pytest.mark.parametrize(
    "warmup, expected",
    [
        ("log", {1: 0.1123, 48: 0.6304, 100: 0.7475, 240: 0.8884, 479: 1.0}),
        ("linear", {1: 1 / 480, 48: 0.1, 100: 100 / 480, 240: 0.5, 480: 1.0}),
    ],
)
def test_warmup_of_the_paper(warmup, expected):
    """The warm-up of 480 updates among 16,000: log(n + 1) / log(W), or n / W."""
    found = rates(warmup, 16000)
    for n, rate in expected.items():
        np.testing.assert_allclose(found[n - 1], rate, atol=5e-5)
    assert (np.diff(found[:479]) > 0).all() and found.max() == 1.0
    # After it a straight line, which would reach 0 one update after the last.
    after = np.arange(481, 16001)
    np.testing.assert_allclose(found[480:], (16001 - after) / (16000 - 480), atol=1e-5)
    assert 0 < found[-1] < 1e-4


def test_schedules_after_the_warmup():
    """The schedules of 16,000 updates, with the same warm-up of 480 updates."""
    linear, cosine, constant = (
        rates("linear", 16000, schedule=name) for name in ("linear", "cosine", "constant")
    )
    np.testing.assert_array_equal(cosine[:480], linear[:480])
    np.testing.assert_array_equal(constant[:480], linear[:480])
    assert (constant[480:] == 1).all()
    done = (np.arange(481, 16001) - 481) / (16000 - 480)
    np.testing.assert_allclose(cosine[480:], (1 + np.cos(np.pi * done)) / 2, atol=1e-4)


def test_a_decay_begins_after_a_long_warmup_and_ends_at_0():
    """The warm-up has 9 of 10 updates, after which a run makes two more."""
    cfg = OptimizerConfig(learning_rate=1.0, warmup="linear", warmup_fraction=0.9)
    cosine = dataclasses.replace(cfg, schedule="cosine")
    both = jax.jit(
        jax.vmap(lambda n: [learning_rate(x, duration_of(x, 10))(n) for x in (cfg, cosine)])
    )
    for found in both(np.arange(12)):
        np.testing.assert_allclose(found, [*np.arange(1, 10) / 9, 1.0, 0.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("warmup", ["log", "linear"])
@pytest.mark.parametrize("num_updates, fraction", [(1, 0.03), (2, 0.9), (5, 0.0), (10, 0.25)])
def test_short_runs_have_a_usable_schedule(warmup, num_updates, fraction):
    found = rates(warmup, num_updates, fraction)
    assert (found > 0).all() and (found <= 1).all() and found.max() > 0.5


@pytest.mark.parametrize("warmup", ["log", "linear"])
def test_one_program_makes_the_updates_of_trainings_of_any_length(warmup):
    """Without decay of weights, equal gradients make AdamW's update the learning rate."""
    cfg = OptimizerConfig(
        learning_rate=0.1, warmup=warmup, warmup_fraction=0.3, weight_decay=0.0, max_grad_norm=9.0
    )
    optimizer, ones = lasting_optimizer(cfg), {"bias": np.ones(2, np.float32)}
    step_of, fresh = jax.jit(optimizer.update), jax.jit(optimizer.init)(ones)
    compiled = num_compiles()
    for num_updates in (1, 2, 5, 9):
        state, warm = fresh, max(1, math.ceil(0.3 * num_updates))
        for n in range(1, num_updates + 1):
            update, state = step_of(ones, state, ones, duration=duration_of(cfg, num_updates))
            ramp = n / warm if warmup == "linear" else math.log(n + 1) / math.log(max(warm, 2))
            rate = 0.1 * min(1.0, ramp, (num_updates - n + 1) / max(num_updates - warm, 1))
            np.testing.assert_allclose(update["bias"], -rate, rtol=1e-4)
    assert num_compiles() == compiled + 1


def test_adamw_equals_a_loop():
    cfg = OptimizerConfig(
        learning_rate=1e-2, warmup_fraction=0.25, b1=0.8, b2=0.95, eps=1e-6, weight_decay=0.1,
        max_grad_norm=1.5,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    shapes = {"kernel": (3, 4), "scale": (4,), "bias": (4,)}
    x = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    gradients = [{name: size * rng.normal(size=x[name].shape) for name in x} for size in (1, 4, 3)]
    norms = [math.sqrt(sum((g**2).sum() for g in each.values())) for each in gradients]
    gradients[0] = {
        name: g / norms[0] for name, g in gradients[0].items()
    }  # norm 1, which is not clipped
    assert min(norms[1:]) > 2

    optimizer = make_optimizer(cfg, num_updates=8)
    params: Any = {"layer": float32(x)}
    step_of, state = stepping(optimizer), jax.jit(optimizer.init)(params)
    m, v = ({name: np.zeros(shape) for name, shape in shapes.items()} for _ in range(2))
    for n, each in enumerate(gradients, start=1):
        params, state = step_of({"layer": float32(each)}, state, params)

        norm = math.sqrt(sum((g**2).sum() for g in each.values()))
        lr = 1e-2 * min(n / 2, 1, (8 - n + 1) / 6)
        for name, g in each.items():
            g = g * min(1.0, 1.5 / norm)
            m[name] = 0.8 * m[name] + 0.2 * g
            v[name] = 0.95 * v[name] + 0.05 * g**2
            step = (m[name] / (1 - 0.8**n)) / (np.sqrt(v[name] / (1 - 0.95**n)) + 1e-6)
            decay = 0.1 * x[name] if name == "kernel" else 0.0
            x[name] = x[name] - lr * (step + decay)
            np.testing.assert_allclose(params["layer"][name], x[name], rtol=1e-5, atol=1e-7)


def test_decay_leaves_norms_and_biases_alone():
    cfg = OptimizerConfig(learning_rate=1.0, weight_decay=0.5, warmup_fraction=0.0)
    optimizer = make_optimizer(cfg, 10)
    params = {
        "embed": np.ones((2, 3)),
        "head": np.ones((3, 2)),
        "norm": {"scale": np.ones(3)},
        "layers": {"q": {"kernel": np.ones((1, 3, 3)), "bias": np.ones((1, 3))}},
    }
    params = float32(params)
    nothing = jax.tree.map(np.zeros_like, params)
    after, _ = stepping(optimizer)(nothing, jax.jit(optimizer.init)(params), params)
    after = jax.device_get(after)
    assert after["embed"][0, 0] == 0.5 and after["head"][0, 0] == 0.5
    assert after["layers"]["q"]["kernel"][0, 0, 0] == 0.5
    assert (after["norm"]["scale"] == 1).all() and (after["layers"]["q"]["bias"] == 1).all()


def test_adafactor_equals_a_loop():
    cfg = OptimizerConfig(
        name="adafactor", learning_rate=1e-2, warmup_fraction=0.25, weight_decay=0.1,
        max_grad_norm=1e9,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    # Two layers. `k` has sides of 40 and 32, and a short one between them.
    shapes = {"k": (2, 40, 3, 32), "short": (2, 40, 31), "scale": (2, 40)}
    names = {name: "scale" if name == "scale" else "kernel" for name in shapes}
    x = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    optimizer = make_optimizer(cfg, num_updates=8)

    def tree(values: dict[str, np.ndarray]) -> Any:
        return {n: {names[n]: np.asarray(v, np.float32)} for n, v in values.items()}

    params: Any = tree(x)
    step_of, state = stepping(optimizer), jax.jit(optimizer.init)(params)
    v = {name: np.zeros(shape) for name, shape in shapes.items()}
    rows, columns = np.zeros((2, 40, 3)), np.zeros((2, 3, 32))
    for t, size in enumerate((1.0, 4.0, 0.1), start=1):
        each = {name: size * rng.normal(size=value.shape) for name, value in x.items()}
        params, state = step_of(tree(each), state, params)
        kept, lr = 1 - t**-0.8, 1e-2 * min(t / 2, 1, (8 - t + 1) / 6)
        for name, g in each.items():
            if name == "k":  # matrices 40 x 32, one for each layer and head
                rows = kept * rows + (1 - kept) * (g**2).mean(axis=3)
                columns = kept * columns + (1 - kept) * (g**2).mean(axis=1)
                total = rows.mean(axis=1)
                moment = rows[..., None] * columns[:, None] / total[:, None, :, None]
            else:
                moment = v[name] = kept * v[name] + (1 - kept) * g**2
            step = g / np.sqrt(moment)
            step /= max(1, np.sqrt((step**2).mean()))
            decay = 0.0 if name == "scale" else 0.1 * x[name]
            x[name] = x[name] - lr * (step + decay)
            np.testing.assert_allclose(params[name][names[name]], x[name], rtol=2e-5, atol=1e-6)


def test_adafactor_factors_each_layer_alone():
    """Each layer has the update of its matrix alone, with few layers and with many."""
    rng = np.random.default_rng(0)
    shapes = {
        "q": (40, 48, 2, 32),
        "narrow": (40, 4, 32),
        "up": (40, 48, 64),
        "few": (8, 48, 2, 32),
    }
    gradients = float32({name: rng.normal(size=shape) for name, shape in shapes.items()})
    optimizer = scale_by_factors()

    @jax.jit
    def two_steps(first, second):
        state = optimizer.init(first)
        return optimizer.update(second, optimizer.update(first, state, first)[1], first)

    def stacked(x):
        return {"embed": np.ones((64, 64), np.float32), "layers": x}

    first, second = stacked(gradients), stacked(jax.tree.map(lambda x: x[:, ::-1] * 3, gradients))
    found, state = two_steps(first, second)
    assert state.v_row["layers"]["q"].shape == (40, 2, 32), "a row per head"
    assert state.v["layers"]["narrow"].shape == (40, 4, 32), "a side of 4 is too short"
    for name, x in found["layers"].items():
        of_layer = jax.vmap(lambda g, h: two_steps({"matrix": g}, {"matrix": h})[0]["matrix"])
        alone = of_layer(first["layers"][name], second["layers"][name])
        np.testing.assert_allclose(x, alone, rtol=1e-5, err_msg=name)


def test_adafactor_keeps_little():
    shapes = {
        "embed": (512, 64),
        "layers": {"q": {"kernel": (2, 64, 4, 32)}, "scale": (2, 64), "lora_a": (2, 64, 4)},
    }
    params = jax.tree.map(np.ones, shapes, is_leaf=lambda x: isinstance(x, tuple))
    state = jax.eval_shape(make_optimizer(OptimizerConfig(name="adafactor"), 1).init, params)
    factors = 512 + 64 + 2 * 4 * (64 + 32)
    whole = 2 * 64 + 2 * 64 * 4
    absent = 6 + 4  # 1 whole moment per factored one, 2 factors per unfactored one
    counts = 4
    assert sum(x.size for x in jax.tree.leaves(state)) <= factors + whole + absent + counts
