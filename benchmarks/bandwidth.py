"""How near the engine comes to the limit that memory and products set, for one device.

A decode step cannot be faster than its bytes can be moved: all weights but the embedding's table,
each trunk's KV once a group of slots, of every slot its own suffix so far, and logits, which are
written and read once. Nor can it be faster than its FLOPs. Both speeds are measured in the same
run, by copying a large array and by multiplying two matrices.
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

from vinejax.model.config import DecoderConfig

GROUP = 8  # slots that one read of a trunk is counted for
FLOAT32 = 4


def copy_bandwidth(num_bytes: int, repeats: int = 5) -> float:
    """Bytes read and written a second by a copy of `num_bytes`, the median of `repeats`."""
    x = jnp.zeros(num_bytes // 4, jnp.int32)
    copy = jax.jit(lambda x: x + 1)  # a plain copy could be left out by the compiler
    return 2 * x.nbytes / median_seconds(copy, x, repeats)


def product_speed(num_bytes: int, dtype: str, repeats: int = 5) -> float:
    """FLOPs a second of a product of two square matrices of `num_bytes` each."""
    size = math.isqrt(num_bytes // jnp.dtype(dtype).itemsize)
    x = jax.random.normal(jax.random.key(0), (size, size), dtype)  # a GPU multiplies zeros faster
    return 2 * size**3 / median_seconds(jax.jit(lambda x: x @ x), x, repeats)


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
class Speeds:
    """What a device can do at most in a second, as measured."""

    bytes: float
    flops: float


@dataclasses.dataclass(frozen=True)
class Needed:
    """Bytes that must be moved to decode some tokens, by kind, and FLOPs."""

    weights: float
    trunks: float
    suffixes: float
    logits: float
    flops: float

    @property
    def bytes(self) -> float:
        return self.weights + self.trunks + self.suffixes + self.logits

    def seconds(self, speeds: Speeds) -> float:
        """The least seconds, with products and copies at the same time."""
        return max(self.bytes / speeds.bytes, self.flops / speeds.flops)


def needed_for(
    cfg: DecoderConfig,
    dtype: str,
    multiplied: float,
    steps: float,
    tokens: float,
    trunk_columns: float,
    own_columns: float,
    group: float = GROUP,
) -> Needed:
    """What it takes to decode `tokens` tokens in `steps` steps.

    `multiplied` is the number of weights by which a token is multiplied. `trunk_columns` and
    `own_columns` are summed over tokens. A trunk's column is read once for `group` tokens.
    """
    item_size = jnp.dtype(dtype).itemsize
    column = 2 * cfg.num_layers * cfg.num_kv_heads * cfg.head_dim * item_size
    attention = 4 * cfg.num_layers * cfg.num_heads * cfg.head_dim
    return Needed(
        weights=float(steps * multiplied * item_size),
        trunks=column * trunk_columns / group,
        suffixes=float(column * own_columns),
        logits=2.0 * FLOAT32 * tokens * cfg.vocab_size,
        flops=2 * tokens * multiplied + attention * (trunk_columns + own_columns),
    )


def needed_of(work: Workload, decode_steps: int) -> Needed:
    """What it takes to decode a workload in so many steps."""
    cfg = work.model.cfg
    count = sum(math.prod(x.shape) for x in jax.tree.leaves(work.params))
    table = 0 if cfg.tied_head else math.prod(work.params["embed"].shape)
    pairs = list(zip(work.branches, work.budgets, strict=True))
    return needed_for(
        cfg,
        work.model.compute.dtype,
        multiplied=count - table,
        steps=decode_steps,
        tokens=work.useful_tokens,
        trunk_columns=sum(branch.position * budget for branch, budget in pairs),
        own_columns=sum(budget * (budget + 1) // 2 for budget in work.budgets),
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
    took = statistics.median(seconds)
    speeds = Speeds(copy_bandwidth(copy_bytes), product_speed(copy_bytes, work.model.compute.dtype))
    needed = needed_of(work, made.decode_steps)
    per_step = {
        kind: value / made.decode_steps / 1e6 for kind, value in dataclasses.asdict(needed).items()
    }
    flops = per_step.pop("flops")
    device = jax.devices()[0]
    return [
        f"{device.device_kind}, {work.slots} slots, {len(work.branches)} branches",
        f"useful tokens/s    {work.useful_tokens / took:,.0f}",
        f"a decode step      {took / made.decode_steps * 1e3:.2f} ms, prefill and host included",
        "must be moved      " + ", ".join(f"{v:.2f} MB {k}" for k, v in per_step.items()),
        f"must be computed   {flops:,.0f} MFLOP",
        f"copies, products   {speeds.bytes / 1e9:.1f} GB/s, {speeds.flops / 1e12:.1f} TFLOP/s",
        f"share of the limit {needed.seconds(speeds) / took:.1%}",
    ]
