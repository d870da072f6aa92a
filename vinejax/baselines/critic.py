"""PPO's critic: a second model, started as a copy of the policy, that predicts the return.

It has a whole backbone of its own and a linear head on the last hidden state, after the final norm,
with its own optimizer. The value before token t is read at the token before it. Source: the
reference's `models/pretrained_with_value_head.py:23-88` and `trainers/ppo_trainer.py:1003-1017`.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from vinejax.learner.batch import slices
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.score import shifted
from vinejax.learner.update import accumulate, apply
from vinejax.model.decoder import Decoder, Params
from vinejax.model.sharding import replicate
from vinejax.rl.losses import value_clip
from vinejax.settings import Config
from vinejax.types import Batch, TrainState


class Targets(NamedTuple):
    """What a critic learns, beside the batch that it learns from."""

    old_values: Any  # f32[B, T] its own, when the episodes were sampled
    returns: Any  # f32[B, T]


class CriticStats(NamedTuple):
    """Sums over the minibatch's response tokens, but for the last two."""

    loss: Float[Array, ""]
    value: Float[Array, ""]
    error: Float[Array, ""]  # squared, value to return
    clipped: Float[Array, ""]  # values further than the clip from the old one
    tokens: Float[Array, ""]
    grad_norm: Float[Array, ""]
    updates: Float[Array, ""]


def fresh_critic(model: Decoder, start: Params, seed: int, mesh: Mesh) -> Params:
    """{backbone: the start's weights without its output matrix, head: {kernel [D], bias []}}.

    The kernel is drawn from N(0, 1 / (D + 1)), the bias is 0.
    """
    width = model.cfg.width

    def draw() -> Params:
        kernel = jax.random.normal(jax.random.key(seed), (width,)) * (width + 1) ** -0.5
        return {"kernel": kernel, "bias": jnp.float32(0)}

    backbone = {name: x for name, x in start.items() if name != "head"}
    head = jax.jit(draw, out_shardings=NamedSharding(mesh, PartitionSpec()))()
    return {"backbone": backbone, "head": head}


def token_values(model: Decoder, critic: Params, batch: Batch) -> Float[Array, "B T"]:
    """V of the state before each token, entry t belonging to `tokens[:, t]`; entry 0 is 0."""
    x, _ = model.hidden(critic["backbone"], batch.tokens, batch.positions, batch.segment_ids)
    # The final norm and one output column: a decoder with a vocabulary of one.
    cfg = dataclasses.replace(model.cfg, tied_head=False, logit_softcap=None)
    output = critic["backbone"] | {"head": critic["head"]["kernel"][:, None]}
    after = dataclasses.replace(model, cfg=cfg).logits(output, x)[..., 0] + critic["head"]["bias"]
    return shifted(after)


@functools.partial(jax.jit, static_argnames="model")
def _values(model: Decoder, critic: Params, batch: Batch) -> Float[Array, "B T"]:
    values = jnp.where(batch.mask, token_values(model, critic, batch), 0.0)
    return replicate(values, model.mesh)


def critic_values(model: Decoder, critic: Params, batch: Batch, size: int) -> np.ndarray:
    """f32[B, T] before the batch's response tokens, 0 elsewhere; `size` rows at a time."""
    parts = [_values(model, critic, rows) for rows in slices(batch, size)]
    return np.concatenate(jax.device_get(parts))


def make_critic_optimizer(cfg: Config, num_updates: int) -> optax.GradientTransformation:
    """As the policy's, at `critic.learning_rate`."""
    own = dataclasses.replace(cfg.optimizer, learning_rate=cfg.critic.learning_rate)
    return make_optimizer(own, num_updates)


def critic_gradients(
    model: Decoder,
    critic: Params,
    rows: tuple[Batch, Targets],
    clip: float,
    microbatch: int | None,
) -> tuple[Params, CriticStats]:
    """Gradient of the clipped squared error, mean over the minibatch's tokens; sums behind it."""
    tokens = jnp.maximum(rows[0].mask.sum(), 1)

    def loss(critic: Params, micro: tuple[Batch, Targets]) -> tuple[jax.Array, CriticStats]:
        batch, targets = micro
        values, old_values, returns = (
            jnp.where(batch.mask, x, 0.0)
            for x in (token_values(model, critic, batch), targets.old_values, targets.returns)
        )
        terms = CriticStats(
            loss=value_clip(values, old_values, returns, clip),
            value=values,
            error=(values - returns) ** 2,
            clipped=(jnp.abs(values - old_values) > clip).astype(jnp.float32),
            tokens=jnp.ones_like(values),
            grad_norm=jnp.zeros_like(values),
            updates=jnp.zeros_like(values),
        )
        sums = CriticStats(*(jnp.sum(jnp.where(batch.mask, x, 0.0)) for x in terms))
        return sums.loss / tokens, sums

    def ready(critic: Params) -> Params:
        return critic | {"backbone": model.ready(critic["backbone"])}

    return accumulate(loss, critic, rows, microbatch, model.mesh, ready)


@functools.partial(
    jax.jit,
    static_argnames=("model", "optimizer", "clip", "microbatch"),
    donate_argnames="state",
)
def critic_step(
    model: Decoder,
    optimizer: optax.GradientTransformation,
    clip: float,
    microbatch: int | None,
    state: TrainState,
    rows: tuple[Batch, Targets],
) -> tuple[TrainState, CriticStats]:
    """One update of the critic; one whose gradient is not finite changes nothing."""
    grads, sums = critic_gradients(model, state.params, rows, clip, microbatch)
    state, norm, accepted = apply(optimizer, state, grads, model.mesh)
    return state, sums._replace(grad_norm=norm, updates=accepted.astype(jnp.float32))


def critic_metrics(updates: list[CriticStats]) -> dict[str, float]:
    """Means over the tokens of the iteration's updates."""
    total = jax.tree.map(lambda *x: float(sum(x)), *updates)
    return {
        "critic/loss": total.loss / max(total.tokens, 1.0),
        "critic/value": total.value / max(total.tokens, 1.0),
        "critic/error": total.error / max(total.tokens, 1.0),
        "critic/clip_frac": total.clipped / max(total.tokens, 1.0),
        "critic/grad_norm": total.grad_norm / max(total.updates, 1.0),
    }
