"""The two compiled programs of generation: prefill of trunks, and the decode loop over branches.

P rows of G slots, S = P * G; a row reads one trunk. A branch is an item of a queue, so a slot whose
branch has ended takes the row's next item inside the loop: no host, no prefill, no compilation.

A slot is (item, age, last token). It begins by feeding token position - 1 with the trunk visible
before it, so no logits are stored with a trunk. The suffix cache is a ring shared by all slots:
column = step mod width, written by one update; a slot sees the columns of its own age.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from vinejax.config import SampleConfig
from vinejax.model.decoder import Decoder, Params, cast, unstack
from vinejax.rollout.attention import merge, ring_part, trunk_part, write_column
from vinejax.rollout.sampling import sample

LENGTH, EOS, NOT_FINITE = 0, 1, 2  # how a branch ended


class TrunkKV(NamedTuple):
    """Keys and values of a wave's trunks, one entry a layer."""

    keys: list[jax.Array]  # [P, K, T, H]
    values: list[jax.Array]  # [P, K, T, H]


class Queue(NamedTuple):
    """A wave's branches; row p serves items first[p] .. end[p] - 1."""

    position: jax.Array  # i32[Q] tokens of the trunk before the branch
    token: jax.Array  # i32[Q] the last of them
    seed: jax.Array  # u32[Q, 2] high and low half
    budget: jax.Array  # i32[Q]
    first: jax.Array  # i32[P]
    end: jax.Array  # i32[P]


class Wave(NamedTuple):
    """What grew, by item."""

    tokens: jax.Array  # i32[Q, W]
    logprobs: jax.Array  # f32[Q, W]
    lengths: jax.Array  # i32[Q]
    ended: jax.Array  # i32[Q] LENGTH, EOS or NOT_FINITE


class _Slots(NamedTuple):
    step: jax.Array  # i32[]
    next: jax.Array  # i32[P] the row's first item not yet taken
    item: jax.Array  # i32[S] -1 when idle
    age: jax.Array  # i32[S] tokens sampled so far
    token: jax.Array  # i32[S] the one to feed
    keys: list[jax.Array]  # a layer: [S, K, W, H]
    values: list[jax.Array]


@functools.partial(jax.jit, static_argnames="model")
def prefill(
    model: Decoder, params: Params, tokens: Int[Array, "P T"], row: Int[Array, " P"]
) -> TrunkKV:
    """KV of the trunks; row p of the result is that of trunk row[p]. Padding is on the right."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    _, kv = model.hidden(params, tokens, positions, jnp.ones_like(tokens), keep_kv=True)
    keys, values = (x[:, row].transpose(0, 1, 3, 2, 4) for x in kv)  # [L,P,T,K,H] -> [L,P,K,T,H]
    return TrunkKV(list(keys), list(values))


def row_keys(seeds: UInt32[Array, "Q 2"]) -> Key[Array, " Q"]:
    """A key from both halves of each 64-bit seed."""

    def one(seed: UInt32[Array, " 2"]) -> Key[Array, ""]:
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(0), seed[0]), seed[1])

    return jax.vmap(one)(seeds)


def _refill(slots: _Slots, queue: Queue) -> _Slots:
    """Idle slots take their row's next items, in order."""
    idle = (slots.item < 0).reshape(slots.next.shape[0], -1)
    candidate = slots.next[:, None] + jnp.cumsum(idle, axis=1) - 1
    taken = idle & (candidate < queue.end[:, None])
    flat, candidate = taken.reshape(-1), candidate.reshape(-1)
    return slots._replace(
        next=slots.next + taken.sum(axis=1),
        item=jnp.where(flat, candidate, slots.item),
        age=jnp.where(flat, 0, slots.age),
        token=jnp.where(flat, queue.token[candidate], slots.token),
    )


def _forward(
    model: Decoder, params: Params, layers: list[Params], trunk: TrunkKV, slots: _Slots,
    position: Int[Array, " S"], visible: Int[Array, " S"],
) -> tuple[Float[Array, "S V"], list[jax.Array], list[jax.Array]]:  # fmt: skip
    """One decode step of all slots: next-token logits and the rings with the new column."""
    S, width = slots.item.shape[0], slots.keys[0].shape[2]
    column = slots.step % width
    seen = (slots.step - jnp.arange(width)) % width <= slots.age[:, None]
    x = model.embed(params, slots.token[:, None])
    keys, values = [], []
    for i, layer in enumerate(layers):

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, i: int = i):
            ring_k = write_column(slots.keys[i], column, k)
            ring_v = write_column(slots.values[i], column, v)
            q = q.reshape(S, k.shape[2], -1, q.shape[-1])  # [S,1,N,H] -> [S,K,R,H]
            mixed = merge(
                trunk_part(q, trunk.keys[i], trunk.values[i], visible),
                ring_part(q, ring_k, ring_v, seen),
            )
            return mixed.reshape(S, 1, -1, q.shape[-1]).astype(v.dtype), (ring_k, ring_v)

        x, (ring_k, ring_v) = model.block(layer, x, position[:, None], attend)
        keys.append(ring_k)
        values.append(ring_v)
    return model.logits(params, x[:, 0]), keys, values


@functools.partial(jax.jit, static_argnames=("model", "cfg", "eos_ids", "width", "group"))
def decode_wave(
    model: Decoder, cfg: SampleConfig, eos_ids: tuple[int, ...], width: int, group: int,
    params: Params, trunk: TrunkKV, queue: Queue,
) -> tuple[Wave, Int[Array, ""]]:  # fmt: skip
    """Grow every item of the queue; also returns the number of decode steps taken.

    `width` is at least the largest budget: a ring any narrower would forget an item's first tokens.
    """
    params = cast(params, model.cfg.compute_dtype)  # once, not in every step
    layers = unstack(params, model.cfg.num_layers)
    P, K, _, H = trunk.keys[0].shape
    S, Q = P * group, queue.position.shape[0]
    row_key = row_keys(queue.seed)
    ring = [jnp.zeros((S, K, width, H), k.dtype) for k in trunk.keys]
    idle, zeros = jnp.full(S, -1, jnp.int32), jnp.zeros(S, jnp.int32)
    slots = _Slots(jnp.int32(0), queue.first, idle, zeros, zeros, ring, list(ring))
    wave = Wave(
        jnp.zeros((Q, width), jnp.int32), jnp.zeros((Q, width), jnp.float32),
        jnp.zeros(Q, jnp.int32), jnp.zeros(Q, jnp.int32),
    )  # fmt: skip

    def work_left(state: tuple[_Slots, Wave]) -> Bool[Array, ""]:
        slots, _ = state
        return jnp.any(slots.item >= 0) | jnp.any(slots.next < queue.end)

    def body(state: tuple[_Slots, Wave]) -> tuple[_Slots, Wave]:
        slots, wave = state
        slots = _refill(slots, queue)
        visible = queue.position[slots.item] - 1
        position = visible + slots.age
        logits, keys, values = _forward(model, params, layers, trunk, slots, position, visible)
        draw = jax.vmap(lambda key, n: jax.random.uniform(jax.random.fold_in(key, n)))
        u = draw(row_key[slots.item], position + 1)
        token, logprob = sample(logits, u, cfg.temperature, cfg.top_p, cfg.top_k)

        age = slots.age + 1
        is_eos = jnp.isin(token, jnp.array(eos_ids, jnp.int32))
        is_bad = ~jnp.isfinite(logprob)
        done = is_eos | is_bad | (age == queue.budget[slots.item])
        how = jnp.where(is_bad, NOT_FINITE, jnp.where(is_eos, EOS, LENGTH))
        at = jnp.where(slots.item >= 0, slots.item, Q)  # idle slots write nowhere
        wave = Wave(
            wave.tokens.at[at, slots.age].set(token, mode="drop"),
            wave.logprobs.at[at, slots.age].set(logprob, mode="drop"),
            wave.lengths.at[at].set(age, mode="drop"),
            wave.ended.at[at].set(how, mode="drop"),
        )
        item = jnp.where(done, -1, slots.item)
        return _Slots(slots.step + 1, slots.next, item, age, token, keys, values), wave

    slots, wave = lax.while_loop(work_left, body, (slots, wave))
    return wave, slots.step
