"""What every optimizer update shares: gradients over microbatches, and a guard.

A loss is handed over as a sum that is already divided by the whole minibatch's count, so that
microbatches and devices cannot change it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vinejax.model.decoder import Params
from vinejax.types import TrainState

# (params, rows) -> (these rows' part of the loss, sums to be reported)
Loss = Callable[[Params, Any], tuple[jax.Array, Any]]


def accumulate(loss: Loss, params: Params, rows: Any, microbatch: int | None) -> tuple[Params, Any]:
    """(gradient, sums) of `loss` over `rows`, arrays [B, ...], `microbatch` rows at a time.

    None takes all at once; otherwise it divides B.
    """

    def part(micro: Any) -> tuple[Params, Any]:
        (_, sums), grads = jax.value_and_grad(loss, has_aux=True)(params, micro)
        return grads, sums

    def add(total: tuple[Params, Any], micro: Any) -> tuple[tuple[Params, Any], None]:
        return jax.tree.map(jnp.add, total, part(micro)), None

    size = microbatch or jax.tree.leaves(rows)[0].shape[0]
    micros = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), rows)
    shapes = jax.eval_shape(part, jax.tree.map(lambda x: x[0], micros))
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return lax.scan(add, zero, micros)[0]


def apply(
    optimizer: optax.GradientTransformation,
    state: TrainState,
    grads: Params,
    accept: jax.Array | bool = True,
) -> tuple[TrainState, jax.Array, jax.Array]:
    """(the state after one update, the gradient's norm, whether it was made).

    An update that is not to be accepted, or whose gradient is not finite, changes nothing, the
    schedule's step included; its norm is given as 0.
    """
    norm = optax.global_norm(grads)
    accept = accept & jnp.isfinite(norm)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    updated = TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state)
    kept = state._replace(critic=None)
    state = jax.tree.map(lambda new, old: jnp.where(accept, new, old), updated, kept)
    return state, jnp.where(accept, norm, 0.0), accept


def fresh_state(params: Params, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """The state before the first update, all on the mesh: a moment lies where its weight does.

    What an update returns is then placed as what it was given, and the next compiles nothing.
    """
    params = jax.tree.map(jnp.copy, params)  # updates donate theirs
    everywhere = NamedSharding(mesh, PartitionSpec())
    shardings = optax.tree_map_params(
        optimizer,
        lambda _, param: param.sharding,
        jax.eval_shape(optimizer.init, params),
        params,
        transform_non_params=lambda _: everywhere,
    )
    opt_state = jax.jit(optimizer.init, out_shardings=shardings)(params)
    return TrainState(jax.device_put(jnp.int32(0), everywhere), params, opt_state)
