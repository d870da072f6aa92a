"""Log-probabilities from the logits of all tokens at once, as an oracle.

For the tests on log-probabilities in tests/model and learner.
"""

import jax
import jax.numpy as jnp

from vinejax.model.chunked_softmax import OutputLayer
from vinejax.model.decoder import Decoder, Params


class WholeLogits(Decoder):
    """A decoder whose log-probabilities come from all logits [B, T, V]."""

    def logprobs_of(
        self,
        params: Params,
        x: jax.Array,
        tokens: jax.Array,
        temperature: float,
        axis: str | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        return of_logits(self.logits(params, x) / temperature, tokens)


def whole(model: Decoder) -> WholeLogits:
    """The same model with all logits."""
    return WholeLogits(model.cfg, model.mesh, model.compute)


def of_logits(logits: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(log-probability of each token, entropy of its distribution)."""
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    taken = jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
    return taken, -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


def of_hidden(
    x: jax.Array, table: jax.Array, tokens: jax.Array, output: OutputLayer
) -> tuple[jax.Array, jax.Array]:
    """The same from hidden states and the output matrix."""
    head = table.T if output.name == "embed" else table
    logits = jnp.matmul(x, head, preferred_element_type=jnp.float32)
    if output.softcap is not None:
        logits = output.softcap * jnp.tanh(logits / output.softcap)
    return of_logits(logits / output.temperature, tokens)
