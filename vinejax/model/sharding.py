"""The mesh, and the one table that says where every weight lives.

Axes: `data` splits sequences and replicates weights, `fsdp` splits sequences and weights, `tensor`
splits heads, feed-forward columns and the vocabulary.
"""

import math
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vinejax.config import MeshConfig
from vinejax.errors import ConfigError

# Last names of the path of a weight -> spec. The layers' weights carry a leading axis L.
PARAM_SPECS = {
    "embed": P("tensor", "fsdp"),  # [V, D]
    "head": P("fsdp", "tensor"),  # [D, V]
    "norm/scale": P(None),  # [D]
    "attention_norm/scale": P(None, None),  # [L, D]
    "post_attention_norm/scale": P(None, None),  # [L, D]
    "mlp_norm/scale": P(None, None),  # [L, D]
    "post_mlp_norm/scale": P(None, None),  # [L, D]
    "q_norm/scale": P(None, None),  # [L, H]
    "k_norm/scale": P(None, None),  # [L, H]
    "q/kernel": P(None, "fsdp", "tensor", None),  # [L, D, N, H]
    "k/kernel": P(None, "fsdp", "tensor", None),  # [L, D, K, H]
    "v/kernel": P(None, "fsdp", "tensor", None),  # [L, D, K, H]
    "out/kernel": P(None, "tensor", None, "fsdp"),  # [L, N, H, D]
    "gate/kernel": P(None, "fsdp", "tensor"),  # [L, D, F]
    "up/kernel": P(None, "fsdp", "tensor"),  # [L, D, F]
    "down/kernel": P(None, "tensor", "fsdp"),  # [L, F, D]
    "q/bias": P(None, "tensor", None),  # [L, N, H]
    "k/bias": P(None, "tensor", None),  # [L, K, H]
    "v/bias": P(None, "tensor", None),  # [L, K, H]
    "out/bias": P(None, None),  # [L, D]
    "gate/bias": P(None, "tensor"),  # [L, F]
    "up/bias": P(None, "tensor"),  # [L, F]
    "down/bias": P(None, None),  # [L, D]
}
BATCH_SPEC = P(("data", "fsdp"), None)  # [B, T]


def make_mesh(cfg: MeshConfig) -> Mesh:
    """The mesh over all devices; a size of -1 takes what the others leave.

    Raises ConfigError when the sizes do not multiply to the number of devices.
    """
    sizes = [cfg.data, cfg.fsdp, cfg.tensor]
    num_devices = jax.device_count()
    if -1 in sizes:
        others = -math.prod(sizes)
        sizes[sizes.index(-1)] = max(num_devices // others, 1)
    size = math.prod(sizes)
    if num_devices % size:
        raise ConfigError(
            "mesh", f"data x fsdp x tensor = {sizes} needs a divisor of {num_devices} devices"
        )
    devices = jax.devices()[:size]
    names = ("data", "fsdp", "tensor")
    return jax.make_mesh(tuple(sizes), names, axis_types=(AxisType.Auto,) * 3, devices=devices)


def spec_of(path: tuple[Any, ...]) -> P:
    """The table's entry for a parameter path (as jax.tree_util gives it)."""
    names = [key.key for key in path]
    return PARAM_SPECS.get("/".join(names[-2:])) or PARAM_SPECS[names[-1]]


def param_shardings(mesh: Mesh, params: Any) -> Any:
    """A NamedSharding for each parameter; `params` may be arrays or ShapeDtypeStructs."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: NamedSharding(mesh, spec_of(path)), params
    )
