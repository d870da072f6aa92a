"""The sections of the configuration about machines, files and logs, not about learning.

`settings.py` has all other sections, and `Config`, which holds these too.
"""

import dataclasses
from typing import Literal

from vinejax.ranges import Count, Heartbeat, MeshSize, Port, Positive, Whole


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    data: MeshSize = 1
    fsdp: MeshSize = 1
    tensor: MeshSize = 1


@dataclasses.dataclass(frozen=True)
class TopologyConfig(MeshConfig):
    """A row of `meshes`: how named devices are laid out, and how much they do at once."""

    slots: Count | None = None  # replaces rollout.slots; None: as it is
    memory_gib: Positive | None = None  # replaces rollout.memory_gib; None: as it is
    microbatch: int | None = None  # replaces ppo.microbatch; None: as it is
    remat: Literal["none", "dots", "full"] | None = None  # replaces model.remat; None: as it is


@dataclasses.dataclass(frozen=True)
class DistributedConfig:
    """Runs on several hosts. TPU VMs, GKE and Slurm name the hosts themselves; elsewhere
    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID do."""

    port: Port = 8476  # port of the coordinator, where the platform does not fix it
    timeout_s: Count = 300  # to wait for all hosts at the start
    heartbeat_s: Heartbeat = 100  # a host whose process sends none for so long ends the others
    silence_s: Count = 600  # without a chunk, a minibatch or a new stage, which a line then says


@dataclasses.dataclass(frozen=True)
class OffloadConfig:
    """Arrays that stay in the host's memory between uses, to save device memory."""

    reference: bool = False  # the model that the KL is measured from
    optimizer: bool = False  # the optimizer's state, while text is sampled


@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """The assumptions of `--mode=plan`, and its time limit."""

    timeout_s: Count = 1800  # to compile one program
    prompt_tokens: Count | None = None  # average prompt; None: half of data.max_prompt_tokens
    tokens: Count | None = None  # average response; None: a quarter of sample.max_tokens
    steps: Count = 12  # average reasoning steps per response
    # Average tokens of a continuation that its solution has and that are not decoded.
    repeats: Whole = 0


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    every: Count = 10  # iterations; the last one is always saved
    keep: Count = 2  # the newest so many
    keep_every: Count | None = None  # and those of iterations that are multiples of it; None: none
    journal: bool = True  # keep what stages gave since the newest checkpoint, see docs/faults.md


@dataclasses.dataclass(frozen=True)
class LogConfig:
    vines: Whole = 16  # episodes per iteration that are written with their continuations' texts
    wandb: str = ""  # Weights & Biases project; "": off
