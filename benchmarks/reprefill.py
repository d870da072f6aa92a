"""Two contenders that share nothing between branches: static batches and continuous batching.

What engines without trunks do: every branch's prefix is prefilled for it alone. Both run on two
programs, `admit` and `decode`, and draw with the engine's sampler and random numbers.

The cache has T prefix columns, then a ring of W suffix columns that all slots share: one update
writes a step's column, and a slot sees the columns of its own age.
"""

import collections
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from workload import Run, Workload

from vinejax.core.settings import SampleConfig
from vinejax.core.shapes import bucket
from vinejax.engine.decode import uniforms
from vinejax.engine.sampling import sample
from vinejax.model.decoder import Decoder, Params, unstack_layers


class Cache(NamedTuple):
    """One entry a layer. Keys lie transposed: on CPU that halves the time of attention."""

    keys: list[jax.Array]  # [S, K, H, T + W]
    values: list[jax.Array]  # [S, K, T + W, H]


class Slots(NamedTuple):
    """One branch a slot; it is done, or was never used, where age >= budget."""

    step: jax.Array  # i32[] decode steps taken: the ring's column
    length: jax.Array  # i32[S] of the prefix
    age: jax.Array  # i32[S] tokens sampled, the prefill's first among them
    budget: jax.Array  # i32[S]
    token: jax.Array  # i32[S] the last sampled, to be fed
    seed: jax.Array  # u32[S, 2] high and low half


class Items(NamedTuple):
    """Branches that enter slots `rows`; a row of S or more is padding."""

    tokens: jax.Array  # i32[B, T'] prefixes, padded on the right
    length: jax.Array  # i32[B]
    budget: jax.Array  # i32[B]
    seed: jax.Array  # u32[B, 2]
    rows: jax.Array  # i32[B]


def empty(model: Decoder, slots: int, columns: int) -> tuple[Cache, Slots]:
    cfg = model.cfg

    def layers(*shape: int) -> list[jax.Array]:
        whole = (slots, cfg.num_kv_heads, *shape)
        return [jnp.zeros(whole, model.compute.dtype) for _ in range(cfg.num_layers)]

    zeros = jnp.zeros(slots, jnp.int32)
    seed = jnp.zeros((slots, 2), jnp.uint32)
    cache = Cache(layers(cfg.head_dim, columns), layers(columns, cfg.head_dim))
    return cache, Slots(jnp.int32(0), zeros, zeros, zeros, zeros, seed)


@functools.partial(jax.jit, static_argnames=("model", "cfg"), donate_argnames="cache")
def admit(
    model: Decoder, cfg: SampleConfig, params: Params, cache: Cache, slots: Slots, items: Items
) -> tuple[Cache, Slots, jax.Array, jax.Array]:
    """Prefill `items` into their slots; also each one's first token and log-probability, [B]."""
    B, T = items.tokens.shape
    positions = jnp.broadcast_to(jnp.arange(T), (B, T))
    hidden, kv = model.hidden(
        params, items.tokens, positions, jnp.ones_like(items.tokens), keep_kv=True
    )
    at = items.rows
    keys = kv[0].transpose(0, 1, 3, 4, 2)  # [L,B,T,K,H] -> [L,B,K,H,T]
    values = kv[1].transpose(0, 1, 3, 2, 4)  # -> [L,B,K,T,H]
    cache = Cache(
        [x.at[at, :, :, :T].set(new, mode="drop") for x, new in zip(cache.keys, keys, strict=True)],
        [
            x.at[at, :, :T].set(new, mode="drop")
            for x, new in zip(cache.values, values, strict=True)
        ],
    )
    logits = model.logits(params, hidden[jnp.arange(B), items.length - 1])
    u = uniforms(items.seed, items.length)
    token, logprob = sample(logits, u, cfg.temperature, cfg.top_p, cfg.top_k)
    slots = Slots(
        slots.step,
        slots.length.at[at].set(items.length, mode="drop"),
        slots.age.at[at].set(1, mode="drop"),
        slots.budget.at[at].set(items.budget, mode="drop"),
        slots.token.at[at].set(token, mode="drop"),
        slots.seed.at[at].set(items.seed, mode="drop"),
    )
    return cache, slots, token, logprob


def forward(
    model: Decoder, params: Params, layers: list[Params], prefix: int, cache: Cache, slots: Slots
) -> tuple[jax.Array, Cache]:
    """One token of every slot: logits [S, V], and the cache with the new column."""
    S, _, columns, H = cache.values[0].shape
    width = columns - prefix
    column = slots.step % width
    in_prefix = jnp.arange(prefix) < slots.length[:, None]
    in_ring = (slots.step - jnp.arange(width)) % width < slots.age[:, None]
    seen = jnp.concatenate([in_prefix, in_ring], axis=1)[:, None, None]
    x = model.embed(params, slots.token[:, None])
    new = Cache([], [])
    for i, layer in enumerate(layers):

        def attend(q: jax.Array, k: jax.Array, v: jax.Array, i: int = i):
            k, v = k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)
            keys = lax.dynamic_update_slice(cache.keys[i], k, (0, 0, 0, prefix + column))
            values = lax.dynamic_update_slice(cache.values[i], v, (0, 0, prefix + column, 0))
            q = q.reshape(S, k.shape[1], -1, H)
            scores = jnp.einsum("skrh,skht->skrt", q, keys, preferred_element_type=jnp.float32)
            weights = jax.nn.softmax(jnp.where(seen, scores * H**-0.5, -jnp.inf), axis=-1)
            mixed = jnp.einsum("skrt,skth->skrh", weights.astype(v.dtype), values)
            return mixed.reshape(S, 1, -1, H), (keys, values)

        position = slots.length + slots.age - 1
        x, (keys, values) = model.block(layer, x, position[:, None], attend)
        new.keys.append(keys)
        new.values.append(values)
    return model.logits(params, x[:, 0]), new


@functools.partial(
    jax.jit, static_argnames=("model", "cfg", "prefix", "steps"), donate_argnames="cache"
)
def decode(
    model: Decoder, cfg: SampleConfig, prefix: int, steps: int,
    params: Params, layers: list[Params], cache: Cache, slots: Slots,
) -> tuple[Cache, Slots, jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """Up to `steps` tokens a slot, fewer once all are done: also tokens and log-probabilities,
    [steps, S], and the number of steps taken."""
    S = slots.token.shape[0]
    begin = slots.step

    def busy(state: tuple[Cache, Slots, jax.Array, jax.Array]) -> jax.Array:
        slots = state[1]
        return (slots.step - begin < steps) & jnp.any(slots.age < slots.budget)

    def body(
        state: tuple[Cache, Slots, jax.Array, jax.Array],
    ) -> tuple[Cache, Slots, jax.Array, jax.Array]:
        cache, slots, tokens, logprobs = state
        logits, cache = forward(model, params, layers, prefix, cache, slots)
        u = uniforms(slots.seed, slots.length + slots.age)
        token, logprob = sample(logits, u, cfg.temperature, cfg.top_p, cfg.top_k)
        row = slots.step - begin
        slots = slots._replace(step=slots.step + 1, age=slots.age + 1, token=token)
        return cache, slots, tokens.at[row].set(token), logprobs.at[row].set(logprob)

    logs = jnp.zeros((steps, S), jnp.int32), jnp.zeros((steps, S), jnp.float32)
    cache, slots, tokens, logprobs = lax.while_loop(busy, body, (cache, slots, *logs))
    return cache, slots, tokens, logprobs, slots.step - begin


def padded(length: int) -> int:
    """Prefix columns: the next multiple of 32."""
    return -(-length // 32) * 32


def make_items(work: Workload, items: list[int], rows: list[int], size: int) -> Items:
    """`items` for slots `rows`, padded to `size` rows."""
    columns = padded(max(work.branches[i].position for i in items))
    tokens = np.zeros((size, columns), np.int32)
    length, budget = np.ones(size, np.int32), np.zeros(size, np.int32)
    seed, at = np.zeros((size, 2), np.uint32), np.full(size, work.slots, np.int32)
    for b, (i, row) in enumerate(zip(items, rows, strict=True)):
        prefix, whole = work.prefix(i), work.branches[i].seed
        tokens[b, : len(prefix)] = prefix
        length[b], budget[b], at[b] = len(prefix), work.budgets[i], row
        seed[b] = whole >> 32, whole & 0xFFFFFFFF
    return Items(*(jnp.asarray(x) for x in (tokens, length, budget, seed, at)))


class _Collected:
    """Tokens and log-probabilities by item, as they come from the device."""

    def __init__(self, work: Workload):
        self._budgets = work.budgets
        self.tokens: list[list[int]] = [[] for _ in work.budgets]
        self.logprobs: list[list[float]] = [[] for _ in work.budgets]

    def add(self, item: int, tokens: np.ndarray, logprobs: np.ndarray) -> bool:
        """What an item needs of a slot's next tokens; whether it is done."""
        needed = self._budgets[item] - len(self.tokens[item])
        self.tokens[item] += tokens[:needed].tolist()
        self.logprobs[item] += logprobs[:needed].tolist()
        return needed <= len(tokens)


def _layers(work: Workload) -> list[Params]:
    """The layers as a list, once and not in every call."""
    return jax.jit(unstack_layers, static_argnums=1)(work.params, work.model.cfg.num_layers)


def by_prefix(work: Workload) -> list[int]:
    """Items of like prefix length together, so that little of a batch's prefill is padding."""
    return sorted(range(len(work.branches)), key=lambda i: work.branches[i].position)


def batches(order: list[int], size: int) -> list[list[int]]:
    return [order[start : start + size] for start in range(0, len(order), size)]


STAGE = 64  # suffix columns by which a static batch's cache grows


@jax.jit
def _widen(cache: Cache) -> Cache:
    keys = [jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, STAGE))) for x in cache.keys]
    return Cache(keys, [jnp.pad(x, ((0, 0), (0, 0), (0, STAGE), (0, 0))) for x in cache.values])


def static(work: Workload, lengths_known: bool = False) -> Callable[[], Run]:
    """Batches of one branch a slot, each decoded until its longest is done.

    Batches are of like prefix length; with `lengths_known` of like budget, which no sampler can
    know. The cache grows in stages, so that short batches never read the columns of long ones.
    """
    model, sampling, params, S = work.model, work.sampling, work.params, work.slots
    layers = _layers(work)
    order = by_prefix(work)
    if lengths_known:
        order.sort(key=lambda i: work.budgets[i])
    parts = batches(order, S)

    def one_batch(batch: list[int], done: _Collected) -> int:
        items = make_items(work, batch, list(range(len(batch))), S)
        prefix = items.tokens.shape[1]
        cache, slots = empty(model, S, prefix + STAGE)
        cache, slots, token, logprob = admit(model, sampling, params, cache, slots, items)
        logs = [(token[None], logprob[None])]
        steps = 0
        for start in range(1, max(work.budgets[i] for i in batch), STAGE):
            cache = cache if start == 1 else _widen(cache)
            cache, slots, tokens, logprobs, taken = decode(
                model, sampling, prefix, STAGE, params, layers, cache, slots
            )
            logs.append((tokens, logprobs))
            steps += int(taken)
        tokens, logprobs = (np.concatenate(jax.device_get(x)) for x in zip(*logs, strict=True))
        for slot, item in enumerate(batch):
            done.add(item, tokens[:, slot], logprobs[:, slot])
        return steps

    def run() -> Run:
        done = _Collected(work)
        steps = sum(one_batch(batch, done) for batch in parts)
        prefilled = sum(branch.position for branch in work.branches)
        return Run(done.tokens, done.logprobs, prefilled, steps, (steps + len(parts)) * S)

    return run


CHUNK = 8  # decode steps between two visits of the host; 4 and 16 were no faster


def host(work: Workload) -> Callable[[], Run]:
    """Continuous batching by the host: free slots are refilled between chunks of decode steps.

    Longest budgets first, as the engine orders its own work. What enters at the same time is
    prefilled in groups of like length.
    """
    model, sampling, params, S = work.model, work.sampling, work.params, work.slots
    layers = _layers(work)
    order = sorted(range(len(work.branches)), key=lambda i: -work.budgets[i])
    prefix = padded(max(branch.position for branch in work.branches))
    width = max(work.budgets)

    def run() -> Run:
        done, waiting = _Collected(work), collections.deque(order)
        running: dict[int, int] = {}  # slot -> item
        cache, slots = empty(model, S, prefix + width)
        steps = 0
        while waiting or running:
            entering: dict[int, list[tuple[int, int]]] = {}  # prefix columns -> (item, slot)
            for slot in [slot for slot in range(S) if slot not in running][: len(waiting)]:
                item = waiting.popleft()
                columns = padded(work.branches[item].position)
                entering.setdefault(columns, []).append((item, slot))
            for group in entering.values():
                ids, rows = [item for item, _ in group], [slot for _, slot in group]
                items = make_items(work, ids, rows, bucket(len(group), least=2))
                cache, slots, *first = admit(model, sampling, params, cache, slots, items)
                token, logprob = jax.device_get(first)
                for b, (item, slot) in enumerate(group):
                    if not done.add(item, token[b : b + 1], logprob[b : b + 1]):
                        running[slot] = item
            cache, slots, *logs = decode(
                model, sampling, prefix, CHUNK, params, layers, cache, slots
            )
            tokens, logprobs, taken = jax.device_get(logs)
            steps += int(taken)
            for slot, item in list(running.items()):
                if done.add(item, tokens[:taken, slot], logprobs[:taken, slot]):
                    del running[slot]
        prefilled = sum(branch.position for branch in work.branches)
        return Run(done.tokens, done.logprobs, prefilled, steps, steps * S + len(order))

    return run
