"""The metrics `credit/price` and `credit/gain`."""

import dataclasses

import numpy as np
import pytest
from helpers import vine_cases as cases
from helpers.applied import assign_credit

from vinejax.core.settings import Config, with_fields
from vinejax.core.types import Rollout
from vinejax.credit.gain import gain_metrics, price_of, state_shares
from vinejax.learner.batch import collate, step_layout


def rollout_of_two(cfg: Config) -> Rollout:
    """A rollout of two solutions that share their first state, with values."""
    both, _ = cases.fill([cases.episode(cases.RIGHT), cases.episode(cases.WRONG, reward=0.0)], cfg)
    batch = collate(both, rows=2)
    logprobs = np.log(np.random.default_rng(0).uniform(0.1, 0.9, batch.mask.shape))
    batch = batch._replace(old_logprobs=np.where(batch.mask, logprobs, 0).astype(np.float32))
    return Rollout(both, batch, step_layout(batch, both))


def test_a_state_that_solutions_share_is_paid_for_once():
    cfg = cases.config()  # K = 4
    rollout = rollout_of_two(cfg)
    found = gain_metrics(rollout, assign_credit(rollout, cfg), cfg)["credit/price"]
    both = rollout.episodes
    lengths = [len(one.response) for one in both]
    later = [n - end for n, one in zip(lengths, both, strict=True) for end in one.step_ends[:-1]]
    tokens = 4 * (sum(lengths) / 2 + sum(later)) / sum(lengths)
    assert found == pytest.approx(price_of(tokens)) == pytest.approx((9 + tokens) / 9)
    assert state_shares(rollout)[:, :4].tolist() == [[0.5, 1, 1, 1]] * 2


@pytest.mark.parametrize(("has_prior", "gamma"), [(False, 1.0), (True, 1.0), (True, 0.5)])
def test_the_gain_by_hand(has_prior: bool, gamma: float):
    """Outcomes are 1 and 0; b is 0 and 1 without a learned value, else 0.25 everywhere.

    A learned value is that of the discounted return, with which it is compared.
    """
    cfg = with_fields(cases.config(), {"ppo.gamma": gamma})
    rollout = rollout_of_two(cfg)
    credit = assign_credit(rollout, cfg)
    if has_prior:
        rollout = rollout._replace(values=np.full(rollout.batch.mask.shape, 0.25, np.float32))
    found = gain_metrics(rollout, credit, cfg)
    doubt = 1 - np.exp(np.float64(rollout.batch.old_logprobs))
    of_outcomes, of_steps = 0.0, 0.0
    for row, one in enumerate(rollout.episodes):
        ends = [len(one.prompt) + end for end in (0, *one.step_ends)]
        for c, (start, end) in enumerate(zip(ends, ends[1:], strict=False)):
            n = doubt[row, start:end].sum()
            later = len(one.step_ends) - 1 - c
            outcome = gamma**later * one.reward - (0.25 if has_prior else 1 - one.reward)
            of_outcomes += n * outcome**2
            of_steps += n * float(np.asarray(credit.by_step)[row, c]) ** 2
    assert found["credit/gain"] == pytest.approx(of_outcomes / of_steps / found["credit/price"])


def test_there_is_no_gain_without_credit_and_no_metric_without_sampled_values():
    cfg = cases.config()
    rollout = rollout_of_two(cfg)
    credit = assign_credit(rollout, cfg)
    nothing = credit._replace(by_step=np.zeros_like(np.asarray(credit.by_step)))
    assert gain_metrics(rollout, nothing, cfg).keys() == {"credit/price"}
    others = [dataclasses.replace(e, problem_id=f"p{i}") for i, e in enumerate(rollout.episodes)]
    alone = rollout._replace(episodes=others)  # a solution per problem: no baseline for outcomes
    assert gain_metrics(alone, credit, cfg).keys() == {"credit/price"}
    learned = alone._replace(values=np.zeros(rollout.batch.mask.shape, np.float32))
    assert gain_metrics(learned, credit, cfg).keys() == {"credit/price", "credit/gain"}
    bare = rollout._replace(episodes=[cases.episode(cases.RIGHT)])
    assert gain_metrics(bare, credit, cfg) == {}
