"""A model's parameters as a whole: their dtype, and the layers one by one."""

from typing import Any

import jax

from vinejax.core.types import Array
from vinejax.model.sharding import Params


def cast_matrices(params: Params, dtype: str) -> Params:
    """Cast matrices and biases; norms stay float32: cheap to compute, costly to round."""

    def cast(path: tuple[Any, ...], x: Array) -> Array:
        return x if path[-1].key == "scale" else x.astype(dtype)

    return jax.tree_util.tree_map_with_path(cast, params)


def unstack_layers(params: Params, num_layers: int) -> list[Params]:
    """The stacked layers as a list: decoding loops over it, since a scan would copy its caches."""
    return [jax.tree.map(lambda x, i=i: x[i], params["layers"]) for i in range(num_layers)]
