"""Names of accelerators, such as 'v5e:16x16', 'v5p:4x4x4', 'h100:8', 'cpu:8'. Sizes are in chips.

The tables have the peak rates of chips and the shapes of slices. This module does not import jax or
use a device. `tpu/renting.py` has further facts about renting slices.
"""

import dataclasses
import difflib
import fnmatch
import math
import os
import re
from collections.abc import Iterable

from vinejax.core.errors import ConfigError, UserError

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Chip:
    """The peak rates of one chip, as its maker states them. No program reaches all at once."""

    hbm_gib: float  # GiB for programs; on a TPU less than the chip has, on a GPU all memory
    bf16_tflops: float  # 10^12 dense bfloat16 operations per second
    hbm_gb_s: float  # 10^9 bytes per second from and to memory
    link_gb_s: float  # 10^9 bytes per second out of the chip over all its links, one direction
    links: int = 1  # number of links of a TPU to its neighbours in two or three dimensions
    clock_ghz: float = 0.0  # 10^9 cycles per second of a TPU, from its peak and its matrix units


@dataclasses.dataclass(frozen=True)
class Kind:
    """Properties shared by all slices of one kind of chip."""

    chip: Chip
    device_kinds: tuple[str, ...]  # patterns that jax's `device_kind` matches
    rent: tuple[str, int] = ("", 1)  # prefix of `accelerator_type`, number to count per chip
    shapes: tuple[Shape, ...] = ()  # shapes of offered TPU slices that are not made of 4x4x4 cubes
    largest: int = 0  # chips in the largest slice of 4x4x4 cubes; 0: there are no such slices

    @property
    def dims(self) -> int:
        """The number of dimensions of a shape: 2 for '16x16', 3 for '4x4x4', 1 for 'h100:8'."""
        return len(self.shapes[0]) if self.shapes else 1


_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))

# Sources, read in November 2026.
# TPU: docs.cloud.google.com/tpu/docs/v5e, /v6e, /v5p, /v4 (shapes, peaks, bandwidths). They give
# the sum over a chip's links, for v5e, v6e and v5p in both directions (400, 800, 1200 GB/s): half
# of that here. v4: six links of 50 GB/s (arxiv.org/abs/2304.01433). `hbm_gib` is what libtpu's
# compiler names as available when a program does not fit; v4: twice the 15.25 GiB of one core.
# GPU: NVIDIA's data sheets of the SXM forms, without sparsity; NVLink halved to one direction.
# RTX 4090: NVIDIA's Ada whitepaper, sums in float32. L40S and RTX 4090 have no NVLink: PCIe 4.0.
# `hbm_gib` is all that CUDA shows to a program, as published error messages quote it; jax takes a
# share of it: see `Topology.chip`.
# cpu: round figures, to try out a plan; no CPU was measured.
KINDS = {
    "v5e": Kind(
        Chip(15.75, 197, 819, 200, 4, 1.5), ("TPU v5 lite", "TPU v5e"), ("v5litepod", 1), _FLAT
    ),
    "v6e": Kind(
        Chip(31.25, 918, 1600, 400, 4, 1.75), ("TPU v6 lite", "TPU v6e"), ("v6e", 1), _FLAT
    ),
    "v5p": Kind(
        Chip(95.74, 459, 2765, 600, 6, 1.75), ("TPU v5", "TPU v5p"), ("v5p", 2), _SMALL, 6144
    ),
    "v4": Kind(Chip(30.5, 275, 1200, 300, 6, 1.05), ("TPU v4",), ("v4", 2), _SMALL, 4096),
    "h100": Kind(Chip(79.1, 989, 3350, 450), ("NVIDIA H100*",)),
    "h200": Kind(Chip(139.7, 989, 4800, 450), ("NVIDIA H200*",)),
    "a100": Kind(Chip(79.1, 312, 2039, 300), ("NVIDIA A100*80GB*",)),
    "l40s": Kind(Chip(44.39, 362, 864, 32), ("NVIDIA L40S",)),
    "rtx4090": Kind(Chip(23.65, 165, 1008, 32), ("NVIDIA GeForce RTX 4090",)),
    "cpu": Kind(Chip(4, 0.1, 10, 1), ("cpu",)),
}

# The second one is the older name; jax raises if both are set.
GPU_SHARE_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
GPU_SHARE = 0.75  # docs.jax.dev/en/latest/gpu_memory_allocation.html


@dataclasses.dataclass(frozen=True)
class Topology:
    """The chips of one run. `parse_topology` makes topologies and checks their shapes."""

    name: str  # 'v5p:4x4x4'
    kind: str  # a key of KINDS
    shape: Shape  # (4, 4, 4)

    @property
    def chip(self) -> Chip:
        """The chip. For a GPU, `hbm_gib` is only the part of its memory that jax reserves."""
        chip = KINDS[self.kind].chip
        if self.is_tpu or self.kind == "cpu":
            return chip
        return dataclasses.replace(chip, hbm_gib=chip.hbm_gib * gpu_share())

    @property
    def chips(self) -> int:
        """The number of chips, each of which is one jax device, also with two cores (v4, v5p)."""
        return math.prod(self.shape)

    @property
    def is_tpu(self) -> bool:
        return bool(KINDS[self.kind].shapes)

    @property
    def chips_per_host(self) -> int:
        """The chips of one host: at most 4 TPU chips (8 in a 2x4 slice), or at most 8 GPUs."""
        if self.kind == "cpu":
            return self.chips
        on_one = 8 if self.shape == (2, 4) or not self.is_tpu else 4
        return min(self.chips, on_one)

    @property
    def hosts(self) -> int:
        return self.chips // self.chips_per_host

    @property
    def accelerator_type(self) -> str:
        """Google's name for the slice, with its number of TensorCores (v5p and v4) or of chips.

        Raises ConfigError if the topology is not a TPU slice.
        """
        if not self.is_tpu:
            raise ConfigError("topology", "only TPUs have an accelerator type", repr(self.name))
        prefix, per_chip = KINDS[self.kind].rent
        return f"{prefix}-{self.chips * per_chip}"

    @property
    def compiler_options(self) -> dict[str, str | list[int]]:
        """Arguments of `jax.experimental.topologies.get_topology_desc` besides the topology's name.

        With these arguments, the compiler finds the same devices and hosts as at run time. By
        default, it would assume 2x2x1 chips per host, and two devices per v4 chip.
        """
        if self.kind == "v4":
            return {"chip_config_name": "megacore"}
        if self.shape in ((1, 1), (2, 4)):
            return {"chips_per_host_bounds": [*self.shape, 1]}
        return {}


def parse_topology(name: str) -> Topology:
    """The topology of a name such as 'v5e:16x16'.

    Raises ConfigError if the name is not a kind and a shape, or if nobody offers this shape.
    """
    parts = re.fullmatch(r"([a-z][a-z0-9]*):([1-9]\d*(?:x[1-9]\d*)*)", name)
    if not parts:
        message = "write a kind and its chips, like 'v5e:16x16', 'v5p:4x4x4', 'h100:8' or 'cpu:8'"
        raise ConfigError("topology", message, repr(name))
    kind = parts[1]
    shape = tuple(map(int, parts[2].split("x")))
    if kind not in KINDS:
        close = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.4)
        meant = f"; did you mean {close[0]!r}?" if close else ";"
        message = f"unknown kind {kind!r}{meant} Known: {', '.join(KINDS)}"
        raise ConfigError("topology", message, repr(name))
    if message := _shape_error(KINDS[kind], shape):
        raise ConfigError("topology", f"{kind} {message}", repr(name))
    return Topology(name, kind, shape)


def gpu_share() -> float:
    """The share of a GPU's memory that jax takes at the start.

    The share is 0.75 unless one of jax's environment variables in `GPU_SHARE_VARIABLES` sets it.
    Raises UserError if that variable is not a number above 0 and at most 1.
    """
    for name in GPU_SHARE_VARIABLES:
        if value := os.environ.get(name):
            share = float(value) if re.fullmatch(r"\d*\.?\d+", value) else 0.0
            if not 0 < share <= 1:
                raise UserError(f"{name} = {value!r} must be a share, such as .9")
            return share
    return GPU_SHARE


def match_topology(device_kind: str, num_devices: int, names: Iterable[str]) -> str | None:
    """The first of `names` that matches `num_devices` devices of jax's `device_kind`, or None.

    Raises ConfigError if one of `names` is not a topology.
    """
    for topology in map(parse_topology, names):
        patterns = KINDS[topology.kind].device_kinds
        if topology.chips == num_devices and any(
            fnmatch.fnmatchcase(device_kind, pattern) for pattern in patterns
        ):
            return topology.name
    return None


def find_topology(device_kind: str, num_devices: int) -> Topology | None:
    """The topology of `num_devices` devices of jax's `device_kind`, or None.

    The result is None if the kind is unknown, or if nobody offers this number of devices. If
    several shapes have this number of chips, the result has the shape that can be rented.
    """
    for name, kind in KINDS.items():
        if any(fnmatch.fnmatchcase(device_kind, pattern) for pattern in kind.device_kinds):
            shapes = [shape for shape in kind.shapes if math.prod(shape) == num_devices]
            shape = next(iter(shapes), None)
            if not kind.shapes:
                shape = (num_devices,)
            elif shape is None and num_devices <= kind.largest:
                shape = _rented_shape(num_devices)
            if shape is None or _shape_error(kind, shape):
                return None
            return parse_topology(f"{name}:{'x'.join(map(str, shape))}")
    return None


def _shape_error(kind: Kind, shape: Shape) -> str:
    """The reason why no slice of this shape is offered; '' if such slices are offered.

    The error message has this text after the name of the kind.
    """
    if len(shape) != kind.dims:
        example = "x".join(["4"] * kind.dims)
        count = {1: "one number", 2: "two numbers", 3: "three numbers"}[kind.dims]
        return f"takes {count}, like {example}; this has {len(shape)}"
    if not kind.shapes:
        chips = shape[0]
        is_whole = kind.device_kinds == ("cpu",) or chips in (1, 2, 4) or chips % 8 == 0
        return "" if is_whole else "comes as 1, 2, 4, 8 or more whole hosts of 8"
    if shape in kind.shapes:
        return ""
    offered = ", ".join("x".join(map(str, sides)) for sides in kind.shapes)
    if not kind.largest:
        return f"is offered as {offered}"
    cubes = _rented_shape(math.prod(shape)) if math.prod(shape) <= kind.largest else None
    if shape == cubes:
        return ""
    if cubes and all(side % 4 == 0 for side in shape):
        return f"with {math.prod(shape)} chips is rented as {'x'.join(map(str, cubes))}"
    return f"is offered as {offered} and multiples of 4 in rising order, to {kind.largest} chips"


def _rented_shape(chips: int) -> Shape | None:
    """The shape, made of 4x4x4 cubes, in which `chips` chips are rented; None if there is none.

    It is the shape nearest to a cube. A slice is rented by its accelerator type, which is the same
    for all shapes with this number of chips, so the other shapes cannot be rented.
    """
    shapes = [
        (a, b, chips // (a * b))
        for a in range(4, chips + 1, 4)
        if a**3 <= chips
        for b in range(a, chips + 1, 4)
        if a * b * b <= chips and chips % (4 * a * b) == 0
    ]
    return min(shapes, key=sum, default=None)
