"""Token log-probabilities: the one function that shifts, and the one that every policy is read by.

The current, the old and the reference policy all go through `token_logprobs` with the sampling
temperature, so their ratio is 1 and their KL 0 before the first update.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vinejax.model.decoder import Decoder, Params
from vinejax.types import Batch


def token_logprobs(
    model: Decoder, params: Params, batch: Batch, temperature: float
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """(log-probability of each token given what is before it, entropy of that distribution).

    Entry t belongs to `tokens[:, t]`; entry 0 has nothing before it and is 0. Float32; logits are
    divided by `temperature` (0, argmax sampling, is scored at 1, as the sampler does).
    """
    x, _ = model.hidden(params, batch.tokens, batch.positions, batch.segment_ids)
    logits = model.logits(params, x[:, :-1]) / (temperature or 1.0)
    everything = jax.nn.log_softmax(logits, axis=-1)
    taken = jnp.take_along_axis(everything, batch.tokens[:, 1:, None], axis=-1)[..., 0]
    entropy = -jnp.sum(jnp.exp(everything) * everything, axis=-1)
    start = ((0, 0), (1, 0))
    return jnp.pad(taken, start), jnp.pad(entropy, start)


@functools.partial(jax.jit, static_argnames=("model", "temperature"))
def score(model: Decoder, params: Params, batch: Batch, temperature: float) -> Float[Array, "B T"]:
    """Log-probabilities of the batch's tokens, 0 off the response."""
    logprobs, _ = token_logprobs(model, params, batch, temperature)
    return jnp.where(batch.mask, logprobs, 0.0)
