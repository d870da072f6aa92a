"""Importance weights of an update: their values, and the bias that they remove."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.applied import policy_objective

from vinejax.core.settings import Config
from vinejax.core.types import Batch, Episode
from vinejax.learner.batch import collate
from vinejax.learner.sampler_correction import with_corrections
from vinejax.learner.score import score

LENGTHS = [(3, 6), (2, 4), (4, 1)]


def config(**ppo: Any) -> Config:
    return methods.config("grpo", ppo=ppo)


def rollout(drift: float) -> tuple[Batch, list[Episode]]:
    """Three episodes, one with given tokens. The learner is `drift` nats above the sampler."""
    rng, episodes = np.random.default_rng(0), []
    for plain in cases.random_episodes(LENGTHS):
        drawn = -rng.exponential(1.0, len(plain.response)).astype(np.float32)
        episodes.append(dataclasses.replace(plain, logprobs=drawn.tolist()))
    logprobs = [0.0, 0.0, *episodes[1].logprobs[2:]]
    episodes[1] = dataclasses.replace(episodes[1], given=2, logprobs=logprobs)
    batch = collate(episodes, rows=4)
    old = np.zeros_like(batch.old_logprobs)
    for row, episode in enumerate(episodes):
        old[row, len(episode.prompt) : len(episode.tokens)] = episode.logprobs
    advantages = rng.normal(size=old.shape).astype(np.float32)
    old = np.where(
        batch.mask, old + np.float32(drift), np.float32(7)
    )  # a number that must not be read
    return batch._replace(old_logprobs=old, advantages=advantages), episodes


def corrected(cfg: Config, drift: float = 0.1, trained: Any = None) -> tuple[Any, Any]:
    batch, episodes = rollout(drift)
    rows = batch if trained is None else batch._replace(mask=trained)
    return with_corrections(rows, batch.mask, episodes, cfg)


def test_a_solution_is_weighted_by_the_tokens_that_were_drawn_for_its_row():
    """The weight includes tokens outside the mask, but not given tokens."""
    trained = rollout(0.1)[0].mask.copy()
    trained[0, 5:] = False
    batch, found = corrected(config(), trained=trained)
    drawn = [6, 2, 1, 0]
    mask = rollout(0.1)[0].mask
    assert mask.sum(axis=1).tolist() == drawn
    expected = np.where(mask, np.exp(0.1 * np.array(drawn))[:, None], 0.0)
    np.testing.assert_allclose(batch.weights, expected, rtol=1e-5)
    assert found["rollout/weight"] == pytest.approx(expected[mask].mean(), rel=1e-5)
    assert found["rollout/masked"] == 0.0


def test_what_is_out_of_bounds_is_masked_and_counted():
    batch, found = corrected(config(), drift=0.3)  # e^1.8 is over 3
    assert not batch.weights[0].any() and batch.weights[1].any()
    assert found["rollout/masked"] == pytest.approx(6 / 9)
    by_token, _ = corrected(config(correction="token_mask", correction_max=1.2), drift=0.3)
    assert not by_token.weights.any()
    cut, _ = corrected(config(correction="token_truncate", correction_max=1.2), drift=0.3)
    np.testing.assert_allclose(cut.weights, np.where(cut.mask, 1.2, 0.0), rtol=1e-6)
    low, _ = corrected(config(correction="token_truncate", correction_min=0.9), drift=-0.3)
    np.testing.assert_allclose(low.weights, np.where(low.mask, 0.9, 0.0), rtol=1e-6)


def test_without_a_drawn_token_there_is_nothing_to_correct():
    batch, episodes = rollout(0.3)
    batch, found = with_corrections(batch, np.zeros_like(batch.mask), episodes, config())
    assert batch.weights is None and found == {"rollout/weight": 1.0, "rollout/masked": 0.0}


@pytest.mark.parametrize("correction", ["none", "token_truncate", "sequence_mask"])
def test_an_exact_sampler_changes_nothing_to_the_bit(correction: str):
    """An update without weights runs the program without them."""
    batch, _ = corrected(config(correction=correction), drift=0.0)
    cases.assert_equal(batch, rollout(0.0)[0])


# --- a sampler whose temperature is 10% off

TEMPERATURE, WRONG = 0.8, 0.88


@functools.cache
def every_response() -> tuple[Batch, list[Episode]]:
    """All responses of two tokens to one prompt, one per row."""
    pairs = [list(pair) for pair in itertools.product(range(cases.VOCAB), repeat=2)]
    episodes = [cases.episode([0, 5, 9], pair) for pair in pairs]
    return collate(episodes, rows=len(pairs)), episodes


def expected_gradient(temperature: float, correction: str) -> np.ndarray:
    """The expected gradient of a run's loss if the sampler draws at this temperature.

    It is exact: the batch has every response, with its advantage times its probability.
    """
    batch, episodes = every_response()
    old, drawn = (
        np.asarray(score(cases.model(), cases.params(), batch, t))
        for t in (TEMPERATURE, temperature)
    )
    chance = np.exp(drawn.sum(axis=1))
    assert chance.sum() == pytest.approx(1, abs=1e-5)
    values = np.random.default_rng(2).normal(size=len(episodes))
    advantages = values - values @ np.exp(old.sum(axis=1))
    advantages = (chance * advantages)[:, None] * np.float32(1e3) * batch.mask
    of_sampler = [
        dataclasses.replace(episode, logprobs=row[3:5].tolist())
        for episode, row in zip(episodes, drawn, strict=True)
    ]
    rows = batch._replace(old_logprobs=old, advantages=np.float32(advantages))
    cfg = methods.config("grpo", ppo={"correction": correction}, kl={"coef": 0.0})
    rows, _ = with_corrections(rows, batch.mask, of_sampler, cfg)
    if rows.weights is None:
        rows = rows._replace(weights=np.float32(batch.mask))  # one program for all
    objective = dataclasses.replace(policy_objective(cases.model(), cfg), microbatch=None)
    objective = dataclasses.replace(objective, temperature=TEMPERATURE, packed=False)
    grads, _ = methods.grads_of(objective, cases.params(), rows)
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(grads)])


@pytest.mark.slow
def test_corrections_bring_the_gradient_of_a_wrong_sampler_nearer_to_the_true_one():
    true = expected_gradient(TEMPERATURE, "none")
    kinds = ("none", "token_truncate", "sequence_mask", "sequence_truncate")
    error = {
        kind: float(np.linalg.norm(expected_gradient(WRONG, kind) - true) / np.linalg.norm(true))
        for kind in kinds
    }
    print(error)
    assert error["none"] > 0.03
    assert error["token_truncate"] < 0.9 * error["none"]
    assert error["sequence_mask"] < 0.01 and error["sequence_truncate"] < 0.01
