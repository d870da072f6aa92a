"""Instruction bundles of the decoding kernels, in the listing of the TPU compiler (libtpu).

    python benchmarks/kernel_bundles.py

A bundle is what a core issues in one cycle. `item` are those of one block of columns, the loop of a
kernel, every branch taken; `step` are those outside, of a step of the grid with some of the groups.
A copy of 256 columns of four heads of 128 takes 960 cycles of a v5e (1.5 GHz, 819 GB/s).

For a v5e, 192 slots over 16 rows, that is, 12 lanes a row, with four KV heads of 128 (math7b on
eight chips), and with more queries for each head; 2026-11-27, jax 0.12, libtpu 0.0.50; `before`
with a choice among eight copies and without stacks:

  kernel     queries, heads  item  before  step (groups)
  page_body  1, 4 x 128      430   762     2505 (96)
  row_body   1, 4 x 128      590   810      610 (8)
  page_body  4, 2 x 128      300   564     1348 (64)
  page_body  8, 4 x 64       463   684      904 (32)
"""

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.topologies import get_topology_desc
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, SingleDeviceSharding

from vinejax.engine.tpu.kernels import KernelCall, attend_pages, attend_rows
from vinejax.engine.tpu.schedule import BLOCK, grid_for, make_schedule, part_shape
from vinejax.model.attention import AttentionRule
from vinejax.runtime.topology import Topology, parse_topology
from vinejax.tools.plan.aot.compiler import ENVIRONMENT

SLOTS, ROWS = 192, 16
PAGE_BLOCKS, ROW_BLOCKS = 4, 6  # of a slot, and of a row
# Address, marks of the loops around it, content.
BUNDLE = re.compile(r"^ *(0x[0-9a-f]+|0) +[A-Z]* *: *(>*) *{(.*)}", re.MULTILINE)


class Shape(NamedTuple):
    kernel: str
    per_head: int  # queries per KV head of a slot
    heads: int
    head_dim: int


SHAPES = [
    Shape("page_body", 1, 4, 128),
    Shape("row_body", 1, 4, 128),
    Shape("page_body", 4, 2, 128),
    Shape("page_body", 8, 4, 64),
]


def call_of(shape: Shape, groups: int, bounds: Any, sources: Any, items: int | None) -> KernelCall:
    """A call for `groups` groups, whose queries see the columns of `bounds`."""
    first, limit = bounds
    queries = first.shape[1]
    least_rows = queries if items is None else 1
    grid = grid_for(groups, queries, shape.heads, shape.head_dim, 1, least_rows)
    rule = AttentionRule(scale=shape.head_dim**-0.5)
    return KernelCall(
        make_schedule(first, limit, sources, grid, items), grid, rule, interpret=False
    )


def pages(shape: Shape, bounds: Any, sources: Any, q: Any, new: Any, start: Any, pool: Any) -> Any:
    call = call_of(shape, SLOTS, bounds, sources, len(pool))
    return attend_pages(call, q, new, new, start, pool)


def rows(shape: Shape, bounds: Any, sources: Any, q: Any, cache: Any) -> Any:
    return attend_rows(call_of(shape, ROWS, bounds, sources, None), q, cache)


def compile_for_v5e(shape: Shape, topology: Topology) -> None:
    """Compiles a kernel; the compiler writes its listings."""
    device = get_topology_desc(topology.name, "tpu", **topology.compiler_options).devices[0]
    _, per_head, heads, head_dim = shape

    def array(dtype: Any, *sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=SingleDeviceSharding(device))

    q = array(jnp.bfloat16, SLOTS * per_head, heads * head_dim)
    if shape.kernel == "page_body":
        new = array(jnp.bfloat16, SLOTS, heads * head_dim)
        start = array(jnp.float32, SLOTS * per_head, part_shape(heads, head_dim).lanes)
        pool = array(jnp.bfloat16, SLOTS * PAGE_BLOCKS, heads, BLOCK, 2 * head_dim)
        groups, queries, blocks, run = SLOTS, per_head, PAGE_BLOCKS, pages
        arguments, donated = [q, new, start, pool], 5
    else:
        cache = array(jnp.bfloat16, ROWS, heads, ROW_BLOCKS * BLOCK, 2 * head_dim)
        groups, queries, blocks, run = ROWS, SLOTS // ROWS * per_head, ROW_BLOCKS, rows
        arguments, donated = [q, cache], ()
    bound, sources = array(jnp.int32, groups, queries), array(jnp.int32, groups, blocks)
    chip = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    mesh = AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=chip)
    with jax.sharding.use_abstract_mesh(mesh):
        jitted = jax.jit(lambda *x: run(shape, *x), donate_argnums=donated)
        jitted.lower((bound, bound), sources, *arguments).compile()


def bundles(listing: str) -> tuple[int, int]:
    """(bundles of the inner loop, those outside) in the final listing of a kernel."""
    inner = outer = depth = 0
    for _, marks, content in BUNDLE.findall(listing):
        depth = len(marks) if content else depth  # an empty bundle has no marks
        inner, outer = inner + (depth == 2), outer + (depth < 2)
    return inner, outer


def main(shapes: Sequence[Shape]) -> None:
    topology = parse_topology("v5e:1x1")
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
        os.environ |= ENVIRONMENT | {
            "TPU_ACCELERATOR_TYPE": topology.accelerator_type, "LIBTPU_INIT_ARGS": flags
        }  # fmt: skip
        for shape in shapes:
            compile_for_v5e(shape, topology)
            (listing,) = Path(folder).glob(f"*{shape.kernel}*[0-9]-final_bundles.txt")
            inner, outer = bundles(listing.read_text(encoding="utf-8"))
            listing.unlink()
            print(*shape, "item", inner, "step", outer)


if __name__ == "__main__":
    main(SHAPES)
