"""How keys and values lie in memory: the order of a cache's axes, which the platform decides.

There are two kinds of attention, and of caches. With 'xla' keys and values are arrays of their own,
each in the order of axes that the platform's compiler wants. With 'kernel' (`kernels.py`) a layer
has one array of both side by side, [sequences, K, S, 2 * H], and slots have pages (`pages.py`).
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Float

from vinejax.core.errors import ConfigError
from vinejax.engine.split import TENSOR
from vinejax.model.attention import LANES
from vinejax.model.sharding import ROWS


@dataclasses.dataclass(frozen=True)
class CacheLayout:
    """The order of a cache's axes: b rows, slots or pages, k KV heads, s columns, h head width."""

    axes: str

    @property
    def spec(self) -> Spec:
        """Rows, slots and pages are split over the shards, KV heads over the tensor axis."""
        split_over = {"b": ROWS, "k": TENSOR}
        return Spec(*(split_over.get(axis) for axis in self.axes))

    @property
    def column_axis(self) -> int:
        return self.axes.index("s")

    def shape(self, sequences: int, kv_heads: int, columns: int, head_dim: int) -> list[int]:
        """The shape of a cache of this many `sequences`: rows, slots or pages."""
        sizes = {"b": sequences, "k": kv_heads, "s": columns, "h": head_dim}
        return [sizes[axis] for axis in self.axes]

    def column(self, x: Float[Array, "B 1 K H"]) -> jax.Array:
        """One new key or value per slot as a cache of one column."""
        return jnp.einsum(f"bskh->{self.axes}", x)

    def products(self, q: Float[Array, "B K G H"], keys: jax.Array) -> Float[Array, "B K G S"]:
        """q . k of every query with every column, in float32."""
        return jnp.einsum(f"bkgh,{self.axes}->bkgs", q, keys, preferred_element_type=jnp.float32)

    def mix(self, weights: Float[Array, "B K G S"], values: jax.Array) -> Float[Array, "B K G H"]:
        """The values of all columns, weighted and summed in float32."""
        weights, letters = weights.astype(values.dtype), f"bkgs,{self.axes}->bkgh"
        return jnp.einsum(letters, weights, values, preferred_element_type=jnp.float32)


WINDOW = CacheLayout("bksh")


def use_kernel(name: str, platform: str, head_dim: int) -> bool:
    """Whether decoding's attention is the kernel; `name` is rollout.attention.

    On a CPU a kernel that was named is interpreted, for tests: this is slow. Raises ConfigError for
    a named kernel that the platform or the model cannot have.
    """
    if name == "xla" or (name == "auto" and platform != "tpu"):
        return False
    reason = ""
    if platform == "gpu":
        reason = "is for TPU, and the mesh is of GPU devices"
    elif platform == "tpu" and head_dim % (LANES // 2):
        reason = f"needs heads of a multiple of {LANES // 2}, not of {head_dim}"
    if reason and name == "kernel":
        raise ConfigError("rollout.attention", f"{reason}; 'auto' takes what fits", repr(name))
    return not reason


class RingLayout(NamedTuple):
    """The layouts of a ring's blocks."""

    keys: CacheLayout
    values: CacheLayout


def ring_layout(platform: str, slots: int, shares_heads: bool, kernel: bool = False) -> RingLayout:
    """The fastest layout for this many slots per shard; for the kernel that of the window.

    Without it: on a TPU the columns are outermost, and the slots innermost if their number is a
    multiple of 128; with another order the whole ring would be copied when the loop begins and when
    it ends. On a CPU keys are faster transposed if query heads share them (`shares_heads`).
    """
    if kernel:
        return RingLayout(WINDOW, WINDOW)
    if platform == "tpu":
        layout = CacheLayout("skbh" if slots % 128 else "skhb")
        return RingLayout(layout, layout)
    transposed = platform == "cpu" and shares_heads
    return RingLayout(CacheLayout("bkhs" if transposed else "bksh"), CacheLayout("bksh"))


def ring_blocks(width: int, platform: str) -> int:
    """The number of blocks of a ring of `width` columns: one per 32 columns, from 1 to 8.

    One block on a GPU, where a condition inside a loop costs a round trip to the host.
    """
    return 1 if platform == "gpu" else max(1, min(8, width // 32))
