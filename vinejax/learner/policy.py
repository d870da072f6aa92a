"""The objective of policy updates, which consists of a policy loss, KL and an entropy bonus."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vinejax.core.types import Batch, Labels, Rollout
from vinejax.learner.score import batch_scores
from vinejax.learner.update import Loss, Objective
from vinejax.model.decoder import Params
from vinejax.rl import losses
from vinejax.rl.masked import whiten
from vinejax.rl.segments import count_segments, part_of_segment, segment_totals

EIGHTHS = 8  # number of equal parts of a response; updates also report sums over each part
K3_MAX = 10.0  # VinePPO's code clamps k3 to [0, 10] per token (ppo_trainer.py)


class PolicyLoss(NamedTuple):
    """The result of a method's loss function."""

    loss: Float[Array, "B T"]  # loss of each token; read for response tokens only
    # Tokens whose ratio is clipped. They have no gradient, except with CISPO. None: the loss has no
    # probability ratio, so it clips no token and `ppo.max_ratio` does not apply.
    clipped: Bool[Array, "B T"] | None = None


class SumsByEighth(NamedTuple):
    """Sums over response tokens, separately for each eighth of a response's length.

    Entry n, from 0 to 7, is the sum over the tokens in eighth n of their own response.
    """

    ratio: Float[Array, "8"]
    entropy: Float[Array, "8"]
    tokens: Float[Array, "8"]
    clipped: Float[Array, "8"] | None


class PolicySums(NamedTuple):
    """Sums over the response tokens of a minibatch or microbatch, without labels."""

    loss: Float[Array, ""]  # policy loss of tokens, without labels, KL and entropy bonus
    kl: Float[Array, ""]  # k3 with respect to the reference model
    old_kl: Float[Array, ""]  # k3 with respect to the policy that sampled
    ratio: Float[Array, ""]
    entropy: Float[Array, ""]
    tokens: Float[Array, ""]  # number of response tokens
    clipped: Float[Array, ""] | None  # number of clipped tokens; None: the loss has no ratio
    by_eighth: SumsByEighth


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyObjective(Objective):
    """The loss of a policy-gradient method.

        Σ_t w_t·(L_t + Σ_l L_tl) + kl_coef·Σ_t v_t·k3_t - entropy_coef·mean_t H_t

    L_t is the policy loss of the token at position t and L_tl that of a label there, and w are the
    `token_weights`. Only the policy loss has labels. `kl_reduction` chooses v. With 'policy', v
    is w. With 'token', the KL term is a mean over all response tokens. With 'sequence', it is the
    mean over responses of the sum over the response's tokens, as in VinePPO's code.
    """

    temperature: float
    loss: Callable[..., PolicyLoss]  # its arguments are those of `clipped_loss`
    reduction: str = "token"
    whiten: str = "none"  # 'minibatch': the objective whitens the advantages of each minibatch
    shift_mean: bool = True
    clip: tuple[float, float] = (0.2, 0.2)  # (low, high), or the two parameters of another loss
    dual_clip: float | None = None
    entropy_coef: float = 0.0
    max_ratio: float = 10.0
    kl_coef: float | jax.Array = 0.0  # if the coefficient changes, a traced array
    kl_reduction: str = "policy"
    max_tokens: int = 1  # token budget of a response, for the reduction 'budget'
    method_settings: Any = None  # settings of the method, for its loss; hashable

    def rows_of(self, batch: Batch, rollout: Rollout) -> Any:
        """The arrays [B, ...] of an iteration; `loss_over` takes a minibatch of these arrays."""
        return batch

    def loss_over(self, rows: Batch) -> tuple[tuple[Batch, jax.Array], Loss]:
        """See `Objective.loss_over`. `rows` must have advantages, old and reference logprobs."""
        if self.whiten == "minibatch":
            advantages = whiten(rows.advantages, rows.mask, shift_mean=self.shift_mean)
            rows = rows._replace(advantages=advantages)
        weights = token_weights(rows.mask, rows.segment_ids, self.reduction, self.max_tokens)
        kl_has_weights = self.kl_reduction == "policy" and self.reduction != "token"
        tokens = jnp.maximum(rows.mask.sum(), 1)
        sequences = jnp.maximum(count_segments(rows.mask, rows.segment_ids), 1)

        def loss(params: Params, micro: tuple[Batch, jax.Array]) -> tuple[jax.Array, PolicySums]:
            batch, weights = micro
            policy, k3, of_labels, sums = self._terms(params, batch)
            if kl_has_weights:
                kl = self.kl_coef * jnp.sum(weights * k3)
            else:  # a mean over tokens, or a sum over each response, needs no weights
                count = sequences if self.kl_reduction == "sequence" else tokens
                kl = self.kl_coef * sums.kl / count
            bonus = self.entropy_coef * sums.entropy / tokens if self.entropy_coef else 0.0
            total = jnp.sum(weights * policy) + kl - bonus
            if batch.labels is not None and of_labels is not None:
                weights = jnp.take_along_axis(weights, batch.labels.position, axis=1)
                total += jnp.sum(weights * of_labels)
            return total, sums

        return (rows, weights), loss

    def _terms(
        self, params: Params, batch: Batch
    ) -> tuple[Float[Array, "B T"], Float[Array, "B T"], Float[Array, "B N"] | None, PolicySums]:
        """(policy loss per token, k3 per token, policy loss per label or None, sums).

        k3 estimates the KL to the reference model. The sums are over the microbatch.
        """
        scores = batch_scores(self.model, params, batch, self.temperature)
        logprobs, entropy, of_labels = scores.logprob, scores.entropy, None
        # Outside the response, 0 replaces all arrays before any arithmetic: no NaN, no gradient.
        logprobs, old, advantages, ref = (
            jnp.where(batch.mask, x, 0.0)
            for x in (logprobs, batch.old_logprobs, batch.advantages, batch.ref_logprobs)
        )
        with jax.named_scope("policy_loss"):
            batch = batch._replace(advantages=advantages, old_logprobs=old, ref_logprobs=ref)
            policy, clipped = self.loss(logprobs, batch, self)
            if batch.weights is not None:
                policy *= jnp.where(batch.mask, batch.weights, 0.0)
            if batch.labels is not None and scores.of_labels is not None:
                of_labels = self._label_losses(scores.of_labels, batch, batch.labels)
        with jax.named_scope("kl"):
            k3 = jnp.clip(losses.kl(logprobs, ref, kind="k3"), 0.0, K3_MAX)
        ratio, ones = losses.probability_ratio(logprobs, old), jnp.ones_like(logprobs)
        with jax.named_scope("by_eighth"):
            eighth = part_of_segment(batch.mask, batch.segment_ids, EIGHTHS)

            def totals(x: jax.Array) -> jax.Array:
                sums = [_sum_where(batch.mask & (eighth == n), x) for n in range(EIGHTHS)]
                return jnp.stack(sums)

            by_eighth = jax.tree.map(totals, SumsByEighth(ratio, entropy, ones, clipped))

        def total(x: jax.Array) -> jax.Array:
            return _sum_where(batch.mask, x)

        sums = PolicySums(
            loss=total(policy),
            kl=total(k3),
            old_kl=total(losses.kl(logprobs, old, kind="k3")),
            ratio=total(ratio),
            entropy=total(entropy),
            tokens=total(ones),
            clipped=None if clipped is None else total(clipped),
            by_eighth=by_eighth,
        )
        return policy, k3, of_labels, sums

    def _label_losses(
        self, logprobs: Float[Array, "B N"], batch: Batch, labels: Labels
    ) -> Float[Array, "B N"]:
        """The policy loss of every label, which is that of a token with the label's numbers.

        `self.loss` must compute the loss of a token from that token alone. The result is 0 at
        padding, because its coefficient is 0.
        """
        as_tokens = batch._replace(
            tokens=labels.token,
            mask=labels.position > 0,
            advantages=labels.coefficients,
            old_logprobs=labels.old_logprobs,
        )
        losses_of_labels = self.loss(logprobs, as_tokens, self).loss
        if labels.weights is not None:
            losses_of_labels *= labels.weights
        return losses_of_labels

    def accepts(self, sums: PolicySums) -> jax.Array | bool:
        """Whether the mean probability ratio is at most `max_ratio`.

        The result is True for a loss that has no ratio.
        """
        if sums.clipped is None:
            return True
        return sums.ratio / jnp.maximum(sums.tokens, 1) <= self.max_ratio


def _sum_where(mask: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(mask, x, 0.0))


def token_weights(
    mask: Bool[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    reduction: str,
    max_tokens: int = 1,
) -> Float[Array, "B T"]:
    """Weights w_t of a loss Σ w_t·L_t over a minibatch.

    Args:
      mask: bool [B, T], True for response tokens.
      segment_ids: int32 [B, T], the number, within its row, of the sequence of each token.
      reduction: 'token' gives 1 / (tokens of the minibatch). 'sequence' gives 1 / (tokens of the
        sequence · sequences with a response). 'budget' gives 1 / (max_tokens · sequences with a
        response).
      max_tokens: the token budget of a response, used only by 'budget'.

    Returns:
      float32 [B, T], 0 outside the mask.
    """
    if reduction == "token":
        return jnp.where(mask, 1.0 / jnp.maximum(mask.sum(), 1), 0.0)
    count = jnp.maximum(count_segments(mask, segment_ids), 1)
    if reduction == "sequence":
        count *= jnp.maximum(segment_totals(mask.astype(jnp.int32), segment_ids), 1)
    elif reduction == "budget":
        count *= max_tokens
    else:
        raise ValueError(f"reduction = {reduction!r}: must be 'token', 'sequence' or 'budget'")
    return jnp.where(mask, 1.0 / count, 0.0)


def clipped_loss(logprobs: jax.Array, batch: Batch, objective: PolicyObjective) -> PolicyLoss:
    """PPO's clipped loss, which most methods use: see `rl.losses.ppo_clip`."""
    old, advantages = batch.old_logprobs, batch.advantages
    clip, dual_clip = objective.clip, objective.dual_clip
    return PolicyLoss(
        losses.ppo_clip(logprobs, old, advantages, clip=clip, dual_clip=dual_clip),
        losses.is_clipped(logprobs, old, advantages, clip=clip, dual_clip=dual_clip),
    )
