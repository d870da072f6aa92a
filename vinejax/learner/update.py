"""Optimizer updates for any objective, by gradients that are summed over microbatches.

The loss of an objective is a sum that is already divided by a count over the whole minibatch, such
as that of its tokens, so microbatches and devices cannot change it. On a mesh, parameters,
gradients and moments are laid out by the table of `model/sharding.py`. Rows are split over `data`
and `fsdp`, and results that hosts read are replicated.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import DictKey, KeyPath
from jaxtyping import Array, Bool, Float

from vinejax.core.types import Batch, TrainState
from vinejax.learner.optimizer import Duration
from vinejax.learner.packing import Passes, packing_for
from vinejax.model.decoder import Decoder, Params
from vinejax.model.lora import weights_of
from vinejax.model.sharding import (
    ROWS,
    AnyMesh,
    as_params,
    constrain,
    param_shardings,
    replicate,
)
from vinejax.runtime.stopping import Watch

# (params, rows of a microbatch) -> (the microbatch's part of the loss, sums to report)
Loss = Callable[[Params, Any], tuple[jax.Array, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective(abc.ABC):
    """The loss that an update minimises.

    An objective is hashable, so that it can be a static argument of jax.jit.
    """

    model: Decoder
    microbatch: int | None = None  # rows per forward and backward pass; None: the whole minibatch
    packed: bool = False  # whether `pack` puts several episodes into a row
    shared: bool = False  # whether packed episodes also share their common first tokens

    @abc.abstractmethod
    def loss_over(self, rows: Any) -> tuple[Any, Loss]:
        """(arrays [B, ...] to divide into microbatches, the loss function of a microbatch).

        `rows` are a minibatch. The method computes everything that depends on the whole minibatch,
        such as token counts, so that the loss of a microbatch can use it.
        """

    def pack(self, rows: Any) -> Any:
        """The minibatch `rows` as `update_step` takes it: packed if the field `packed` is True.

        The method runs on the host. `rows` is a batch, or a tuple of a batch and more arrays
        [B, T]. Packed arrays have the same shapes [B, T], with tokens in fewer rows and the other
        rows empty. If the microbatch is the whole minibatch, no pass would become empty and packing
        would save nothing, so `rows` is returned unchanged.
        """
        batch = _batch_of(rows)
        total = batch.tokens.shape[0]
        size = self.microbatch or total
        if not self.packed or size == total:
            return rows
        passes = Passes(size, self.packed, self.shared)
        packing = packing_for(batch, passes, self.model.mesh, total)
        if isinstance(rows, Batch):
            return packing.pack(batch)
        return packing.pack(batch), *jax.tree.map(packing.move, rows[1:])

    def ready(self, params: Params) -> Params:
        """The weights in the form that passes over microbatches use: see `Decoder.ready`."""
        return self.model.ready(params)

    def weights(self, trained: Params, base: Params | None) -> Params:
        """All weights of the model: see `lora.weights_of`."""
        return weights_of(trained, base)

    def accepts(self, sums: Any) -> jax.Array | bool:
        """Whether to make the update, given the sums that the loss returned for the minibatch.

        `update_step` makes an accepted update only if its gradient is also finite.
        """
        return True


class Update(NamedTuple):
    """The report of one update."""

    sums: Any  # sums of the objective over the minibatch
    grad_norm: Float[Array, ""]  # norm of the gradient; 0 if the update was not made
    accepted: Bool[Array, ""]  # whether the update was made


@functools.partial(jax.jit, static_argnames=("objective", "optimizer"), donate_argnames="state")
def update_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    state: TrainState,
    rows: Any,
    base: Params | None = None,
    duration: Duration | None = None,
) -> tuple[TrainState, Update]:
    """(the state after an update on a minibatch, the report of the update).

    `rows` are arrays [B, ...], where B is a multiple of the microbatch. With `base`, the parameters
    of the state are adapters of the weights `base`, which do not change. An optimizer that is a
    `lasting_optimizer` needs the `duration` of its training.

    If the objective does not accept the update, or if the gradient is not finite, the state does
    not change, not even its step. VinePPO's code multiplies the loss by 0 instead, but 0 times NaN
    is NaN.
    """
    grads, sums = gradients(objective, state.params, rows, base)
    mesh = objective.model.mesh
    accept = objective.accepts(sums)
    state, norm, accepted = apply_gradients(optimizer, state, grads, mesh, accept, duration)
    return state, Update(sums, norm, accepted)


def train_on(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    state: TrainState,
    batches: Iterable[Any],
    base: Params | None = None,
    progress: Callable[[int], None] = lambda done: None,
    duration: Duration | None = None,
) -> tuple[TrainState, list[Update]]:
    """Makes one update per batch, in order; returns the last state and all reports.

    Each batch is an argument of `Objective.pack`, and `duration` one of `update_step`. The host
    prepares a batch while the devices compute the previous update. The function calls `progress`
    with the number of updates so far, and raises Stopped after a request to stop.
    """
    updates: list[Update] = []
    watch = Watch()
    for batch in batches:
        rows = objective.pack(batch)
        state, update = update_step(objective, optimizer, state, rows, base, duration)
        updates.append(update)
        progress(len(updates))
        watch.look(update.accepted)
    return state, jax.device_get(updates)


def total_sums(updates: Sequence[Update]) -> Any:
    """The total of the `sums` of all updates. The updates must be on the host."""
    return jax.tree.map(lambda *x: np.sum(x, axis=0), *(update.sums for update in updates))


def mean_norm(updates: Sequence[Update]) -> float:
    """The mean gradient norm of the updates that were made; 0 if no update was made."""
    norms = np.sum([update.grad_norm for update in updates], dtype=np.float32)
    return float(norms / np.float32(max(num_accepted(updates), 1)))


def num_accepted(updates: Sequence[Update]) -> int:
    """The number of updates that were made."""
    return sum(bool(update.accepted) for update in updates)


def gradients(
    objective: Objective, params: Params, rows: Any, base: Params | None = None
) -> tuple[Params, Any]:
    """(gradient for `params`, sums) of the objective over the minibatch `rows`.

    With `base`, `params` are adapters, as in `update_step`. The function skips microbatches without
    tokens. After packing, the last microbatches have no tokens.
    """
    mesh = objective.model.mesh
    has_tokens = (_batch_of(rows).segment_ids > 0).any(axis=1)
    rows, loss = objective.loss_over(rows)
    weights = objective.ready(params)
    frozen = None if base is None else objective.model.ready(base)

    def loss_of(trained: Params, micro: Any) -> tuple[jax.Array, Any]:
        return loss(objective.weights(trained, frozen), micro)

    def part(micro: Any) -> tuple[Params, Any]:
        (_, sums), grads = jax.value_and_grad(loss_of, has_aux=True)(weights, micro)
        return as_params(grads, mesh), sums

    def add(total: tuple[Params, Any], micro: Any) -> tuple[Params, Any]:
        grads, sums = jax.tree.map(lambda x, y: x + y.astype(x.dtype), total, part(micro))
        return as_params(grads, mesh), sums

    def add_if_used(
        total: tuple[Params, Any], micro_and_use: tuple[Any, jax.Array]
    ) -> tuple[tuple[Params, Any], None]:
        micro, is_used = micro_and_use
        return lax.cond(is_used, add, lambda total, _: total, total, micro), None

    size = objective.microbatch or jax.tree.leaves(rows)[0].shape[0]
    micros = jax.tree.map(lambda x: _strided(x, size, mesh), rows)
    _, sums = jax.eval_shape(part, jax.tree.map(lambda x: x[0], micros))
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (params, sums))
    is_used = _strided(has_tokens, size, mesh).any(axis=1)
    total = as_params(zero[0], mesh), zero[1]
    (grads, sums), _ = lax.scan(add_if_used, total, (micros, is_used))
    return grads, replicate(sums, mesh)


def _batch_of(rows: Any) -> Batch:
    """The batch in `rows`, which is a batch or a tuple that begins with a batch."""
    return rows if isinstance(rows, Batch) else rows[0]


def _strided(x: jax.Array, size: int, mesh: Mesh | None) -> jax.Array:
    """`x` [B, ...] as n microbatches [n, size, ...]; microbatch j has rows j, j + n, j + 2n, ...

    So each device keeps its rows of the batch, and every microbatch has rows of every device.
    """
    parts = x.reshape(size, -1, *x.shape[1:]).swapaxes(0, 1)
    return constrain(parts, mesh, None, ROWS, *[None] * (x.ndim - 1))


def apply_gradients(
    optimizer: optax.GradientTransformation,
    state: TrainState,
    grads: Params,
    mesh: Mesh | None,
    accept: jax.Array | bool = True,
    duration: Duration | None = None,
) -> tuple[TrainState, jax.Array, jax.Array]:
    """(state after one update, norm of the gradient, whether the update was made).

    `update_step` says when an update is not made, and what `duration` is; `accept` is the
    objective's decision.
    """
    norm = optax.tree.norm(grads)
    accept = accept & jnp.isfinite(norm)
    change = optax.with_extra_args_support(optimizer).update
    updates, opt_state = change(grads, state.opt_state, state.params, duration=duration)
    updated = TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state)
    state = jax.tree.map(lambda new, old: jnp.where(accept, new, old), updated, state)
    if mesh is not None:  # with another layout, the next update would compile another program
        state = lax.with_sharding_constraint(state, state_shardings(state.params, optimizer, mesh))
    norm, is_made = replicate((jnp.where(accept, norm, 0.0), accept), mesh)
    return state, norm, is_made


def state_shardings(
    params: Params, optimizer: optax.GradientTransformation, mesh: AnyMesh
) -> TrainState:
    """The shardings of a train state. Parameters and moments are laid out by PARAM_SPECS.

    Other arrays are replicated. They are counts, and the factors of moments in Adafactor.
    """
    whole = NamedSharding(mesh, P())
    placed = param_shardings(mesh, params)
    leaves = jax.tree_util.tree_leaves_with_path(params)
    sharding_of = dict(zip([(p, x.shape) for p, x in leaves], jax.tree.leaves(placed), strict=True))

    def like_its_weight(path: KeyPath, x: jax.ShapeDtypeStruct) -> NamedSharding:
        # An optimizer's state holds trees of the parameters' structure inside tuples. Only the
        # keys of dictionaries are the path of a parameter.
        names = tuple(key for key in path if isinstance(key, DictKey) and isinstance(key.key, str))
        return sharding_of.get((names, x.shape), whole)

    state = jax.eval_shape(optimizer.init, params)
    moments = jax.tree_util.tree_map_with_path(like_its_weight, state)
    return TrainState(cast(Any, whole), placed, moments)


@functools.partial(jax.jit, static_argnames=("optimizer", "mesh"))
def fresh_state(params: Params, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """The train state before the first update, laid out over the mesh, with a copy of `params`."""
    copy = jax.tree.map(jnp.copy, params)  # updates donate their state
    state = TrainState(jnp.int32(0), copy, optimizer.init(params))
    return lax.with_sharding_constraint(state, state_shardings(params, optimizer, mesh))


def with_total_steps(before: TrainState, after: TrainState) -> TrainState:
    """The state `after`, whose step is the sum of the steps of `before` and `after`.

    The step of `after` must count from 0, and not from the step of `before`.
    """
    return after._replace(step=before.step + after.step)
