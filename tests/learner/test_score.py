"""Token log-probabilities: one function that shifts, against a loop over logits."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop_cases as cases

from vinejax.learner.batch import collate
from vinejax.learner.packing import Passes
from vinejax.learner.score import score, scores_of, token_logprobs, with_logprobs

LENGTHS = [(4, 9), (2, 3), (4, 9), (5, 0)]


def loop(params, episodes, shape, temperature):
    """log p(token t | tokens before t) and the entropy there, one row without padding at a time."""
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
    # The argmax of temperature 0 is scored at 1, as the sampler reports it.
    expected, entropy = loop(params, episodes, batch.tokens.shape, temperature or 1.0)
    found = jax.jit(token_logprobs, static_argnums=(0, 3))(
        cases.model(), params, batch, temperature
    )
    real = np.asarray(batch.segment_ids) > 0
    assert real.sum() > 30
    for x, y in zip(found, (expected, entropy), strict=True):
        assert x.dtype == jnp.float32 and x.shape == batch.tokens.shape
        np.testing.assert_allclose(np.asarray(x)[real], y[real], rtol=1e-5, atol=1e-5)
    assert not np.asarray(found)[:, :, 0].any()  # nothing stands before the first token

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
    """Old and reference log-probabilities, where no reference is given; two passes where one is."""
    params, episodes = cases.params(), cases.random_episodes(LENGTHS)
    if is_prefilled:
        episodes = [replace(x, scored=[-1.5] * len(x.response)) for x in episodes]
    batch, passes, scored = collate(episodes, rows=4), Passes(4), []

    def counted(*args):
        scored.append(args[1])
        return scores_of(*args)

    monkeypatch.setattr("vinejax.learner.score.scores_of", counted)
    rest = (batch, episodes, 0.8, passes)
    found = with_logprobs(cases.model(), params, None, *rest)
    assert len(scored) == 1 - is_prefilled
    np.testing.assert_array_equal(found.ref_logprobs, found.old_logprobs)
    assert (found.old_logprobs[0, 6:13] < 0).all()
    other = cases.params(1)
    apart = with_logprobs(cases.model(), params, other, *rest)
    assert len(scored) == 3 - 2 * is_prefilled and scored[-1] is other
    np.testing.assert_array_equal(apart.old_logprobs, found.old_logprobs)
    assert np.abs(apart.ref_logprobs - found.ref_logprobs)[batch.mask].min() > 0


def test_longer_padding_and_neighbours_change_nothing():
    params, episodes = cases.params(), cases.random_episodes(LENGTHS)
    short = np.asarray(score(cases.model(), params, collate(episodes, 4), 1.0))
    batch = collate([*cases.random_episodes([(10, 30)] * 3, seed=1), episodes[1]], 4)
    assert batch.tokens.shape[1] > short.shape[1]
    long = np.asarray(score(cases.model(), params, batch, 1.0))
    np.testing.assert_allclose(long[3, :5], short[1, :5], rtol=1e-5, atol=1e-6)
    assert not long[3, 5:].any()
