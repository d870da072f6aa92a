"""Turns episodes of different lengths into batches, and batches into minibatches.

A batch is in host memory and is the same on every host. It takes 29 to 45 bytes per token of its
rows, in total some megabytes. Compiled programs take a whole batch and lay it out over the devices
(`learner/update.py`). The host fetches log-probabilities and values as soon as they are computed.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import jax
import numpy as np

from vinejax.core.seeds import host_rng
from vinejax.core.shapes import bucket, doubled, row_length
from vinejax.core.types import Batch, Episode, StepLayout

RowArrays = TypeVar("RowArrays")  # arrays [B, ...] in any nest of tuples
Item = TypeVar("Item")


def collate(episodes: list[Episode], rows: int, longest: int = 0) -> Batch:
    """A batch [B, T] with one episode per row, padded on the right.

    Advantages and log-probabilities are zeros. T is `longest` or the length of the longest episode,
    whichever is greater, rounded up by `shapes.row_length`. B is the number of episodes, rounded up
    to a multiple of `rows`. Masks come from lengths, so the pad id may also be the EOS id.
    """
    return collate_groups([(episode,) for episode in episodes], rows, longest)


def collate_groups(groups: Sequence[Sequence[Episode]], rows: int, longest: int = 0) -> Batch:
    """Like `collate`, but each row has all episodes of a group, as segments 1, 2, ...

    Here `longest` counts the tokens of all episodes of a group together.
    """
    totals = [sum(len(episode.tokens) for episode in group) for group in groups]
    shape = (-(-len(groups) // rows) * rows, row_length(max(longest, *totals)))
    tokens, segment_ids, positions = (np.zeros(shape, np.int32) for _ in range(3))
    mask = np.zeros(shape, bool)
    for row, group in enumerate(groups):
        start = 0
        for number, episode in enumerate(group, start=1):
            n = len(episode.tokens)
            end = start + n
            tokens[row, start:end] = episode.tokens
            segment_ids[row, start:end] = number
            positions[row, start:end] = np.arange(n)
            mask[row, start + len(episode.prompt) : end] = episode.is_drawn
            start = end
    return Batch(
        tokens=tokens,
        segment_ids=segment_ids,
        positions=positions,
        mask=mask,
        advantages=np.zeros(shape, np.float32),
        old_logprobs=np.zeros(shape, np.float32),
        ref_logprobs=np.zeros(shape, np.float32),
    )


def token_rows(
    shape: tuple[int, ...], episodes: list[Episode], values: Sequence[Sequence[float]]
) -> np.ndarray:
    """f32[B, T]: `values` at the places that response tokens have in a batch; 0 elsewhere.

    `values` has one number per response token for each episode.
    """
    rows = np.zeros(shape, np.float32)
    for row, (episode, numbers) in enumerate(zip(episodes, values, strict=True)):
        rows[row, len(episode.prompt) : len(episode.tokens)] = numbers
    return rows


def minibatch_rows(num_rows: int, count: int, minibatch: int) -> int:
    """The number of rows of a minibatch if `count` minibatches are to hold `num_rows` rows.

    The result is `minibatch` if `num_rows` is at most count * minibatch. A rollout has more rows
    if it has resets, or trees with more than `rollout.per_prompt` leaves. For more rows, the result
    is a multiple of `minibatch`. So `count`, on which the decay of the learning rate depends, need
    not change. Only few multiples are possible, because every size needs another compiled program.
    Surplus rows are empty.
    """
    multiple = -(-num_rows // (count * minibatch))
    return minibatch * (multiple if multiple == 1 else bucket(multiple, least=2))


def step_layout(batch: Batch, episodes: list[Episode]) -> StepLayout:
    """The `StepLayout` of a batch. Axis C has the largest number of steps, rounded up."""
    shape = (batch.tokens.shape[0], doubled(max(len(e.step_ends) for e in episodes), least=64))
    rewards, values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    counts = np.full(shape, -1, np.int32)
    num_steps = np.zeros(shape[0], np.int32)
    step_ids = np.full(batch.tokens.shape, -1, np.int32)
    for row, episode in enumerate(episodes):
        steps = num_steps[row] = len(episode.step_ends)
        rewards[row, :steps] = episode.rewards
        if episode.values is not None:
            values[row, :steps] = episode.values
        if episode.is_state is not None and episode.value_counts is not None:
            counts[row, :steps] = np.where(episode.is_state, episode.value_counts, -1)
        start = len(episode.prompt) + episode.given
        lengths = np.diff([episode.given, *episode.step_ends])
        of_tokens = np.repeat(np.arange(steps), lengths)
        is_drawn = episode.is_drawn[episode.given :]
        step_ids[row, start : len(episode.tokens)] = np.where(is_drawn, of_tokens, -1)
    return StepLayout(step_ids, num_steps, rewards, values, counts)


def shuffled_lists(
    items: list[Item], size: int, seed: int, iteration: int, epoch: int
) -> Iterator[list[Item]]:
    """Yields all items once, in shuffled lists of `size` items. The last list may be shorter.

    The order depends only on (seed, iteration, epoch).
    """
    rng = host_rng(seed, iteration, "shuffled", epoch)
    order = rng.permutation(len(items))
    for start in range(0, len(items), size):
        yield [items[i] for i in order[start : start + size]]


def epochs_of(
    examples: list[Episode], epochs: int, size: int, seed: int, iteration: int, longest: int = 0
) -> Iterator[Batch]:
    """Yields the batches of all epochs. All batches have one shape; `longest` is as for `collate`.

    The last batch of an epoch has empty rows if `size` does not divide the number of examples.
    """
    longest = max(longest, *(len(example.tokens) for example in examples))
    for epoch in range(epochs):
        for part in shuffled_lists(examples, size, seed, iteration, epoch):
            yield collate(part, size, longest)


def strided_parts(rows: RowArrays, size: int) -> Iterator[RowArrays]:
    """Divides arrays [B, ...] into n = B / `size` parts, and yields the parts.

    Part j has the rows j, j + n, j + 2n, ...
    """
    count = jax.tree.leaves(rows)[0].shape[0] // size
    for j in range(count):
        yield jax.tree.map(lambda x, j=j: x[j::count], rows)


def minibatches(
    rows: RowArrays, size: int, seed: int, iteration: int, epoch: int
) -> Iterator[RowArrays]:
    """Yields minibatches of all rows, in an order that depends only on seed, iteration, epoch."""
    rng = host_rng(seed, iteration, "minibatches", epoch)
    order = rng.permutation(jax.tree.leaves(rows)[0].shape[0])
    for start in range(0, len(order), size):
        yield jax.tree.map(lambda x, i=start: x[order[i : i + size]], rows)
