"""The samples that count at each state, compared with a loop over all prefixes."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from helpers.chain_cases import fill_drawn
from helpers.vine_cases import RIGHT, Task, config, episode, fill

from vinejax.core.types import Problem
from vinejax.credit.samples import PassingSamples, Sample

END = 9


def random_sample(rng, tokens: list[int], start: int, with_steps: bool) -> Sample:
    ends: list[int] = []
    if with_steps and tokens:
        inner = rng.choice(len(tokens), size=rng.integers(0, len(tokens)), replace=False)
        ends = sorted({int(x) for x in inner if x > 0} | {len(tokens)})
    rewards = rng.normal(size=len(ends)).tolist()
    return Sample(np.array(tokens, np.int32), start, ends, rewards, float(rng.integers(2)))


def slow_return(sample: Sample, used: int, gamma: float) -> float:
    total, discount = 0.0, 1.0
    for end, reward in zip(sample.ends, sample.rewards, strict=True):
        if end > used:
            total += discount * (reward + (sample.outcome if end == sample.ends[-1] else 0.0))
            discount *= gamma
    return total if sample.ends else sample.outcome


@pytest.mark.parametrize("with_steps, gamma", [(False, 1.0), (True, 1.0), (True, 0.5)])
def test_returns_at_states_equal_the_loop(with_steps: bool, gamma: float):
    rng = np.random.default_rng(int(10 * gamma) + with_steps)

    def letters(longest: int) -> list[int]:
        """Letters from a small alphabet, so that prefixes are shared, and END."""
        return [*rng.integers(0, rng.integers(1, 4), rng.integers(0, longest)).tolist(), END]

    for _ in range(40):
        responses = [letters(7) for _ in range(rng.integers(1, 7))]
        positions = [sorted({int(x) for x in rng.integers(0, len(r), 4)}) for r in responses]
        states = [(i, c) for i, of_one in enumerate(positions) for c in range(len(of_one))]
        passing = PassingSamples(responses, positions, gamma)
        expected: list[list[list[float]]] = [[[] for _ in of_one] for of_one in positions]
        for j, response in enumerate(responses):
            for k in range(rng.integers(1, 4)):  # the solution, then continuations of a prefix
                start = int(rng.integers(0, len(response))) if k else 0
                tokens = response[:start] + letters(5) if k else response
                sample = random_sample(rng, tokens, start, with_steps)
                own = {(j, c) for c, used in enumerate(positions[j]) if not k or used == start}
                passing.add(sample, counted=own)
                for i, c in states:
                    used = positions[i][c]
                    is_shared = start <= used and tokens[:used] == responses[i][:used]
                    if is_shared and (i, c) not in own:
                        expected[i][c].append(slow_return(sample, used, gamma))
        for found, by_hand in zip(passing.returns, expected, strict=True):
            assert [len(x) for x in found] == [len(x) for x in by_hand]
            for a, b in zip(found, by_hand, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-12)


def test_return_of_a_sample_by_hand():
    sample = Sample(np.arange(9, dtype=np.int32), 2, [3, 6, 9], [1.0, 2.0, 4.0], 16.0)
    for used, expected in ((0, 1 + 1.0 + 5.0), (2, 7.0), (3, 2 + 10.0), (5, 12.0), (6, 20.0)):
        assert sample.return_from(used, 0.5) == expected
    assert sample.return_from(3, 1.0) == 22.0
    plain = Sample(np.arange(9, dtype=np.int32), 2, [], [], 0.75)
    assert plain.return_from(4, 1.0) == 0.75


def test_each_return_counts_once():
    """Own continuations, siblings and siblings' continuations count; the solution does not."""
    first = episode((*RIGHT[:1], "\n5-1=4", "\n#### 4"), reward=1.0)
    second = episode((*RIGHT[:1], "\n5-1=5", "\n#### 5"), reward=0.25)
    assert first.step_ends[:1] == second.step_ends[:1]
    rewards = iter(2.0 ** -np.arange(4, 40))
    drawn: list[tuple[int, tuple[int, ...], float]] = []

    def draw(wanted):
        samples = []
        for state in wanted:  # every continuation repeats the rest of the first solution
            tokens = np.array(first.response, np.int32)
            if state.episode is not first:
                tokens = np.array([*state.episode.response[: state.used], 3], np.int32)
            samples.append(Sample(tokens, state.used, [], [], float(next(rewards))))
            drawn.append((state.used, tuple(tokens.tolist()), samples[-1].outcome))
        return samples

    for dedup in (True, False):
        drawn.clear()
        rewards = iter(2.0 ** -np.arange(4, 40))
        cfg = config(k=2, reuse=True, dedup=dedup)
        filled, _ = fill_drawn([first, second], cfg, draw)
        for one, other in zip(filled, reversed(filled), strict=True):
            assert one.values is not None and one.value_counts is not None
            for c, used in enumerate([0, *one.step_ends[:-1]]):
                prefix = tuple(one.response[:used])
                all_of = [r for start, x, r in drawn if start <= used and x[:used] == prefix]
                all_of += [other.reward] if tuple(other.response[:used]) == prefix else []
                assert one.value_counts[c] == len(all_of)
                np.testing.assert_allclose(one.values[c], np.mean(all_of), rtol=1e-6)
        assert filled[0].reused is not None and filled[0].reused[0] == (1 if dedup else 3)


class Stepped(Task):
    def step_rewards(self, problem: Problem, steps: Sequence[str]) -> list[float]:
        return [0.5] * len(steps)


def test_step_rewards_of_a_sibling_count_from_the_state_on():
    first, second = episode(RIGHT, reward=1.0), episode((RIGHT[0], "\n5-1=5"), reward=0.25)
    rewarded = [
        dataclasses.replace(first, step_rewards=[2.0, 4.0]),
        dataclasses.replace(second, step_rewards=[2.0, 8.0]),
    ]
    cfg = config(k=1, reuse=True)
    filled, _ = fill(rewarded, cfg, lambda *_: ("\n7", "eos"), Stepped())
    for one, other in zip(filled, reversed(filled), strict=True):
        assert one.values is not None and one.reused is not None
        own = [group[0].reward for group in one.continuations]
        expected = [(own[c] + sum(other.rewards[c:])) / 2 for c in range(2)]
        assert one.reused.tolist() == [1, 1] and sum(own) > 0
        np.testing.assert_allclose(one.values, expected, rtol=1e-6)
