"""One optimizer update of a policy-gradient method: its loss plus KL, over microbatches."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from vinejax.learner.objective import Objective
from vinejax.learner.score import token_logprobs
from vinejax.learner.update import accumulate, apply
from vinejax.model.decoder import Decoder, Params
from vinejax.rl.losses import kl, opmd, ppo_clip, reinforce
from vinejax.rl.masked import whiten
from vinejax.types import Batch, TrainState

K3_MAX = 10.0  # the reference clamps k3 to [0, 10] a token (ppo_trainer.py)


class UpdateStats(NamedTuple):
    """Sums over the minibatch's response tokens, but for the last four."""

    loss: Float[Array, ""]  # policy loss without KL
    kl: Float[Array, ""]  # k3 to the reference
    old_kl: Float[Array, ""]  # k3 to the policy that sampled
    ratio: Float[Array, ""]
    clipped: Float[Array, ""]
    entropy: Float[Array, ""]
    tokens: Float[Array, ""]
    grad_norm: Float[Array, ""]
    skipped: Float[Array, ""]
    updates: Float[Array, ""]


def token_weights(
    mask: Bool[Array, "B T"], reduction: str, max_tokens: int = 1
) -> Float[Array, "B T"]:
    """w_t of a loss Σ w_t·L_t over the minibatch; 0 off the mask.

    'token': 1 / its tokens. 'sequence': 1 / (the row's tokens · rows with a response). 'budget':
    1 / (max_tokens · rows with a response), which no length enters.
    """
    lengths = mask.sum(axis=1, keepdims=True)
    sequences = jnp.maximum((lengths > 0).sum(), 1)
    if reduction == "token":
        count = jnp.maximum(lengths.sum(), 1)
    elif reduction == "sequence":
        count = jnp.maximum(lengths, 1) * sequences
    else:
        count = max_tokens * sequences
    return jnp.where(mask, 1.0 / count, 0.0)


def _terms(
    model: Decoder, params: Params, batch: Batch, objective: Objective
) -> tuple[Float[Array, "B T"], UpdateStats]:
    """(the policy loss of each token, sums over a microbatch)."""
    logprobs, entropy = token_logprobs(model, params, batch, objective.temperature)
    # Off the response both are replaced by 0 before any arithmetic: no NaN, no gradient.
    logprobs, old, advantages, ref = (
        jnp.where(batch.mask, x, 0.0)
        for x in (logprobs, batch.old_logprobs, batch.advantages, batch.ref_logprobs)
    )
    ratio = jnp.exp(logprobs - old)
    low, high = objective.clip
    if objective.loss == "clip":
        loss = ppo_clip(logprobs, old, advantages, objective.clip)
    elif objective.loss == "opmd":
        loss = opmd(logprobs, old, advantages, batch.mask, objective.tau)
    else:
        loss = reinforce(logprobs, advantages)
    terms = UpdateStats(
        loss=loss,
        kl=jnp.clip(kl(logprobs, ref, kind="k3"), 0.0, K3_MAX),
        old_kl=kl(logprobs, old, kind="k3"),
        ratio=ratio,
        clipped=((ratio < 1 - low) | (ratio > 1 + high)).astype(jnp.float32),
        entropy=entropy,
        tokens=jnp.ones_like(ratio),
        grad_norm=jnp.zeros_like(ratio),
        skipped=jnp.zeros_like(ratio),
        updates=jnp.zeros_like(ratio),
    )
    return loss, UpdateStats(*(jnp.sum(jnp.where(batch.mask, x, 0.0)) for x in terms))


def gradients(
    model: Decoder, params: Params, batch: Batch, objective: Objective
) -> tuple[Params, UpdateStats]:
    """Gradient of the minibatch's loss, and the sums behind it.

    L = Σ w_t·policy_t + coef · Σ k3_t / (tokens | sequences)    w_t: `token_weights`
    """
    sequences = jnp.maximum(batch.mask.any(axis=1).sum(), 1)
    tokens = jnp.maximum(batch.mask.sum(), 1)
    kl_count = tokens if objective.kl.reduction == "token" else sequences
    weights = token_weights(batch.mask, objective.ppo.reduction, objective.max_tokens)

    def loss(params: Params, micro: tuple[Batch, jax.Array]) -> tuple[jax.Array, UpdateStats]:
        rows, weights = micro
        policy, sums = _terms(model, params, rows, objective)
        return jnp.sum(weights * policy) + objective.kl.coef * sums.kl / kl_count, sums

    rows, microbatch = (batch, weights), objective.ppo.microbatch
    return accumulate(loss, params, rows, microbatch, model.mesh, model.ready)


@functools.partial(
    jax.jit, static_argnames=("model", "optimizer", "objective"), donate_argnames="state"
)
def train_step(
    model: Decoder,
    optimizer: optax.GradientTransformation,
    objective: Objective,
    state: TrainState,
    batch: Batch,
) -> tuple[TrainState, UpdateStats]:
    """One update on one minibatch, [B, T] with B a multiple of the microbatch.

    An update whose mean probability ratio passes `ppo.max_ratio`, or whose gradient is not finite,
    changes nothing, the schedule's step included, and is counted. (The reference multiplies the
    loss by 0, which lets a NaN through.)
    """
    ppo = objective.ppo
    if ppo.whiten == "minibatch":
        advantages = whiten(batch.advantages, batch.mask, shift_mean=ppo.shift_mean)
        batch = batch._replace(advantages=advantages)
    grads, sums = gradients(model, state.params, batch, objective)
    mean_ratio = sums.ratio / jnp.maximum(sums.tokens, 1)
    accept = mean_ratio <= ppo.max_ratio
    state, norm, accepted = apply(optimizer, state, grads, model.mesh, accept)
    made = accepted.astype(jnp.float32)
    return state, sums._replace(grad_norm=norm, skipped=1.0 - made, updates=made)
