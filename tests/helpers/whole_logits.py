"""Log-probabilities from the logits of all tokens at once, as an oracle.

For the tests on log-probabilities in tests/model and learner.
"""

import jax
import jax.numpy as jnp
import numpy as np

from vinejax.model.chunked_softmax import LabelTokens, OutputLayer
from vinejax.model.decoder import Decoder, Params
from vinejax.model.token_logprobs import TokenScores


class WholeLogits(Decoder):
    """A decoder whose log-probabilities come from all logits [B, T, V]."""

    def scores_of(
        self,
        params: Params,
        x: jax.Array,
        tokens: jax.Array,
        labels: LabelTokens | None,
        temperature: float,
        axis: str | None = None,
    ) -> TokenScores:
        return of_logits(self.logits(params, x) / temperature, tokens, labels)


def whole(model: Decoder) -> WholeLogits:
    """The same model with all logits."""
    return WholeLogits(model.cfg, model.mesh, model.compute)


def of_logits(
    logits: jax.Array, tokens: jax.Array, labels: LabelTokens | None = None
) -> TokenScores:
    """The log-probabilities of tokens and labels, and the entropy of each distribution."""
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    taken = jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
    of_labels = None
    if labels is not None:
        of_labels = log_probs[jnp.arange(len(logits))[:, None], labels.place, labels.token]
        of_labels = jnp.where(labels.place < 0, 0.0, of_labels)
    return TokenScores(taken, -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1), of_labels)


def of_hidden(
    x: jax.Array,
    table: jax.Array,
    tokens: jax.Array,
    labels: LabelTokens | None,
    output: OutputLayer,
) -> TokenScores:
    """The same from hidden states and the output matrix."""
    head = table.T if output.name == "embed" else table
    logits = jnp.matmul(x, head, preferred_element_type=jnp.float32)
    if output.softcap is not None:
        logits = output.softcap * jnp.tanh(logits / output.softcap)
    return of_logits(logits / output.temperature, tokens, labels)


def some_labels(
    rng: np.random.Generator, tokens: np.ndarray, vocab: int, count: int
) -> LabelTokens:
    """`count` labels in each row [B, T] of tokens, of which a third is padding.

    Several labels may have one position, and each position has different tokens.
    """
    rows, length = tokens.shape
    is_free = np.ones((rows, length, vocab), bool)
    np.put_along_axis(is_free, tokens[..., None], False, axis=-1)
    place, token = np.full((rows, count), -1, np.int32), np.zeros((rows, count), np.int32)
    for row in range(rows):
        chosen = rng.permutation(np.flatnonzero(is_free[row]))[: count - count // 3]
        place[row, : len(chosen)], token[row, : len(chosen)] = np.divmod(chosen, vocab)
    return LabelTokens(jnp.asarray(place), jnp.asarray(token))
