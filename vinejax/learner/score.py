"""Token log-probabilities: one function computes them, and shifts them, for every policy.

The current, the old and the reference policy all go through `token_logprobs` with the sampling
temperature, so their ratio is 1 and their KL 0 before the first update.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from vinejax.core.types import Batch, Episode
from vinejax.learner.batch import strided
from vinejax.learner.packing import Passes, packing_for
from vinejax.model.decoder import Decoder, Params
from vinejax.model.sharding import replicate
from vinejax.runtime.stopping import Watch


def token_logprobs(
    model: Decoder, params: Params, batch: Batch, temperature: float
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """(log-probability of each token given the tokens before it, entropy of that distribution).

    Entry t belongs to `tokens[:, t]`; the first token of a sequence has nothing before it, and its
    entry is 0. (The first entry of a segment that shares its prefix has no meaning.) Float32;
    logits are divided by `temperature` (0, argmax sampling, is scored at 1, as the sampler does).
    """
    x, _ = model.hidden(
        params, batch.tokens, batch.positions, batch.segment_ids, seen_until=batch.seen_until
    )
    following = jnp.roll(batch.tokens, -1, axis=1)
    logprobs, entropy = model.logprobs_of(params, x, following, temperature or 1.0)
    return shifted(logprobs, batch.positions), shifted(entropy, batch.positions)


def shifted(after: Float[Array, "B T"], positions: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """Moves entry t, which was computed for token t + 1, to index t + 1.

    At `positions` of 0, where a sequence begins, the result is 0.
    """
    return jnp.where(positions > 0, jnp.roll(after, 1, axis=1), 0.0)


@functools.partial(jax.jit, static_argnames=("model", "temperature"))
def score(model: Decoder, params: Params, batch: Batch, temperature: float) -> Float[Array, "B T"]:
    """Log-probabilities of the batch's tokens, 0 off the response."""
    logprobs, _ = token_logprobs(model, params, batch, temperature)
    return replicate(jnp.where(batch.mask, logprobs, 0.0), model.mesh)


def scores_of(
    model: Decoder, params: Params, batch: Batch, temperature: float, passes: Passes
) -> np.ndarray:
    """f32[B, T] on the host: `score` of the whole batch."""
    program = functools.partial(score, model, params, temperature=temperature)
    return in_passes(program, batch, passes, model.mesh)


def in_passes(
    program: Callable[[Batch], jax.Array], batch: Batch, passes: Passes, mesh: Mesh | None
) -> np.ndarray:
    """f32[B, T] on the host: the program's result for all rows, one pass after the other.

    B is a multiple of a pass's rows. Looks for a request to stop after each pass is started.
    """
    packing, rows, count = None, batch, batch.tokens.shape[0]
    if passes.packed:
        packing = packing_for(batch, passes, mesh)
        rows = packing.pack(batch)
    parts, watch = [], Watch()
    for part in strided(rows, passes.rows):
        parts.append(program(part))
        watch.look(parts[-1])
    found = np.stack(jax.device_get(parts), axis=1).reshape(-1, batch.tokens.shape[1])
    return found if packing is None else packing.put_back(found, count)


def with_logprobs(
    model: Decoder,
    params: Params,
    reference: Params | None,
    batch: Batch,
    episodes: list[Episode],
    temperature: float,
    passes: Passes,
) -> Batch:
    """The batch with log-probabilities by the policy that sampled it and by the reference model.

    The policy's come from the engine's prefill of the episodes if it gave them (`Episode.scored`),
    which saves a forward pass, otherwise from `score`. Where `reference` is None, the policy still
    is the reference model: one array is both.
    """
    if all(episode.scored is not None for episode in episodes):
        old = np.zeros(batch.tokens.shape, np.float32)
        for row, episode in enumerate(episodes):
            old[row, len(episode.prompt) : len(episode.tokens)] = episode.scored
    else:
        old = scores_of(model, params, batch, temperature, passes)
    ref = old
    if reference is not None:
        ref = scores_of(model, reference, batch, temperature, passes)
    return batch._replace(old_logprobs=old, ref_logprobs=ref)
