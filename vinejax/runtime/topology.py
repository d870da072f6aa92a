"""Accelerators by name: 'v5e:16x16', 'v5p:4x4x4', 'h100:8', 'cpu:8'. Sizes count chips.

What a chip has, how many hosts drive a slice, and which type to rent. Nothing here asks a device
or imports jax, so shell scripts may call it:

    python -m vinejax.runtime.topology v5p:4x4x4 accelerator_type
"""

import argparse
import dataclasses
import difflib
import fnmatch
import math
import os
import re
import sys
from collections.abc import Iterable

from vinejax.errors import ConfigError, UserError

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Chip:
    """Peaks of one chip as its maker states them; no program reaches all of them at once."""

    hbm_gib: float  # GiB (2^30) that a program may use, less than the chip carries; of GPUs: all
    bf16_tflops: float  # 10^12 dense bfloat16 operations per second
    hbm_gb_s: float  # 10^9 bytes per second from and to memory
    link_gb_s: float  # 10^9 bytes per second out of the chip over all its links, one direction


@dataclasses.dataclass(frozen=True)
class Kind:
    """What all slices of one kind share."""

    chip: Chip
    dims: int  # numbers in a shape
    device_kinds: tuple[str, ...]  # patterns of jax's `device_kind`
    shapes: tuple[Shape, ...] = ()  # what is offered, but for multiples of a cube
    largest: int = 0  # chips in the largest slice made of 4x4x4 cubes; 0 where there are no cubes
    rent: str = ""  # what an accelerator type starts with
    cores: int = 1  # TensorCores of a chip, where the accelerator type counts those
    runtime: str = ""  # image of the TPU VM


_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))

# Sources, read in November 2026.
# TPU: docs.cloud.google.com/tpu/docs/v5e, /v6e, /v5p, /v4 (shapes, peaks, bandwidths) and
# /tpu/docs/runtimes (images). They give links as the sum over a chip's links, in both directions
# for v5e, v6e and v5p (400, 800, 1200 GB/s): half of that here. v4: six links of 50 GB/s
# (arxiv.org/abs/2304.01433). `hbm_gib` is what libtpu's compiler names as available when a program
# does not fit; v4: its 15.25 GiB of a core, twice.
# GPU: NVIDIA's data sheets of the SXM forms, without sparsity; NVLink halved to one direction.
# `hbm_gib` is all that CUDA shows a program, as error messages of others have it; jax takes a share
# of it: see `Topology.chip`.
# cpu: round figures, for trying out a plan; no CPU was measured.
KINDS = {
    "v5e": Kind(
        chip=Chip(hbm_gib=15.75, bf16_tflops=197, hbm_gb_s=819, link_gb_s=200),
        dims=2,
        device_kinds=("TPU v5 lite", "TPU v5e"),
        shapes=_FLAT,
        rent="v5litepod",
        runtime="v2-alpha-tpuv5-lite",
    ),
    "v6e": Kind(
        chip=Chip(hbm_gib=31.25, bf16_tflops=918, hbm_gb_s=1600, link_gb_s=400),
        dims=2,
        device_kinds=("TPU v6 lite", "TPU v6e"),
        shapes=_FLAT,
        rent="v6e",
        runtime="v2-alpha-tpuv6e",
    ),
    "v5p": Kind(
        chip=Chip(hbm_gib=95.74, bf16_tflops=459, hbm_gb_s=2765, link_gb_s=600),
        dims=3,
        device_kinds=("TPU v5", "TPU v5p"),
        shapes=_SMALL,
        largest=6144,
        rent="v5p",
        cores=2,
        runtime="v2-alpha-tpuv5",
    ),
    "v4": Kind(
        chip=Chip(hbm_gib=30.5, bf16_tflops=275, hbm_gb_s=1200, link_gb_s=300),
        dims=3,
        device_kinds=("TPU v4",),
        shapes=_SMALL,
        largest=4096,
        rent="v4",
        cores=2,
        runtime="tpu-ubuntu2204-base",
    ),
    "h100": Kind(
        chip=Chip(hbm_gib=79.1, bf16_tflops=989, hbm_gb_s=3350, link_gb_s=450),
        dims=1,
        device_kinds=("NVIDIA H100*",),
    ),
    "h200": Kind(
        chip=Chip(hbm_gib=139.7, bf16_tflops=989, hbm_gb_s=4800, link_gb_s=450),
        dims=1,
        device_kinds=("NVIDIA H200*",),
    ),
    "a100": Kind(
        chip=Chip(hbm_gib=79.1, bf16_tflops=312, hbm_gb_s=2039, link_gb_s=300),
        dims=1,
        device_kinds=("NVIDIA A100*80GB*",),
    ),
    "cpu": Kind(
        chip=Chip(hbm_gib=4, bf16_tflops=0.1, hbm_gb_s=10, link_gb_s=1),
        dims=1,
        device_kinds=("cpu",),
    ),
}


# The older name is the second; jax refuses both at once.
GPU_SHARE_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
GPU_SHARE = 0.75  # docs.jax.dev/en/latest/gpu_memory_allocation.html


@dataclasses.dataclass(frozen=True)
class Topology:
    """Chips that one run uses together. Made by `parse`, which checks the shape."""

    name: str  # 'v5p:4x4x4'
    kind: str  # a key of KINDS
    shape: Shape  # (4, 4, 4)

    @property
    def chip(self) -> Chip:
        """With the memory that programs get: on a GPU a share of it all, `gpu_share`."""
        chip = KINDS[self.kind].chip
        if self.is_tpu or self.kind == "cpu":
            return chip
        return dataclasses.replace(chip, hbm_gib=chip.hbm_gib * gpu_share())

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        """jax devices at run time: one a chip; a v4 or v5p chip joins its two cores into one."""
        return self.chips

    @property
    def is_tpu(self) -> bool:
        return bool(KINDS[self.kind].rent)

    @property
    def chips_per_host(self) -> int:
        """A TPU VM drives 4 chips; eight v5e or v6e chips, or fewer than four, are on one VM."""
        if self.kind == "cpu":
            return self.chips
        on_one = 8 if self.shape == (2, 4) or not self.is_tpu else 4
        return min(self.chips, on_one)

    @property
    def hosts(self) -> int:
        return self.chips // self.chips_per_host

    @property
    def accelerator_type(self) -> str:
        """What Google rents it as: v5p and v4 count TensorCores there, v5e and v6e chips.

        Raises:
          ConfigError: not a TPU.
        """
        kind = KINDS[self.kind]
        if not self.is_tpu:
            raise ConfigError("topology", "only TPUs have an accelerator type", repr(self.name))
        return f"{kind.rent}-{self.chips * kind.cores}"

    @property
    def runtime_version(self) -> str:
        """The image of its TPU VMs; '' for what is not a TPU."""
        return KINDS[self.kind].runtime

    @property
    def compiler_options(self) -> dict[str, str | list[int]]:
        """Arguments of `jax.experimental.topologies.get_topology_desc` beside the name.

        With them the compiler lists as many devices and hosts as the slice has at run time; by
        itself it takes 2x2x1 chips a host, and the two cores of a v4 chip as two devices.
        """
        if self.kind == "v4":
            return {"chip_config_name": "megacore"}
        if self.shape in ((1, 1), (2, 4)):
            return {"chips_per_host_bounds": [*self.shape, 1]}
        return {}


def parse(name: str) -> Topology:
    """'v5e:16x16' -> Topology.

    Raises:
      ConfigError: it is not a kind and a shape, the kind is unknown, or nobody offers the shape.
    """
    found = re.fullmatch(r"([a-z][a-z0-9]*):([1-9]\d*(?:x[1-9]\d*)*)", name)
    if not found:
        rule = "write a kind and its chips, like 'v5e:16x16', 'v5p:4x4x4', 'h100:8' or 'cpu:8'"
        raise ConfigError("topology", rule, repr(name))
    kind, shape = found[1], tuple(map(int, found[2].split("x")))
    if kind not in KINDS:
        close = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.4)
        meant = f"; did you mean {close[0]!r}?" if close else ";"
        raise ConfigError(
            "topology", f"unknown kind {kind!r}{meant} Known: {', '.join(KINDS)}", repr(name)
        )
    if rule := _broken_rule(KINDS[kind], shape):
        raise ConfigError("topology", f"{kind} {rule}", repr(name))
    return Topology(name, kind, shape)


def gpu_share() -> float:
    """Of a GPU's memory, what jax takes at the start: three quarters, unless a variable says so."""
    for name in GPU_SHARE_VARIABLES:
        if said := os.environ.get(name):
            share = float(said) if re.fullmatch(r"\d*\.?\d+", said) else 0.0
            if not 0 < share <= 1:
                raise UserError(f"{name} = {said!r} must be a share, such as .9")
            return share
    return GPU_SHARE


def match(device_kind: str, num_devices: int, names: Iterable[str]) -> str | None:
    """The first of `names` that so many devices are, whose jax `device_kind` is given.

    None when there is none. Raises ConfigError where one of `names` is not a topology.
    """
    for topology in map(parse, names):
        patterns = KINDS[topology.kind].device_kinds
        if topology.devices == num_devices and any(
            fnmatch.fnmatchcase(device_kind, pattern) for pattern in patterns
        ):
            return topology.name
    return None


def _broken_rule(kind: Kind, shape: Shape) -> str:
    """What is wrong with a shape, to be read after the name of the kind; '' when nothing is."""
    if len(shape) != kind.dims:
        example = "x".join(["4"] * kind.dims)
        count = {1: "one number", 2: "two numbers", 3: "three numbers"}[kind.dims]
        return f"takes {count}, like {example}; this has {len(shape)}"
    if not kind.rent:
        chips = shape[0]
        is_whole = kind.device_kinds == ("cpu",) or chips in (1, 2, 4) or chips % 8 == 0
        return "" if is_whole else "comes as 1, 2, 4, 8 or more whole hosts of 8"
    if shape in kind.shapes:
        return ""
    offered = ", ".join("x".join(map(str, each)) for each in kind.shapes)
    if not kind.largest:
        return f"is offered as {offered}"
    cubes = _rented_cubes(math.prod(shape)) if math.prod(shape) <= kind.largest else None
    if shape == cubes:
        return ""
    if cubes and all(side % 4 == 0 for side in shape):
        return f"with {math.prod(shape)} chips is rented as {'x'.join(map(str, cubes))}"
    return f"is offered as {offered} and multiples of 4 in rising order, to {kind.largest} chips"


def _rented_cubes(chips: int) -> Shape | None:
    """The shape that an accelerator type of so many chips stands for: the one nearest a cube.

    Others of the same size have to be asked for by shape, and share one name in a price list.
    """
    shapes = [
        (a, b, chips // (a * b))
        for a in range(4, chips + 1, 4)
        if a**3 <= chips
        for b in range(a, chips + 1, 4)
        if a * b * b <= chips and chips % (4 * a * b) == 0
    ]
    return min(shapes, key=sum, default=None)


FIELDS = ("accelerator_type", "runtime_version", "chips", "hosts", "chips_per_host")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m vinejax.runtime.topology", description="What to rent for a TPU topology."
    )
    parser.add_argument("name", help="a topology, e.g. v5e:16x16")
    parser.add_argument("field", nargs="?", choices=FIELDS, help="print this alone")
    args = parser.parse_args(argv)
    try:
        topology = parse(args.name)
        values = {field: getattr(topology, field) for field in FIELDS}
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if args.field:
        print(values[args.field])
    else:
        print("\n".join(f"{field} {value}" for field, value in values.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
