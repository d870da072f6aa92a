"""Gathers arrays that are spread over hosts into NumPy arrays, and writes them to npz files."""

from typing import Any, cast

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from vinejax.runtime.distributed import is_writer


def save_arrays(file: epath.Path, tree: Any) -> None:
    """Writes the arrays of a tree to an npz file. An array's name is its path in the tree.

    All hosts must take part, because every host may hold a part of an array. The first host writes.
    """
    arrays: dict[str, Any] = {
        jax.tree_util.keystr(path, simple=True, separator="."): whole_array(x)
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }
    if is_writer():
        with file.open("wb") as opened:
            np.savez(cast(Any, opened), **arrays)


def whole_array(x: jax.Array | np.ndarray) -> np.ndarray:
    """`x` as a NumPy array, gathered from all hosts. All hosts must make the same calls."""
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        x = multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(x)
