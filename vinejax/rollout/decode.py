"""The compiled program of generation: a chunk of decode steps.

Every data shard of the mesh has a window of P resident trunks, a queue of branches and S slots, and
runs its own loop over them; only the places of its tensor axis speak to each other (`split.py`).
All arrays below are one shard's; globally their first axis is that of all shards.

A slot is (item, row of the window, age, last token). It begins by feeding token position - 1 with
the trunk visible before it, so no logits are stored with a trunk. A slot whose branch has ended
takes the next one inside the loop, of any resident trunk that has a free lane. The suffix cache is
a ring that all slots share: column = step mod width; a slot sees the columns of its own age.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Bool, Float, Int

from vinejax.model.decoder import Decoder, softcap
from vinejax.model.sharding import ROWS
from vinejax.rollout.assign import Sizes
from vinejax.rollout.attention import (
    Lanes,
    Scoring,
    assign_lanes,
    merge,
    ring_part,
    trunk_part,
    write_column,
)
from vinejax.rollout.sampling import sample
from vinejax.rollout.split import (
    CACHE,
    EVERYWHERE,
    SHARDS,
    cache_spec,
    embed,
    own_part,
    readable,
    vocab_axis,
    weight_specs,
)
from vinejax.rollout.window import Rows, Window
from vinejax.settings import SampleConfig

GOING, LENGTH, EOS, STOP, NOT_FINITE = range(5)  # what a step was for its branch


class Queue(NamedTuple):
    """All branches of the shard."""

    position: jax.Array  # i32[Q] tokens of the trunk before the branch
    token: jax.Array  # i32[Q] the last of them
    seed: jax.Array  # u32[Q, 2] high and low half
    budget: jax.Array  # i32[Q]
    match: jax.Array  # i32[Q] the state of `stops` that it begins with
    before: jax.Array  # i32[Q] the budgets of all branches before it together


class Slots(NamedTuple):
    step: jax.Array  # i32[1] decode steps since the start
    item: jax.Array  # i32[S] -1 when idle
    row: jax.Array  # i32[S] of the window
    age: jax.Array  # i32[S] tokens sampled so far
    token: jax.Array  # i32[S] the one to feed
    match: jax.Array  # i32[S] how much of a stop string the text ends with: a state of `stops`
    keys: list[list[jax.Array]]  # a layer: W / b blocks of S, K, b, H in the order of `Sizes.ring`
    values: list[list[jax.Array]]  # the same


class Trace(NamedTuple):
    """What a chunk did, step by step."""

    item: jax.Array  # i32[chunk, S] -1 where the slot was idle
    token: jax.Array  # i32[chunk, S]
    logprob: jax.Array  # f32[chunk, S]
    ended: jax.Array  # i32[chunk, S] GOING, or how the branch ended with this token
    left: jax.Array  # i32[P] items of each row that have not ended


@functools.partial(
    jax.jit,
    static_argnames=("model", "cfg", "mesh", "eos_ids", "sizes"),
    donate_argnames=("slots", "rows"),
)
def decode_chunk(
    model: Decoder, cfg: SampleConfig, mesh: Mesh, eos_ids: tuple[int, ...], sizes: Sizes,
    params: Any, window: Window, queue: Queue, stops: Int[Array, "A V"], waiting: Bool[Array, ""],
    slots: Slots, rows: Rows,
) -> tuple[Slots, Rows, Trace]:  # fmt: skip
    """At most `sizes.chunk` decode steps, half of that while trunks wait for a row; fewer where
    those in the window have no more work.

    `stops` is the automaton of the stop strings (`stop.py`; A = 0: none), `waiting` whether trunks
    wait for a row. The ring is at least as wide as the largest budget: any narrower, it would
    forget an item's first tokens. Only the temperature, top-p and top-k of `cfg` are used.
    """

    part, axis, chunk = own_part(model, mesh), vocab_axis(model, mesh), sizes.chunk

    def one_shard(
        params: Any, window: Window, queue: Queue, stops: Any, waiting: Any,
        slots: Slots, rows: Rows,
    ) -> tuple[Slots, Rows, Trace]:  # fmt: skip
        S = slots.item.shape[0]
        idle = jnp.full((chunk, S), -1, jnp.int32)
        none = jnp.zeros((chunk, S), jnp.int32)
        trace = [idle, none, jnp.zeros((chunk, S), jnp.float32), none]

        def work_left(state: Any) -> Bool[Array, ""]:
            i, slots, rows, _ = state
            limit = jnp.where(waiting, (chunk + 1) // 2, chunk)
            return (i < limit) & (jnp.any(slots.item >= 0) | jnp.any(rows.next < rows.end))

        def body(state: Any) -> Any:
            i, slots, rows, trace = state
            slots, rows = _refill(slots, rows, queue, sizes.group, waiting)
            slots, entry = _step(
                part, axis, cfg, eos_ids, sizes, params, window, queue, stops, slots
            )
            trace = [x.at[i].set(new) for x, new in zip(trace, entry, strict=True)]
            return i + 1, slots, rows, trace

        _, slots, rows, trace = lax.while_loop(work_left, body, (jnp.int32(0), slots, rows, trace))
        left = rows.end - rows.next + _on_row(slots, rows).sum(axis=0)
        return slots, rows, Trace(trace[0], trace[1], trace[2], trace[3], left)

    shards: Any = SHARDS
    steps: Any = Spec(None, ROWS)
    rings: Any = map(cache_spec, sizes.ring)
    slot_specs = Slots(shards, shards, shards, shards, shards, shards, *rings)
    weights = weight_specs(model, mesh)
    slots, rows, trace = jax.shard_map(
        one_shard, mesh=mesh, check_vma=False,
        in_specs=(weights, CACHE, SHARDS, EVERYWHERE, EVERYWHERE, slot_specs, SHARDS),
        out_specs=(slot_specs, SHARDS, Trace(steps, steps, steps, steps, shards)),
    )(params, window, queue, stops, waiting, slots, rows)  # fmt: skip
    return slots, rows, readable(mesh, trace)


def _on_row(slots: Slots, rows: Rows) -> Int[Array, "S P"]:
    """1 where a slot is busy on a row."""
    there = slots.row[:, None] == jnp.arange(rows.next.shape[0])
    return (there & (slots.item >= 0)[:, None]).astype(jnp.int32)


def _offers(
    slots: Slots, rows: Rows, queue: Queue, group: int, waiting: Bool[Array, ""]
) -> tuple[Int[Array, " P"], Int[Array, " P"]]:
    """(rows in the order in which slots take from them, the items that each of these has to give).

    A row gives as many as it has free lanes. While trunks wait for a row the oldest go first, to
    make room; then those with the most work left, so that the rows run dry together.
    """
    room = jnp.minimum(rows.end - rows.next, group - _on_row(slots, rows).sum(axis=0))
    work_left = queue.before[rows.end] - queue.before[rows.next]
    urgency = jnp.where(waiting, -rows.loaded, work_left)
    order = jnp.argsort(jnp.where(room > 0, -urgency, jnp.iinfo(jnp.int32).max))
    return order, jnp.maximum(room, 0)[order]


def _refill(
    slots: Slots, rows: Rows, queue: Queue, group: int, waiting: Bool[Array, ""]
) -> tuple[Slots, Rows]:
    """Idle slots take the next items: the n-th of them the n-th that the rows offer."""
    idle = slots.item < 0
    order, offers = _offers(slots, rows, queue, group, waiting)
    past = jnp.cumsum(offers)  # the number of the first offer after a row's
    first = past - offers
    number = jnp.cumsum(idle) - 1  # of an idle slot among them
    taken = idle & (number < past[-1])
    place = jnp.minimum(jnp.searchsorted(past, number, side="right"), offers.shape[0] - 1)
    row = order[place].astype(jnp.int32)
    item = rows.next[row] + number - first[place]  # a row's own are sorted, the longest first
    served = jnp.clip(idle.sum() - first, 0, offers)
    return (
        slots._replace(
            item=jnp.where(taken, item, slots.item),
            row=jnp.where(taken, row, slots.row),
            age=jnp.where(taken, 0, slots.age),
            token=jnp.where(taken, queue.token[item], slots.token),
            match=jnp.where(taken, queue.match[item], slots.match),
        ),
        rows._replace(next=rows.next.at[order].add(served)),
    )


def _step(
    model: Decoder, axis: str | None, cfg: SampleConfig, eos_ids: tuple[int, ...], sizes: Sizes,
    params: Any, window: Window, queue: Queue, stops: jax.Array, slots: Slots,
) -> tuple[Slots, tuple[jax.Array, ...]]:  # fmt: skip
    """One token for every busy slot; also the trace's entry."""
    busy = slots.item >= 0
    visible = queue.position[slots.item] - 1
    age = jnp.where(busy, slots.age, 0)
    position = visible + age
    lanes = assign_lanes(slots.row, busy, visible, position, sizes.rows, sizes.group)
    logits, keys, values = _forward(
        model, axis, sizes.ring, params, window, slots, lanes, position, age
    )
    token, logprob = sample(
        logits, _uniforms(queue.seed[slots.item], position + 1),
        cfg.temperature, cfg.top_p, cfg.top_k, axis,
    )  # fmt: skip
    match = stops[slots.match, token] if stops.shape[0] else slots.match
    outcomes = [  # the last that holds is what counts
        (LENGTH, age + 1 == queue.budget[slots.item]),
        (STOP, match < 0),
        (EOS, jnp.isin(token, jnp.array(eos_ids, jnp.int32))),
        (NOT_FINITE, ~jnp.isfinite(logprob)),
    ]
    ended = jnp.zeros_like(token)
    for how, holds in outcomes:
        ended = jnp.where(holds, how, ended)
    entry = (slots.item, token, logprob, jnp.where(busy, ended, GOING))
    item = jnp.where(ended == GOING, slots.item, -1)
    step = slots.step + 1
    return Slots(step, item, slots.row, age + 1, token, jnp.maximum(match, 0), keys, values), entry


def _uniforms(seed: jax.Array, index: Int[Array, " S"]) -> Float[Array, " S"]:
    """Draw `index` of each row: the key is folded from both halves of the seed, then the index."""

    def one(seed: jax.Array, index: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), seed[0]), seed[1])
        return jax.random.uniform(jax.random.fold_in(key, index))

    return jax.vmap(one)(seed, index)


def _forward(
    model: Decoder, axis: str | None, ring: tuple[str, str], params: Any, window: Window,
    slots: Slots, lanes: Lanes, position: Int[Array, " S"], age: Int[Array, " S"],
) -> tuple[Float[Array, "S V"], list[list[jax.Array]], list[list[jax.Array]]]:  # fmt: skip
    """Next-token logits of all slots, and the rings with the new column."""
    cfg, step, S = model.cfg, slots.step[0], slots.item.shape[0]
    x = embed(model, params, slots.token[:, None], axis)
    keys, values = [], []
    # Not a scan: it would copy the caches (DESIGN section 1, lesson 7).
    for i, layer in enumerate(params["layers"]):

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, i: int = i):
            ring_k = write_column(slots.keys[i], step, k, ring[0])
            ring_v = write_column(slots.values[i], step, v, ring[1])
            q = q.reshape(S, k.shape[2], -1, q.shape[-1])  # [S,1,N,H] -> [S,K,R,H]
            scoring = Scoring(
                lambda qk: softcap(qk * cfg.score_scale, cfg.attention_softcap), cfg.window(i)
            )
            mixed = merge(
                trunk_part(q, window.keys[i], window.values[i], lanes, scoring),
                ring_part(q, ring_k, ring_v, step, age, scoring, ring),
            )
            return mixed.reshape(S, 1, -1, q.shape[-1]).astype(v.dtype), (ring_k, ring_v)

        x, (ring_k, ring_v) = model.block(layer, x, position[:, None], attend, i)
        keys.append(ring_k)
        values.append(ring_v)
    return model.logits(params, x[:, 0]), keys, values
