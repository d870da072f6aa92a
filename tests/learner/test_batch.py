"""Batches from episodes: masks from lengths, advantages of steps, minibatches."""

import dataclasses
import itertools

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import rl_oracles as oracle
from helpers.applied import assign_credit

from vinejax.core.types import Episode, Rollout
from vinejax.learner.batch import (
    collate,
    collate_groups,
    epochs_of,
    minibatch_rows,
    minibatches,
    shuffled_lists,
    step_layout,
)

EOS = cases.EOS
# (prompt, response, step ends, values, reward). The EOS belongs to the last step. The token budget
# ended the fourth response, and the fifth is empty.
ROWS = [
    ([0, 5, 6], [7, 8, 9, 10, EOS], [2, 5], [0.25, 0.5], 1.0),
    ([0, 5, 6], [7, EOS], [2], [0.25], 0.0),
    ([0, 9], [3, 3, 4, 4, 4, 5, EOS], [2, 5, 7], [0.5, 0.0, 0.75], 0.75),
    ([0, 9], [3, 4, 4], [1, 3], [0.5, 0.125], 0.0),
    ([0, 4], [], [], [], 1.0),
]


def valued_episodes() -> list[Episode]:
    return [
        cases.episode(p, r, step_ends=ends, values=np.array(v, np.float32), reward=reward)
        for p, r, ends, v, reward in ROWS
    ]


@pytest.mark.parametrize("rows, height", [(1, 5), (2, 6), (4, 8), (64, 64)])
def test_collate(rows, height):
    batch = collate(valued_episodes(), rows)
    assert batch.tokens.shape == (height, 32)
    arrays = {name: np.asarray(x) for name, x in batch._asdict().items()}
    for b in range(height):
        prompt, response = ROWS[b][:2] if b < len(ROWS) else ([], [])
        tokens, n, width = prompt + response, len(prompt + response), 32
        pad = [0] * (width - n)
        assert arrays["tokens"][b].tolist() == tokens + pad
        assert arrays["segment_ids"][b].tolist() == [1] * n + pad
        assert arrays["positions"][b].tolist() == [*range(n), *pad]
        is_response = [False] * len(prompt) + [True] * len(response)
        assert arrays["mask"][b].tolist() == is_response + [False] * (width - n)
    for name in ("advantages", "old_logprobs", "ref_logprobs"):
        assert arrays[name].dtype == np.float32 and not arrays[name].any()


def test_no_token_is_lost_to_a_long_episode():
    lengths = [(3, 30), (20, 60), (2, 0), (40, 8)]
    episodes = cases.random_episodes(lengths)
    batch = collate(episodes, 4)
    assert batch.tokens.shape[1] >= 80
    assert [int(x) for x in batch.mask.sum(axis=1)] == [r for _, r in lengths]
    for row, episode in enumerate(episodes):
        found = np.asarray(batch.tokens[row])[np.asarray(batch.segment_ids[row]) == 1]
        assert found.tolist() == episode.tokens
    assert collate(episodes, 4, longest=100).tokens.shape[1] == 128


def test_episodes_of_a_group_lie_one_after_another():
    long, short = cases.episode([0, 5, 6], [7, 8, EOS]), cases.episode([0, 9], [3, EOS])
    batch = collate_groups([(long, short), (short,)], rows=3, longest=40)
    assert batch.tokens.shape == (3, 48)
    assert batch.tokens[0, :11].tolist() == [*long.tokens, *short.tokens, 0]
    assert batch.segment_ids[:, :11].tolist() == [
        [1] * 6 + [2] * 4 + [0],
        [1] * 4 + [0] * 7,
        [0] * 11,
    ]
    assert batch.positions[0, :11].tolist() == [*range(6), *range(4), 0]
    assert [row.nonzero()[0].tolist() for row in batch.mask] == [[3, 4, 5, 8, 9], [2, 3], []]


def test_given_tokens_are_not_trained_on():
    whole = cases.episode([0, 5, 6], [7, 8, 9, 10, EOS], step_ends=[2, 5], reward=1.0)
    part = dataclasses.replace(whole, given=2, step_ends=[3, 5])
    batch = collate([part, whole], 2)
    assert batch.mask[0].nonzero()[0].tolist() == [5, 6, 7]
    steps = step_layout(batch, [part, whole])
    assert steps.step_ids[0, 3:9].tolist() == [-1, -1, 0, 1, 1, -1]
    assert steps.step_ids[1, 3:9].tolist() == [0, 0, 1, 1, 1, -1]


def test_more_rows_make_larger_minibatches():
    assert minibatch_rows(256, 4, 64) == minibatch_rows(250, 4, 64) == 64
    assert minibatch_rows(257, 4, 64) == minibatch_rows(512, 4, 64) == 128
    assert [minibatch_rows(n, 4, 64) // 64 for n in (513, 1000, 1100, 1600)] == [3, 4, 6, 8]


def by_hand(gamma: float) -> np.ndarray:
    """The advantage of every response token, [8, 32], before whitening."""
    out = np.zeros((8, 32))
    for b, (prompt, _, ends, values, reward) in enumerate(ROWS):
        starts = [0, *ends]
        for c, end in enumerate(ends):
            after = gamma * values[c + 1] if c + 1 < len(ends) else reward
            for t in range(starts[c], end):
                out[b, len(prompt) + t] = after - values[c]
    return out


@pytest.mark.parametrize("whiten", ["none", "minibatch", "iteration"])
@pytest.mark.parametrize("gamma, shift_mean", [(1.0, True), (0.9, False)])
def test_advantages_equal_the_loop(whiten, gamma, shift_mean):
    episodes = valued_episodes()
    batch = collate(episodes, 4)
    cfg = cases.config(ppo={"gamma": gamma, "shift_mean": shift_mean})
    rollout = Rollout(episodes, batch, step_layout(batch, episodes))
    found = assign_credit(rollout, cfg, whiten)
    by_step = np.asarray(found.by_step)
    expected = by_hand(gamma)
    assert np.unique(expected).size > 6
    for b, (_, _, ends, values, reward) in enumerate(ROWS):
        steps = [*(gamma * v for v in values[1:]), reward][: len(ends)]
        steps = np.array(steps) - np.array(values)
        np.testing.assert_allclose(by_step[b, : len(ends)], steps, atol=1e-6)
        assert not by_step[b, len(ends) :].any()
        if gamma == 1.0 and ends:
            np.testing.assert_allclose(by_step[b].sum(), reward - values[0], atol=1e-6)
    if whiten == "iteration":  # over all response tokens of the iteration together
        expected = oracle.whiten(expected, np.asarray(batch.mask), shift_mean)
    np.testing.assert_allclose(found.advantages, expected, atol=1e-5)


def test_each_row_comes_once_an_epoch():
    batch = collate(cases.random_episodes([(2, 3)] * 22, seed=3), 8)
    batch = batch._replace(advantages=np.arange(24.0)[:, None] + np.zeros((24, 32)))
    parts = list(minibatches(batch, 8, seed=1, iteration=2, epoch=0))
    assert [part.tokens.shape for part in parts] == [(8, 32)] * 3
    order = np.concatenate([part.advantages[:, 0] for part in parts]).astype(int)
    assert sorted(order.tolist()) == list(range(24)) and order.tolist() != list(range(24))
    arrays = {name: x for name, x in batch._asdict().items() if x is not None}
    for name, x in arrays.items():  # all arrays in the same order
        found = np.concatenate([np.asarray(getattr(part, name)) for part in parts])
        np.testing.assert_array_equal(found, np.asarray(x)[order], err_msg=name)


def test_the_order_depends_on_seed_iteration_and_epoch_alone():
    batch = collate(cases.random_episodes([(2, 3)] * 16), 8)
    other = batch._replace(tokens=batch.tokens + 0, advantages=batch.advantages + 1)

    def order(of, *place: int) -> tuple[int, ...]:
        numbered = of._replace(positions=np.arange(16)[:, None] + np.zeros((16, 32), int))
        parts = minibatches(numbered, 8, *place)
        return tuple(int(x) for part in parts for x in part.positions[:, 0])

    places = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    orders = {order(batch, *place) for place in places}
    assert len(orders) == 4
    assert {order(other, *place) for place in places} == orders


def test_shuffled_lists_have_each_item_once():
    items = list(range(20))
    orders = [items]
    for place in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)):
        lists = list(shuffled_lists(items, 8, *place))
        assert [len(part) for part in lists] == [8, 8, 4]
        orders.append([*itertools.chain.from_iterable(lists)])
    assert all(sorted(order) == items for order in orders)
    assert len(set(map(tuple, orders))) == 5


def test_each_epoch_has_all_examples_in_batches_of_one_shape():
    examples = cases.random_episodes([(2, 3)] * 6 + [(4, 40)])
    batches = list(epochs_of(examples, epochs=2, size=3, seed=1, iteration=2))
    assert [batch.tokens.shape for batch in batches] == [(3, 48)] * 6
    orders = []
    for parts in (batches[:3], batches[3:]):
        rows = [(b.tokens[i], b.segment_ids[i] == 1) for b in parts for i in range(3)]
        orders.append([tokens[is_token].tolist() for tokens, is_token in rows if is_token.any()])
        assert sorted(orders[-1]) == sorted(example.tokens for example in examples)
    assert orders[0] != orders[1]
    (wide, *_) = epochs_of(examples, epochs=1, size=3, seed=1, iteration=2, longest=60)
    assert wide.tokens.shape == (3, 64)
