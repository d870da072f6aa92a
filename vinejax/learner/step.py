"""One optimizer update of PPO: clipped loss plus KL, gradients accumulated over microbatches."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float

from vinejax.config import KLConfig, PPOConfig
from vinejax.learner.score import token_logprobs
from vinejax.model.decoder import Decoder, Params
from vinejax.rl.losses import kl, ppo_clip
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


def _sums(
    model: Decoder, params: Params, batch: Batch, temperature: float, ppo: PPOConfig
) -> UpdateStats:
    """Per-token terms of a microbatch, summed."""
    logprobs, entropy = token_logprobs(model, params, batch, temperature)
    # Off the response both are replaced by 0 before any arithmetic: no NaN, no gradient.
    logprobs = jnp.where(batch.mask, logprobs, 0.0)
    ratio = jnp.exp(logprobs - batch.old_logprobs)
    terms = UpdateStats(
        loss=ppo_clip(logprobs, batch.old_logprobs, batch.advantages, ppo.clip),
        kl=jnp.clip(kl(logprobs, batch.ref_logprobs, kind="k3"), 0.0, K3_MAX),
        old_kl=kl(logprobs, batch.old_logprobs, kind="k3"),
        ratio=ratio,
        clipped=(jnp.abs(ratio - 1) > ppo.clip).astype(jnp.float32),
        entropy=entropy,
        tokens=jnp.ones_like(ratio),
        grad_norm=jnp.zeros_like(ratio),
        skipped=jnp.zeros_like(ratio),
        updates=jnp.zeros_like(ratio),
    )
    return UpdateStats(*(jnp.sum(jnp.where(batch.mask, x, 0.0)) for x in terms))


def gradients(
    model: Decoder,
    params: Params,
    batch: Batch,
    temperature: float,
    ppo: PPOConfig,
    kl_cfg: KLConfig,
) -> tuple[Params, UpdateStats]:
    """Gradient of the minibatch's loss, and the sums behind it.

    The loss is one sum over the minibatch's tokens divided by their number, so microbatches and
    devices cannot change it:  L = sum(policy) / tokens + coef * sum(k3) / (tokens | sequences).
    """
    tokens = jnp.maximum(batch.mask.sum(), 1)
    sequences = jnp.maximum(batch.mask.any(axis=1).sum(), 1)
    kl_count = tokens if kl_cfg.reduction == "token" else sequences

    def loss(params: Params, micro: Batch) -> tuple[jax.Array, UpdateStats]:
        sums = _sums(model, params, micro, temperature, ppo)
        return sums.loss / tokens + kl_cfg.coef * sums.kl / kl_count, sums

    def accumulate(total: tuple[Params, UpdateStats], micro: Batch):
        (_, sums), grads = jax.value_and_grad(loss, has_aux=True)(params, micro)
        return jax.tree.map(jnp.add, total, (grads, sums)), None

    micros = jax.tree.map(
        lambda x: x.reshape(-1, ppo.microbatch or x.shape[0], *x.shape[1:]), batch
    )
    zero = (jax.tree.map(jnp.zeros_like, params), UpdateStats(*[jnp.float32(0)] * 10))
    (grads, sums), _ = lax.scan(accumulate, zero, micros)
    return grads, sums


@functools.partial(
    jax.jit,
    static_argnames=("model", "optimizer", "temperature", "ppo", "kl_cfg"),
    donate_argnames="state",
)
def train_step(
    model: Decoder,
    optimizer: optax.GradientTransformation,
    temperature: float,
    ppo: PPOConfig,
    kl_cfg: KLConfig,
    state: TrainState,
    batch: Batch,
) -> tuple[TrainState, UpdateStats]:
    """One update on one minibatch, [B, T] with B a multiple of the microbatch.

    An update whose mean probability ratio passes `ppo.max_ratio`, or whose gradient is not finite,
    changes nothing, the schedule's step included, and is counted. (The reference multiplies the
    loss by 0, which lets a NaN through.)
    """
    if ppo.whiten == "minibatch":
        advantages = whiten(batch.advantages, batch.mask, shift_mean=ppo.shift_mean)
        batch = batch._replace(advantages=advantages)
    grads, sums = gradients(model, state.params, batch, temperature, ppo, kl_cfg)
    grad_norm = optax.global_norm(grads)
    mean_ratio = sums.ratio / jnp.maximum(sums.tokens, 1)
    accept = (mean_ratio <= ppo.max_ratio) & jnp.isfinite(grad_norm)

    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    updated = TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state)
    state = jax.tree.map(lambda new, old: jnp.where(accept, new, old), updated, state)
    stats = sums._replace(
        grad_norm=jnp.where(accept, grad_norm, 0.0),
        skipped=1.0 - accept.astype(jnp.float32),
        updates=accept.astype(jnp.float32),
    )
    return state, stats
