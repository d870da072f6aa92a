"""Arrays that wait in the hosts' memory while the devices need the room for something else."""

from typing import Any

import jax


def to_host(tree: Any) -> Any:
    """The arrays in pinned host memory, a device's part on the host that it belongs to."""
    return _moved(tree, "pinned_host")


def to_device(tree: Any) -> Any:
    """The arrays in the devices' own memory; those that are there already, as they are."""
    return _moved(tree, "device")


def _moved(tree: Any, kind: str) -> Any:
    def move(x: jax.Array) -> jax.Array:
        if x.sharding.memory_kind == kind:
            return x
        return jax.device_put(x, x.sharding.with_memory_kind(kind))

    return jax.tree.map(move, tree)
