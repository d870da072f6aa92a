"""What every optimizer update shares: gradients over microbatches, and a guard.

A loss is handed over as a sum that is already divided by the whole minibatch's count, so that
microbatches and devices cannot change it. Where a mesh is given, gradients, parameters and the
optimizer's moments lie by its table, rows are split over `data` and `fsdp`, and what the hosts read
is whole on every device.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vinejax.model.decoder import Params
from vinejax.model.sharding import ROWS, as_params, constrain, param_shardings, replicate
from vinejax.types import TrainState

# (params, rows) -> (these rows' part of the loss, sums to be reported)
Loss = Callable[[Params, Any], tuple[jax.Array, Any]]


def accumulate(
    loss: Loss,
    params: Params,
    rows: Any,
    microbatch: int | None,
    mesh: Mesh | None,
    ready: Callable[[Params], Params],
) -> tuple[Params, Any]:
    """(gradient, sums) of `loss` over `rows`, arrays [B, ...], `microbatch` rows at a time.

    None takes all at once; otherwise it divides B. `ready` makes of the parameters what all passes
    use (`Decoder.ready`): rounded copies, whose gradients are the parameters' own.
    """
    weights = ready(params)

    def part(micro: Any) -> tuple[Params, Any]:
        (_, sums), grads = jax.value_and_grad(loss, has_aux=True)(weights, micro)
        return as_params(grads, mesh), sums

    def add(total: tuple[Params, Any], micro: Any) -> tuple[tuple[Params, Any], None]:
        grads, sums = jax.tree.map(lambda x, y: x + y.astype(x.dtype), total, part(micro))
        return (as_params(grads, mesh), sums), None

    size = microbatch or jax.tree.leaves(rows)[0].shape[0]
    micros = jax.tree.map(lambda x: _strided(x, size, mesh), rows)
    _, sums = jax.eval_shape(part, jax.tree.map(lambda x: x[0], micros))
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (params, sums))
    grads, sums = lax.scan(add, (as_params(zero[0], mesh), zero[1]), micros)[0]
    return grads, replicate(sums, mesh)


def _strided(x: jax.Array, size: int, mesh: Mesh | None) -> jax.Array:
    """[B, ...] as n microbatches [n, size, ...], the j-th of rows j, j + n, j + 2n, ...

    So each device has the rows that it had of the batch, and gives some to every microbatch.
    """
    parts = x.reshape(size, -1, *x.shape[1:]).swapaxes(0, 1)
    return constrain(parts, mesh, None, ROWS, *[None] * (x.ndim - 1))


def apply(
    optimizer: optax.GradientTransformation,
    state: TrainState,
    grads: Params,
    mesh: Mesh | None,
    accept: jax.Array | bool = True,
) -> tuple[TrainState, jax.Array, jax.Array]:
    """(the state after one update, the gradient's norm, whether it was made).

    An update that is not to be accepted, or whose gradient is not finite, changes nothing, the
    schedule's step included; its norm is given as 0.
    """
    norm = optax.tree.norm(grads)
    accept = accept & jnp.isfinite(norm)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    updated = TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state)
    kept = state._replace(critic=None)
    state = jax.tree.map(lambda new, old: jnp.where(accept, new, old), updated, kept)
    if mesh is not None:  # as it came: otherwise the next update would be another program
        state = lax.with_sharding_constraint(state, state_shardings(state.params, optimizer, mesh))
    return state, *replicate((jnp.where(accept, norm, 0.0), accept), mesh)


def state_shardings(
    params: Params, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    """Where a state lies: parameters by the table, moments as their parameters, the rest whole."""
    whole, placed = NamedSharding(mesh, P()), param_shardings(mesh, params)
    moments = optax.tree_map_params(
        optimizer,
        lambda _, sharding: sharding,
        jax.eval_shape(optimizer.init, params),
        placed,
        transform_non_params=lambda _: whole,
    )
    return TrainState(cast(Any, whole), placed, moments)


@functools.partial(jax.jit, static_argnames=("optimizer", "mesh"))
def fresh_state(params: Params, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """The state before the first update, all on the mesh."""
    copy = jax.tree.map(jnp.copy, params)  # updates donate theirs
    state = TrainState(jnp.int32(0), copy, optimizer.init(params))
    return lax.with_sharding_constraint(state, state_shardings(params, optimizer, mesh))
