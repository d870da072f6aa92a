"""Labels in the learner: log-probabilities, losses and gradients, against whole logits."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import eight_devices
from helpers import loop_cases as cases
from helpers.whole_logits import some_labels
from learner.test_prefixes import minibatch

from vinejax.core.types import Batch, Labels
from vinejax.learner.batch import collate
from vinejax.learner.packing import Passes
from vinejax.learner.policy import PolicyObjective, token_weights
from vinejax.learner.policy_losses import LOSSES
from vinejax.learner.sampler_correction import with_corrections
from vinejax.learner.score import outputs_of, scores_of
from vinejax.learner.update import gradients
from vinejax.model.decoder import Decoder
from vinejax.rl import losses, ratio_losses

TEMPERATURE = 0.6
NUM_LABELS = 16
BOUNDS = {"clip": (0.2, 0.28), "cispo": (0.3, 0.4), "sapo": (1.0, 1.05)}
REDUCTIONS = {"clip": "token", "cispo": "sequence", "sapo": "budget"}


@functools.cache
def rows() -> Batch:
    """Rows whose prefixes can be shared, with labels at trained tokens. Some rows have none."""
    batch, rng = minibatch(), np.random.default_rng(3)
    found = some_labels(rng, np.asarray(batch.tokens), cases.VOCAB, NUM_LABELS * 4)
    place, token = np.array(found.place), np.array(found.token)
    is_label = (place > 0) & np.take_along_axis(batch.mask, np.maximum(place, 0), axis=1)
    is_label[7] = False
    order = np.argsort(~is_label, axis=1, kind="stable")[:, :NUM_LABELS]
    is_label, place, token = (
        np.take_along_axis(x, order, axis=1) for x in (is_label, place, token)
    )
    numbers = [rng.normal(size=place.shape) for _ in range(3)]
    coefficients, old, weights = (
        np.where(is_label, x, 0).astype(np.float32)
        for x in (numbers[0], numbers[1] * 0.2 - 3, np.abs(numbers[2]))
    )
    position, token = (np.where(is_label, x, 0).astype(np.int32) for x in (place, token))
    assert 20 < np.count_nonzero(is_label) < is_label.size
    return batch._replace(labels=Labels(position, token, coefficients, old, weights=weights))


def objective_of(name: str, model: Decoder | None = None, **fields: Any) -> PolicyObjective:
    return PolicyObjective(
        model=model or cases.model(),
        temperature=TEMPERATURE,
        loss=LOSSES[name].function,
        clip=BOUNDS[name],
        reduction=REDUCTIONS[name],
        max_tokens=16,
        kl_coef=0.1,
        entropy_coef=0.01,
        **fields,
    )


@functools.cache
def logprobs_of_all(temperature: float = TEMPERATURE) -> Any:
    """params -> f32[B, T, V] log-probabilities of all tokens at each token's place."""

    def logprobs(params: Any) -> jax.Array:
        logits = cases.logits(params, minibatch().tokens) / temperature
        return jnp.roll(jax.nn.log_softmax(logits), 1, axis=1)

    return logprobs


@functools.cache
def expected(name: str) -> Any:
    """The gradient of the loss, in which each token and each label has a term of its own."""
    batch, labels = rows(), rows().labels
    assert labels is not None
    of_rollout = labels.weights
    assert of_rollout is not None
    rows_of_batch = jnp.asarray(batch.mask), jnp.asarray(batch.segment_ids)
    weights = token_weights(*rows_of_batch, REDUCTIONS[name], 16)
    row = np.arange(len(batch.mask))[:, None]
    function = {
        "clip": losses.ppo_clip,
        "cispo": ratio_losses.cispo,
        "sapo": ratio_losses.sapo,
    }[name]

    def loss(params: Any) -> jax.Array:
        logprobs = logprobs_of_all()(params)
        own = jnp.take_along_axis(logprobs, batch.tokens[..., None], axis=-1)[..., 0]
        entropy = -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)
        of_tokens = function(own, batch.old_logprobs, batch.advantages, BOUNDS[name])
        k3 = jnp.clip(losses.kl(own, batch.ref_logprobs, kind="k3"), 0, 10)
        kl_weights = weights if name != "clip" else batch.mask / batch.mask.sum()
        total = jnp.sum(jnp.where(batch.mask, weights * of_tokens + 0.1 * kl_weights * k3, 0))
        total -= 0.01 * jnp.sum(jnp.where(batch.mask, entropy, 0)) / batch.mask.sum()
        of_labels = logprobs[row, labels.position, labels.token]
        terms = function(of_labels, labels.old_logprobs, labels.coefficients, BOUNDS[name])
        return total + jnp.sum(weights[row, labels.position] * terms * of_rollout)

    return jax.jit(jax.grad(loss))(cases.params())


grads_of = jax.jit(gradients, static_argnames="objective")
LAYOUTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "microbatches": {"microbatch": 4},
    "packed": {"microbatch": 4, "packed": True},
    "shared": {"microbatch": 1, "packed": True, "shared": True},
}
CASES = [("clip", "shared")]
SLOW = [("clip", "whole"), ("clip", "packed"), ("cispo", "microbatches"), ("sapo", "shared")]


@pytest.mark.parametrize(
    ("name", "layout"), [*CASES, *(pytest.param(*x, marks=pytest.mark.slow) for x in SLOW)]
)
def test_gradients_are_those_of_plain_terms(name: str, layout: str):
    objective = objective_of(name, **LAYOUTS[layout])
    packed = objective.pack(rows())
    grads, sums = grads_of(objective, cases.params(), packed)
    cases.assert_close(grads, expected(name), cases.ROUNDING)
    assert sums.tokens == rows().mask.sum(), "labels do not count as tokens"


DEVICES = """
import dataclasses
import jax
from helpers import loop_cases as cases
from learner import test_label_losses as here
from vinejax.model.sharding import mesh_over, param_shardings

for sizes, layout in (((2, 2, 2), "packed"), ((1, 2, 1), "shared"), ((1, 1, 2), "packed")):
    mesh = mesh_over(sizes, jax.devices()[: sizes[0] * sizes[1] * sizes[2]])
    model = dataclasses.replace(cases.model(), mesh=mesh)
    params = jax.device_put(cases.params(), param_shardings(mesh, cases.params()))
    fields = here.LAYOUTS[layout] | {"microbatch": 4}
    objective = here.objective_of("clip", model, **fields)
    found, _ = here.grads_of(objective, params, objective.pack(here.rows()))
    cases.assert_close(jax.device_get(found), here.expected("clip"), cases.ROUNDING)
    outputs = here.outputs_of(model, params, here.rows(), 0.6, here.Passes(4, True))
    here.assert_label_logprobs(outputs.label_logprobs)
    print(sizes)
"""


@pytest.mark.slow
def test_gradients_and_scores_on_a_mesh():
    assert len(eight_devices.printed("-c", DEVICES)) == 3


def assert_label_logprobs(found: np.ndarray) -> None:
    labels = rows().labels
    assert labels is not None
    row = np.arange(len(labels.position))[:, None]
    logprobs = jax.jit(logprobs_of_all())(cases.params())
    is_label = labels.position > 0
    wanted = np.asarray(logprobs)[row, labels.position, labels.token]
    np.testing.assert_allclose(found[is_label], wanted[is_label], rtol=1e-5, atol=1e-5)
    assert not found[~is_label].any()


@pytest.mark.parametrize("passes", [Passes(4), Passes(2, packed=True, shared=True)])
def test_scores_of_labels(passes: Passes):
    model, params = cases.model(), cases.params()
    outputs = outputs_of(model, params, rows(), TEMPERATURE, passes)
    assert_label_logprobs(outputs.label_logprobs)
    of_tokens = scores_of(model, params, rows(), TEMPERATURE, passes)
    np.testing.assert_array_equal(outputs.logprobs, of_tokens)


def test_packed_labels_lie_at_their_tokens():
    objective = objective_of("clip", **LAYOUTS["shared"])
    before, after = rows(), objective.pack(rows())
    labels, packed = before.labels, after.labels
    assert labels is not None and packed is not None

    def pairs(batch: Batch, labels: Labels) -> list[tuple[float, ...]]:
        row, column = np.nonzero(labels.position)
        position = labels.position[row, column]
        at = [batch.advantages[row, position], batch.tokens[row, position - 1]]
        return sorted(zip(*at, *(x[row, column] for x in labels[1:4]), strict=True))

    assert pairs(before, labels) == pairs(after, packed)
    assert (packed.position[packed.coefficients != 0] > 0).all()


def with_sampler(difference: float) -> tuple[Batch, list[Any]]:
    """Two episodes with a label at the first token; the sampler differs in the first label."""
    episodes = cases.random_episodes([(3, 2), (2, 4)])
    batch = collate(episodes, 1)
    shape = (len(batch.mask), 2)
    position, old = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    position[0, 0], position[1, 0] = 3, 2
    old[position > 0] = -1.0
    zeros = np.zeros(shape, np.float32)
    sampler = old.copy()
    sampler[0, 0] -= difference
    labels = Labels(position, position, zeros, old, sampler_logprobs=sampler)
    for row, episode in enumerate(episodes):
        batch.old_logprobs[row, len(episode.prompt) : len(episode.tokens)] = episode.logprobs
    return batch._replace(labels=labels), episodes


@pytest.mark.parametrize(
    ("correction", "expected"),
    [("token_truncate", np.exp(0.5)), ("token_mask", 0.0), ("sequence_mask", 1.0), ("none", 1.0)],
)
def test_weights_of_labels(correction: str, expected: float):
    """A label's own ratio counts if weights are per token; its solution's if they are not."""
    batch, episodes = with_sampler(0.5)
    top = 1.2 if correction == "token_mask" else 3.0
    cfg = cases.config(ppo={"correction": correction, "correction_max": top, "minibatch": 2})
    found, _ = with_corrections(batch, batch.mask, episodes, cfg)
    assert found.labels is not None and found.labels.sampler_logprobs is None
    assert found.weights is None, "tokens have equal log-probabilities"
    if expected == 1:
        assert found.labels.weights is None, "the program without weights has equal results"
    else:
        weights = np.asarray(found.labels.weights)
        np.testing.assert_allclose(weights[:2, 0], [expected, 1.0], rtol=1e-6)


def test_a_label_has_the_weight_of_its_solution():
    batch, episodes = with_sampler(0.0)
    episodes[0] = dataclasses.replace(episodes[0], logprobs=[x - 0.2 for x in episodes[0].logprobs])
    cfg = cases.config(ppo={"correction": "sequence_truncate", "minibatch": 2})
    found, _ = with_corrections(batch, batch.mask, episodes, cfg)
    assert found.labels is not None and found.weights is not None
    weights = np.asarray(found.labels.weights)
    np.testing.assert_allclose(weights[:2, 0], [np.exp(0.4), 1.0], rtol=1e-5)
