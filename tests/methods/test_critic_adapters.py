"""A critic with adapters, against the decoder in NumPy loops with merged kernels, in float64."""

import jax
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers import rl_oracles as oracle
from helpers.adapter_cases import MODEL, SCALE, adapters
from helpers.model_oracles import forward

from vinejax.core.types import Batch
from vinejax.learner.packing import Passes
from vinejax.learner.update import gradients
from vinejax.methods.ppo import CriticObjective, Targets, critic_values, critic_weights
from vinejax.model.decoder import Params

CLIP = 0.05
LAYOUTS = [(2, False, False), (2, True, False), (2, True, True), (8, False, False)]


def critic() -> Params:
    """A critic whose adapters are not those of the policy, with a head."""
    moved = jax.tree.map(lambda x: 0.7 * x[::-1], adapters())
    kernel = 0.3 * np.sin(np.arange(32, dtype=np.float32))
    return {"backbone": moved, "head": {"kernel": kernel, "bias": np.float32(0.25)}}


def merged(params: Params, of_critic: Params) -> Params:
    """The weights W + s A B, one projection of one layer after the other; the head as a matrix."""
    layers = jax.tree.map(lambda x: np.array(x, np.float64), params["layers"])
    for name, pair in of_critic["backbone"]["layers"].items():
        kernel = layers[name]["kernel"]
        for i, (a, b) in enumerate(zip(pair["lora_a"], pair["lora_b"], strict=True)):
            kernel[i] += SCALE * np.tensordot(np.float64(a), np.float64(b), axes=1)
    head = np.asarray(of_critic["head"]["kernel"], np.float64)
    return params | {"layers": layers, "head": head[:, None]}


def slow_values(of_critic: Params, batch: Batch) -> list[np.ndarray]:
    """V before each response token of each row, from the text before it."""
    weights, rows = merged(jax.device_get(cases.params()), of_critic), []
    for tokens, mask in zip(np.asarray(batch.tokens), np.asarray(batch.mask), strict=True):
        places = np.flatnonzero(mask)
        values = np.zeros(0)
        if places.size:
            outputs = forward(MODEL.cfg, weights, tokens[: places[-1]].tolist())[:, 0]
            values = outputs[places - 1] + float(of_critic["head"]["bias"])
        rows.append(values)
    return rows


def targets(batch: Batch) -> Targets:
    """Old values, some of which are further than CLIP from the critic's, and returns."""
    old, returns = np.random.default_rng(2).normal(0.2, 0.3, (2, *batch.mask.shape))
    return Targets(np.float32(old), np.float32(returns))


def slow_loss(of_critic: Params, batch: Batch, of_rows: Targets) -> float:
    mask = np.asarray(batch.mask)
    values = np.concatenate(slow_values(of_critic, batch))
    old, returns = (np.asarray(x)[mask] for x in of_rows)
    return float(oracle.value_clip(values, old, returns, CLIP).mean())


@pytest.mark.parametrize("passes", [Passes(*layout) for layout in LAYOUTS], ids=str)
def test_values_are_those_of_the_merged_weights(passes: Passes):
    batch = methods.batch()
    found = critic_values(MODEL, critic_weights(critic(), cases.params()), batch, passes)
    mask = np.asarray(batch.mask)
    assert not np.asarray(found)[~mask].any()
    expected = np.concatenate(slow_values(critic(), batch))
    np.testing.assert_allclose(np.asarray(found)[mask], expected, atol=2e-5)
    plain = critic() | {"backbone": {"layers": {}}}
    assert np.abs(expected - np.concatenate(slow_values(plain, batch))).max() > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("microbatch, packed, shared", LAYOUTS)
def test_the_gradient_of_adapters_and_head_is_that_of_differences(
    microbatch: int, packed: bool, shared: bool
):
    """One number of each array, by the loss a little above and below it."""
    batch = jax.device_get(methods.batch())
    objective = CriticObjective(
        model=MODEL, microbatch=microbatch, packed=packed, shared=shared, clip=CLIP
    )
    rows = objective.pack((batch, targets(batch)))
    found, sums = jax.jit(gradients, static_argnums=0)(objective, critic(), rows, cases.params())
    expected = slow_loss(critic(), batch, targets(batch))
    assert float(sums.loss) / float(sums.tokens) == pytest.approx(expected, rel=1e-5)
    assert sums.tokens == batch.mask.sum() and 0 < sums.clipped < sums.tokens
    of_critic = jax.tree.map(lambda x: np.array(x, np.float64), critic())
    arrays = dict(jax.tree_util.tree_leaves_with_path(of_critic))
    checked = 0
    for path, slope in jax.tree_util.tree_leaves_with_path(found):
        array, slopes = arrays[path], np.asarray(slope)
        place = np.unravel_index(np.abs(slopes).argmax(), slopes.shape)
        losses = []
        for step in (1e-5, -2e-5):
            array[place] += step
            losses.append(slow_loss(of_critic, batch, targets(batch)))
        array[place] += 1e-5
        assert slopes[place] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=2e-3), path
        checked += 1
    assert checked == 2 * 7 + 2 and jax.tree.structure(found) == jax.tree.structure(critic())
