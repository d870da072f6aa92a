"""The probe: a learned value of states."""

import dataclasses

import numpy as np
import pytest
from helpers import loop_cases as cases

from vinejax.core.types import Continuation, Rollout
from vinejax.credit import probe
from vinejax.credit.probe import ProbeStates
from vinejax.learner.batch import collate, step_layout
from vinejax.methods.learned_value import continuation_means

R, PROBLEMS, GROUP, STEPS = 6, 12, 4, 5


def states(seed: int = 0, count: int = 2, noise: float = 1.0) -> ProbeStates:
    """States of solutions whose value is a function of their hidden states."""
    rng = np.random.default_rng(seed)
    size = PROBLEMS * GROUP * STEPS
    hidden, siblings = rng.normal(size=(size, R)), rng.random(size)
    direction = np.linspace(-1, 1, R)
    truth = 1 / (1 + np.exp(-hidden @ direction * noise - siblings + 0.5))
    draws = rng.random((1 + count, size)) < truth
    return ProbeStates(
        features=probe.features_of(hidden.astype(np.float32), siblings, rng.random(size)),
        problem=np.repeat(np.arange(PROBLEMS), GROUP * STEPS),
        solution_return=draws[0].astype(float),
        value=draws[1:].mean(axis=0) if count else np.full(size, np.nan),
        count=np.full(size, count),
    )


def by_augmented_rows(rows: ProbeStates, taken: np.ndarray, strength: float) -> np.ndarray:
    """The fit by least squares, with a row per return and a row per penalised weight."""
    others = np.where(rows.count > 0, rows.value, 0.0)
    count = 1 + rows.count
    target = (rows.solution_return + rows.count * others) / count
    penalty = np.r_[np.full(3, 1e-6), np.ones(2 * R)]
    left = [*(rows.features[taken] * np.sqrt(count[taken])[:, None])]
    left += [*np.diag(np.sqrt(strength * penalty))]
    right = [*(target[taken] * np.sqrt(count[taken])), *np.zeros(3 + 2 * R)]
    return np.linalg.lstsq(np.array(left), np.array(right), rcond=None)[0]


@pytest.mark.parametrize("count", [0, 2])
def test_a_problem_is_predicted_by_the_others(count: int):
    rows = states(count=count)
    found = probe.predictions(probe.fresh_probe(R), rows)
    for k, strength in enumerate(probe.STRENGTHS):
        for fold in range(probe.FOLDS):
            mine = rows.problem % probe.FOLDS == fold
            weights = by_augmented_rows(rows, ~mine, strength)
            expected = rows.features[mine] @ weights
            np.testing.assert_allclose(found[k, mine], expected, rtol=1e-6, atol=1e-6)


def test_no_target_of_a_problem_is_in_its_values():
    """The gradient is unbiased only if v does not depend on what its solution does."""
    rows = states()
    mine = rows.problem == 3
    other = rows._replace(
        solution_return=np.where(mine, 1 - rows.solution_return, rows.solution_return),
        value=np.where(mine, 0.25, rows.value),
    )
    kept = probe.fresh_probe(R)
    before, after = probe.predictions(kept, rows), probe.predictions(kept, other)
    np.testing.assert_array_equal(before[:, mine], after[:, mine])
    assert np.abs(before - after).max() > 1e-3


def learned(iterations: int, count: int = 2, **case: float) -> tuple[probe.Probe, np.ndarray]:
    """(the probe after some iterations with plain means as baselines, the errors of the last v)."""
    kept, v = probe.fresh_probe(R), np.zeros(0)
    for i in range(iterations):
        rows = states(seed=i, count=count, **case)
        found = probe.predictions(kept, rows)
        v = probe.chosen(kept, found)
        kept = probe.updated(kept, rows, found, rows.value, rows.count > 0)
    return kept, v


def test_a_good_value_gets_weight_and_a_useless_one_none():
    kept, _ = learned(5)
    assert 0.6 < probe.weight_of(kept) <= 1.0
    rows = states(seed=9, count=32)
    nonsense = (
        np.random.default_rng(1).random((len(probe.STRENGTHS), len(rows.solution_return))) * 4 - 2
    )
    kept = probe.updated(
        probe.fresh_probe(R), rows, nonsense, rows.value, np.ones(len(rows.solution_return), bool)
    )
    assert probe.weight_of(kept) < 0.1


def test_nothing_is_known_before_the_first_iteration():
    kept = probe.fresh_probe(R)
    assert probe.weight_of(kept) == 0.0 and probe.mean_target(kept) == 0.5
    alone = states()._replace(problem=np.zeros(PROBLEMS * GROUP * STEPS, int))
    assert not probe.predictions(kept, alone).any()


def test_the_largest_of_the_best_strengths_is_chosen():
    kept, by_strength = probe.fresh_probe(R), np.arange(6.0)[:, None]
    assert probe.chosen(kept, by_strength) == 5
    kept = kept._replace(errors=np.array([3.0, 1, 2, 1, 4, 4]))
    assert probe.chosen(kept, by_strength) == 3


def test_earlier_iterations_count_less():
    kept, _ = learned(1)
    again = probe.updated(
        kept, states(1), np.zeros((len(probe.STRENGTHS), 240)), np.zeros(240), np.ones(240, bool)
    )
    only = probe.updated(
        probe.fresh_probe(R), states(1), np.zeros((6, 240)), np.zeros(240), np.ones(240, bool)
    )
    expected = only.moments.square + probe.KEPT * kept.moments.square
    np.testing.assert_allclose(again.moments.square, expected)
    np.testing.assert_allclose(again.errors, only.errors + probe.KEPT * kept.errors)
    np.testing.assert_allclose(again.gain, only.gain + probe.KEPT * kept.gain)


def test_states_without_a_baseline_do_not_count_for_the_weight():
    """Where none is known the baseline is 0, from which v = 0.5 differs."""
    rows, is_known = states(1), np.arange(240) % 2 == 0
    b = np.where(is_known, 0.25, 0.0)
    found = probe.updated(probe.fresh_probe(R), rows, np.full((6, 240), 0.5), b, is_known)
    known = rows.solution_return[is_known]
    np.testing.assert_allclose(found.gain, [np.sum(known - 0.25) * 0.25, 120 * 0.25**2])


def test_values_outside_0_and_1_are_in_the_outer_tenths():
    rows = ProbeStates(np.zeros((3, 3)), np.arange(3), np.ones(3), np.ones(3), np.ones(3, int))
    found = probe.metrics(rows, np.array([-0.5, 1.0, 1.5]), 0.0, np.full(3, np.nan))
    tenths = {name: x for name, x in found.items() if "calibration" in name}
    assert tenths == {"value/calibration/1": 1.5, "value/calibration/10": -0.25}


def test_the_error_has_no_noise_of_targets():
    """v is off by 0.2 everywhere; targets of one draw each have a variance of 0.25."""
    rng = np.random.default_rng(2)
    size, v = 200_000, np.full(200_000, 0.7)
    draws = (rng.random((2, size)) < 0.5).astype(float)
    own, value = draws
    rows = ProbeStates(np.zeros((size, 3)), np.zeros(size, int), own, value, np.ones(size, int))
    found = probe.metrics(rows, v, 0.25, value)
    assert found["value/weight"] == 0.25 and abs(found["value/error"] - 0.04) < 4 * 0.25 / 447
    names = ("weight", "error", "explained_variance", "calibration/8")
    assert set(found) == {f"value/{name}" for name in names}
    assert abs(found["value/explained_variance"]) < 1e-9  # v is a constant
    assert abs(found["value/calibration/8"] + 0.2) < 0.01


def test_the_error_knows_nothing_of_solutions_that_are_in_the_value():
    """With `values.reuse` v and the value of the prompt's end contain the same rewards."""
    rng, group, size = np.random.default_rng(3), 4, 20_000
    truth = rng.random((size, 1))
    own, drawn = rng.random((size, group)) < truth, np.repeat(rng.random((size, 1)) < truth, 4, 1)
    others = own.sum(axis=1, keepdims=True) - own
    v = 0.2 + 0.6 * others / (group - 1)
    rows = ProbeStates(
        features=np.zeros((size * group, 3)),
        problem=np.repeat(np.arange(size), group),
        solution_return=own.reshape(-1).astype(float),
        value=((drawn + others) / group).reshape(-1),
        count=np.full(size * group, group),
    )
    found = probe.metrics(rows, v.reshape(-1), 0.0, drawn.reshape(-1).astype(float))
    assert abs(found["value/error"] - np.mean((v - truth) ** 2)) < 4 * 0.25 / size**0.5


def test_continuations_of_the_states_alone():
    """A state's own continuations, whatever other returns its value counts."""
    groups = tuple(
        tuple(Continuation("", x, "eos", x) for x in returns) for returns in ([1.0, 0.0], [], [0.5])
    )
    counts = np.array([3, 1, 1], np.int32)
    one = cases.episode(
        [cases.BOS],
        [7, 8, 9],
        step_ends=[1, 2, 3],
        values=np.ones(3, np.float32),
        is_state=np.array([True, True, False]),
        value_counts=counts,
        continuations=groups,
    )
    bare = dataclasses.replace(one, continuations=())
    batch = collate([one, bare], 1)
    rollout = Rollout([one, bare], batch, step_layout(batch, [one, bare]))
    np.testing.assert_array_equal(continuation_means(rollout), [0.5, *[np.nan] * 3])
