"""The attention of one decode step through the kernel: a schedule for each window, then each layer.

Rows of the window are one call of a kernel in each layer, slots another. A slot's tokens are in
columns 0 .. age of its own pages (`pages.py`); the kernel writes the new one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vinejax.engine.shared_attention import HeadQueries, Lanes, Queries
from vinejax.engine.tpu.kernels import Call, attend_pages, attend_rows
from vinejax.engine.tpu.pages import Pages
from vinejax.engine.tpu.schedule import BLOCK, Grid, Schedule, grid_for, make_schedule
from vinejax.model.attention import AttentionRule

MAX_QUERIES = 256  # of a group: the lanes of a row are divided into groups of at most so many


class Calls(NamedTuple):
    """The schedules of both calls in the layers with one window."""

    slots: Schedule
    rows: Schedule


class RaggedAttention:
    """The attention of a step for all layers of a device: `heads` KV heads, G queries for each."""

    def __init__(
        self, queries: Queries, lanes: Lanes, pages: Pages, heads: int, queries_per_head: int,
        head_dim: int, rows: int, columns: int, cores: int, interpret: bool,
    ):  # fmt: skip
        """`columns`, of a row, are a multiple of BLOCK. `cores` is the number of cores of a device;
        `interpret` as in `Call`."""
        num_slots, lanes_per_row = queries.row.shape[0], lanes.slot.shape[0] // rows
        groups_per_row = _num_groups(lanes_per_row, queries_per_head)
        in_group = lanes_per_row // groups_per_row * queries_per_head
        self._queries, self._lanes, self._per_head = queries, lanes, queries_per_head
        self._slot_sources, self._num_pages = pages.of_slot, pages.free.shape[0]
        self._interpret = interpret
        row = jnp.repeat(jnp.arange(rows), groups_per_row)
        self._row_sources = jnp.repeat(row[:, None], columns // BLOCK, axis=1)
        self._slot_grid = grid_for(num_slots, queries_per_head, heads, head_dim, cores)
        self._row_grid = grid_for(rows * groups_per_row, in_group, heads, head_dim, cores)
        self._calls: dict[int | None, Calls] = {}  # by the window of a layer

    def attend(
        self, q: HeadQueries, k: Float[Array, "B 1 K H"], v: Float[Array, "B 1 K H"],
        trunks: Float[Array, "R K columns W"], pool: Float[Array, "P K BLOCK W"],
        rule: AttentionRule,
    ) -> tuple[Float[Array, "B K G H"], jax.Array]:  # fmt: skip
        """(the mix of a layer, the pool with the slots' new columns); idle slots: 0.

        The rows come first: each slot goes on from its part of what they give.
        """
        calls = self._calls_for(rule.window)
        heads, head_dim = q.shape[1], q.shape[3]
        # Rows of queries, and their heads one after the other: XLA would copy other forms.
        flat = q.swapaxes(1, 2).reshape(q.shape[0], -1)  # [B, G * K * H]
        with jax.named_scope("trunk"):
            by_lane = jnp.take(flat, self._lanes.slot, axis=0, mode="fill", fill_value=0)
            call = Call(calls.rows, self._row_grid, rule, self._interpret)
            part = attend_rows(call, by_lane.reshape(-1, heads * head_dim), trunks)
            of_lanes = part.reshape(-1, self._per_head * part.shape[1])
            start = of_lanes[self._lanes.lane].reshape(-1, part.shape[1])
        with jax.named_scope("pool"):
            call = Call(calls.slots, self._slot_grid, rule, self._interpret)
            queries = flat.reshape(-1, heads * head_dim)
            k, v = k.reshape(len(k), -1), v.reshape(len(v), -1)
            mixed, pool = attend_pages(call, queries, k, v, start, pool)
        mixed = mixed.reshape(q.shape[0], self._per_head, heads, head_dim)
        return mixed.swapaxes(1, 2), pool

    def _calls_for(self, window: int | None) -> Calls:
        if window not in self._calls:
            queries, lanes = self._queries, self._lanes
            slots = jnp.where(queries.busy, queries.age + 1, 0)
            rows = lanes.visible
            slots_first, rows_first = jnp.zeros_like(slots), jnp.zeros_like(rows)
            if window is not None:
                slots_first = jnp.maximum(slots - window, 0)
                rows_first = jnp.maximum(lanes.position + 1 - window, 0)
            self._calls[window] = Calls(
                self._schedule(
                    slots_first, slots, self._slot_sources, self._slot_grid, self._num_pages
                ),
                self._schedule(rows_first, rows, self._row_sources, self._row_grid),
            )
        return self._calls[window]

    def _schedule(
        self, first: Int[Array, " n"], limit: Int[Array, " n"], sources: Int[Array, "N blocks"],
        grid: Grid, max_items: int | None = None,
    ) -> Schedule:  # fmt: skip
        """The schedule of N groups of consecutive lanes, or slots, G queries in each."""
        first, limit = (
            jnp.repeat(x.reshape(len(sources), -1), self._per_head, axis=1) for x in (first, limit)
        )
        return make_schedule(first, limit, sources, grid, max_items)


def _num_groups(lanes: int, queries_per_head: int) -> int:
    """The fewest groups of equal size into which a row's lanes are divided."""
    return min(
        n
        for n in range(1, lanes + 1)
        if lanes % n == 0 and (lanes // n * queries_per_head <= MAX_QUERIES or n == lanes)
    )
