"""The memory layout of keys and values, as the order of axes and the arrays of a layer."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Float, Int

from vinejax.engine.split import TENSOR
from vinejax.model.sharding import ROWS


@dataclasses.dataclass(frozen=True)
class CacheLayout:
    """The order of a cache's axes, which is a string with one letter per axis.

    The letters are: b for rows, slots or pages; k for KV heads; s for columns; h for the head
    width.
    """

    axes: str

    @property
    def spec(self) -> Spec:
        """The PartitionSpec of a cache.

        It splits rows, slots or pages over the shards, and KV heads over the tensor axis.
        """
        split_over = {"b": ROWS, "k": TENSOR}
        return Spec(*(split_over.get(axis) for axis in self.axes))

    @property
    def column_axis(self) -> int:
        return self.axes.index("s")

    def shape(self, sequences: int, kv_heads: int, columns: int, head_dim: int) -> list[int]:
        """The shape of a cache of this many `sequences`, which are rows, slots or pages."""
        sizes = {"b": sequences, "k": kv_heads, "s": columns, "h": head_dim}
        return [sizes[axis] for axis in self.axes]

    def column(self, x: Float[Array, "B 1 K H"]) -> jax.Array:
        """x, which has one new key or value per slot, as a cache of one column."""
        return jnp.einsum(f"bskh->{self.axes}", x)

    def take(self, cache: jax.Array, sequences: Int[Array, " M"]) -> jax.Array:
        """A cache of only these `sequences` (rows, slots or pages), in the given order."""
        return jnp.take(cache, sequences, axis=self.axes.index("b"))

    def write(
        self, cache: jax.Array, sequences: Int[Array, " B"], x: Float[Array, "B T K H"]
    ) -> jax.Array:
        """The cache with the first T columns of these sequences replaced by x.

        Entries of x are dropped if their sequence number is past the cache's last sequence.
        """
        places = {"b": sequences, "s": slice(x.shape[1])}
        index = tuple(places.get(axis, slice(None)) for axis in self.axes)
        return cache.at[index].set(jnp.einsum(f"bskh->{self.axes}", x), mode="drop")

    def read(self, cache: jax.Array, sequences: Int[Array, " B"]) -> Float[Array, "B S K H"]:
        """All columns of these sequences, with the axes in the order of the model."""
        return jnp.einsum(f"{self.axes}->bskh", self.take(cache, sequences))

    def to(self, layout: "CacheLayout", cache: jax.Array) -> jax.Array:
        """`cache`, which has this layout, converted to another `layout`."""
        return jnp.einsum(f"{self.axes}->{layout.axes}", cache)

    def products(self, q: Float[Array, "B K G H"], keys: jax.Array) -> Float[Array, "B K G S"]:
        """The product q . k of each query with each column of its sequence, in float32."""
        return jnp.einsum(f"bkgh,{self.axes}->bkgs", q, keys, preferred_element_type=jnp.float32)

    def mix(self, weights: Float[Array, "B K G S"], values: jax.Array) -> Float[Array, "B K G H"]:
        """For each query, the weighted sum of its sequence's values, in float32."""
        weights, letters = weights.astype(values.dtype), f"bkgs,{self.axes}->bkgh"
        return jnp.einsum(letters, weights, values, preferred_element_type=jnp.float32)


WINDOW = CacheLayout("bksh")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SeparateKV:
    """A layer's keys and values in two arrays, which XLA reads."""

    keys: jax.Array  # in `layout`
    values: jax.Array  # [W, K, S, H]
    layout: CacheLayout = dataclasses.field(default=WINDOW, metadata=dict(static=True))

    def with_rows(self, rows: Int[Array, " B"], k: jax.Array, v: jax.Array) -> "SeparateKV":
        """The layer with new keys and values [B, T, K, H] in `rows`.

        They replace the first T columns. Row numbers of W or more are ignored.
        """
        keys, values = self.layout.write(self.keys, rows, k), WINDOW.write(self.values, rows, v)
        return dataclasses.replace(self, keys=keys, values=values)

    def of_rows(self, rows: Int[Array, " B"]) -> tuple[jax.Array, jax.Array]:
        """The keys and values [B, S, K, H] of these rows."""
        return self.layout.read(self.keys, rows), WINDOW.read(self.values, rows)


class JoinedKV(NamedTuple):
    """A layer's keys and values side by side in one array, which the kernels read."""

    kv: jax.Array  # [W, K, S, 2 * H] in a window, [P, K, BLOCK, 2 * H] in a pool

    def with_rows(self, rows: Int[Array, " B"], k: jax.Array, v: jax.Array) -> "JoinedKV":
        """Does the same as `SeparateKV.with_rows`."""
        return JoinedKV(WINDOW.write(self.kv, rows, jnp.concatenate([k, v], axis=-1)))

    def of_rows(self, rows: Int[Array, " B"]) -> tuple[jax.Array, jax.Array]:
        """Does the same as `SeparateKV.of_rows`."""
        k, v = jnp.split(WINDOW.read(self.kv, rows), 2, axis=-1)
        return k, v
