"""Token log-probabilities and hidden states, against a loop over logits."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import eight_devices
from helpers import loop_cases as cases

from vinejax.core.types import Batch
from vinejax.learner.batch import collate
from vinejax.learner.packing import Passes
from vinejax.learner.score import (
    MAX_STATE_WIDTH,
    hidden_of,
    hidden_states,
    narrow_states,
    outputs_of,
    policy_outputs,
    score,
    score_with,
    scores_of,
    token_logprobs,
    with_logprobs,
)
from vinejax.model.decoder import Decoder, Params

LENGTHS = [(4, 9), (2, 3), (4, 9), (5, 0)]


def loop(params, episodes, shape, temperature):
    """(log p(token t | tokens before t), entropy), computed row by row without padding."""
    logprobs, entropy = np.zeros(shape), np.zeros(shape)
    for row, episode in enumerate(episodes):
        logits = np.asarray(cases.logits(params, jnp.array([episode.tokens]))[0], np.float64)
        for t in range(1, len(episode.tokens)):
            z = logits[t - 1] / temperature
            z = z - z.max()
            p = np.exp(z) / np.exp(z).sum()
            logprobs[row, t] = np.log(p[episode.tokens[t]])
            entropy[row, t] = -np.sum(p * np.log(p))
    return logprobs, entropy


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_equals_a_loop_over_logits(temperature):
    params, episodes = cases.params(), cases.random_episodes(LENGTHS)
    batch = collate(episodes, rows=4)
    # Temperature 0, argmax sampling, is scored at 1, as the sampler reports it.
    expected, entropy = loop(params, episodes, batch.tokens.shape, temperature or 1.0)
    found = jax.jit(token_logprobs, static_argnums=(0, 3))(
        cases.model(), params, batch, temperature
    )
    real = np.asarray(batch.segment_ids) > 0
    assert real.sum() > 30
    for x, y in zip(found, (expected, entropy), strict=True):
        assert x.dtype == jnp.float32 and x.shape == batch.tokens.shape
        np.testing.assert_allclose(np.asarray(x)[real], y[real], rtol=1e-5, atol=1e-5)
    assert not np.asarray(found)[:, :, 0].any()  # no token precedes the first

    scored = np.asarray(score(cases.model(), params, batch, temperature))
    mask = np.asarray(batch.mask)
    np.testing.assert_allclose(scored[mask], expected[mask], rtol=1e-5, atol=1e-5)
    assert (scored[~mask] == 0).all() and (scored[mask] < 0).all()


def test_a_token_depends_on_what_is_before_it_only():
    params, batch = cases.params(), collate(cases.random_episodes(LENGTHS), rows=4)
    before = np.asarray(score(cases.model(), params, batch, 1.0))
    tokens = np.array(batch.tokens)
    tokens[0, 6] = 3 + (tokens[0, 6] - 2) % (cases.VOCAB - 3)
    changed = batch._replace(tokens=jnp.asarray(tokens))
    after = np.asarray(score(cases.model(), params, changed, 1.0))
    np.testing.assert_array_equal(after[0, :6], before[0, :6])
    assert (after[0, 6:13] != before[0, 6:13]).all()
    np.testing.assert_array_equal(after[1:], before[1:])


@pytest.mark.parametrize("is_prefilled", [False, True])
def test_one_pass_serves_equal_policies(is_prefilled: bool, monkeypatch: pytest.MonkeyPatch):
    """Without a reference, old and reference log-probabilities are one array."""
    params, episodes = cases.params(), cases.random_episodes(LENGTHS)
    if is_prefilled:
        episodes = [replace(x, scored=[-1.5] * len(x.response)) for x in episodes]
    batch, scored_params = collate(episodes, rows=4), []

    def counting(model: Decoder, params: Params, *args: Any) -> np.ndarray:
        scored_params.append(params)
        return scores_of(model, params, *args)

    monkeypatch.setattr("vinejax.learner.score.scores_of", counting)

    def scored_batch(reference: Params | None) -> Batch:
        outputs = policy_outputs(cases.model(), params, batch, episodes, 0.8, Passes(4))
        return with_logprobs(cases.model(), reference, batch, outputs, 0.8, Passes(4))

    one_policy = scored_batch(None)
    assert len(scored_params) == 1 - is_prefilled
    np.testing.assert_array_equal(one_policy.ref_logprobs, one_policy.old_logprobs)
    assert (one_policy.old_logprobs[0, 6:13] < 0).all()
    reference = cases.params(1)
    two_policies = scored_batch(reference)
    assert len(scored_params) == 3 - 2 * is_prefilled and scored_params[-1] is reference
    np.testing.assert_array_equal(two_policies.old_logprobs, one_policy.old_logprobs)
    difference = np.abs(two_policies.ref_logprobs - one_policy.ref_logprobs)
    assert difference[batch.mask].min() > 0


def test_longer_padding_and_neighbours_change_nothing():
    params, episodes = cases.params(), cases.random_episodes(LENGTHS)
    short = np.asarray(score(cases.model(), params, collate(episodes, 4), 1.0))
    batch = collate([*cases.random_episodes([(10, 30)] * 3, seed=1), episodes[1]], 4)
    assert batch.tokens.shape[1] > short.shape[1]
    long = np.asarray(score(cases.model(), params, batch, 1.0))
    np.testing.assert_allclose(long[3, :5], short[1, :5], rtol=1e-5, atol=1e-6)
    assert not long[3, 5:].any()


@jax.jit
def hidden_after(params, tokens, positions, segment_ids):
    return cases.model().hidden(params, tokens, positions, segment_ids)[0]


@pytest.mark.first
@pytest.mark.parametrize(
    "passes", [Passes(2), Passes(4, packed=True), Passes(4, True, shared=True)]
)
def test_hidden_states_of_numbered_tokens(passes: Passes):
    """States are those after half of the layers, in order, and do not change the scores."""
    params, episodes = cases.params(), cases.random_episodes(LENGTHS)
    batch = collate([*episodes[:2], episodes[0], episodes[2]], rows=4)
    number = np.zeros(batch.tokens.shape, np.int32)
    places = [(0, 3), (0, 12), (1, 2), (2, 3), (3, 7)]
    for i, (row, token) in enumerate(places):
        number[row, token] = i + 1
    outputs = outputs_of(cases.model(), params, batch, 1.0, passes, number)
    logprobs, hidden = outputs.logprobs, outputs.hidden
    of_half = hidden_of(cases.model(), params, batch, number, passes)
    np.testing.assert_allclose(of_half, hidden, rtol=1e-6, atol=1e-6)
    expected = scores_of(cases.model(), params, batch, 1.0, passes)
    np.testing.assert_allclose(logprobs, expected, rtol=1e-6, atol=1e-6)
    half = (cases.model().cfg.num_layers + 1) // 2
    first = {**params, "layers": jax.tree.map(lambda x: np.asarray(x)[:half], params["layers"])}
    x = np.asarray(hidden_after(first, batch.tokens, batch.positions, batch.segment_ids))
    alone = np.stack([x[place] for place in places])
    alone /= np.sqrt((alone**2).mean(axis=-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(hidden, alone, rtol=1e-4, atol=1e-4)


def test_hidden_states_need_no_second_forward_pass(monkeypatch: pytest.MonkeyPatch):
    """The compiler counts the operations that they add to the scoring pass."""
    params, batch = cases.params(), collate(cases.random_episodes(LENGTHS), rows=4)
    # The compiler counts the body of a loop once, so the loop over layers is unrolled.
    written_out = functools.partial(jax.lax.scan, unroll=True)
    monkeypatch.setattr("vinejax.model.decoder.lax.scan", written_out)
    model = cases.model()
    temperature = 0.7  # a value of no other test, whose trace would be reused
    alone = score.lower(model, params, batch, temperature).cost_analysis()
    number = np.zeros(batch.tokens.shape, np.int32)
    with_hidden = score_with.lower(
        model, params, batch, number, temperature, most=16, with_entropy=False
    ).cost_analysis()
    half = hidden_states.lower(model, params, batch, number, most=16).compile().cost_analysis()
    assert alone is not None and with_hidden is not None and half is not None
    assert 1 <= with_hidden["flops"] / alone["flops"] < 1.02
    assert half["flops"] / alone["flops"] < 0.6  # half of the layers, and no output matrix


def test_wide_hidden_states_are_projected():
    """The projection keeps angles and the mean square but for noise."""
    x = np.random.default_rng(0).normal(size=(2, 4 * MAX_STATE_WIDTH)).astype(np.float32)
    x[1] += x[0]
    found = np.asarray(jax.jit(narrow_states)(3 * x))
    assert found.shape == (2, MAX_STATE_WIDTH)
    cosine = found[0] @ found[1] / np.linalg.norm(found[0]) / np.linalg.norm(found[1])
    assert abs(cosine - 0.5**0.5) < 0.15 and abs(np.mean(found**2) - 1) < 0.2
    thin = np.asarray(jax.jit(narrow_states)(x[:, :8]))
    np.testing.assert_allclose(np.mean(thin**2, axis=1), 1, rtol=1e-5)


def test_scores_with_their_entropies_equal_a_loop():
    params, episodes = cases.params(), cases.random_episodes(LENGTHS)
    batch = collate(episodes, rows=4)
    expected = loop(params, episodes, batch.tokens.shape, 0.8)
    for packed in (False, True):
        outputs = outputs_of(
            cases.model(), params, batch, 0.8, Passes(4, packed), with_entropy=True
        )
        for x, y in zip((outputs.logprobs, outputs.entropy), expected, strict=True):
            np.testing.assert_allclose(x[batch.mask], y[batch.mask], rtol=1e-5, atol=1e-5)
            assert not x[~batch.mask].any()


DEVICES = """
import dataclasses
import jax, numpy as np
from helpers import loop_cases as cases
from vinejax.learner.packing import Passes
from vinejax.learner.batch import collate
from vinejax.learner.score import outputs_of
from vinejax.model.sharding import mesh_over, param_shardings

batch = collate(cases.random_episodes([(3, 9), (5, 4), (2, 7)] * 3), rows=8)
def scores(model, params, passes):
    found = outputs_of(model, params, batch, 0.8, passes, with_entropy=True)
    return found.logprobs, found.entropy

whole = scores(cases.model(), cases.params(), Passes(8))
for sizes in ((2, 2, 2), (1, 8, 1)):
    mesh = mesh_over(sizes, jax.devices())
    model = dataclasses.replace(cases.model(), mesh=mesh)
    params = jax.device_put(cases.params(), param_shardings(mesh, cases.params()))
    for packed in (False, True):
        found = scores(model, params, Passes(8, packed))
        for x, y in zip(found, whole, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
print("equal")
"""


@pytest.mark.slow
def test_scores_with_their_entropies_on_a_mesh():
    assert eight_devices.printed("-c", DEVICES) == ["equal"]
