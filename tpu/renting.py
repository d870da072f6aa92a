"""What to rent from Google for a TPU topology; the scripts of this folder ask.

    python tpu/renting.py v5p:4x4x4 accelerator_type

It imports no jax, so that it answers at once on a machine without any accelerator.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # nothing but etils is installed

from vinejax.core.errors import UserError  # noqa: E402
from vinejax.runtime.topology import parse_topology  # noqa: E402

# Images of the TPU VMs: docs.cloud.google.com/tpu/docs/runtimes, read in November 2026.
IMAGES = {
    "v5e": "v2-alpha-tpuv5-lite",
    "v6e": "v2-alpha-tpuv6e",
    "v5p": "v2-alpha-tpuv5",
    "v4": "tpu-ubuntu2204-base",
}


class Rental(NamedTuple):
    """What the scripts need to know of a slice."""

    accelerator_type: str
    runtime_version: str
    chips: int
    hosts: int
    chips_per_host: int


def rental_of(name: str) -> Rental:
    """What to rent for the topology of a name. Raises UserError unless it is a TPU."""
    slice_ = parse_topology(name)
    rented_as = slice_.accelerator_type
    return Rental(rented_as, IMAGES[slice_.kind], slice_.chips, slice_.hosts, slice_.chips_per_host)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python tpu/renting.py", description="What to rent for a TPU topology."
    )
    parser.add_argument("name", help="a topology, e.g. v5e:16x16")
    parser.add_argument("field", nargs="?", choices=Rental._fields, help="print this alone")
    args = parser.parse_args(argv)
    try:
        facts = rental_of(args.name)._asdict()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    lines = [str(facts[args.field])] if args.field else [f"{k} {v}" for k, v in facts.items()]
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
