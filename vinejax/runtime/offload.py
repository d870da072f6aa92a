"""Moves arrays to host memory and back, so that device memory is free for other arrays."""

from typing import Any, TypeVar

import jax

Tree = TypeVar("Tree")  # a pytree of arrays


def to_host(tree: Tree) -> Tree:
    """The arrays in pinned host memory. Each host holds the parts of its own devices.

    NumPy arrays stay as they are.
    """
    return _moved(tree, "pinned_host")


def to_device(tree: Tree) -> Tree:
    """The arrays in device memory. Arrays that are already there, and NumPy arrays, do not move."""
    return _moved(tree, "device")


def _moved(tree: Tree, kind: str) -> Tree:
    def move(x: Any) -> Any:
        if not isinstance(x, jax.Array) or x.sharding.memory_kind == kind:
            return x
        return jax.device_put(x, x.sharding.with_memory_kind(kind))

    return jax.tree.map(move, tree)
