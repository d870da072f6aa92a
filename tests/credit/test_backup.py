"""Backed-up values: worked examples, no bias, and less variance than plain means."""

import itertools

import numpy as np
import pytest

from vinejax.credit.backup import PassingSample, backed_up_values
from vinejax.credit.samples import PassingSamples, Sample

# Two solutions of one problem. Both pass through the prompt's end and through the state after 2
# tokens, which is one node. The first has a further state after 5 tokens.
POSITIONS = [[0, 2, 5], [0, 2]]
ALL = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
SHARED = [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_sample_counts_with_the_value_of_the_next_state():
    solutions = [PassingSample(0, ALL, [1.0] * 5), PassingSample(1, SHARED, [0.0] * 4)]
    at_start = PassingSample(None, [(0, 0), (1, 0)], [1.0, 1.0])  # reaches no further state
    at_second = PassingSample(None, [(0, 1), (1, 1)], [1.0, 1.0])
    at_third = PassingSample(None, [(0, 2)], [0.0])
    first, second = backed_up_values([*solutions, at_start, at_second, at_third], POSITIONS)
    # Without solution 0: the second state has solution 1 and its own sample. The start has its own
    # sample and solution 1, which goes on to the second state.
    assert first == [(0.5 + 1) / 2, (0 + 1) / 2, 0]
    # Without solution 1: solution 0 goes on to the third state, which it shares with a sample.
    assert second == [(0.75 + 1) / 2, (0.5 + 1) / 2]


def test_rewards_between_two_states_stay_the_samples_own():
    own = PassingSample(0, [(0, 0), (0, 1)], [5.0, 1.0])
    through = PassingSample(None, [(0, 0), (0, 1)], [3.0, 1.0])  # return of 2 between the states
    later = PassingSample(None, [(0, 1)], [4.0])
    assert backed_up_values([own, through, later], [[0, 2]]) == [[2 + 2.5, 2.5]]


def test_a_state_without_other_samples_has_value_0():
    assert backed_up_values([PassingSample(0, [(0, 0)], [1.0])], [[0]]) == [[0.0]]


def test_a_solution_does_not_count_in_states_of_other_solutions_on_its_way():
    """Solution 0 passes through the state of solution 1 after 2 tokens, and has none there."""
    own = PassingSample(0, [(0, 0), (1, 0), (1, 1)], [8.0] * 3)
    other = PassingSample(1, [(0, 0), (1, 0), (1, 1)], [0.0] * 3)
    later = PassingSample(None, [(1, 1)], [1.0])
    first, second = backed_up_values([own, other, later], [[0], [0, 2]])
    assert first == [0.5]  # of solution 1, with the mean of 0 and 1 from the later state on
    assert second == [4.5, 4.5]


def test_a_sample_may_pass_through_no_state():
    """As a solution without an unlikely token does, where states are before such tokens."""
    through = PassingSample(1, [(1, 0)], [1.0])
    samples = [PassingSample(0, [], []), through, PassingSample(None, [(1, 0)], [0.5])]
    assert backed_up_values(samples, [[], [2]]) == [[], [0.5]]


def test_the_bias_of_a_state_that_the_next_token_makes():
    """The example of docs/credit.md: a first token, then 0 or 1 alike, which is the reward.

    A solution has a state after its first token if its second token is 1, as a line ends where
    another one begins. Each state has one continuation.
    """
    values = []
    for first, second, at_start, later in itertools.product((0, 1), repeat=4):
        responses, places = [[5, first], [5, second]], [[0, 1][: 1 + x] for x in (first, second)]
        passing = PassingSamples(responses, places, gamma=1.0)
        drawn = [(0, i, x) for i, x in enumerate((first, second))]
        drawn += [(0, None, at_start)] + [(1, None, later)] * bool(first or second)
        for start, solution, letter in drawn:
            sample = Sample(np.array([5, letter], np.int32), start, [], [], float(letter))
            passing.add(sample, counted=[], solution=solution)
        values.append(passing.backed_up()[0][0])
    assert np.mean(values) == pytest.approx(23 / 48)  # 0.479, and the true value is 0.5


@pytest.mark.parametrize("p", [0.3, 0.9])
def test_no_bias_and_less_variance(p):
    """s_0 leads to s_1, with value 1/2, with probability p, and otherwise to a return of 0."""
    rng = np.random.default_rng(7)
    plain, values = [], []
    for _ in range(800):
        samples = [PassingSample(0, [(0, 0), (0, 1)], [1.0, 1.0])]
        for goes_on in rng.random(3) < p:
            reward = float(goes_on and rng.random() < 0.5)
            visits = [(0, 0), (0, 1)][: 1 + goes_on]
            samples.append(PassingSample(None, visits, [reward] * len(visits)))
        plain.append(np.mean([one.returns[0] for one in samples[1:]]))
        samples += [PassingSample(None, [(0, 1)], [float(x)]) for x in rng.random(3) < 0.5]
        values.append(backed_up_values(samples, [[0, 2]])[0])
    start, second = np.array(values).T
    assert start.mean() == pytest.approx(p / 2, abs=0.03)
    assert second.mean() == pytest.approx(0.5, abs=0.03)
    assert start.var() < 0.8 * np.var(plain)
    assert (second - start).var() < 0.8 * (second - np.array(plain)).var()
