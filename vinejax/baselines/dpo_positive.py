"""DPO-Positive: learning from pairs of a right and a wrong solution of the same problem.

Source: https://arxiv.org/abs/2402.13228, and in VinePPO's code `trainers/dpo_positive_trainer.py`
and `episode_generators/math_dpo_positive_episode_generator.py`. `iterations.py` has its iteration.
"""

import dataclasses
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vinejax.learner.batch import collate
from vinejax.learner.score import score, token_logprobs
from vinejax.learner.update import Loss, Objective, Update, mean_norm, total_sums
from vinejax.model.decoder import Decoder, Params
from vinejax.rl.losses import dpo_positive
from vinejax.seeds import host_rng
from vinejax.types import Batch, Episode, is_correct

Pair = tuple[Episode, Episode]  # (chosen, rejected)


class Pairs(NamedTuple):
    """Pairs as arrays: row b of both batches is one pair; a row without tokens is padding."""

    chosen: Batch
    rejected: Batch


class PairSums(NamedTuple):
    """Sums of the loss and its terms over the minibatch's pairs."""

    loss: Float[Array, ""]
    margin: Float[Array, ""]  # log-ratio to the reference model, chosen less rejected, in nats
    ordered: Float[Array, ""]  # pairs with a positive margin
    pairs: Float[Array, ""]


def make_pairs(episodes: list[Episode], per_problem: int, seed: int) -> list[Pair]:
    """Up to `per_problem` pairs of a right and a wrong solution of each problem that has both."""
    groups: dict[str, tuple[list[Episode], list[Episode]]] = {}
    for episode in episodes:
        right, wrong = groups.setdefault(episode.problem_id, ([], []))
        (right if is_correct(episode.reward) else wrong).append(episode)
    pairs = []
    for name, (right, wrong) in groups.items():
        all_pairs = list(itertools.product(right, wrong))
        rng = host_rng(seed, 0, f"pairs/{name}")
        pairs += [all_pairs[i] for i in rng.permutation(len(all_pairs))[:per_problem]]
    return pairs


def collate_pairs(pairs: list[Pair], rows: int, longest: int) -> Pairs:
    """The pairs as `rows` rows, in one shape for all pairs of up to `longest` tokens."""
    chosen, rejected = ([pair[side] for pair in pairs] for side in (0, 1))
    return Pairs(collate(chosen, rows, longest), collate(rejected, rows, longest))


def with_reference(model: Decoder, reference: Params, pairs: Pairs, temperature: float) -> Pairs:
    """The pairs with the log-probabilities of the reference model."""
    return Pairs(*(x._replace(ref_logprobs=score(model, reference, x, temperature)) for x in pairs))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairObjective(Objective):
    """DPO-Positive's loss, a mean over the minibatch's pairs; `microbatch` counts pairs."""

    temperature: float
    beta: float
    penalty: float

    def loss_over(self, rows: Pairs) -> tuple[Pairs, Loss]:
        """`rows` must have the log-probabilities of the reference model (`with_reference`)."""
        count = jnp.maximum((rows.chosen.segment_ids > 0).any(axis=1).sum(), 1)

        def loss(params: Params, micro: Pairs) -> tuple[jax.Array, PairSums]:
            # Chosen and rejected rows alternate, so that both rows of a pair stay on its device.
            batch = jax.tree.map(lambda *x: jnp.stack(x, 1).reshape(-1, x[0].shape[1]), *micro)
            logprobs, _ = token_logprobs(self.model, params, batch, self.temperature)
            # Differences to the reference model are summed: the difference of two sums over a
            # solution would lose digits in float32, and the penalty would multiply the error.
            moved = jnp.where(batch.mask, logprobs - batch.ref_logprobs, 0.0).sum(axis=1)
            chosen, rejected = moved.reshape(-1, 2).T
            margin, zero = chosen - rejected, jnp.zeros_like(chosen)
            terms = PairSums(
                loss=dpo_positive(chosen, rejected, zero, zero, self.beta, self.penalty),
                margin=margin,
                ordered=margin > 0,
                pairs=jnp.ones_like(margin),
            )
            is_pair = (micro.chosen.segment_ids > 0).any(axis=1)
            sums = jax.tree.map(lambda x: jnp.sum(jnp.where(is_pair, x, 0.0)), terms)
            return sums.loss / count, sums

        return rows, loss


def pair_metrics(updates: list[Update]) -> dict[str, float]:
    """Means over the pairs of all updates; `grad_norm` is the mean over the applied updates."""
    total = jax.tree.map(float, total_sums(updates))
    pairs = max(total.pairs, 1.0)
    return {
        "dpo/loss": total.loss / pairs,
        "dpo/margin": total.margin / pairs,
        "dpo/ordered": total.ordered / pairs,
        "actor/grad_norm": mean_norm(updates),
    }
