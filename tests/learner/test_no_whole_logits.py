"""No compiled program of the learner holds the logits of all tokens in one array."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
import pytest
from helpers.loop_cases import model as sized
from jax.stages import Lowered

from vinejax.core.settings import MeshConfig
from vinejax.core.types import Batch, TrainState
from vinejax.learner.likelihood import Likelihood
from vinejax.learner.policy import PolicyObjective, clipped_loss
from vinejax.learner.score import score
from vinejax.learner.update import Objective, update_step
from vinejax.methods.dpo_positive import DPOConfig, loss
from vinejax.methods.pairs import PairObjective
from vinejax.methods.ppo import CriticObjective, Targets, fresh_critic
from vinejax.model.config import Compute
from vinejax.model.decoder import Decoder
from vinejax.model.sharding import make_mesh

B, T, V, CHUNK = 4, 64, 256, 24
OPTIMIZER = optax.sgd(1.0)


def rows(count: int) -> Batch:
    """The shapes of a batch."""
    ids, numbers = (jax.ShapeDtypeStruct((count, T), kind) for kind in (jnp.int32, jnp.float32))
    mask = jax.ShapeDtypeStruct((count, T), jnp.bool_)
    return Batch(ids, ids, ids, mask, numbers, numbers, numbers)  # pyright: ignore


def lowered_update(objective: Objective, batch: object) -> Lowered:
    params = jax.eval_shape(objective.model.init, jax.random.key(0))
    return update_step.lower(objective, OPTIMIZER, state_of(params), batch)


def state_of(params: object) -> TrainState:
    step = jax.ShapeDtypeStruct((), jnp.int32)
    return TrainState(step, params, jax.eval_shape(OPTIMIZER.init, params))  # pyright: ignore


def lowered_score(model: Decoder) -> Lowered:
    params = jax.eval_shape(model.init, jax.random.key(0))
    return score.lower(model, params, rows(B), 0.6)


def lowered_train_step(model: Decoder) -> Lowered:
    objective = PolicyObjective(
        model=model, microbatch=B, temperature=0.6, loss=clipped_loss, kl_coef=0.1
    )
    return lowered_update(objective, rows(2 * B))


def lowered_sft(model: Decoder) -> Lowered:
    return lowered_update(Likelihood(model=model, microbatch=B), rows(2 * B))


def lowered_dpo(model: Decoder) -> Lowered:
    objective = PairObjective(
        model=model, microbatch=B, temperature=0.6, loss=loss, own=DPOConfig()
    )
    return lowered_update(objective, rows(2 * B))


def lowered_critic(model: Decoder) -> Lowered:
    params = jax.eval_shape(model.init, jax.random.key(0))
    fresh = functools.partial(fresh_critic, model, seed=0, mesh=make_mesh(MeshConfig()))
    batch = rows(2 * B)
    objective = CriticObjective(model=model, microbatch=B, clip=0.2)
    targets = Targets(batch.advantages, batch.advantages)
    state = state_of(jax.eval_shape(fresh, params))
    return update_step.lower(objective, OPTIMIZER, state, (batch, targets))


def largest_array(lower: Callable[[Decoder], Lowered], model: Decoder) -> int:
    """The number of elements in the largest array of the program, inside fusions too."""
    text = lower(model).compile().as_text() or ""
    shapes = re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", text)
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)


def model_of(vocab: int, chunk: int | None = CHUNK, **fields: object) -> Decoder:
    """One layer, whose activations and weights are much smaller than all logits."""
    model = sized(vocab_size=vocab, num_layers=1, num_heads=1, num_kv_heads=1, **fields)
    return dataclasses.replace(model, compute=Compute(vocab_chunk=chunk, remat="full"))


def test_the_largest_array_does_not_depend_on_the_vocabulary():
    """The largest array is attention's mask, T x T per row. With one chunk, it is the logits."""
    assert largest_array(lowered_score, model_of(V)) == B * T * T
    assert largest_array(lowered_score, model_of(2 * V)) == B * T * T
    assert largest_array(lowered_score, model_of(V, chunk=None)) == B * T * V


@pytest.mark.slow
@pytest.mark.parametrize("lower", [lowered_train_step, lowered_sft, lowered_dpo, lowered_critic])
def test_logits_are_never_whole(lower: Callable[[Decoder], Lowered]):
    assert largest_array(lower, model_of(V)) == B * T * T
