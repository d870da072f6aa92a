"""Describes NVIDIA GPUs that are absent to XLA, which then compiles programs for them.

XLA's compiler for GPUs takes the figures of a card from a text, a protocol buffer of the kind
`GpuTargetConfigProto`. The text has what the driver would say of a card that is there.
"""

import dataclasses
from typing import Any

import jax
from jax.stages import Compiled, Lowered

from vinejax.runtime.topology import KINDS, Topology

# CUDA's driver and libraries that the card is assumed to have. With an older driver, or without a
# version in the text, XLA leaves loops out of CUDA graphs.
CUDA_VERSION = "13.0.0"
CUDNN_VERSION = (9, 28, 1)
NO_SPILLS = "xla_gpu_fail_ptx_compilation_on_register_spilling"
SPILLED = "register spilling"  # in the message with which XLA refuses a program by this option


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Limits that all cards of a compute capability share."""

    capability: tuple[int, int]
    shared_kib: int  # shared memory of a multiprocessor
    block_shared_kib: int  # shared memory of a block that asks for more than 48 KiB
    threads: int  # resident threads of a multiprocessor
    float32_units: int  # of a multiprocessor


@dataclasses.dataclass(frozen=True)
class Card:
    """The figures of one card that `KINDS` does not have."""

    name: str  # as the driver says it
    architecture: Architecture
    multiprocessors: int
    l2_mib: int
    clock_ghz: float  # the boost clock


# CUDA C++ Programming Guide 13.0, 'Technical Specifications per Compute Capability'.
AMPERE = Architecture((8, 0), 164, 163, 2048, 64)
ADA = Architecture((8, 9), 100, 99, 1536, 128)
HOPPER = Architecture((9, 0), 228, 227, 2048, 128)
# H100 and A100: XLA's own descriptions, xla/tools/hlo_opt/gpu_specs/h100_sxm.txtpb and
# a100_sxm_80.txtpb, which agree with NVIDIA's whitepapers of these architectures. H200: the data
# sheet, which names the H100's processor with other memory. L40S and RTX 4090: NVIDIA's Ada
# whitepaper and the cards' data sheets. Only a program for the H200 was compared with the card.
CARDS = {
    "h100": Card("NVIDIA H100 80GB HBM3", HOPPER, 132, 50, 1.98),
    "h200": Card("NVIDIA H200", HOPPER, 132, 50, 1.98),
    "a100": Card("NVIDIA A100-SXM4-80GB", AMPERE, 108, 40, 1.41),
    "l40s": Card("NVIDIA L40S", ADA, 142, 96, 2.52),
    "rtx4090": Card("NVIDIA GeForce RTX 4090", ADA, 128, 72, 2.52),
}
TARGET = """\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared}
  threads_per_core_limit: {threads}
  core_count: {multiprocessors}
  fpus_per_core: {float32_units}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: {l2}
  clock_rate_ghz: {clock_ghz}
  device_memory_size: {memory}
  shared_memory_per_block_optin: {block_shared}
  cuda_compute_capability {{ major: {capability[0]} minor: {capability[1]} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  name: "{name}"
  driver_version: "{cuda}"
  runtime_version: "{cuda}"
  compile_time_toolkit_version: "{cuda}"
  dnn_version: "{cudnn[0]}.{cudnn[1]}.{cudnn[2]}"
}}
platform_name: "CUDA"
dnn_version_info {{ major: {cudnn[0]} minor: {cudnn[1]} patch: {cudnn[2]} }}
runtime_version {{ major: {major} minor: 0 patch: 0 }}
device_description_str: "{name}"
"""


def target_config(kind: str) -> str:
    """The text by which XLA knows a card; `kind` is a key of `CARDS`."""
    card, chip = CARDS[kind], KINDS[kind].chip
    architecture = card.architecture
    return TARGET.format(
        shared=architecture.shared_kib * 2**10,
        block_shared=architecture.block_shared_kib * 2**10,
        threads=architecture.threads,
        float32_units=architecture.float32_units,
        capability=architecture.capability,
        multiprocessors=card.multiprocessors,
        bandwidth=int(chip.hbm_gb_s * 1e9),
        l2=card.l2_mib * 2**20,
        clock_ghz=card.clock_ghz,
        memory=int(chip.hbm_gib * 2**30),
        name=card.name,
        cuda=CUDA_VERSION,
        major=CUDA_VERSION.partition(".")[0],
        cudnn=CUDNN_VERSION,
    )


def gpu_devices(topology: Topology) -> list[Any]:
    """The devices of a topology of GPUs, for which jax can compile but not run programs."""
    from jax.experimental.topologies import get_topology_desc

    hosts, per_host = topology.hosts, topology.chips_per_host
    found = get_topology_desc(
        platform="cuda",
        topology_name=topology.kind,
        topology=f"1x{hosts}x{per_host}",
        target_config=target_config(topology.kind),
    )
    return list(found.devices)


def assume_cudnn(kind: str) -> None:
    """Makes jax lower the attention of cuDNN in this process as on a machine with this card.

    jax asks the machine for its version of cuDNN and for the capability of its first GPU, and
    refuses to lower the attention where there is none. Only a process that runs nothing may call
    this function.
    """
    from jax._src.cudnn import fused_attention_stablehlo as attention

    major, minor, patch = CUDNN_VERSION
    own = CARDS[kind].architecture.capability

    def parsed(capability: str) -> tuple[int, ...]:
        return tuple(map(int, capability.split(".")))

    attention.check_cudnn_version = lambda: 10_000 * major + 100 * minor + patch
    attention.check_compute_capability = lambda capability: own >= parsed(capability)
    attention.is_cuda_compute_capability_equal = lambda capability: own == parsed(capability)


def compile_and_look_for_spills(lowered: Lowered) -> tuple[Compiled, bool]:
    """(the compiled program, whether a kernel of it spills registers to memory).

    XLA says so by refusing the program, which is then compiled again. Raises JaxRuntimeError if the
    program does not compile for another reason.
    """
    try:
        return lowered.compile(compiler_options={NO_SPILLS: True}), False
    except jax.errors.JaxRuntimeError as error:
        if SPILLED not in str(error):
            raise
    return lowered.compile(), True
