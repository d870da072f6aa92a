"""Log-probabilities and values of given tokens, by a forward pass over whole sequences.

The engine gives the log-probability of each token that it draws, at the sampling temperature.
OpenAI's interface has them at temperature 1, also of the prompt's tokens and of alternatives.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vinejax.core.shapes import row_length
from vinejax.model.decoder import Decoder, Params
from vinejax.model.hf.weights import RewardModel
from vinejax.model.sharding import num_shards, replicate

BLOCK = 64  # positions whose logits are in memory at a time
COUNTS = (1, 5, 20)  # numbers of alternatives for which there are programs


class TokenLogprobs(NamedTuple):
    """Log-probabilities of a sequence of T tokens; those of the first token mean nothing."""

    own: np.ndarray  # f32[T] of each token, given the tokens before it
    best: np.ndarray  # i32[T, n] the n likeliest tokens in its place
    best_logprobs: np.ndarray  # f32[T, n]


def token_logprobs(
    model: Decoder, params: Params, sequences: Sequence[Sequence[int]], count: int
) -> list[TokenLogprobs]:
    """The log-probabilities of each sequence at temperature 1, with at least `count` alternatives.

    A vocabulary of fewer tokens has fewer alternatives. If a token is the likeliest, its own number
    is that of the first alternative to the bit.
    """
    most = min(next(n for n in COUNTS if n >= count), model.cfg.vocab_size)
    found = []
    for tokens, part in _padded(model, sequences):
        arrays = jax.device_get(_logprobs(model, params, tokens, most))
        for row, ids in enumerate(part):
            found.append(TokenLogprobs(*(np.asarray(x)[row, : len(ids)] for x in arrays)))
    return found


def values_after(scorer: RewardModel, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """f32[T] for each sequence: the value of the text up to each token, without `per_token`."""
    found = []
    kernel = np.asarray(scorer.kernel, np.float32)
    for tokens, part in _padded(scorer.model, sequences):
        values = np.asarray(_values(scorer.model, scorer.params, kernel, tokens)) + scorer.bias
        found += [values[row, : len(ids)] for row, ids in enumerate(part)]
    return found


def _padded(
    model: Decoder, sequences: Sequence[Sequence[int]]
) -> Iterator[tuple[np.ndarray, Sequence[Sequence[int]]]]:
    """(i32[B, T] tokens, then -1; the B or fewer sequences in them) for parts of `sequences`.

    A pass has a row per shard, so that it divides over any mesh.
    """
    rows = 1 if model.mesh is None else num_shards(model.mesh)
    for start in range(0, len(sequences), rows):
        part = sequences[start : start + rows]
        tokens = np.full((rows, max(map(row_length, map(len, part)))), -1, np.int32)
        for row, ids in enumerate(part):
            tokens[row, : len(ids)] = ids
        yield tokens, part


def _hidden(model: Decoder, params: Params, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    is_token = (tokens >= 0).astype(jnp.int32)
    return model.hidden(params, jnp.maximum(tokens, 0), positions, is_token)[0]


@functools.partial(jax.jit, static_argnames=("model", "most"))
def _logprobs(
    model: Decoder, params: Params, tokens: Int[Array, "B T"], most: int
) -> tuple[Float[Array, "B T"], Int[Array, "B T n"], Float[Array, "B T n"]]:
    """The arrays of `TokenLogprobs`; the state before a token predicts it."""
    x = _hidden(model, params, tokens)
    blocks = -(-tokens.shape[1] // BLOCK)
    padding = [(0, 0), (0, blocks * BLOCK - tokens.shape[1])]
    own = jnp.pad(jnp.roll(jnp.maximum(tokens, 0), -1, axis=1), padding)
    x = jnp.pad(x, [*padding, (0, 0)])

    def of_block(i: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        part = jax.lax.dynamic_slice_in_dim(x, i * BLOCK, BLOCK, axis=1)
        chosen = jax.lax.dynamic_slice_in_dim(own, i * BLOCK, BLOCK, axis=1)
        logprobs = jax.nn.log_softmax(model.logits(params, part))
        best_logprobs, best = jax.lax.top_k(logprobs, most)
        return (
            jnp.take_along_axis(logprobs, chosen[..., None], axis=-1)[..., 0],
            best,
            best_logprobs,
        )

    def whole(of_blocks: jax.Array) -> jax.Array:
        rows = jnp.moveaxis(of_blocks, 0, 1)  # [B, blocks, BLOCK, ...]
        rows = rows.reshape(rows.shape[0], blocks * BLOCK, *rows.shape[3:])
        return jnp.roll(rows[:, : tokens.shape[1]], 1, axis=1)

    return replicate(jax.tree.map(whole, jax.lax.map(of_block, jnp.arange(blocks))), model.mesh)


@functools.partial(jax.jit, static_argnames="model")
def _values(
    model: Decoder, params: Params, kernel: Float[Array, " D"], tokens: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    # The final norm and one output column are those of a decoder with a vocabulary of size 1.
    cfg = dataclasses.replace(model.cfg, tied_head=False, logit_softcap=None, logit_divisor=1.0)
    output = {**params, "head": kernel[:, None]}
    values = dataclasses.replace(model, cfg=cfg).logits(output, _hidden(model, params, tokens))
    return replicate(values[..., 0], model.mesh)
