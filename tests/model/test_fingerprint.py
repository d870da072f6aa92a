"""The fingerprint of weights: one bit changes it, and a mesh does not."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import eight_devices
from helpers.model_oracles import random_model

from vinejax.core.settings import MeshConfig
from vinejax.model.fingerprint import fingerprint
from vinejax.model.sharding import make_mesh, param_shardings


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_one_bit_of_any_array_changes_it(dtype: Any):
    params = jax.tree.map(lambda x: jnp.asarray(x, dtype), random_model().params)
    leaves, tree = jax.tree.flatten(params)
    found = {fingerprint(params, None)}
    for i, leaf in enumerate(leaves):
        changed = np.array(leaf)
        words = changed.view(np.uint16 if dtype == jnp.bfloat16 else np.uint32)
        words.flat[words.size // 2] ^= 1
        found.add(fingerprint(tree.unflatten([*leaves[:i], changed, *leaves[i + 1 :]]), None))
    assert len(found) == 1 + len(leaves)
    assert fingerprint(jax.tree.map(jnp.array, params), None) in found


ON_MESHES = """
from test_fingerprint import print_on_meshes
print_on_meshes()
"""


def print_on_meshes() -> None:
    params = random_model().params
    print(fingerprint(params, None))
    for sizes in ({"data": 8}, {"data": 2, "fsdp": 4}, {"fsdp": 2, "tensor": 2}):
        mesh = make_mesh(MeshConfig(**{"data": 2, "fsdp": 1, "tensor": 1} | sizes))
        print(fingerprint(jax.device_put(params, param_shardings(mesh, params)), mesh))


def test_it_is_the_same_on_every_mesh():
    program = "import sys; sys.path.insert(0, 'model')" + ON_MESHES
    assert len(set(eight_devices.printed("-c", program))) == 1
