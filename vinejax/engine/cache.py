"""The cache of the slots' own tokens: the interface of its three implementations.

`Ring` (`ring.py`) has columns that all slots share; XLA reads it. `KernelRing`
(`gpu/kernel_ring.py`) is the same ring, read by a kernel for GPU. `PagedCache` (`tpu/paged.py`) has
pages that each slot takes as it grows; kernels for TPU read it. Each is a pytree of arrays, which
the compiled loop carries. Each also has a static part, a `Storage`, which determines the sizes of
the arrays. `memory.storage_for` chooses one of the three; no other code distinguishes them.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Bool, Int

from vinejax.core.errors import ConfigError
from vinejax.engine.layout import CacheLayout, JoinedKV, SeparateKV
from vinejax.engine.shared_attention import Lanes, Queries
from vinejax.engine.split import SHARDS, num_kv_heads
from vinejax.model.attention import LANES
from vinejax.model.decoder import Decoder
from vinejax.model.sharding import num_shards

GPU_HEADS = 16, 32, 64, 128, 256  # head widths of the kernel for GPU
# Compute capabilities for which XLA compiles no Triton; AMD's names, whose GPUs are untested.
WITHOUT_TRITON = "5.", "6.", "7.", "gfx"

# (queries [B, K, G, H], new keys and new values [B, 1, K, H], the window's layer, the cache's
# layer, the layer's attention rule) -> (attention [B, K, G, H], the cache's layer). The function of
# a cache that `rotates` has one more argument, the layer's facts (`LayerFacts`).
Attend = Callable[..., tuple[jax.Array, Any]]


class DecodeStep(NamedTuple):
    """Those inputs of attention that are the same for all layers in a decode step."""

    number: Int[Array, ""]  # number of steps since the phase began
    queries: Queries
    lanes: Lanes


@dataclasses.dataclass(frozen=True)
class Cache(abc.ABC):
    """Keys and values of the tokens that the slots of a shard have passed through the model."""

    layers: list[Any]  # arrays per layer

    # Whether attention takes queries and new keys before RoPE, and rotates them.
    rotates: ClassVar[bool] = False

    @abc.abstractmethod
    def reserve(
        self, occupied: Bool[Array, " B"], age: Int[Array, " B"]
    ) -> tuple["Cache", Bool[Array, " B"]]:
        """The cache with room for a step's new columns, and bool[B] whether each slot must wait.

        Each slot has drawn `age` tokens. If there is not enough room for all new columns, some
        occupied slots must wait. A slot that waits loses all its columns.
        """

    @abc.abstractmethod
    def attention(self, step: DecodeStep) -> Attend:
        """The function that computes a layer's attention in this step.

        The function also writes the step's new columns, because a kernel writes the new columns and
        reads the visible columns in one call.
        """

    def give_back(self, ended: Bool[Array, " B"], age: Int[Array, " B"]) -> "Cache":
        """The cache after the slots whose branches `ended` have given back their columns.

        Each slot has drawn `age` tokens.
        """
        return self

    @abc.abstractmethod
    def specs(self, slots: int) -> "Cache":
        """A copy with PartitionSpecs in place of arrays, for a cache of `slots` slots per shard."""

    def movable(self) -> "Cache":
        """A cache of only those arrays that must be reordered when slots are renumbered.

        By default these are all arrays.
        """
        return self

    @abc.abstractmethod
    def take(self, slots: Int[Array, " M"]) -> "Cache":
        """A cache of only these slots, which are renumbered from 0.

        The method is called on a result of `movable`.
        """

    def with_moved(self, moved: "Cache") -> "Cache":
        """The cache after the arrays that `movable` selects were replaced by those of `moved`."""
        return moved


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The shapes of a phase of generation (`phase.py`), for which its programs are compiled."""

    slots: int  # per shard
    rows: int  # per shard
    lanes: int  # per row
    columns: int  # per row
    width: int  # most columns of a slot
    queue: int  # entries of a shard's queue
    batch: int  # trunks per shard in one prefill
    chunk: int  # most decode steps of one chunk
    storage: "Storage"


@dataclasses.dataclass(frozen=True)
class Allocator:
    """Allocates arrays that cover all shards. No two share a buffer, so each can be donated."""

    model: Decoder
    mesh: Mesh

    def cache(
        self, layout: CacheLayout, sequences: int, columns: int, per_head: int = 1
    ) -> jax.Array:
        """A layer's cache of zeros, with `per_head` vectors side by side for each KV head."""
        heads, width = num_kv_heads(self.model, self.mesh), per_head * self.model.cfg.head_dim
        shape = layout.shape(num_shards(self.mesh) * sequences, heads, columns, width)
        return self._place(jnp.zeros(shape, self.model.compute.dtype), layout.spec)

    def numbers(self, *shape: int, value: int = 0) -> jax.Array:
        """An int32 array filled with `value`; its part on each shard has this `shape`."""
        rows = num_shards(self.mesh) * shape[0]
        return self._place(jnp.full((rows, *shape[1:]), value, jnp.int32), SHARDS)

    def counted(self, length: int) -> jax.Array:
        """An int32 array of the numbers 0 .. length - 1 on each shard."""
        numbers = jnp.arange(length, dtype=jnp.int32)
        return self._place(jnp.tile(numbers, num_shards(self.mesh)), SHARDS)

    def _place(self, x: jax.Array, spec: Spec) -> jax.Array:
        return lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))


class Storage(abc.ABC):
    """The static part of a cache, which is hashable and a field of `Sizes`.

    A column is one position of one sequence, in all layers. The methods count columns, rows and
    slots per shard. By default each slot has as many columns as the largest budget, and each step
    reads all columns.
    """

    # Whether kernels, not XLA, read window and cache. They read only the columns in use, and the
    # compiler's cycle count lacks their reads.
    read_by_kernel: ClassVar[bool] = False
    draws_by_kernel: ClassVar[bool] = False  # whether the kernel for GPU draws tokens

    @property
    def on_cpu(self) -> bool:
        """Whether XLA reads the cache on a CPU."""
        return False

    # --- sizes

    def align(self, columns: int) -> int:
        """The smallest number of columns, at least `columns`, that a row or slot can have."""
        return columns

    def slot_bytes(self, slots: int, width: int, column_bytes: int) -> int:
        """The bytes to count per slot when memory is divided between rows and `slots` slots."""
        return width * column_bytes

    def fitted(self, slots: int, width: int, room: int) -> "Storage":
        """The storage for `slots` slots of at most `width` columns.

        The memory has room for `room` columns of all slots together.
        """
        return self

    def columns(self, slots: int, width: int) -> int:
        """The number of columns of all slots together."""
        return slots * width

    # --- arrays

    @abc.abstractmethod
    def window_layer(self, new: Allocator, sizes: Sizes) -> SeparateKV | JoinedKV:
        """One layer of an empty window, in the form that attention with this cache reads."""

    @abc.abstractmethod
    def empty(self, new: Allocator, sizes: Sizes) -> Cache:
        """An empty cache."""

    # --- the drain

    @abc.abstractmethod
    def drain_rows(self, sizes: Sizes, slots: int) -> int:
        """The number of rows of a drain (`drain.py`) with this many slots."""

    @abc.abstractmethod
    def drain_columns(self, sizes: Sizes, drain: Sizes) -> int:
        """The number of columns that a drain allocates in addition to those of the phase."""

    # --- planning

    def columns_read(self, seen: float, columns: int) -> float:
        """The number of a sequence's `columns` that a step reads if `seen` of them are visible."""
        return columns

    def sequences_read(self, sizes: Sizes, busy: float) -> tuple[float, float]:
        """The numbers of rows and of slots that a step reads while `busy` slots are busy.

        A kernel reads nothing for idle slots, or for rows that no slot reads.
        """
        return (min(sizes.rows, busy), busy) if self.read_by_kernel else (sizes.rows, sizes.slots)

    def usable_slots(self, sizes: Sizes, mean_tokens: float) -> int:
        """How many slots can be busy at once if branches have `mean_tokens` tokens on average."""
        return sizes.slots

    def smallest(self, sizes: Sizes) -> "Storage":
        """The smallest storage with which a phase can still have the slots of `sizes`."""
        return self


def use_kernel(name: str, platform: str, head_dim: int, device: Any = None) -> bool:
    """Whether a kernel for TPU or GPU computes the attention of decoding.

    `name` is the setting rollout.attention. If it is 'kernel', a CPU interprets the kernel for TPU,
    which is slow and serves tests. `device` is one of the platform's devices, if there are any.
    Raises ConfigError if `name` is 'kernel' and the kernel does not run on the devices or with the
    model.
    """
    if name == "xla" or (name == "auto" and platform == "cpu"):
        return False
    reason = ""
    if platform == "gpu" and head_dim not in GPU_HEADS:
        reason = f"needs heads of one of the widths {GPU_HEADS}, not of {head_dim}"
    elif getattr(device, "compute_capability", "").startswith(WITHOUT_TRITON):
        reason = "needs NVIDIA GPUs of compute capability 8.0 or later"
    elif platform == "tpu" and head_dim % (LANES // 2):
        reason = f"needs heads of a multiple of {LANES // 2}, not of {head_dim}"
    if reason and name == "kernel":
        raise ConfigError("rollout.attention", f"{reason}; 'auto' takes what fits", repr(name))
    return not reason
