"""What to rent from Google for a TPU topology; the scripts in tpu/ ask.

    python -m vinejax.runtime.renting v5p:4x4x4 accelerator_type

It imports no jax, so that it answers at once on a machine without any accelerator.
"""

import argparse
import sys
from typing import NamedTuple

from vinejax.errors import ConfigError, UserError
from vinejax.runtime.topology import Topology, parse_topology


class Offer(NamedTuple):
    """How Google names the slices of one kind, and the image of their virtual machines."""

    prefix: str  # of the accelerator type
    cores_per_chip: int  # 1 where the accelerator type counts chips, 2 where it counts TensorCores
    image: str  # docs.cloud.google.com/tpu/docs/runtimes, read in November 2026


OFFERS = {
    "v5e": Offer("v5litepod", 1, "v2-alpha-tpuv5-lite"),
    "v6e": Offer("v6e", 1, "v2-alpha-tpuv6e"),
    "v5p": Offer("v5p", 2, "v2-alpha-tpuv5"),
    "v4": Offer("v4", 2, "tpu-ubuntu2204-base"),
}


def accelerator_type(topology: Topology) -> str:
    """The name under which Google rents a slice. Raises ConfigError if it is not a TPU."""
    if topology.kind not in OFFERS:
        raise ConfigError("topology", "only TPUs have an accelerator type", repr(topology.name))
    offer = OFFERS[topology.kind]
    return f"{offer.prefix}-{topology.chips * offer.cores_per_chip}"


class Rental(NamedTuple):
    """What the scripts need to know of a slice."""

    accelerator_type: str
    runtime_version: str
    chips: int
    hosts: int
    chips_per_host: int


def rental_of(topology: Topology) -> Rental:
    """What to rent for a topology. Raises ConfigError if it is not a TPU."""
    rented_as = accelerator_type(topology)
    image = OFFERS[topology.kind].image
    return Rental(rented_as, image, topology.chips, topology.hosts, topology.chips_per_host)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m vinejax.runtime.renting", description="What to rent for a TPU topology."
    )
    parser.add_argument("name", help="a topology, e.g. v5e:16x16")
    parser.add_argument("field", nargs="?", choices=Rental._fields, help="print this alone")
    args = parser.parse_args(argv)
    try:
        facts = rental_of(parse_topology(args.name))._asdict()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    lines = [str(facts[args.field])] if args.field else [f"{k} {v}" for k, v in facts.items()]
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
