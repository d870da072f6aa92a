"""Computes log-probabilities, entropies and hidden states of the tokens of a batch.

`token_logprobs` computes the log-probabilities of the current, the old and the reference policy, at
the sampling temperature. So before the first update, probability ratios are 1 and the KL is 0.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Float32, Int

from vinejax.core.shapes import doubled
from vinejax.core.types import Batch, Episode
from vinejax.learner.batch import strided_parts, token_rows
from vinejax.learner.packing import Packing, Passes, packing_for
from vinejax.model.decoder import Decoder, Params
from vinejax.model.sharding import replicate
from vinejax.runtime.stopping import Watch

MAX_STATE_WIDTH = 256  # maximum number of values per hidden state that `narrow_states` keeps


def token_logprobs(
    model: Decoder, params: Params, batch: Batch, temperature: float
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """(log-probability of each token given the tokens before it, entropy of that distribution).

    Both are float32, and entry t belongs to `tokens[:, t]`. The first token of a sequence has no
    token before it, and its entry is 0. The first entry of a segment that shares its prefix has no
    meaning.

    Logits are divided by `temperature`. For a temperature of 0, which means argmax sampling, they
    are divided by 1, as in the sampler.
    """
    logprobs, entropy, _ = _logprobs_and_tapped(model, params, batch, temperature)
    return logprobs, entropy


def hidden_of_batch(
    model: Decoder, params: Params, batch: Batch, tap: int | None = None
) -> tuple[Float[Array, "B T D"], Any]:
    """(hidden states after the last layer, those [B, T, D] after `tap` layers or None)."""
    return model.hidden(
        params,
        batch.tokens,
        positions=batch.positions,
        segment_ids=batch.segment_ids,
        seen_until=batch.seen_until,
        tap=tap,
    )


def _logprobs_and_tapped(
    model: Decoder, params: Params, batch: Batch, temperature: float, tap: int | None = None
) -> tuple[Float[Array, "B T"], Float[Array, "B T"], Any]:
    """(results of `token_logprobs`, hidden states [B, T, D] after `tap` layers or None)."""
    x, tapped = hidden_of_batch(model, params, batch, tap)
    following = jnp.roll(batch.tokens, -1, axis=1)
    logprobs, entropy = model.logprobs_of(params, x, following, temperature or 1.0)
    return shift_right(logprobs, batch.positions), shift_right(entropy, batch.positions), tapped


def shift_right(after: Float[Array, "B T"], positions: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """Moves each entry of `after` from index t to t + 1, the index of the token that it is about.

    The result is 0 where `positions` is 0, because a sequence begins there.
    """
    return jnp.where(positions > 0, jnp.roll(after, 1, axis=1), 0.0)


@functools.partial(jax.jit, static_argnames=("model", "temperature"))
def score(model: Decoder, params: Params, batch: Batch, temperature: float) -> Float[Array, "B T"]:
    """The log-probabilities of the batch's tokens; 0 outside the mask."""
    logprobs, _ = token_logprobs(model, params, batch, temperature)
    return replicate(jnp.where(batch.mask, logprobs, 0.0), model.mesh)


class NumberedStates(NamedTuple):
    """The hidden states of those tokens of a pass that have a number, with their numbers."""

    number: Int[Array, " S"]  # number of each token, from 1; 0 at padding
    state: Float[Array, "S R"]  # hidden state of each token


@functools.partial(jax.jit, static_argnames=("model", "temperature", "most"))
def score_with_hidden(
    model: Decoder, params: Params, batch: Batch, number: Array, temperature: float, most: int
) -> tuple[Float[Array, "B T"], NumberedStates]:
    """The results of `score` and of `hidden_states`, from one forward pass."""
    logprobs, _, x = _logprobs_and_tapped(model, params, batch, temperature, num_tapped(model))
    logprobs = replicate(jnp.where(batch.mask, logprobs, 0.0), model.mesh)
    return logprobs, _numbered(model, x, number, most)


@functools.partial(jax.jit, static_argnames=("model", "most"))
def hidden_states(
    model: Decoder, params: Params, batch: Batch, number: Array, most: int
) -> NumberedStates:
    """The hidden states of the tokens with a `number` above 0, which are at most `most` tokens.

    The states are taken after half of the layers, because the last layers mainly serve to predict
    the next token. The program does not compute the layers after that.
    """
    _, x = hidden_of_batch(model, params, batch, num_tapped(model))
    return _numbered(model, x, number, most)


def _numbered(model: Decoder, x: Float[Array, "B T D"], number: Array, most: int) -> NumberedStates:
    (places,) = jnp.nonzero(number.reshape(-1), size=most, fill_value=number.size)
    chosen = narrow_states(x.reshape(-1, x.shape[-1]).at[places].get(mode="fill", fill_value=0))
    numbers = number.reshape(-1).at[places].get(mode="fill", fill_value=0)
    return jax.tree.map(lambda x: replicate(x, model.mesh), NumberedStates(numbers, chosen))


def num_tapped(model: Decoder) -> int:
    """The number of layers after which `hidden_states` takes the states."""
    return (model.cfg.num_layers + 1) // 2


def narrow_states(hidden: Float[Array, "S D"]) -> Float32[Array, "S R"]:
    """Hidden states scaled to mean square 1, with at most `MAX_STATE_WIDTH` numbers each.

    Wider states are multiplied by the random matrix `projection`, which depends only on D
    and approximately keeps inner products. R is the resulting width.
    """
    hidden, width = jnp.float32(hidden), hidden.shape[-1]
    hidden *= jax.lax.rsqrt(jnp.mean(hidden**2, axis=-1, keepdims=True) + 1e-6)
    return hidden if width <= MAX_STATE_WIDTH else hidden @ projection(width)


def projection(width: int) -> Float32[Array, "D R"]:
    """The random matrix by which `narrow_states` multiplies states of `width` numbers."""
    return jax.random.normal(jax.random.key(0), (width, MAX_STATE_WIDTH)) * width**-0.5


def scores_of(
    model: Decoder, params: Params, batch: Batch, temperature: float, passes: Passes
) -> np.ndarray:
    """The result of `score` for a whole batch, f32[B, T], as a NumPy array."""
    program = functools.partial(score, model, params, temperature=temperature)
    return run_passes(program, batch, passes, model.mesh)


def scores_and_hidden(
    model: Decoder,
    params: Params,
    batch: Batch,
    number: np.ndarray,
    temperature: float,
    passes: Passes,
) -> tuple[np.ndarray, np.ndarray]:
    """(results of `scores_of`, results of `hidden_of`), both from the same forward passes.

    `number` is as for `hidden_of`.
    """
    most = _most_numbered(batch, number, passes)

    def program(part: Batch, number: np.ndarray) -> tuple[Array, NumberedStates]:
        return score_with_hidden(model, params, part, number, temperature, most)

    packing, parts = _pass_results(program, batch, passes, model.mesh, number)
    logprobs, states = zip(*parts, strict=True)
    return _batch_rows(logprobs, packing, batch.tokens.shape[0]), _states_by_number(states)


def hidden_of(
    model: Decoder, params: Params, batch: Batch, number: np.ndarray, passes: Passes
) -> np.ndarray:
    """The states of `hidden_states` for a whole batch, as a NumPy array f32[S, R].

    `number`, i32[B, T], numbers S tokens from 1 to S and is 0 elsewhere. A row must not share
    (`prefixes.py`) a token that has a number. From the token before its first trained token on, a
    row shares none of its tokens.
    """
    most = _most_numbered(batch, number, passes)
    program = functools.partial(hidden_states, model, params, most=most)
    return _states_by_number(_pass_results(program, batch, passes, model.mesh, number)[1])


def _most_numbered(batch: Batch, number: np.ndarray, passes: Passes) -> int:
    """An upper bound on the number of numbered tokens in a pass, rounded up to one of few sizes."""
    total = int(np.count_nonzero(number))
    return doubled(min(total, passes.rows * batch.tokens.shape[1]), least=64)


def _states_by_number(parts: Sequence[NumberedStates]) -> np.ndarray:
    """f32[S, R]: the hidden states of all passes, in the order of the tokens' numbers."""
    numbers = np.concatenate([part.number for part in parts])
    states = np.concatenate([part.state for part in parts])[numbers > 0]
    hidden = np.zeros_like(states)
    hidden[numbers[numbers > 0] - 1] = states
    return hidden


@functools.partial(jax.jit, static_argnames=("model", "temperature"))
def score_with_entropy(
    model: Decoder, params: Params, batch: Batch, temperature: float
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """(results of `score`, entropy of each token's distribution), both 0 outside the mask."""
    logprobs, entropy = token_logprobs(model, params, batch, temperature)
    entropy = replicate(jnp.where(batch.mask, entropy, 0.0), model.mesh)
    return replicate(jnp.where(batch.mask, logprobs, 0.0), model.mesh), entropy


def scores_and_entropy(
    model: Decoder, params: Params, batch: Batch, temperature: float, passes: Passes
) -> tuple[np.ndarray, np.ndarray]:
    """The results of `score_with_entropy` for a whole batch, as NumPy arrays f32[B, T]."""
    program = functools.partial(score_with_entropy, model, params, temperature=temperature)
    packing, parts = _pass_results(program, batch, passes, model.mesh)
    logprobs, entropy = zip(*parts, strict=True)
    rows = batch.tokens.shape[0]
    return _batch_rows(logprobs, packing, rows), _batch_rows(entropy, packing, rows)


def run_passes(
    program: Callable[[Batch], jax.Array], batch: Batch, passes: Passes, mesh: Mesh | None
) -> np.ndarray:
    """Runs a program on a batch, one pass at a time; returns its results as f32[B, T] on the host.

    B must be a multiple of `passes.rows`. Every time the function has started a pass, it checks for
    a request to stop.
    """
    packing, parts = _pass_results(program, batch, passes, mesh)
    return _batch_rows(parts, packing, batch.tokens.shape[0])


def _pass_results(
    program: Callable[..., Any], batch: Batch, passes: Passes, mesh: Mesh | None, *more: np.ndarray
) -> tuple[Packing | None, list[Any]]:
    """(the packing or None, the list of the results of all passes as NumPy arrays).

    The packing is None if rows are not packed. `more` are further arrays [B, T] for the program.
    """
    packing, rows = None, (batch, *more)
    if passes.packed:
        packing = packing_for(batch, passes, mesh)
        rows = (packing.pack(batch), *map(packing.move, more))
    parts, watch = [], Watch()
    for part in strided_parts(rows, passes.rows):
        parts.append(program(*part))
        watch.look(parts[-1])
    return packing, jax.device_get(parts)


def _batch_rows(parts: Sequence[np.ndarray], packing: Packing | None, rows: int) -> np.ndarray:
    """The results of all passes as one array [B, T] in the order of the batch's `rows` rows."""
    rows_of_passes = np.stack(parts, axis=1).reshape(-1, parts[0].shape[-1])
    return rows_of_passes if packing is None else packing.put_back(rows_of_passes, rows)


def prefill_scores(batch: Batch, episodes: list[Episode]) -> np.ndarray | None:
    """f32[B, T]: log-probabilities from the engine's prefill; None if an episode lacks them."""
    scored = [episode.scored for episode in episodes if episode.scored is not None]
    if len(scored) < len(episodes):
        return None
    return token_rows(batch.tokens.shape, episodes, scored)


def with_logprobs(
    model: Decoder,
    params: Params,
    reference: Params | None,
    batch: Batch,
    episodes: list[Episode],
    temperature: float,
    passes: Passes,
    old: np.ndarray | None = None,
) -> Batch:
    """The batch with log-probabilities of the policy that sampled it and of the reference model.

    The policy's log-probabilities are `old`. If `old` is None, they come from the engine's prefill
    of the episodes (`Episode.scored`), which saves a forward pass, or else from `score`. If
    `reference` is None, the reference model has the same log-probabilities as the policy.
    """
    if old is None:
        old = prefill_scores(batch, episodes)
    if old is None:
        old = scores_of(model, params, batch, temperature, passes)
    ref = old
    if reference is not None:
        ref = scores_of(model, reference, batch, temperature, passes)
    return batch._replace(old_logprobs=old, ref_logprobs=ref)
