"""The attention of one decode step by the kernels, for all layers of a device.

In each layer one kernel call attends to the window's rows, and a second one to the slots' pages.
The second call continues from the softmax parts of the first, and writes the step's new columns.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vinejax.engine.cache import DecodeStep
from vinejax.engine.layout import JoinedKV
from vinejax.engine.shared_attention import HeadQueries
from vinejax.engine.tpu.kernels import KernelCall, attend_pages, attend_rows
from vinejax.engine.tpu.pages import Pages
from vinejax.engine.tpu.schedule import BLOCK, grid_for, make_schedule
from vinejax.model.attention import AttentionRule

MAX_QUERIES = 256  # most queries of a group that has more than one lane


class LayerCalls(NamedTuple):
    """The two kernel calls of a layer; layers with the same attention rule share them."""

    rows: KernelCall
    pages: KernelCall


class Bounds(NamedTuple):
    """The columns, `first` .. `limit` - 1, that each query sees."""

    first: Int[Array, " n"]
    limit: Int[Array, " n"]


class RaggedAttention:
    """The attention of one decode step; layers with equal attention rules share schedules."""

    def __init__(self, step: DecodeStep, pages: Pages, cores: int, interpret: bool):
        """`cores` counts a device's cores. With `interpret` the kernels run in an interpreter."""
        self._step, self._pages = step, pages
        self._cores, self._interpret = cores, interpret
        self._calls: dict[AttentionRule, LayerCalls] = {}

    def attend(
        self, q: HeadQueries, k: Float[Array, "B 1 K H"], v: Float[Array, "B 1 K H"],
        trunks: JoinedKV, pool: JoinedKV, rule: AttentionRule,
    ) -> tuple[HeadQueries, JoinedKV]:  # fmt: skip
        """A layer's attention, 0 for idle slots, and the layer's pool with the new columns."""
        if rule not in self._calls:
            self._calls[rule] = self._calls_for(rule, q, trunks.kv)
        calls, lanes = self._calls[rule], self._step.lanes
        slots, heads, per_head, head_dim = q.shape
        # One row per query, with its heads side by side; XLA would copy other forms.
        flat = q.swapaxes(1, 2).reshape(slots, -1)  # [B, G * K * H]
        with jax.named_scope("trunk"):
            by_lane = jnp.take(flat, lanes.slot, axis=0, mode="fill", fill_value=0)
            part = attend_rows(calls.rows, by_lane.reshape(-1, heads * head_dim), trunks.kv)
            of_lanes = part.reshape(-1, per_head * part.shape[1])
            start = of_lanes[lanes.lane].reshape(-1, part.shape[1])
        with jax.named_scope("pool"):
            queries = flat.reshape(-1, heads * head_dim)
            k, v = k.reshape(slots, -1), v.reshape(slots, -1)
            mixed, written = attend_pages(calls.pages, queries, k, v, start, pool.kv)
        mixed = mixed.reshape(slots, per_head, heads, head_dim)
        return mixed.swapaxes(1, 2), JoinedKV(written)

    def _calls_for(
        self, rule: AttentionRule, q: HeadQueries, trunks: Float[Array, "W K S both"]
    ) -> LayerCalls:
        queries, lanes = self._step.queries, self._step.lanes
        rows, columns = trunks.shape[0], trunks.shape[2]
        page_bounds = Bounds(
            jnp.zeros_like(queries.age), jnp.where(queries.busy, queries.age + 1, 0)
        )
        row_bounds = Bounds(jnp.zeros_like(lanes.visible), lanes.visible)
        if rule.window is not None:
            page_bounds = page_bounds._replace(
                first=jnp.maximum(page_bounds.limit - rule.window, 0)
            )
            row_bounds = row_bounds._replace(first=jnp.maximum(lanes.position + 1 - rule.window, 0))
        groups_per_row = _num_groups(lanes.slot.shape[0] // rows, q.shape[2])
        row = jnp.repeat(jnp.arange(rows), groups_per_row)
        sources = jnp.repeat(row[:, None], columns // BLOCK, axis=1)
        num_pages = self._pages.free.shape[0]
        return LayerCalls(
            self._call(rule, q, row_bounds, sources),
            self._call(rule, q, page_bounds, self._pages.of_slot, num_pages),
        )

    def _call(
        self, rule: AttentionRule, q: HeadQueries, bounds: Bounds, sources: Int[Array, "N blocks"],
        max_items: int | None = None,
    ) -> KernelCall:  # fmt: skip
        """A kernel call for N groups. A group is one slot, or consecutive lanes of one row."""
        _, heads, per_head, head_dim = q.shape
        first, limit = (jnp.repeat(x.reshape(len(sources), -1), per_head, axis=1) for x in bounds)
        queries = first.shape[1]
        # The kernel over pages also has the new keys and values, a row per group.
        least_rows = queries if max_items is None else 1
        grid = grid_for(len(sources), queries, heads, head_dim, self._cores, least_rows)
        schedule = make_schedule(first, limit, sources, grid, max_items)
        return KernelCall(schedule, grid, rule, self._interpret)


def _num_groups(lanes: int, queries_per_head: int) -> int:
    """The smallest number of equal groups into which a row's lanes can be divided.

    A group may have at most MAX_QUERIES queries. If a single lane has more queries, each lane is a
    group.
    """
    return min(
        n
        for n in range(1, lanes + 1)
        if lanes % n == 0 and (lanes // n * queries_per_head <= MAX_QUERIES or n == lanes)
    )
