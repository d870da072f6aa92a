"""Learning from pairs of a better and a worse solution of the same problem, as DPO-Positive does.

The margin of a pair is measured from the log-probabilities by the reference model.

Source of the pairing: VinePPO's code, `trainers/dpo_positive_trainer.py` and
`episode_generators/math_dpo_positive_episode_generator.py`.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vinejax.core.seeds import host_rng
from vinejax.core.shapes import packed_length
from vinejax.core.types import Batch, Episode, RunState, is_correct
from vinejax.learner.batch import collate_groups, shuffled_lists
from vinejax.learner.optimizer import duration_of, lasting_optimizer
from vinejax.learner.packing import passes_for
from vinejax.learner.score import scores_of, token_logprobs
from vinejax.learner.update import (
    Loss,
    Objective,
    Update,
    fresh_state,
    mean_norm,
    total_sums,
    with_total_steps,
)
from vinejax.methods.base import OF_POLICY_GRADIENTS, Method
from vinejax.methods.settings import DPOConfig
from vinejax.model.decoder import Params
from vinejax.rl.segments import segment_totals
from vinejax.session.budget import longest_sequence
from vinejax.session.iteration import Iteration

Pair = tuple[Episode, Episode]  # (chosen, rejected)
# (log-ratio of each chosen solution to the reference model, the same of each rejected one, the
# method's settings) -> loss of each pair
PairLoss = Callable[[jax.Array, jax.Array, DPOConfig], jax.Array]
# (episodes, the method's settings, seed) -> pairs
PairChoice = Callable[[list[Episode], DPOConfig, int], list[Pair]]


def make_pairs(episodes: list[Episode], own: DPOConfig, seed: int) -> list[Pair]:
    """Up to `own.pairs` pairs of a right and a wrong solution of each problem that has both."""
    groups: dict[str, tuple[list[Episode], list[Episode]]] = {}
    for episode in episodes:
        right, wrong = groups.setdefault(episode.problem_id, ([], []))
        (right if is_correct(episode.reward) else wrong).append(episode)
    pairs = []
    for name, (right, wrong) in groups.items():
        all_pairs = list(itertools.product(right, wrong))
        rng = host_rng(seed, 0, f"pairs/{name}")
        pairs += [all_pairs[i] for i in rng.permutation(len(all_pairs))[: own.pairs]]
    return pairs


def pair_method(
    loss: PairLoss,
    about: str,
    choose: PairChoice = make_pairs,
    settings: type[DPOConfig] = DPOConfig,
) -> Method:
    """The method with this loss of the pairs that `choose` returns."""
    return Method(
        None,
        iteration=functools.partial(learn_from_pairs, loss, choose),
        settings=settings,
        ignores=OF_POLICY_GRADIENTS,
        flags={"groups", "paired_rows"},
        about=about,
    )


def learn_from_pairs(
    loss: PairLoss,
    choose: PairChoice,
    method: Method,
    iteration: Iteration,
    state: RunState,
) -> RunState:
    """The state after one iteration that learns from pairs of solutions.

    The iteration samples solutions, pairs better ones with worse ones of the same problem, and
    updates the policy to prefer the better solution of each pair.
    """
    cfg, session, own = iteration.cfg, iteration.session, method.settings.of(iteration.cfg)
    assert isinstance(own, DPOConfig)
    episodes = iteration.sample_train(session.weights(state.policy.params), own.problems)
    iteration.record_sampling(episodes)
    iteration.record_episodes(iteration.shown(episodes))
    pairs = choose(episodes, own, cfg.seed)
    iteration.metrics["dpo/pairs"] = len(pairs)
    if not pairs:
        return state
    size, packed, _ = passes_for(cfg, cfg.ppo.minibatch, session.mesh)  # pairs share no tokens
    objective = PairObjective(
        model=session.model,
        microbatch=size,
        packed=packed,
        temperature=cfg.sample.temperature,
        loss=loss,
        own=own,
    )
    total = own.epochs * math.ceil(len(pairs) / cfg.ppo.minibatch)
    optimizer = lasting_optimizer(cfg.optimizer)
    policy = fresh_state(state.policy.params, optimizer, session.mesh)
    with iteration.log.stage("score"):
        scores = _reference_scores(iteration, pairs)
    batches = _pair_batches(iteration, pairs, scores, own.epochs)
    duration = duration_of(cfg.optimizer, total)
    policy, updates = iteration.train(objective, optimizer, policy, batches, total, duration)
    iteration.metrics |= pair_metrics(updates)
    return RunState(with_total_steps(state.policy, policy))


def _reference_scores(iteration: Iteration, pairs: list[Pair]) -> list[np.ndarray]:
    """f32[T] log-probabilities of each pair by the reference model, laid out by `collate_groups`.

    They are all computed before the updates. If they were computed between updates, the host
    would wait each time, for the previous update and for the scores.
    """
    cfg, session, found = iteration.cfg, iteration.session, []
    params = session.load_reference()
    size, longest = cfg.ppo.minibatch, pair_row_length(iteration, pairs)
    passes = passes_for(cfg, size, session.mesh)._replace(shared=False)
    for start in range(0, len(pairs), size):
        chosen = pairs[start : start + size]
        batch = collate_groups(chosen, size, longest)
        scores = scores_of(session.model, params, batch, cfg.sample.temperature, passes)
        found += list(scores[: len(chosen)])
    return found


def _pair_batches(
    iteration: Iteration, pairs: list[Pair], scores: list[np.ndarray], epochs: int
) -> Iterator[Batch]:
    """The minibatches of all epochs, with the reference model's scores."""
    cfg, longest = iteration.cfg, pair_row_length(iteration, pairs)
    size = cfg.ppo.minibatch
    for epoch in range(epochs):
        for chosen in shuffled_lists([*range(len(pairs))], size, cfg.seed, iteration.number, epoch):
            batch = collate_groups([pairs[i] for i in chosen], size, longest)
            batch.ref_logprobs[: len(chosen)] = [scores[i] for i in chosen]
            yield batch


class PairSums(NamedTuple):
    """Sums of the loss and its terms over the minibatch's pairs."""

    loss: Float[Array, ""]
    margin: Float[Array, ""]  # log-ratio to the reference, chosen less rejected, in nats
    ordered: Float[Array, ""]  # pairs with a positive margin
    pairs: Float[Array, ""]


def pair_row_length(iteration: Iteration, pairs: list[Pair]) -> int:
    """The least length of a row, at least the sum of the tokens of the longest pair's episodes.

    Packed rows have one of the few lengths of `packed_length`, as in policy gradients.
    """
    cfg, session = iteration.cfg, iteration.session
    longest = max(len(chosen.tokens) + len(rejected.tokens) for chosen, rejected in pairs)
    if not passes_for(cfg, cfg.ppo.minibatch, session.mesh).packed:
        return longest
    return packed_length(2 * longest_sequence(cfg, session.model.cfg.context), longest)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairObjective(Objective):
    """The mean loss over the pairs of a minibatch.

    In each row, a segment with an odd id is a chosen solution. The next segment, whose id is one
    higher, is the rejected solution of the same pair.
    """

    temperature: float
    loss: PairLoss
    own: DPOConfig

    def loss_over(self, rows: Batch) -> tuple[Batch, Loss]:
        """(`rows`, the function that computes the loss of a batch of these rows).

        `rows` must have the reference model's log-probabilities.
        """
        count = jnp.maximum(_ends_chosen(rows.segment_ids).sum(), 1)

        def loss(params: Params, batch: Batch) -> tuple[jax.Array, PairSums]:
            logprobs, _ = token_logprobs(self.model, params, batch, self.temperature)
            # Differences to the reference are summed: the difference of two sums over a
            # solution would lose digits in float32, and the penalty would multiply the error.
            moved = jnp.where(batch.mask, logprobs - batch.ref_logprobs, 0.0)
            totals = segment_totals(moved, batch.segment_ids)
            # A pair is read where its chosen solution ends: the next position has its rejected one.
            chosen, rejected = totals[:, :-1].reshape(-1), totals[:, 1:].reshape(-1)
            margin = chosen - rejected
            terms = PairSums(
                loss=self.loss(chosen, rejected, self.own),
                margin=margin,
                ordered=margin > 0,
                pairs=jnp.ones_like(margin),
            )
            is_pair = _ends_chosen(batch.segment_ids).reshape(-1)
            sums = jax.tree.map(lambda x: jnp.sum(jnp.where(is_pair, x, 0.0)), terms)
            return sums.loss / count, sums

        return rows, loss


def _ends_chosen(segment_ids: Int[Array, "B T"]) -> Bool[Array, "B T-1"]:
    """Whether each position, except a row's last, is the last token of a pair's right solution."""
    here, following = segment_ids[:, :-1], segment_ids[:, 1:]
    return (here % 2 == 1) & (following == here + 1)


def pair_metrics(updates: list[Update]) -> dict[str, float]:
    """Means over the pairs of all updates; `actor/grad_norm` leaves out skipped updates."""
    total = jax.tree.map(float, total_sums(updates))
    pairs = max(total.pairs, 1.0)
    return {
        "dpo/loss": total.loss / pairs,
        "dpo/margin": total.margin / pairs,
        "dpo/ordered": total.ordered / pairs,
        "actor/grad_norm": mean_norm(updates),
    }
