"""PPO: generalised advantage estimates on the values of a critic.

    A_t = Σ_{i≥t} (γλ)^(i-t)·(r_i + γ·V_{i+1} - V_i)

The critic is a second model with an optimizer of its own: a copy of the start with a linear head on
the last hidden state, after the final norm. The head's weights are drawn from N(0, 1/(width + 1)).
In a run with adapters the critic has adapters of its own over the start's weights. The value before
token t is computed at the token before it. The critic's loss is
½·max((V - G)², (clip(V, V_old ± `critic.clip`) - G)²), a mean over tokens.

The critic's first values have the scale of the hidden states. With SmolLM2 their standard deviation
is 1.5, where rewards are 0 or 1. With `critic.head_scale=0` the first values are 0.

Source: https://arxiv.org/abs/1707.06347, and VinePPO's code `models/pretrained_with_value_head.py`
(23-88) and `trainers/ppo_trainer.py` (1003-1017).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float

from vinejax.core.settings import Config
from vinejax.core.types import Array, Batch, Rollout, RunState, TrainState
from vinejax.credit.assign import Credit, before_steps, token_estimates
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.packing import Passes, passes_for
from vinejax.learner.score import run_passes, shift_right
from vinejax.learner.update import (
    Loss,
    Objective,
    Update,
    fresh_state,
    mean_norm,
    total_sums,
    train_on,
)
from vinejax.methods.base import OF_TOKENS, Method
from vinejax.methods.settings import CriticConfig
from vinejax.methods.stages import MethodState, minibatches_of
from vinejax.model.decoder import Decoder, Params
from vinejax.model.hf.weights import RewardModel
from vinejax.model.lora import abstract_adapters, merge_adapters, weights_of
from vinejax.model.sharding import make_mesh, placed_shapes, replicate
from vinejax.rl.losses import value_clip
from vinejax.rl.values import explained_variance
from vinejax.runtime.host_arrays import whole_array
from vinejax.runtime.offload import to_device
from vinejax.session.budget import num_updates
from vinejax.session.iteration import Iteration
from vinejax.session.session import Session


class Targets(NamedTuple):
    """The arrays that an update of the critic needs besides the batch."""

    old_values: Array  # f32[B, T] values by the critic before the iteration's updates
    returns: Array  # f32[B, T]


class CriticSums(NamedTuple):
    """Sums of the critic's loss and metrics over the minibatch's response tokens."""

    loss: Float[jax.Array, ""]
    value: Float[jax.Array, ""]
    error: Float[jax.Array, ""]  # squared difference of value and return
    clipped: Float[jax.Array, ""]  # number of values further than `clip` from the old value
    tokens: Float[jax.Array, ""]


def fresh_critic(
    model: Decoder, start: Params, seed: int, mesh: Mesh, head_scale: float = 1.0
) -> Params:
    """A new critic: {backbone: `start` without the output matrix, head: {kernel, bias}}.

    `start` is the whole model, or only fresh adapters. The head's kernel [D] is `head_scale` times
    draws from N(0, 1 / (D + 1)), and its bias [] is 0.
    """
    width = model.cfg.width

    def draw() -> Params:
        kernel = jax.random.normal(jax.random.key(seed), (width,)) * (width + 1) ** -0.5
        return {"kernel": head_scale * kernel, "bias": jnp.float32(0)}

    head = jax.jit(draw, out_shardings=NamedSharding(mesh, PartitionSpec()))()
    return critic_weights({"backbone": start, "head": head}, None)


def critic_weights(critic: Params, base: Params | None) -> Params:
    """The critic with the weights of its whole backbone.

    If the critic has adapters, they are applied to the frozen weights `base`.
    """
    backbone = weights_of(critic["backbone"], base)
    backbone = {name: x for name, x in backbone.items() if name != "head"}  # the output matrix
    return critic | {"backbone": backbone}


def token_values(model: Decoder, critic: Params, batch: Batch) -> Float[jax.Array, "B T"]:
    """V of the state before each token. Entry t belongs to `tokens[:, t]`, and entry 0 is 0."""
    where = (batch.tokens, batch.positions, batch.segment_ids)
    x, _ = model.hidden(critic["backbone"], *where, seen_until=batch.seen_until)
    # The final norm and one output column are those of a decoder with a vocabulary of size 1.
    cfg = dataclasses.replace(model.cfg, tied_head=False, logit_softcap=None, logit_divisor=1.0)
    output = critic["backbone"] | {"head": critic["head"]["kernel"][:, None]}
    after = dataclasses.replace(model, cfg=cfg).logits(output, x)[..., 0] + critic["head"]["bias"]
    return shift_right(after, batch.positions)


@functools.partial(jax.jit, static_argnames="model")
def _values(model: Decoder, critic: Params, batch: Batch) -> Float[jax.Array, "B T"]:
    values = jnp.where(batch.mask, token_values(model, critic, batch), 0.0)
    return replicate(values, model.mesh)


def critic_values(model: Decoder, critic: Params, batch: Batch, passes: Passes) -> np.ndarray:
    """V before each response token, f32[B, T], 0 elsewhere; `critic` must have all weights."""
    return run_passes(functools.partial(_values, model, critic), batch, passes, model.mesh)


def make_critic_optimizer(cfg: Config, num_updates: int) -> optax.GradientTransformation:
    """An optimizer like the policy's, but with the learning rate `critic.learning_rate`."""
    settings = dataclasses.replace(cfg.optimizer, learning_rate=CriticConfig.of(cfg).learning_rate)
    return make_optimizer(settings, num_updates)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CriticObjective(Objective):
    """The clipped squared error of values, a mean over the response tokens of a minibatch."""

    clip: float

    def loss_over(self, rows: tuple[Batch, Targets]) -> tuple[tuple[Batch, Targets], Loss]:
        tokens = jnp.maximum(rows[0].mask.sum(), 1)

        def loss(critic: Params, micro: tuple[Batch, Targets]) -> tuple[jax.Array, CriticSums]:
            batch, targets = micro
            values, old_values, returns = (
                jnp.where(batch.mask, x, 0.0)
                for x in (
                    token_values(self.model, critic, batch),
                    targets.old_values,
                    targets.returns,
                )
            )
            terms = CriticSums(
                loss=value_clip(values, old_values, returns, self.clip),
                value=values,
                error=(values - returns) ** 2,
                clipped=jnp.abs(values - old_values) > self.clip,
                tokens=jnp.ones_like(values),
            )
            sums = jax.tree.map(lambda x: jnp.sum(jnp.where(batch.mask, x, 0.0)), terms)
            return sums.loss / tokens, sums

        return rows, loss

    def ready(self, params: Params) -> Params:
        return params | {"backbone": self.model.ready(params["backbone"])}

    def weights(self, trained: Params, base: Params | None) -> Params:
        return critic_weights(trained, base)


def critic_objective(model: Decoder, cfg: Config) -> CriticObjective:
    """The objective of PPO's critic with the settings of `cfg`."""
    size, packed, shared = passes_for(cfg, cfg.ppo.minibatch, model.mesh)
    return CriticObjective(
        model=model, microbatch=size, packed=packed, shared=shared, clip=CriticConfig.of(cfg).clip
    )


def critic_metrics(updates: list[Update]) -> dict[str, float]:
    """Means over the iteration's tokens; `critic/grad_norm` leaves out skipped updates."""
    total = jax.tree.map(float, total_sums(updates))
    tokens = max(total.tokens, 1.0)
    return {
        "critic/loss": total.loss / tokens,
        "critic/value": total.value / tokens,
        "critic/error": total.error / tokens,
        "critic/clip_frac": total.clipped / tokens,
        "critic/grad_norm": mean_norm(updates),
    }


class Critic(MethodState):
    """A `MethodState` that keeps the critic's train state between iterations."""

    has_critic = True
    scores = True

    def keeps(self, cfg: Config) -> bool:
        return True

    def fresh(self, session: Session) -> TrainState:
        """The train state of a new critic: a copy of the start's weights with a new head.

        In a run with adapters the critic has adapters that have no effect yet, and a new head.
        """
        cfg, mesh = session.cfg, session.mesh
        scale = CriticConfig.of(cfg).head_scale
        weights = fresh_critic(session.model, session.fresh_params(), cfg.seed, mesh, scale)
        return fresh_state(weights, make_critic_optimizer(cfg, 1), mesh)

    def valued(self, iteration: Iteration, kept: TrainState, rollout: Rollout) -> Rollout:
        """The rollout with V before each response token."""
        cfg, session = iteration.cfg, iteration.session
        passes = passes_for(cfg, cfg.ppo.minibatch, session.mesh)
        weights = critic_weights(to_device(kept.params), session.base)
        values = critic_values(session.model, weights, rollout.batch, passes)
        return rollout._replace(values=values)

    def learn(
        self, iteration: Iteration, state: RunState, rollout: Rollout, credit: Credit
    ) -> RunState:
        """The state with a critic updated on the minibatches that later update the policy."""
        cfg, model = iteration.cfg, iteration.session.model
        critic = to_device(state.kept)
        objective = critic_objective(model, cfg)
        optimizer = make_critic_optimizer(cfg, num_updates(cfg))
        batch = rollout.batch._replace(advantages=credit.advantages, mask=credit.mask)
        targets = Targets(rollout.values, np.asarray(credit.returns))
        stream = minibatches_of(iteration, rollout, (batch, targets))
        critic, updates = train_on(objective, optimizer, critic, stream, iteration.session.base)
        iteration.note_updates(updates, batch)
        if updates:
            iteration.metrics |= critic_metrics(updates)
        mask = np.asarray(rollout.batch.mask)
        explained = explained_variance(targets.old_values[mask], targets.returns[mask])
        if explained is not None:
            iteration.metrics["critic/explained_variance"] = explained
        return state._replace(kept=critic)

    def reward_model(
        self, cfg: Config, model: Decoder, params: Params, restore: Callable[[Any], Any]
    ) -> RewardModel:
        """The critic as a reward model. `params`, the frozen weights, matter only with adapters."""
        mesh, lora = model.mesh or make_mesh(cfg.mesh), cfg.model
        start = abstract_adapters(model, lora) if lora.lora_rank else params
        like = jax.eval_shape(lambda start: fresh_critic(model, start, cfg.seed, mesh), start)
        critic = restore({"params": placed_shapes(mesh, like)})["params"]
        head, backbone = jax.tree.map(whole_array, critic["head"]), critic["backbone"]
        if lora.lora_rank:
            backbone = critic_weights(critic, params)["backbone"]
            backbone = merge_adapters(backbone, lora.lora_alpha / lora.lora_rank)
        return RewardModel(model, backbone, head["kernel"], float(head["bias"]))


def estimated(rollout: Rollout, cfg: Config) -> Credit:
    """Generalised advantage estimates from the critic's values, and returns for critic updates."""
    assert rollout.values is not None, "PPO's credit needs the critic's values"
    lam = CriticConfig.of(cfg).lam
    advantages, returns = token_estimates(rollout, cfg, rollout.values, lam)
    values = before_steps(rollout.values, rollout.steps)
    return Credit(advantages, returns=np.asarray(returns), values=values)


METHOD = Method(
    estimated,
    state=Critic(),
    settings=CriticConfig,
    reads=OF_TOKENS,
    defaults={"ppo.whiten": "iteration"},
)
