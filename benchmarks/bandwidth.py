"""How near the engine comes to the limit that memory bandwidth sets, for one device.

A decode step cannot be faster than its bytes can be read: all weights but the embedding's table,
each trunk's KV once a group of slots, and of every slot its own suffix so far. The bandwidth is
measured in the same run, by copying a large array.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
from contenders import ours
from workload import Run, Workload

GROUP = 8  # slots that one read of a trunk is counted for


def copy_bandwidth(num_bytes: int, repeats: int = 5) -> float:
    """Bytes read and written a second by a copy of `num_bytes`, the median of `repeats`."""
    x = jnp.zeros(num_bytes // 4, jnp.int32)
    copy = jax.jit(lambda x: x + 1)  # a plain copy could be left out by the compiler
    return 2 * x.nbytes / median_seconds(copy, x, repeats)


def median_seconds(program: Callable[[jax.Array], jax.Array], x: jax.Array, repeats: int) -> float:
    """Median seconds of `repeats` calls, after one that compiles."""
    program(x).block_until_ready()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        program(x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


@dataclasses.dataclass(frozen=True)
class Bytes:
    """That must be read to decode a workload, by kind."""

    weights: float
    trunks: float
    suffixes: float

    @property
    def total(self) -> float:
        return self.weights + self.trunks + self.suffixes


def bytes_needed(work: Workload, decode_steps: int) -> Bytes:
    """Weights once a step; a column of KV is a key and a value in every layer."""
    cfg = work.model.cfg
    item_size = jnp.dtype(work.model.compute.dtype).itemsize
    column = 2 * cfg.num_layers * cfg.num_kv_heads * cfg.head_dim * item_size
    count = sum(math.prod(x.shape) for x in jax.tree.leaves(work.params))
    table = 0 if cfg.tied_head else math.prod(work.params["embed"].shape)
    pairs = list(zip(work.branches, work.budgets, strict=True))
    return Bytes(
        weights=float(decode_steps * (count - table) * item_size),
        trunks=column * sum(branch.position * budget for branch, budget in pairs) / GROUP,
        suffixes=float(column * sum(budget * (budget + 1) // 2 for budget in work.budgets)),
    )


def measure_device(work: Workload, repeats: int, copy_bytes: int) -> list[str]:
    """Lines for people: useful tokens a second and the share of the limit, over whole calls."""
    run: Callable[[], Run] = ours(work)
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        made = run()
        seconds.append(time.perf_counter() - start)
    took, bandwidth = statistics.median(seconds), copy_bandwidth(copy_bytes)
    needed = bytes_needed(work, made.decode_steps)
    per_step = {
        kind: value / made.decode_steps / 1e6 for kind, value in dataclasses.asdict(needed).items()
    }
    device = jax.devices()[0]
    return [
        f"{device.device_kind}, {work.slots} slots, {len(work.branches)} branches",
        f"useful tokens/s    {work.useful_tokens / took:,.0f}",
        f"a decode step      {took / made.decode_steps * 1e3:.2f} ms, prefill and host included",
        "must be read       " + ", ".join(f"{v:.2f} MB {k}" for k, v in per_step.items()),
        f"copy bandwidth     {bandwidth / 1e9:.1f} GB/s",
        f"share of the limit {needed.total / bandwidth / took:.1%}",
    ]
