"""Bisection: the sampled states, the number of waves, and the advantages of steps in between."""

import math

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.chain_cases import fill_drawn
from helpers.vine_cases import config, credit_by_step

from vinejax.core.settings import Config, ValuesConfig
from vinejax.core.types import Episode
from vinejax.credit.allocation import Seen
from vinejax.credit.bisection import bisection
from vinejax.credit.samples import Sample
from vinejax.rollout.sampler import ValuedState

K = 6


def search(truth: list[float], total: float, **fields) -> tuple[list[int], int]:
    """(sampled states in order, number of waves), with returns of truth[c] at state c."""
    values = ValuesConfig(k=K, **fields)
    seen = Seen([[] for _ in truth], [0.0] * len(truth), total)
    order, waves = [], 0
    while (requests := bisection(waves, seen, values)) is not None:
        waves += 1
        assert waves < 50 and set(requests) <= {0, K} and any(requests)
        for c, n in enumerate(requests):
            seen.returns[c].extend([truth[c]] * n)
            order += [c] if n else []
    return order, waves


def halvings(num_states: int, deciding: int) -> list[int]:
    """The states that a binary search for step `deciding` visits after the first state."""
    low, high, visited = 0, num_states, [0]
    while (middle := (low + high) // 2) > low:
        visited.append(middle)
        low, high = (low, middle) if deciding < middle else (middle, high)
    return visited


@pytest.mark.parametrize("num_states", [1, 2, 3, 7, 8, 16, 33])
def test_one_deciding_step_is_found_by_binary_search(num_states: int):
    for deciding in range(num_states):  # the step from 0 to 1
        truth = [0.0] * (deciding + 1) + [1.0] * (num_states - deciding - 1)
        order, waves = search(truth, total=1.0)
        assert order == halvings(num_states, deciding)
        assert waves == len(order) <= math.ceil(math.log2(num_states)) + 1


@pytest.mark.parametrize("num_states", [1, 2, 5, 12, 31, 64])
def test_the_number_of_waves_is_bounded(num_states: int):
    """The bound holds for random returns, and if the values of every span differ."""
    rng, bound = np.random.default_rng(num_states), math.ceil(math.log2(num_states)) + 1
    for _ in range(20):
        truth = rng.integers(0, 2, num_states).astype(float).tolist()
        order, waves = search(truth, float(rng.integers(2)))
        assert waves <= bound and len(set(order)) == len(order)
    rising = [c / num_states for c in range(num_states)]
    order, waves = search(rising, total=1.0, threshold=0.0)
    assert sorted(order) == list(range(num_states)) and waves == bound


def test_spans_without_difference_are_not_halved():
    assert search([], total=1.0) == ([], 0)  # a solution without states
    for value in (0.0, 0.5, 1.0):
        assert search([value] * 16, total=value) == ([0], 1)
        assert search([value] * 16, total=value, threshold=0.0) == ([0], 1)
    # From state 8 on all values are 0, so only the first half is searched further.
    truth = [1.0] * 8 + [0.0] * 8
    order, _ = search(truth, total=0.0)
    assert order == [0, 8, 4, 6, 7]


def test_the_threshold_counts_standard_errors():
    """A mean of 0.5 over K = 6 returns at the start is compared with a reward of 1."""
    seen = Seen([[0.0, 1.0] * 3, [], []], [0.0] * 3, 1.0)
    variance = 0.25  # variance of the six returns with one 0 and one 1 added
    distance = 0.5 / math.sqrt(variance / K)
    assert bisection(1, seen, ValuesConfig(k=K, threshold=distance * 1.01)) is None
    assert bisection(1, seen, ValuesConfig(k=K, threshold=distance * 0.99)) == [0, K, 0]
    # Compared with a state that has an error too, the difference must be √2 times as large.
    seen = Seen([[1.0] * K, [], [0.0, 1.0] * 3, []], [0.0] * 4, 0.5)
    mean = (1.0 + K + 3.0) / (2 * K + 2)
    distance = 0.5 / math.sqrt(mean * (1 - mean) * 2 / K)
    for factor, expected in ((1.01, None), (0.99, [0, K, 0, 0])):
        assert bisection(2, seen, ValuesConfig(k=K, threshold=distance * factor)) == expected


def test_samples_that_pass_count_towards_k():
    seen = Seen([[0.0] * 4, [1.0], [1.0] * 9], [0.0] * 3, 1.0)
    assert bisection(0, seen, ValuesConfig(k=K)) == [K - 4, 0, 0]
    seen.returns[0] += [0.0, 0.0]
    assert bisection(1, seen, ValuesConfig(k=K)) == [0, K - 1, 0]


def steps(num_steps: int, **fields) -> Episode:
    ends = list(range(2, 2 * num_steps + 1, 2))
    return cases.episode([cases.BOS], [3] * (2 * num_steps), step_ends=ends, **fields)


def known(cfg: Config, episode: Episode, truth: list[float]) -> Episode:
    """The episode with values, if every continuation of state c returns truth[c]."""

    def draw(wanted: list[ValuedState]) -> list[Sample]:
        return [Sample(np.zeros(0, int), s.used, [], [], truth[s.used // 2]) for s in wanted]

    (filled,), _ = fill_drawn([episode], cfg, draw)
    return filled


def test_steps_of_a_span_share_what_it_gained():
    cfg = config(k=K, allocation="bisection")
    truth = [0.0] * 6 + [1.0] * 10
    one = known(cfg, steps(16, reward=1.0), truth)
    assert one.value_counts is not None
    sampled = halvings(16, 5)
    assert np.flatnonzero(one.value_counts).tolist() == sorted(sampled) == [0, 4, 5, 6, 8]
    (advantages,) = credit_by_step([one], cfg)[:, :16]
    expected = np.zeros(16)
    expected[5] = 1.0  # the deciding step
    np.testing.assert_allclose(advantages, expected, atol=1e-6)


def test_a_difference_within_the_error_is_spread_over_its_steps():
    cfg = config(k=K, allocation="bisection", threshold=100.0)
    one = known(cfg, steps(10, reward=0.75), [0.25] * 10)
    assert one.value_counts is not None and one.value_counts.tolist() == [K] + [0] * 9
    np.testing.assert_allclose(credit_by_step([one], cfg)[0, :10], 0.05, atol=1e-6)
    # Two spans, of 4 and 6 steps, with one value each: U is on a line, V is not.
    rewards = [0.5, 0.0, 0.0, 0.5, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0]
    stepped = known(cfg, steps(10, reward=0.75, step_rewards=rewards), [0.25] * 10)
    np.testing.assert_allclose(credit_by_step([stepped], cfg)[0, :10], 0.175, atol=1e-6)


def test_all_advantages_still_add_up():
    rng = np.random.default_rng(0)
    for max_states in (None, 5):
        cfg = config(k=K, allocation="bisection", threshold=0.7, max_states=max_states)
        for num_steps in (1, 2, 5, 13, 24):
            truth, own = rng.random(num_steps).tolist(), rng.normal(size=num_steps)
            one = steps(num_steps, reward=0.75, step_rewards=own.tolist())
            one = known(cfg, one, truth)
            assert one.values is not None and one.value_counts is not None
            advantages = credit_by_step([one], cfg)[0, :num_steps]
            total = sum(one.rewards) - one.values[0]
            np.testing.assert_allclose(advantages.sum(), total, atol=1e-5)
            spans = [*np.flatnonzero(one.value_counts), min(num_steps, (max_states or 99) + 1)]
            for start, end in zip(spans, spans[1:], strict=False):
                np.testing.assert_allclose(
                    advantages[start:end], advantages[start:end].mean(), atol=1e-5
                )
            assert not advantages[spans[-1] :].any()
