"""The mesh, and the one table that says where every weight lives.

Axes: `data` splits sequences and replicates weights, `fsdp` splits sequences and weights, `tensor`
splits heads, feed-forward columns and the vocabulary.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.experimental.mesh_utils import create_device_mesh
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vinejax.errors import ConfigError
from vinejax.settings import Config, MeshConfig

Axis = str | tuple[str, ...] | None  # of a mesh, for one axis of an array
AnyMesh = Mesh | AbstractMesh  # where the sizes of its axes are enough
Axes = Sequence[Axis]  # one of each axis of an array, as a PartitionSpec has them
AXES = ("data", "fsdp", "tensor")
ROWS = ("data", "fsdp")  # what sequences are split over
WHOLE = (ROWS, None, None)  # [B, T, D] where a product needs all positions
BY_POSITION = (ROWS, "tensor", None)  # [B, T, D] elsewhere, which takes a part of the memory
BY_COLUMN = (ROWS, None, "tensor")  # [B, T, F] and [B, T, V]

# Last names of the path of a weight -> spec. The layers' weights carry a leading axis L.
# `fsdp` is kept from the last axis where it can be: split there, with parts of 128 numbers, the
# TPU's compiler (libtpu 0.0.42) adds up whole gradients on every chip instead of their parts; so it
# does, wherever the axis is, when `fsdp` alone takes all chips of a slice.
PARAM_SPECS = {
    "embed": P(("tensor", "fsdp"), None),  # [V, D]
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
    "down/kernel": P(None, ("tensor", "fsdp"), None),  # [L, F, D]
    "q/bias": P(None, "tensor", None),  # [L, N, H]
    "k/bias": P(None, "tensor", None),  # [L, K, H]
    "v/bias": P(None, "tensor", None),  # [L, K, H]
    "out/bias": P(None, None),  # [L, D]
    "gate/bias": P(None, "tensor"),  # [L, F]
    "up/bias": P(None, "tensor"),  # [L, F]
    "down/bias": P(None, None),  # [L, D]
    "head/kernel": P(None),  # [D] of a critic
    "head/bias": P(),  # [] of a critic
}
BATCH_SPEC = P(ROWS, None)  # [B, T]


def make_mesh(cfg: MeshConfig) -> Mesh:
    """The mesh over the first devices; a size of -1 takes what the others leave.

    Raises ConfigError when the sizes do not multiply to a divisor of the number of devices or, with
    several hosts, to all of them: a host without a device in the mesh could not take part.
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
    if jax.process_count() > 1 and size != num_devices:
        rule = f"data x fsdp x tensor = {sizes} leaves some of the hosts' {num_devices} devices out"
        raise ConfigError("mesh", f"{rule}; set one of them to -1")
    return mesh_over(tuple(sizes), jax.devices()[:size])


def mesh_over(sizes: tuple[int, ...], devices: list[Any]) -> Mesh:
    """A mesh of (data, fsdp, tensor) over the devices, neighbours on an axis being wired together.

    Unlike `jax.make_mesh` it may cut a side of the slice in two: 16 x 4 on v6e:8x8.
    """
    places = create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    return Mesh(places, AXES, axis_types=(AxisType.Auto,) * 3)


def auto(mesh: Mesh) -> Mesh:
    """The mesh as our programs want it, with its axes left to the compiler, whatever they were.

    Raises ValueError for axes other than data, fsdp and tensor.
    """
    if mesh.axis_names != AXES:
        raise ValueError(
            f"mesh has the axes {mesh.axis_names}, wanted are {AXES}, some of size 1: "
            f"jax.make_mesh((1, 1, {mesh.size}), {AXES})"
        )
    return Mesh(mesh.devices, AXES, axis_types=(AxisType.Auto,) * 3)


def platform_of(mesh: Mesh) -> str:
    """'tpu', 'gpu' or 'cpu': what the mesh is made of, which the compiling machine may not have."""
    return mesh.devices.flat[0].platform


def spec_of(path: tuple[Any, ...]) -> P:
    """The table's entry for a parameter path (as jax.tree_util gives it)."""
    names = [key.key for key in path]
    pair = "/".join(names[-2:])
    return PARAM_SPECS[pair if pair in PARAM_SPECS else names[-1]]


def fit(spec: P, shape: tuple[int, ...], mesh: AnyMesh) -> P:
    """The spec without the mesh axes over which an axis of the shape does not divide."""
    kept = []
    for entry, size in zip(spec, shape, strict=True):
        taken: list[str] = []
        for name in _names(entry):
            ways = math.prod(mesh.shape[other] for other in [*taken, name])
            if size % ways == 0:
                taken.append(name)
        kept.append(tuple(taken) if len(taken) > 1 else taken[0] if taken else None)
    return P(*kept)


def tensor_only(spec: P) -> P:
    """The spec without the axes that split sequences: where a weight lies while it is used."""
    return P(*("tensor" if "tensor" in _names(entry) else None for entry in spec))


def _names(entry: Axis) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry or ()


def spec_for(path: tuple[Any, ...], shape: tuple[int, ...], mesh: AnyMesh) -> P:
    """Where a parameter of this shape lies: the table's entry, as far as the shape divides.

    KV heads, or a vocabulary, that do not divide over `tensor` are not split by it. An axis that
    cannot be split by both `tensor` and `fsdp` leaves the latter to the last axis.
    """
    wanted = spec_of(path)
    spec = fit(wanted, shape, mesh)
    if ("tensor", "fsdp") in wanted and not any("fsdp" in _names(entry) for entry in spec):
        return fit(P(*spec[:-1], "fsdp"), shape, mesh)
    return spec


def param_shardings(mesh: Mesh, params: Any) -> Any:
    """A NamedSharding for each parameter; `params` may be arrays or ShapeDtypeStructs."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: NamedSharding(mesh, spec_for(path, x.shape, mesh)), params
    )


def placed(mesh: Mesh, params: Any) -> Any:
    """Parameters on the mesh: laid out by the table if they lie on other devices, or in another
    order of them. NumPy arrays stay what they are."""

    def is_there(x: Any) -> bool:
        if not isinstance(x, jax.Array):
            return True
        if isinstance(x.sharding, NamedSharding):
            return x.sharding.mesh == mesh
        return mesh.size == 1 and x.sharding.device_set == set(mesh.devices.flat)

    if all(map(is_there, jax.tree.leaves(params))):
        return params
    return jax.device_put(params, param_shardings(mesh, params))


def constrain(x: jax.Array, mesh: Mesh | None, *axes: Axis) -> jax.Array:
    """x laid out over the mesh as P(*axes) says, as far as its shape divides.

    Without a mesh, or on one device, x itself.
    """
    if mesh is None or mesh.size == 1:
        return x
    return lax.with_sharding_constraint(x, NamedSharding(mesh, fit(P(*axes), x.shape, mesh)))


def replicate(tree: Any, mesh: Mesh | None) -> Any:
    """Arrays that every device, and so every host, holds whole."""
    return jax.tree.map(lambda x: constrain(x, mesh, *[None] * x.ndim), tree)


def as_params(tree: Any, mesh: Mesh | None) -> Any:
    """A tree of parameters, or of their gradients, placed by the table."""
    if mesh is None:
        return tree
    return jax.tree_util.tree_map_with_path(
        lambda path, x: constrain(x, mesh, *spec_for(path, x.shape, mesh)), tree
    )


def gathered(w: jax.Array, mesh: Mesh | None, spec: P) -> jax.Array:
    """A weight that lies as `spec` says, whole over `fsdp`; only `tensor` still splits it.

    Its gradient is summed over all rows and lies as `spec` again.
    """
    used = tensor_only(spec)
    # Two steps, which are one collective: asked for parts at once, the compiler may rather bring
    # the activations of all rows to every device.
    return relaid(w, mesh, tuple(used), tuple(used), tuple(spec))


def relaid(x: jax.Array, mesh: Mesh | None, there: Axes, *back: Axes) -> jax.Array:
    """x laid out as `there`, and its gradient as `back`, one after the other.

    A plain constraint would hold the gradient to `there` too: whole where parts are wanted.
    """
    if mesh is None or mesh.size == 1:
        return x
    return _relaid(x, mesh, tuple(there), tuple(map(tuple, back)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _relaid(x: jax.Array, mesh: Mesh, there: Axes, back: tuple[Axes, ...]) -> jax.Array:
    return constrain(x, mesh, *there)


def _relaid_back(
    mesh: Mesh, there: Axes, back: tuple[Axes, ...], _: None, g: jax.Array
) -> tuple[jax.Array]:
    for axes in back:
        g = constrain(g, mesh, *axes)
    return (g,)


_relaid.defvjp(lambda x, *layout: (_relaid(x, *layout), None), _relaid_back)


def uneven(mesh: AnyMesh, num_heads: int, ffn: int) -> str:
    """What of a model has to divide over `tensor` and does not, such as '3 query heads', or ''.

    KV heads that do not divide are repeated, a vocabulary that does not is not split.
    """
    for what, size in (("query heads", num_heads), ("feed-forward columns", ffn)):
        if size % mesh.shape["tensor"]:
            return f"{size} {what}"
    return ""


def check_heads(mesh: AnyMesh, num_heads: int, ffn: int) -> None:
    """ConfigError for a model that cannot be split over `tensor`: see `uneven`."""
    if what := uneven(mesh, num_heads, ffn):
        rule = f"does not divide the model's {what}; choose a divisor of it"
        raise ConfigError("mesh.tensor", rule, str(mesh.shape["tensor"]))


def check_rows(mesh: AnyMesh, cfg: Config) -> None:
    """ConfigError unless the rows of one pass divide over the places that share them."""
    places = mesh.shape["data"] * mesh.shape["fsdp"]
    rows = {"ppo.microbatch": cfg.ppo.microbatch}
    if cfg.ppo.microbatch is None:
        rows = {"ppo.minibatch": cfg.ppo.minibatch}
        if cfg.method == "sft" or not cfg.model.path:
            rows["sft.batch"] = cfg.sft.batch
    for field, size in rows.items():
        if size is not None and size % places:
            rule = f"must be a multiple of mesh.data x mesh.fsdp = {places}, which share the rows"
            raise ConfigError(field, rule, str(size))
