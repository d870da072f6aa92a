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
from vinejax.model.chunked_softmax import LabelTokens
from vinejax.model.decoder import Decoder, Params
from vinejax.model.sharding import replicate
from vinejax.model.token_logprobs import TokenScores
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
    return batch_scores(model, params, batch, temperature)[:2]


def batch_scores(model: Decoder, params: Params, batch: Batch, temperature: float) -> TokenScores:
    """The results of `token_logprobs`, and the log-probabilities of the batch's labels, if any.

    The log-probability of a label is that of its token in the place of the row's own token.
    """
    return _scores_and_tapped(model, params, batch, temperature)[0]


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


def _scores_and_tapped(
    model: Decoder, params: Params, batch: Batch, temperature: float, tap: int | None = None
) -> tuple[TokenScores, Any]:
    """(results of `batch_scores`, hidden states [B, T, D] after `tap` layers or None)."""
    x, tapped = hidden_of_batch(model, params, batch, tap)
    following, labels = jnp.roll(batch.tokens, -1, axis=1), None
    if batch.labels is not None:  # the state before a token predicts it
        labels = LabelTokens(batch.labels.position - 1, batch.labels.token)
    scores = model.scores_of(params, x, following, labels, temperature or 1.0)
    logprob, entropy = (shift_right(y, batch.positions) for y in scores[:2])
    return TokenScores(logprob, entropy, scores.of_labels), tapped


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


class PassOutputs(NamedTuple):
    """What a scoring pass computes for a batch. What was not requested is None."""

    logprobs: Any  # f32[B, T] the result of `score`
    label_logprobs: Any = None  # f32[B, N] of the batch's labels; None: it has none
    hidden: Any = None  # `NumberedStates`; for a whole batch f32[S, R] in the order of the numbers
    entropy: Any = None  # f32[B, T] of each token's distribution, 0 outside the mask


@functools.partial(jax.jit, static_argnames=("model", "temperature", "most", "with_entropy"))
def score_with(
    model: Decoder,
    params: Params,
    batch: Batch,
    number: Array | None,
    temperature: float,
    most: int,
    with_entropy: bool,
) -> PassOutputs:
    """The result of `score`, and more outputs of the same forward pass.

    The outputs are the log-probabilities of the batch's labels, the result of `hidden_states` for
    the tokens with a `number` unless that is None, and entropies if `with_entropy`.
    """
    tap = None if number is None else num_tapped(model)
    scores, x = _scores_and_tapped(model, params, batch, temperature, tap)

    def readable(x: Array) -> Array:
        return replicate(jnp.where(batch.mask, x, 0.0), model.mesh)

    return PassOutputs(
        logprobs=readable(scores.logprob),
        label_logprobs=replicate(scores.of_labels, model.mesh),
        hidden=None if number is None else _numbered(model, x, number, most),
        entropy=readable(scores.entropy) if with_entropy else None,
    )


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

    Wider states are multiplied by the random matrix `projection`, which depends only on D and
    approximately keeps angles and the mean square. R is the resulting width.
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


def outputs_of(
    model: Decoder,
    params: Params,
    batch: Batch,
    temperature: float,
    passes: Passes,
    number: np.ndarray | None = None,
    with_entropy: bool = False,
) -> PassOutputs:
    """The outputs of `score_with` for a whole batch, as NumPy arrays.

    `number` is as for `hidden_of`.
    """
    most = 0 if number is None else _most_numbered(batch, number, passes)

    def program(part: Batch, number: np.ndarray | None = None) -> PassOutputs:
        return score_with(model, params, part, number, temperature, most, with_entropy)

    more = () if number is None else (number,)
    packing, parts = _pass_results(program, batch, passes, model.mesh, *more)
    logprobs, label_logprobs, hidden, entropy = zip(*parts, strict=True)
    rows = batch.tokens.shape[0]
    return PassOutputs(
        logprobs=_batch_rows(logprobs, packing, rows),
        label_logprobs=_of_labels(label_logprobs, packing, batch),
        hidden=None if number is None else _states_by_number(hidden),
        entropy=_batch_rows(entropy, packing, rows) if with_entropy else None,
    )


def _of_labels(
    parts: Sequence[np.ndarray | None], packing: Packing | None, batch: Batch
) -> np.ndarray | None:
    """f32[B, N]: the log-probabilities of the labels of all passes; None without labels."""
    if batch.labels is None:
        return None
    logprobs = _rows_of_passes(parts)
    return logprobs if packing is None else packing.label_places(batch).put_back(logprobs)


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
    batch = batch._replace(labels=None)
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


def run_passes(
    program: Callable[[Batch], jax.Array], batch: Batch, passes: Passes, mesh: Mesh | None
) -> np.ndarray:
    """Runs a program on a batch, one pass at a time; returns its results as f32[B, T] on the host.

    B must be a multiple of `passes.rows`. Every time the function has started a pass, it checks for
    a request to stop.
    """
    packing, parts = _pass_results(program, batch._replace(labels=None), passes, mesh)
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
    rows_of_passes = _rows_of_passes(parts)
    return rows_of_passes if packing is None else packing.put_back(rows_of_passes, rows)


def _rows_of_passes(parts: Sequence[Any]) -> np.ndarray:
    """The results of all passes as one array, in the order of the rows that were divided."""
    return np.stack(parts, axis=1).reshape(-1, parts[0].shape[-1])


def prefill_scores(batch: Batch, episodes: list[Episode]) -> np.ndarray | None:
    """f32[B, T]: log-probabilities from the engine's prefill; None if an episode lacks them."""
    scored = [episode.scored for episode in episodes if episode.scored is not None]
    if len(scored) < len(episodes):
        return None
    return token_rows(batch.tokens.shape, episodes, scored)


def policy_outputs(
    model: Decoder,
    params: Params,
    batch: Batch,
    episodes: list[Episode],
    temperature: float,
    passes: Passes,
    number: np.ndarray | None = None,
    with_entropy: bool = False,
) -> PassOutputs:
    """The result of `outputs_of` for the policy that sampled, in as few passes as possible.

    The log-probabilities of tokens are those of the engine's prefill (`Episode.scored`), if it has
    computed them. No pass is then made for the log-probabilities of labels alone, which are None.
    """
    of_prefill = prefill_scores(batch, episodes)
    if with_entropy or (of_prefill is None and (number is not None or batch.labels is not None)):
        outputs = outputs_of(model, params, batch, temperature, passes, number, with_entropy)
        return outputs if of_prefill is None else outputs._replace(logprobs=of_prefill)
    if of_prefill is None:
        return PassOutputs(scores_of(model, params, batch, temperature, passes))
    hidden = None if number is None else hidden_of(model, params, batch, number, passes)
    return PassOutputs(of_prefill, hidden=hidden)


def with_logprobs(
    model: Decoder,
    reference: Params | None,
    batch: Batch,
    outputs: PassOutputs,
    temperature: float,
    passes: Passes,
) -> Batch:
    """The batch with log-probabilities of the policy that sampled it and of the reference model.

    Those of the policy are in `outputs`, the result of `policy_outputs`. If it has none for labels,
    the batch keeps the sampler's. If `reference` is None, the reference model has the same
    log-probabilities as the policy.
    """
    if batch.labels is not None and outputs.label_logprobs is not None:
        labels = batch.labels._replace(old_logprobs=outputs.label_logprobs)
        batch = batch._replace(labels=labels)
    ref = outputs.logprobs
    if reference is not None:
        ref = scores_of(model, reference, batch, temperature, passes)
    return batch._replace(old_logprobs=outputs.logprobs, ref_logprobs=ref)
