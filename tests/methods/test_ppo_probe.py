"""PPO with the probe as critic."""

import dataclasses

import numpy as np
from helpers import method_cases as methods
from helpers import vine_cases as cases

from vinejax.core.types import Episode, Rollout
from vinejax.credit import probe
from vinejax.credit.probe import Prediction
from vinejax.learner.batch import collate, step_layout
from vinejax.methods.learned_value import states_of
from vinejax.methods.ppo_probe import ProbeConfig, ProbeState, probed


def with_states() -> list[Episode]:
    """A right and a wrong solution with a state before each step and no continuations."""
    return [
        dataclasses.replace(
            one,
            is_state=np.ones(len(one.step_ends), bool),
            value_counts=np.zeros(len(one.step_ends), np.int32),
        )
        for one in (cases.episode(cases.RIGHT), cases.episode(cases.WRONG, reward=0.0))
    ]


def test_credit_is_an_average_over_later_values():
    """With v before each step; λ = 0 is VinePPO's difference, λ = 1 the return less v."""
    episodes = with_states()
    batch = collate(episodes, 2)
    steps = step_layout(batch, episodes)
    assert (steps.counts[0, :2] == 0).all() and (steps.counts[0, 2:] == -1).all()
    values = np.random.default_rng(0).random(batch.tokens.shape).astype(np.float32)
    rollout = Rollout(episodes, batch, steps, values)
    cfg = methods.config("ppo_probe")
    for lam in (0.0, 0.5, 1.0):
        credit = probed(rollout, dataclasses.replace(cfg, sections={"probe": ProbeConfig(lam)}))
        for row, one in enumerate(episodes):
            starts = len(one.prompt) + np.array([0, *one.step_ends[:-1]])
            v, later = values[row, starts], one.reward
            expected = np.zeros(len(v))
            for c in reversed(range(len(v))):
                expected[c] = later - v[c]
                later = (1 - lam) * v[c] + lam * later
            assert credit.by_step is not None and credit.values is not None
            np.testing.assert_allclose(credit.by_step[row, : len(v)], expected, atol=1e-6)
            np.testing.assert_array_equal(credit.values[row, : len(v)], v)
            per_token = np.repeat(expected, np.diff([0, *one.step_ends]))
            found = np.asarray(credit.advantages)[row, len(one.prompt) : len(one.tokens)]
            np.testing.assert_allclose(found, per_token, atol=1e-6)


def test_no_weight_is_logged_because_the_probe_is_the_whole_baseline():
    """Without continuations no other baseline tells a weight, which would always be 0."""
    episodes, cfg = with_states(), methods.config("ppo_probe")
    batch = collate(episodes, 2)
    rollout, kept = Rollout(episodes, batch, step_layout(batch, episodes)), probe.fresh_probe(2)
    count = sum(len(one.step_ends) for one in episodes)
    states = states_of(rollout, cfg, np.random.default_rng(0).random((count, 7)))
    predicted = Prediction(states, probe.predictions(kept, states))
    _, metrics = ProbeState().learned(kept, rollout._replace(prediction=predicted), cfg)
    assert "value/weight" not in metrics and "value/explained_variance" in metrics
