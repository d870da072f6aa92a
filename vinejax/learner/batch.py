"""Ragged episodes to rectangular batches, once an iteration; batches to minibatches.

A batch lives on the host, the same on every one, and enters a compiled program as a whole, which
lays it out over the devices (`learner/update.py`): it is some megabytes, and weights are what takes
room. What comes back, log-probabilities and values, is fetched as soon as it is there.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar, cast

import jax
import numpy as np

from vinejax.learner.score import score
from vinejax.model.decoder import Decoder, Params
from vinejax.rl.advantages import step_advantages, token_advantages
from vinejax.rl.masked import whiten
from vinejax.seeds import host_rng
from vinejax.settings import Config, PPOConfig
from vinejax.shapes import bucket
from vinejax.types import Batch, Episode

Rows = TypeVar("Rows")  # arrays [B, ...] in any nest of tuples
Item = TypeVar("Item")


def collate(episodes: list[Episode], rows: int, longest: int = 0) -> Batch:
    """Tokens, positions and masks of the episodes, right-padded; advantages and log-probs are 0.

    T is the bucket of the longest episode, or of `longest` tokens if that is more; B the next
    multiple of `rows` (empty rows fill up, so nothing is dropped). Masks come from lengths: a pad
    id that is also the EOS id does no harm.
    """
    length = bucket(max(longest, *(len(episode.tokens) for episode in episodes)), least=32)
    shape = (-(-len(episodes) // rows) * rows, length)
    tokens, segment_ids, positions = (np.zeros(shape, np.int32) for _ in range(3))
    mask = np.zeros(shape, bool)
    for row, episode in enumerate(episodes):
        n = len(episode.tokens)
        tokens[row, :n] = episode.tokens
        segment_ids[row, :n] = 1
        positions[row, :n] = np.arange(n)
        mask[row, len(episode.prompt) : n] = True
    zeros = [np.zeros(shape, np.float32) for _ in range(3)]
    return Batch(*cast(Any, (tokens, segment_ids, positions, mask, *zeros)))


def with_logprobs(
    model: Decoder, params: Params, reference: Params, batch: Batch, episodes: list[Episode],
    cfg: Config,
) -> Batch:  # fmt: skip
    """The batch with the log-probabilities of the policy that sampled it and of the reference.

    The policy's are those of the episodes' own trunks where the engine could give them, which
    saves a forward pass; otherwise `score` gives them.
    """

    def by_score(weights: Params) -> np.ndarray:
        size = cfg.ppo.microbatch or cfg.ppo.minibatch
        parts = [score(model, weights, x, cfg.sample.temperature) for x in slices(batch, size)]
        return np.concatenate(jax.device_get(parts))

    if all(episode.scored is not None for episode in episodes):
        own = np.zeros(batch.tokens.shape, np.float32)
        for row, episode in enumerate(episodes):
            own[row, len(episode.prompt) : len(episode.tokens)] = episode.scored
        old = own
    else:
        old = by_score(params)
    return batch._replace(old_logprobs=old, ref_logprobs=by_score(reference))


class StepLayout(NamedTuple):
    """Where the episodes' steps lie in the rows of their batch, and what comes with them."""

    step_ids: np.ndarray  # i32[B, T] the step of each response token, -1 elsewhere
    num_steps: np.ndarray  # i32[B]
    rewards: np.ndarray  # f32[B, C]
    values: np.ndarray  # f32[B, C] Monte Carlo values, 0 where there are none


def step_layout(batch: Batch, episodes: list[Episode]) -> StepLayout:
    shape = (batch.tokens.shape[0], bucket(max(len(e.step_ends) for e in episodes)))
    rewards, values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    num_steps = np.zeros(shape[0], np.int32)
    step_ids = np.full(batch.tokens.shape, -1, np.int32)
    for row, episode in enumerate(episodes):
        steps = num_steps[row] = len(episode.step_ends)
        rewards[row, :steps] = episode.rewards
        if episode.values is not None:
            values[row, :steps] = episode.values
        start = len(episode.prompt)
        lengths = np.diff([0, *episode.step_ends])
        step_ids[row, start : start + len(episode.response)] = np.repeat(np.arange(steps), lengths)
    return StepLayout(step_ids, num_steps, rewards, values)


def with_advantages(
    batch: Batch, episodes: list[Episode], ppo: PPOConfig
) -> tuple[Batch, np.ndarray]:
    """The batch with VinePPO's advantages of episodes whose values are filled.

    They are whitened where `ppo.whiten` is 'iteration'. Also the steps' own, f32[B, C], before
    whitening: what the report shows.
    """
    layout = step_layout(batch, episodes)
    by_step = step_advantages(layout.values, layout.rewards, layout.num_steps, ppo.gamma)
    by_token = token_advantages(by_step, layout.step_ids)
    if ppo.whiten == "iteration":
        by_token = whiten(by_token, batch.mask, shift_mean=ppo.shift_mean)
    return batch._replace(advantages=np.asarray(by_token)), np.asarray(by_step)


def shuffled(
    items: list[Item], size: int, seed: int, iteration: int, epoch: int
) -> Iterator[list[Item]]:
    """One epoch of `items` in lists of `size`, the last one shorter, in an order as that above."""
    rng = host_rng(seed, iteration, "shuffled", epoch)
    order = rng.permutation(len(items))
    for start in range(0, len(items), size):
        yield [items[i] for i in order[start : start + size]]


def slices(rows: Rows, size: int) -> Iterator[Rows]:
    """Arrays [B, ...], such as those of a batch, in consecutive parts of `size` rows."""
    for start in range(0, jax.tree.leaves(rows)[0].shape[0], size):
        yield jax.tree.map(lambda x, i=start: x[i : i + size], rows)


def minibatches(rows: Rows, size: int, seed: int, iteration: int, epoch: int) -> Iterator[Rows]:
    """One epoch in an order that depends on (seed, iteration, epoch) alone."""
    rng = host_rng(seed, iteration, "minibatches", epoch)
    order = rng.permutation(jax.tree.leaves(rows)[0].shape[0])
    yield from slices(jax.tree.map(lambda x: x[order], rows), size)
