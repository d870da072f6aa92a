"""Moves arrays to the hosts' memory while the devices need theirs for other arrays."""

from typing import Any, TypeVar

import jax

Tree = TypeVar("Tree")  # a pytree of arrays


def to_host(tree: Tree) -> Tree:
    """The arrays in pinned host memory; each device's part lies on the device's own host.

    NumPy arrays stay as they are.
    """
    return _moved(tree, "pinned_host")


def to_device(tree: Tree) -> Tree:
    """The arrays in device memory; those that are there already stay as they are."""
    return _moved(tree, "device")


def _moved(tree: Tree, kind: str) -> Tree:
    def move(x: Any) -> Any:
        if not isinstance(x, jax.Array) or x.sharding.memory_kind == kind:
            return x
        return jax.device_put(x, x.sharding.with_memory_kind(kind))

    return jax.tree.map(move, tree)
