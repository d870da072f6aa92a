"""The mesh, and the table PARAM_SPECS, which says how mesh axes split each weight.

The axis `data` splits sequences and replicates weights. The axis `fsdp` splits both sequences and
weights. The axis `tensor` splits heads, feed-forward units or experts, and the vocabulary.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.experimental.mesh_utils import create_device_mesh
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vinejax.core.errors import ConfigError
from vinejax.core.settings import MeshConfig

Params = dict[str, Any]  # nested dicts of arrays
Axis = str | tuple[str, ...] | None  # the mesh axes that split one axis of an array
Axes = Sequence[Axis]  # one entry per axis of an array, as in a PartitionSpec
AnyMesh = Mesh | AbstractMesh  # for functions that only need the sizes of the axes
AXES = ("data", "fsdp", "tensor")
AUTO = (AxisType.Auto,) * len(AXES)  # types of the axes; newer versions of jax have others
ROWS = ("data", "fsdp")  # axes that split sequences
WHOLE = (ROWS, None, None)  # [B, T, D] where a matrix product needs all positions
BY_POSITION = (ROWS, "tensor", None)  # [B, T, D] elsewhere, to save memory
BY_COLUMN = (ROWS, None, "tensor")  # [B, T, F] and [B, T, V]

# Last names in the path of weights -> their spec. Weights of layers have a leading axis L.
# `fsdp` does not split the last axis where another one can be split. If it splits the last axis
# into parts of 128 numbers, the TPU's compiler (libtpu 0.0.42) adds up whole gradients on every
# chip instead of their parts. The compiler does so for any axis if `fsdp` takes all chips of a
# slice.
_SPECS = {
    "embed": P(("tensor", "fsdp"), None),  # [V, D]
    "head": P("fsdp", "tensor"),  # [D, V]
    "norm/scale": P(None),  # [D]
    "attention_norm post_attention_norm mlp_norm post_mlp_norm/scale": P(None, None),  # [L, D]
    "q_norm k_norm/scale": P(None, None),  # [L, H]
    "q_joint_norm k_joint_norm/scale": P(None, "tensor", None),  # [L, N, H], of k [L, K, H]
    "q k v/kernel": P(None, "fsdp", "tensor", None),  # [L, D, N, H], of k and v [L, D, K, H]
    "out/kernel": P(None, "tensor", None, "fsdp"),  # [L, N, H, D]
    "gate up/kernel": P(None, "fsdp", "tensor"),  # [L, D, F]
    "down/kernel": P(None, ("tensor", "fsdp"), None),  # [L, F, D]
    "router/kernel": P(None, "fsdp", None),  # [L, D, E], E experts
    "expert_gate expert_up/kernel": P(None, "tensor", "fsdp", None),  # [L, E, D, F]
    "expert_down/kernel": P(None, "tensor", "fsdp", None),  # [L, E, F, D]
    "q k v/bias": P(None, "tensor", None),  # [L, N, H], of k and v [L, K, H]
    "out down/bias": P(None, None),  # [L, D]
    "gate up/bias": P(None, "tensor"),  # [L, F]
    "q k v gate up/lora_a": P(None, "fsdp", None),  # [L, D, rank]
    "out/lora_a": P(None, "tensor", None, None),  # [L, N, H, rank]
    "down/lora_a": P(None, ("tensor", "fsdp"), None),  # [L, F, rank]
    "q k v/lora_b": P(None, None, "tensor", None),  # [L, rank, N, H], of k and v [L, rank, K, H]
    "out/lora_b": P(None, None, "fsdp"),  # [L, rank, D]
    "gate up/lora_b": P(None, None, "tensor"),  # [L, rank, F]
    "down/lora_b": P(None, None, None),  # [L, rank, D]
    "head/kernel": P(None),  # [D], of a critic
    "head/bias": P(),  # [], of a critic
}
PARAM_SPECS = {
    f"{module}/{kind}".rstrip("/"): P(*spec)
    for modules, _, kind, spec in ((*names.partition("/"), spec) for names, spec in _SPECS.items())
    for module in modules.split()
}


def make_mesh(cfg: MeshConfig) -> Mesh:
    """The mesh over the first devices, in which a size of -1 takes the remaining devices.

    Raises ConfigError if the product of the sizes does not divide the number of devices. With
    several hosts the product must be the number of devices, because a host without a device in the
    mesh could not take part.
    """
    sizes = [cfg.data, cfg.fsdp, cfg.tensor]
    num_devices = jax.device_count()
    if -1 in sizes:
        others = -math.prod(sizes)  # product of the other sizes
        sizes[sizes.index(-1)] = max(num_devices // others, 1)
    size = math.prod(sizes)
    product = f"data x fsdp x tensor = {sizes}"
    if num_devices % size:
        message = f"multiplies to {size}, which must be a divisor of {num_devices} devices"
        raise ConfigError("mesh", f"{product} {message}")
    if jax.process_count() > 1 and size != num_devices:
        message = f"{product} leaves some of the hosts' {num_devices} devices out"
        raise ConfigError("mesh", f"{message}; set one of them to -1")
    return mesh_over(tuple(sizes), jax.devices()[:size])


def mesh_over(sizes: tuple[int, ...], devices: list[Any]) -> Mesh:
    """A mesh (data, fsdp, tensor) in which neighbours on an axis are physically connected.

    Unlike `jax.make_mesh`, the function may cut a side of the TPU slice in two, as for a mesh
    of 16 x 4 on v6e:8x8.
    """
    device_grid = create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    return Mesh(device_grid, AXES, axis_types=AUTO)


def with_auto_axes(mesh: Mesh) -> Mesh:
    """The mesh over the same devices with axes of type Auto, which leave layouts to the compiler.

    Raises ValueError for axes other than data, fsdp and tensor.
    """
    if mesh.axis_names != AXES:
        raise ValueError(
            f"mesh has the axes {mesh.axis_names}, wanted are {AXES}, some of size 1: "
            f"jax.make_mesh((1, 1, {mesh.size}), {AXES})"
        )
    return Mesh(mesh.devices, AXES, axis_types=AUTO)


def platform_of(mesh: Mesh) -> str:
    """The platform of the mesh's devices, 'tpu', 'gpu' or 'cpu', which need not be the host's."""
    return mesh.devices.flat[0].platform


def num_shards(mesh: AnyMesh) -> int:
    """The number of shards of sequences. In decoding, each shard runs its own loop."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def table_spec(path: tuple[Any, ...]) -> P:
    """The entry of PARAM_SPECS for a path of jax.tree_util.

    Raises KeyError if PARAM_SPECS has no entry for the path.
    """
    names = [key.key for key in path]
    pair = "/".join(names[-2:])
    return PARAM_SPECS[pair if pair in PARAM_SPECS else names[-1]]


def drop_uneven_axes(spec: P, shape: tuple[int, ...], mesh: AnyMesh) -> P:
    """`spec` without each mesh axis whose size does not divide the array axis that it would split.

    `shape` is the shape of the array.
    """
    entries = []
    for entry, size in zip(spec, shape, strict=True):
        kept: list[str] = []
        for name in _names(entry):
            if size % math.prod(mesh.shape[axis] for axis in [*kept, name]) == 0:
                kept.append(name)
        entries.append(tuple(kept))
    return P(*entries)


def tensor_only(spec: P) -> P:
    """The spec without `data` and `fsdp`, which is a weight's layout while it is multiplied."""
    return P(*("tensor" if "tensor" in _names(entry) else None for entry in spec))


def _names(entry: Axis) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry or ()


def spec_for(path: tuple[Any, ...], shape: tuple[int, ...], mesh: AnyMesh) -> P:
    """The entry of PARAM_SPECS for a parameter, without mesh axes that its shape does not allow.

    So `tensor` does not split KV heads or a vocabulary whose size `tensor` does not divide. If the
    entry splits one axis over both `tensor` and `fsdp`, but the size of this axis does not allow
    `fsdp`, then `fsdp` splits the last axis instead.
    """
    entry = table_spec(path)
    spec = drop_uneven_axes(entry, shape, mesh)
    if ("tensor", "fsdp") in entry and not any("fsdp" in _names(axes) for axes in spec):
        return drop_uneven_axes(P(*spec[:-1], "fsdp"), shape, mesh)
    return spec


def param_shardings(mesh: AnyMesh, params: Params) -> Params:
    """A NamedSharding for each parameter; `params` may be arrays or ShapeDtypeStructs."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: NamedSharding(mesh, spec_for(path, x.shape, mesh)), params
    )


def placed_shapes(mesh: AnyMesh, shapes: Params, dtype: str | None = None) -> Params:
    """`shapes` with shardings by PARAM_SPECS, and with the dtype `dtype` unless it is None."""

    def placed(x: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, dtype or x.dtype, sharding=sharding)

    return jax.tree.map(placed, shapes, param_shardings(mesh, shapes))


def place_params(mesh: Mesh, params: Params) -> Params:
    """The parameters, laid out over the mesh by PARAM_SPECS.

    If every array is either on this mesh already or a NumPy array, the result is `params` itself,
    so that the NumPy arrays stay on the host.
    """

    def is_there(x: object) -> bool:
        if not isinstance(x, jax.Array):
            return True
        if isinstance(x.sharding, NamedSharding):
            return x.sharding.mesh == mesh
        return mesh.size == 1 and x.sharding.device_set == set(mesh.devices.flat)

    if all(map(is_there, jax.tree.leaves(params))):
        return params
    return jax.device_put(params, param_shardings(mesh, params))


def constrain(x: jax.Array, mesh: Mesh | None, *axes: Axis) -> jax.Array:
    """x laid out over the mesh by P(*axes), without mesh axes that its shape does not allow.

    The result is x itself if there is no mesh, or only one device.
    """
    if mesh is None or mesh.size == 1:
        return x
    spec = drop_uneven_axes(P(*axes), x.shape, mesh)
    return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def replicate(tree: Any, mesh: Mesh | None) -> Any:
    """The tree with replicated arrays, so that every device holds the whole of every array."""
    return jax.tree.map(lambda x: constrain(x, mesh, *[None] * x.ndim), tree)


def as_params(tree: Any, mesh: Mesh | None) -> Any:
    """A tree of parameters, or of gradients for parameters, laid out by PARAM_SPECS."""
    if mesh is None:
        return tree
    return jax.tree_util.tree_map_with_path(
        lambda path, x: constrain(x, mesh, *spec_for(path, x.shape, mesh)), tree
    )


def gather_over_fsdp(w: jax.Array, mesh: Mesh | None, spec: P) -> jax.Array:
    """A weight with the layout `spec`, gathered over `fsdp`, so that only `tensor` splits it.

    The gradient of `w` is the sum over all rows, with the layout `spec`.
    """
    used = tuple(tensor_only(spec))
    # The two constraints on the gradient become one collective. With the last constraint alone, the
    # compiler may bring the activations of all rows to every device instead.
    return constrain_with_gradient(w, mesh, used, used, tuple(spec))


def on_shards(mesh: Mesh, function: Callable, in_specs: tuple, out_specs: tuple | P) -> Callable:
    """A `shard_map` of a function, which every device runs on its parts of the arguments."""
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def sum_over_rows(part: jax.Array, spec: P) -> jax.Array:
    """The gradient of a weight, summed over all rows, inside a `shard_map` that splits rows.

    `part` is the gradient summed over this device's rows only, for the part of the weight that the
    mesh axis `tensor` gives to this device. `spec` is the layout of the weight. The result is split
    over `fsdp` as the weight is.
    """
    axes = [i for i, entry in enumerate(spec) if "fsdp" in _names(entry)]
    if not axes:
        return lax.psum(part, ROWS)
    part = lax.psum_scatter(part, "fsdp", scatter_dimension=axes[0], tiled=True)
    return lax.psum(part, "data")


def constrain_with_gradient(
    x: jax.Array, mesh: Mesh | None, axes: Axes, *gradient_axes: Axes
) -> jax.Array:
    """x laid out by `axes`; its gradient gets each of the layouts `gradient_axes`, in this order.

    With `constrain`, the layout `axes` would apply to the gradient too. If x is gathered, this
    would gather the gradient without need.
    """
    if mesh is None or mesh.size == 1:
        return x

    @jax.custom_vjp
    def laid_out(x: jax.Array) -> jax.Array:
        return constrain(x, mesh, *axes)

    def gradient(_: None, g: jax.Array) -> tuple[jax.Array]:
        for layout in gradient_axes:
            g = constrain(g, mesh, *layout)
        return (g,)

    laid_out.defvjp(lambda x: (laid_out(x), None), gradient)
    return laid_out(x)


def check_heads(mesh: AnyMesh, num_heads: int, ffn: int, num_experts: int = 0) -> None:
    """Raise ConfigError for query heads, feed-forward units or experts that `tensor` cannot split.

    KV heads and vocabulary may have any size: attention repeats KV heads that `tensor` does not
    divide, and a vocabulary that `tensor` does not divide is not split.
    """
    sizes = {"query heads": num_heads, "feed-forward columns": ffn, "experts": num_experts}
    for name, size in sizes.items():
        if size % mesh.shape["tensor"]:
            message = f"does not divide the model's {size} {name}; choose a divisor of it"
            raise ConfigError("mesh.tensor", message, str(mesh.shape["tensor"]))


def check_rows(mesh: AnyMesh, sizes: Mapping[str, int]) -> None:
    """Raise ConfigError unless `data` times `fsdp` divides the number of rows in each pass.

    `sizes` maps the name of a setting, for the error, to the number of rows in a pass.
    """
    parts = num_shards(mesh)
    for field, size in sizes.items():
        if size % parts:
            message = f"must be a multiple of mesh.data x mesh.fsdp = {parts}, which share the rows"
            raise ConfigError(field, message, str(size))
