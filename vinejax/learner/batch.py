"""Ragged episodes to rectangular batches, once an iteration; batches to minibatches."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from vinejax.config import Config, PPOConfig
from vinejax.learner.score import score
from vinejax.model.decoder import Decoder, Params
from vinejax.rl.advantages import step_advantages, token_advantages
from vinejax.rl.masked import whiten
from vinejax.rollout.engine import bucket
from vinejax.types import Batch, Episode, row_seed


def collate(episodes: list[Episode], rows: int) -> Batch:
    """Tokens, positions and masks of the episodes, right-padded; advantages and log-probs are 0.

    T is the bucket of the longest episode, B the next multiple of `rows` (empty rows fill up, so
    nothing is dropped). Masks come from lengths: a pad id that is also the EOS id does no harm.
    """
    length = bucket(max(len(episode.tokens) for episode in episodes), least=32)
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
    return Batch(*map(jnp.asarray, (tokens, segment_ids, positions, mask, *zeros)))


def with_logprobs(
    model: Decoder, params: Params, reference: Params, batch: Batch, cfg: Config
) -> Batch:
    """The batch with the log-probabilities of the policy that sampled it and of the reference."""

    def scored(weights: Params) -> jax.Array:
        size = cfg.ppo.microbatch or cfg.ppo.minibatch
        parts = [score(model, weights, x, cfg.sample.temperature) for x in slices(batch, size)]
        return jnp.concatenate(parts)

    return batch._replace(old_logprobs=scored(params), ref_logprobs=scored(reference))


def with_advantages(
    batch: Batch, episodes: list[Episode], ppo: PPOConfig
) -> tuple[Batch, np.ndarray]:
    """The batch with the advantages of episodes whose values are filled, whitened as configured.

    Also the steps' own, f32[B, C], before whitening: what the report shows.
    """
    shape = (batch.tokens.shape[0], bucket(max(len(e.step_ends) for e in episodes)))
    values, num_steps = np.zeros(shape, np.float32), np.zeros(shape[0], np.int32)
    rewards = np.zeros(shape[0], np.float32)
    step_ids = np.full(batch.tokens.shape, -1, np.int32)
    for row, episode in enumerate(episodes):
        steps = len(episode.step_ends)
        num_steps[row], rewards[row] = steps, episode.reward
        values[row, :steps] = episode.values
        start = len(episode.prompt)
        lengths = np.diff([0, *episode.step_ends])
        step_ids[row, start : start + len(episode.response)] = np.repeat(np.arange(steps), lengths)
    by_step = step_advantages(values, rewards, num_steps, ppo.gamma)
    by_token = token_advantages(by_step, step_ids)
    if ppo.whiten == "iteration":
        by_token = whiten(by_token, batch.mask, shift_mean=ppo.shift_mean)
    return batch._replace(advantages=by_token), np.asarray(by_step)


def slices(batch: Batch, size: int) -> Iterator[Batch]:
    """The batch in consecutive parts of `size` rows."""
    for start in range(0, batch.tokens.shape[0], size):
        yield Batch(*(x[start : start + size] for x in batch))


def minibatches(batch: Batch, size: int, seed: int, iteration: int, epoch: int) -> Iterator[Batch]:
    """One epoch in an order that depends on (seed, iteration, epoch) alone."""
    rng = np.random.default_rng(row_seed(seed, iteration, "minibatches", rollout=epoch))
    order = rng.permutation(batch.tokens.shape[0])
    yield from slices(Batch(*(x[order] for x in batch)), size)
