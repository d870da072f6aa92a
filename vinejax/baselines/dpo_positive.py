"""DPO-Positive: learning from pairs of a right and a wrong solution of the same problem.

Source: https://arxiv.org/abs/2402.13228, and the reference's `trainers/dpo_positive_trainer.py` and
`episode_generators/math_dpo_positive_episode_generator.py`. The loop around it is in `offline.py`.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from vinejax.learner.batch import collate
from vinejax.learner.score import score, token_logprobs
from vinejax.learner.update import accumulate, apply
from vinejax.model.decoder import Decoder, Params
from vinejax.rl.losses import dpo_positive
from vinejax.seeds import host_rng
from vinejax.settings import DPOConfig
from vinejax.types import Batch, Episode, TrainState

ACCEPTED = 0.5  # the least reward of the better one of a pair

Pair = tuple[Episode, Episode]  # (chosen, rejected)


class Pairs(NamedTuple):
    """Pairs made rectangular: row b of both is one pair; a row without tokens is none."""

    chosen: Batch
    rejected: Batch


class PairStats(NamedTuple):
    """Sums over the minibatch's pairs, but for the last two."""

    loss: Float[Array, ""]
    margin: Float[Array, ""]  # what the pair's log-ratio to the reference differs by, nats
    ordered: Float[Array, ""]  # pairs with a positive margin
    pairs: Float[Array, ""]
    grad_norm: Float[Array, ""]
    updates: Float[Array, ""]


def make_pairs(episodes: list[Episode], per_problem: int, seed: int) -> list[Pair]:
    """Right with wrong solutions of each problem, `per_problem` at most, drawn without order.

    Problems whose solutions are all right, or all wrong, have none.
    """
    groups: dict[str, tuple[list[Episode], list[Episode]]] = {}
    for episode in episodes:
        right, wrong = groups.setdefault(episode.problem_id, ([], []))
        (right if episode.reward >= ACCEPTED else wrong).append(episode)
    pairs = []
    for name, (right, wrong) in groups.items():
        all_pairs = list(itertools.product(right, wrong))
        rng = host_rng(seed, 0, f"pairs/{name}")
        pairs += [all_pairs[i] for i in rng.permutation(len(all_pairs))[:per_problem]]
    return pairs


def collate_pairs(pairs: list[Pair], rows: int, longest: int) -> Pairs:
    """`rows` pairs, of one compiled shape for all pairs of up to `longest` tokens."""
    chosen, rejected = ([pair[side] for pair in pairs] for side in (0, 1))
    return Pairs(collate(chosen, rows, longest), collate(rejected, rows, longest))


def with_reference(model: Decoder, reference: Params, pairs: Pairs, temperature: float) -> Pairs:
    """The pairs with the log-probabilities of the reference."""
    return Pairs(*(x._replace(ref_logprobs=score(model, reference, x, temperature)) for x in pairs))


def pair_gradients(
    model: Decoder,
    params: Params,
    pairs: Pairs,
    temperature: float,
    dpo: DPOConfig,
    microbatch: int | None,
) -> tuple[Params, PairStats]:
    """Gradient of the mean loss of the pairs, `microbatch` pairs at a time; sums behind it."""
    count = jnp.maximum((pairs.chosen.segment_ids > 0).any(axis=1).sum(), 1)

    def loss(params: Params, micro: Pairs) -> tuple[jax.Array, PairStats]:
        # Chosen and rejected by turns: both rows of a pair stay where the pair lies.
        rows = jax.tree.map(lambda *x: jnp.stack(x, 1).reshape(-1, x[0].shape[1]), *micro)
        logprobs, _ = token_logprobs(model, params, rows, temperature)
        # Differences to the reference, then sums: two sums of a whole solution, the other way
        # round, would cancel, and what float32 loses there the penalty multiplies.
        moved = jnp.where(rows.mask, logprobs - rows.ref_logprobs, 0.0).sum(axis=1)
        chosen, rejected = moved.reshape(-1, 2).T
        margin, zero = chosen - rejected, jnp.zeros_like(chosen)
        by_pair = dpo_positive(chosen, rejected, zero, zero, dpo.beta, dpo.penalty)
        terms = PairStats(
            loss=by_pair,
            margin=margin,
            ordered=(margin > 0).astype(jnp.float32),
            pairs=jnp.ones_like(margin),
            grad_norm=jnp.zeros_like(margin),
            updates=jnp.zeros_like(margin),
        )
        is_pair = (micro.chosen.segment_ids > 0).any(axis=1)
        stats = PairStats(*(jnp.sum(jnp.where(is_pair, x, 0.0)) for x in terms))
        return stats.loss / count, stats

    return accumulate(loss, params, pairs, microbatch, model.mesh, model.ready)


@functools.partial(
    jax.jit,
    static_argnames=("model", "optimizer", "temperature", "dpo", "microbatch"),
    donate_argnames="state",
)
def pair_step(
    model: Decoder,
    optimizer: optax.GradientTransformation,
    temperature: float,
    dpo: DPOConfig,
    microbatch: int | None,
    state: TrainState,
    pairs: Pairs,
) -> tuple[TrainState, PairStats]:
    """One update on one minibatch of pairs; one whose gradient is not finite changes nothing."""
    grads, sums = pair_gradients(model, state.params, pairs, temperature, dpo, microbatch)
    state, norm, accepted = apply(optimizer, state, grads, model.mesh)
    return state, sums._replace(grad_norm=norm, updates=accepted.astype(jnp.float32))


def pair_metrics(updates: list[PairStats]) -> dict[str, float]:
    """Means over the pairs of all updates; the norm over the updates that were made."""
    total = jax.tree.map(lambda *x: float(sum(x)), *updates)
    pairs = max(total.pairs, 1.0)
    return {
        "dpo/loss": total.loss / pairs,
        "dpo/margin": total.margin / pairs,
        "dpo/ordered": total.ordered / pairs,
        "actor/grad_norm": total.grad_norm / max(total.updates, 1.0),
    }
