"""The compiled program of generation: a chunk of decode steps.

Every shard has a window of resident trunks, a queue of branches (its items) and B slots. A shard
runs its own decode loop; only the devices of one shard communicate (`split.py`). The arrays
below are those of one shard. Globally, their first axis covers all shards, one after the other.

A slot holds its item, the item's row of the window, the number of tokens drawn (age), and the last
token. The first step of a branch passes the trunk's token position - 1 through the model, so no
logits are stored with a trunk. Inside the loop a slot whose branch has ended takes the next
item of a row that has a free lane. The slots' own tokens are in a cache (`cache.py`), which is a
ring of columns that all slots share, or pages. A slot that waits for a page takes no part in a
step.
"""

import dataclasses
import functools
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from vinejax.core.settings import SampleConfig
from vinejax.engine import split
from vinejax.engine.cache import Cache, DecodeStep, Sizes
from vinejax.engine.gpu.drawing import draw
from vinejax.engine.layout import WINDOW
from vinejax.engine.sampling import FORMS, sample
from vinejax.engine.shared_attention import Queries, assign_lanes
from vinejax.engine.split import REPLICATED, SHARDS, Weights
from vinejax.engine.window import Window, WindowRows
from vinejax.model.decoder import Decoder
from vinejax.model.sharding import on_shards, platform_of

GOING, LENGTH, EOS, STOP, NOT_FINITE = range(5)  # whether and how a step ended a branch
# Kinds of commands that XLA puts into CUDA graphs: single kernels, and loops with their conditions.
IN_GRAPHS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL"


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """Static arguments of a decode program."""

    model: Decoder
    mesh: Mesh
    sampling: SampleConfig  # only temperature, top-p and top-k are used
    eos_ids: tuple[int, ...]
    sizes: Sizes
    drained_at: int = 0  # a chunk ends at this many busy slots of a shard, if no item waits


class Queue(NamedTuple):
    """All items (branches) of a shard, in the order of its row jobs (`row_jobs.py`)."""

    position: jax.Array  # i32[Q] number of the trunk's tokens before the branch
    token: jax.Array  # i32[Q] last token before the branch
    seed: jax.Array  # u32[Q, 2] high and low half of the seed
    budget: jax.Array  # i32[Q] most tokens of the branch
    match: jax.Array  # i32[Q] the automaton's state at the start of the branch
    before: jax.Array  # i32[Q] sum of the budgets of all items before this one


class ChunkInputs(NamedTuple):
    """The arrays that a chunk reads but does not change."""

    weights: Weights
    window: Window
    queue: Queue
    stops: jax.Array  # i32[A, V] automaton of the stop strings (`stop.py`); A = 0 without any
    # bool[] whether jobs wait for a row on any shard, or the feed is open
    trunks_wait: jax.Array | np.ndarray


class Slots(NamedTuple):
    """The branches that a shard decodes, one per slot, with their keys and values."""

    step: jax.Array  # i32[1] number of decode steps since the phase began
    item: jax.Array  # i32[B] index in the queue; -1 if idle
    row: jax.Array  # i32[B] row of the window
    age: jax.Array  # i32[B] number of tokens sampled so far
    token: jax.Array  # i32[B] token that the next step passes through the model
    match: jax.Array  # i32[B] the automaton's state: the part of a stop string that ends the text
    cache: Cache


class ChunkSteps(NamedTuple):
    """What each slot drew in each step of a chunk.

    The last axis covers the steps. Arrays without this axis describe a single step.
    """

    item: jax.Array  # i32[B, chunk] index in the queue; -1 where the slot was idle or waited
    token: jax.Array  # i32[B, chunk]
    logprob: jax.Array  # f32[B, chunk]
    ended: jax.Array  # i32[B, chunk] GOING, or how this token ended the branch


# For the host: the steps, and i32[W] the number of unfinished items per row.
Trace = tuple[ChunkSteps, jax.Array]
# The state of the loop; the last entry has the steps, i32[chunk, 4, B] (`_packed`).
ChunkState = tuple[Slots, WindowRows, jax.Array]


@functools.cache
def chunk_program(platform: str) -> "jax.stages.Wrapped":
    """`decode_chunk`, compiled for the devices of a platform; `slots` and `rows` are donated.

    On a GPU the whole chunk, its loop included, is one CUDA graph. Without a graph the host would
    launch the hundreds of kernels of a step one by one, and each launch takes two microseconds.
    Drivers older than CUDA 12.3 allow no loops in graphs; with them XLA keeps loops out of graphs.
    If XLA_FLAGS sets XLA's flag for graphs, that setting is used instead. A profile names single
    kernels only if graphs are turned off.
    """
    flag, options = "xla_gpu_enable_command_buffer", {}
    if platform == "gpu" and flag not in os.environ.get("XLA_FLAGS", ""):
        options[flag] = IN_GRAPHS
    return jax.jit(
        decode_chunk,
        static_argnames="config",
        donate_argnames=("slots", "rows"),
        compiler_options=options,
    )


def decode_chunk(
    config: DecodeConfig, inputs: ChunkInputs, slots: Slots, rows: WindowRows
) -> tuple[Slots, WindowRows, Trace]:
    """Runs at most `config.sizes.chunk` decode steps, or half as many while jobs wait for a row.

    The chunk ends early if no item in the window waits for a slot and at most `config.drained_at`
    slots are busy. While jobs wait for a row, it ends early only if no slot is busy. A slot must
    have as many columns as the largest budget (`config.sizes.width`), or a step would overwrite a
    column that is still read.
    """
    chunk = config.sizes.chunk

    def one_shard(inputs: ChunkInputs, slots: Slots, rows: WindowRows):
        first = slots.step[0]

        def work_left(state: ChunkState) -> Bool[Array, ""]:
            slots, rows, _ = state
            limit = jnp.where(inputs.trunks_wait, (chunk + 1) // 2, chunk)
            drained_at = jnp.where(inputs.trunks_wait, 0, config.drained_at)
            is_busy = jnp.sum(slots.item >= 0) > drained_at
            has_work = is_busy | jnp.any(rows.next < rows.end)
            return (slots.step[0] - first < limit) & has_work

        def body(state: ChunkState) -> ChunkState:
            slots, rows, steps = state
            slots, rows = _refill(inputs, slots, rows, config.sizes.lanes)
            n = slots.step[0] - first
            slots, step = _step(config, inputs, slots)
            return slots, rows, lax.dynamic_update_index_in_dim(steps, _packed(step), n, 0)

        # The steps are one array, which a step changes in one kernel.
        idle = jnp.full(slots.item.shape, -1), *jnp.zeros((3, slots.item.shape[0]), jnp.int32)
        steps = jnp.tile(jnp.stack(idle), (chunk, 1, 1))
        slots, rows, steps = lax.while_loop(work_left, body, (slots, rows, steps))
        return slots, rows, _unpacked(steps), items_left(slots, rows)

    slot_specs = specs_of(slots, config.sizes.slots)
    weight_specs = split.weight_specs(config.model, config.mesh, inputs.weights)
    input_specs = ChunkInputs._make([weight_specs, WINDOW.spec, SHARDS, REPLICATED, REPLICATED])
    in_specs = (input_specs, slot_specs, SHARDS)
    out_specs = (slot_specs, SHARDS, SHARDS, SHARDS)
    run = on_shards(config.mesh, one_shard, in_specs, out_specs)
    slots, rows, steps, left = run(inputs, slots, rows)
    return slots, rows, split.readable(config.mesh, (steps, left))


def _packed(step: ChunkSteps) -> Int[Array, "fields B"]:
    """The fields of one step in one array of integers, with the bits of log-probabilities."""
    bits = lax.bitcast_convert_type(step.logprob, jnp.int32)
    return jnp.stack(step._replace(logprob=bits))


def _unpacked(steps: Int[Array, "chunk fields B"]) -> ChunkSteps:
    """The fields of `_packed`. The loop writes one step at a time; the host reads slot by slot."""
    fields = ChunkSteps(*steps.transpose(1, 2, 0))
    return fields._replace(logprob=lax.bitcast_convert_type(fields.logprob, jnp.float32))


def specs_of(slots: Slots, count: int) -> Slots:
    """A copy with PartitionSpecs in place of arrays, for `count` slots per shard."""
    return jax.tree.map(lambda _: SHARDS, slots)._replace(cache=slots.cache.specs(count))


def _on_row(slots: Slots, rows: WindowRows) -> Int[Array, "B W"]:
    """For each slot and row, 1 if the slot is busy and reads that row, and 0 otherwise."""
    is_there = slots.row[:, None] == jnp.arange(rows.next.shape[0])
    return (is_there & (slots.item >= 0)[:, None]).astype(jnp.int32)


def items_left(slots: Slots, rows: WindowRows) -> Int[Array, " W"]:
    """For each row, the number of its items that are in a slot or wait for a slot."""
    return rows.end - rows.next + _on_row(slots, rows).sum(axis=0)


def _offers(
    inputs: ChunkInputs, slots: Slots, rows: WindowRows, lanes: int
) -> tuple[Int[Array, " W"], Int[Array, " W"]]:
    """The number of items that each row offers to slots, and the number that rows before it offer.

    A row offers at most as many items as it has free lanes. While jobs wait for rows, the rows that
    were filled first come first, so that they become free. Otherwise the rows with the largest
    remaining sum of budgets come first, so that all rows end together.
    """
    queue = inputs.queue
    room = jnp.minimum(rows.end - rows.next, lanes - _on_row(slots, rows).sum(axis=0))
    work_left = queue.before[rows.end] - queue.before[rows.next]
    urgency = jnp.where(inputs.trunks_wait, -rows.loaded, work_left)
    number, offers = jnp.arange(room.shape[0]), jnp.maximum(room, 0)
    # All pairs of rows are compared, as a sort would take a GPU several small kernels.
    ties = (urgency == urgency[:, None]) & (number < number[:, None])
    comes_before = (urgency > urgency[:, None]) | ties
    return offers, jnp.sum(jnp.where(comes_before, offers, 0), axis=1)


@jax.named_scope("refill")
def _refill(
    inputs: ChunkInputs, slots: Slots, rows: WindowRows, lanes: int
) -> tuple[Slots, WindowRows]:
    """Gives items to idle slots. The n-th idle slot takes the n-th item that the rows offer."""
    idle = slots.item < 0
    offers, first = _offers(inputs, slots, rows, lanes)  # a row's first offer has this number
    number = jnp.cumsum(idle) - 1  # index of an idle slot among the idle slots
    takes = (number[:, None] >= first) & (number[:, None] < first + offers) & idle[:, None]
    taken = jnp.any(takes, axis=1)
    row = jnp.sum(jnp.where(takes, jnp.arange(first.shape[0]), 0), axis=1)
    # A row's items are in order, the longest first.
    item = jnp.sum(jnp.where(takes, rows.next - first, 0), axis=1) + number
    served = jnp.clip(idle.sum() - first, 0, offers)
    return (
        slots._replace(
            item=jnp.where(taken, item, slots.item),
            row=jnp.where(taken, row, slots.row),
            age=jnp.where(taken, 0, slots.age),
            token=jnp.where(taken, inputs.queue.token[item], slots.token),
            match=jnp.where(taken, inputs.queue.match[item], slots.match),
        ),
        rows._replace(next=rows.next + served),
    )


def _step(config: DecodeConfig, inputs: ChunkInputs, slots: Slots) -> tuple[Slots, ChunkSteps]:
    """Draws one token for every busy slot; also returns what each slot drew."""
    queue, stops, cfg = inputs.queue, inputs.stops, config.sampling
    axis = split.vocab_axis(config.model, config.mesh)
    slots, busy = _with_room(queue, slots)
    visible = queue.position[slots.item] - 1
    queries = Queries(busy, slots.row, visible, jnp.where(busy, slots.age, 0))
    logits, cache = _forward(config, inputs, slots, queries)
    with jax.named_scope("sampling"):
        u = uniforms(queue.seed[slots.item], queries.position + 1)
        platform, settings = platform_of(config.mesh), (cfg.temperature, cfg.top_p, cfg.top_k)
        is_whole = axis is None or config.mesh.shape[axis] == 1
        if config.sizes.storage.draws_by_kernel and is_whole:
            token, logprob = draw(logits, u, *settings, interpret=platform == "cpu")
        else:
            token, logprob = sample(logits, u, *settings, axis, FORMS[platform])
    match, ended = after_token(stops, config.eos_ids, slots.match, token)
    # A budget may have been lowered since: `queues.shortened`.
    is_last = queries.age + 1 >= queue.budget[slots.item]
    ended = jnp.where(is_last & (ended == GOING), LENGTH, ended)
    ended = jnp.where(jnp.isfinite(logprob), ended, NOT_FINITE)
    ended = jnp.where(busy, ended, GOING)
    step = ChunkSteps(jnp.where(busy, slots.item, -1), token, logprob, ended)
    age = jnp.where(busy, slots.age + 1, slots.age)
    slots = slots._replace(
        step=slots.step + 1,
        item=jnp.where(ended == GOING, slots.item, -1),
        age=age,
        token=jnp.where(busy, token, slots.token),
        match=jnp.where(busy, match, slots.match),
        cache=cache.give_back(ended != GOING, age),
    )
    return slots, step


def after_token(
    stops: jax.Array, eos_ids: tuple[int, ...], match: Int[Array, " B"], token: Int[Array, " B"]
) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """The stop automaton's state after `token`, and whether the token ends the text.

    The second array has EOS or STOP if the token ends the text, and GOING otherwise. `match` is the
    state before the token. `stops` is the automaton's table (`ChunkInputs.stops`).
    """
    is_eos = jnp.isin(token, jnp.array(eos_ids, jnp.int32))
    if not stops.shape[0]:
        return match, jnp.where(is_eos, EOS, GOING)
    match = stops[match, token]
    return jnp.maximum(match, 0), jnp.where(is_eos, EOS, jnp.where(match < 0, STOP, GOING))


def _with_room(queue: Queue, slots: Slots) -> tuple[Slots, Bool[Array, " B"]]:
    """The slots with room in their cache for a step, and bool[B] whether each slot decodes.

    A slot that must wait for room returns to the start of its item.
    """
    occupied = slots.item >= 0
    cache, waits = slots.cache.reserve(occupied, slots.age)
    slots = slots._replace(
        age=jnp.where(waits, 0, slots.age),
        token=jnp.where(waits, queue.token[slots.item], slots.token),
        match=jnp.where(waits, queue.match[slots.item], slots.match),
        cache=cache,
    )
    return slots, occupied & ~waits


def uniforms(seed: jax.Array, index: Int[Array, " B"]) -> Float[Array, " B"]:
    """A uniform random number for each slot's next token.

    `index` is the index of that token in the slot's sequence. The number depends only on the index
    and on the two halves of the branch's `seed`.
    """

    def of_slot(seed: jax.Array, index: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), seed[0]), seed[1])
        return jax.random.uniform(jax.random.fold_in(key, index))

    return jax.vmap(of_slot)(seed, index)


def _forward(
    config: DecodeConfig, inputs: ChunkInputs, slots: Slots, queries: Queries
) -> tuple[Float[Array, "B V"], Cache]:
    """The next-token logits of all slots, and the cache with the slots' new columns."""
    model, sizes, cache = split.own_part(config.model, config.mesh), config.sizes, slots.cache
    weights, window, B = inputs.weights, inputs.window, slots.item.shape[0]
    lanes = assign_lanes(queries, sizes.rows, sizes.lanes)
    attend_in = cache.attention(DecodeStep(slots.step[0], queries, lanes))
    axis = split.vocab_axis(config.model, config.mesh)
    x = split.embed(model, weights, slots.token[:, None], axis)
    layers = []
    # A Python loop: a scan over the layers would copy window and cache in every step.
    for i, layer in enumerate(weights["layers"]):
        facts = model.cfg.layer_facts(i)
        of_layer = [window.layers[i], cache.layers[i], model.cfg.rule(i)]
        if cache.rotates:
            of_layer.append(facts)
            facts = facts._replace(frequencies=facts.frequencies[:0])  # the block rotates nothing

        @jax.named_scope("attention")
        def attend(q: jax.Array, k: jax.Array, v: jax.Array, of_layer: list[Any] = of_layer):
            q = q.reshape(B, k.shape[2], -1, q.shape[-1])  # [B,1,N,H] -> [B,K,G,H]
            mixed, own = attend_in(q, k, v, *of_layer)
            return mixed.reshape(B, 1, -1, q.shape[-1]).astype(v.dtype), own

        x, own = model.block(layer, x, queries.position[:, None], attend, facts)
        layers.append(own)
    with jax.named_scope("logits"):
        return model.logits(weights, x[:, 0]), dataclasses.replace(cache, layers=layers)
