"""Computes the engine's phases, and the bytes per chip of weights, optimizer and caches."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax

from vinejax.core.shapes import packed_length, row_length
from vinejax.credit.expected import expected_states
from vinejax.engine.cache import Sizes
from vinejax.engine.drain import drain_sizes
from vinejax.engine.memory import (
    FREE_SHARE,
    EngineSettings,
    Workload,
    cache_bytes,
    phase_bytes,
    sizes_of,
    slots_for,
)
from vinejax.engine.split import abstract_weights
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.update import state_shardings
from vinejax.model.chunked_softmax import chunk_columns
from vinejax.model.hf.names import abstract_params
from vinejax.model.lora import abstract_adapters, with_adapters
from vinejax.model.sharding import Params, placed_shapes
from vinejax.session.budget import longest_sequence
from vinejax.tools.plan.case import Case
from vinejax.tools.plan.settings import PlanConfig

FLOAT32 = 4


class PlannedPhase(NamedTuple):
    """The engine's calls for all solutions, or for all continuations, of an iteration."""

    name: str  # 'rollout' for solutions, 'values' for their continuations
    trunks: int
    branches: int  # number of branches in all waves together
    trunk_tokens: int  # tokens of the longest possible trunk
    mean_trunk: float  # mean tokens of a trunk
    tokens: float  # mean tokens decoded per branch
    sizes: Sizes
    shapes: tuple[Sizes, ...]  # the sizes with all slots, then those of the drains
    waves: int = 1  # number of calls of the engine, one after the other

    def in_shape(self, n: int) -> "PlannedPhase":
        """This phase with `shapes[n]` as its `sizes`."""
        return self._replace(sizes=self.shapes[n])


@dataclasses.dataclass(frozen=True)
class MemoryParts:
    """Bytes per chip. The first four parts stay on the chip for the run unless offloaded."""

    weights: int  # in float32 or, in a run with adapters, in the compute dtype
    optimizer: int
    reference: int  # with the models that the method loads
    critic: int  # with its optimizer state
    decode_copy: int  # this part and the two below exist while text is sampled
    trunk_kv: int
    suffix_kv: int

    def during(self, stage: str, case: Case) -> dict[str, int]:
        """Maps names of the parts to their bytes per chip during a stage."""
        rollout = stage == "rollout"
        offload = case.cfg.offload
        parts = {"weights": self.weights, "optimizer": self.optimizer, "critic": self.critic}
        parts["reference"] = self.reference
        if offload.optimizer and rollout:
            parts["optimizer"] = 0
        if offload.reference and not case.cfg.model.lora_rank and stage != "score":
            parts["reference"] = 0
        if rollout:
            parts |= {"decode copy": self.decode_copy, "trunk KV": self.trunk_kv}
            parts["suffix KV"] = self.suffix_kv
        return parts


def bytes_per_chip(shapes: Any) -> int:
    """Bytes per chip of arrays; `shapes` is a tree of ShapeDtypeStructs with shardings."""
    leaves = jax.tree.leaves(shapes)
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves)


def weight_bytes(case: Case) -> int:
    """Bytes per chip of the sharded weights, without adapters.

    The weights are in float32 or, in a run with adapters, in the compute dtype.
    """
    dtype = case.model.compute.dtype if case.cfg.model.lora_rank else None
    return bytes_per_chip(placed_shapes(case.mesh, abstract_params(case.model), dtype))


def trained_shapes(case: Case) -> Params:
    """Shapes of the trained parameters: adapters if the run has them, else all weights."""
    if case.cfg.model.lora_rank:
        return abstract_adapters(case.model, case.cfg.model)
    return abstract_params(case.model)


def trained_bytes(case: Case) -> int:
    """Bytes per chip of the trained parameters, in float32."""
    return bytes_per_chip(placed_shapes(case.mesh, trained_shapes(case)))


def optimizer_bytes(case: Case, shapes: Params) -> int:
    """Bytes per chip of the optimizer's state for parameters of these shapes."""
    optimizer = make_optimizer(case.cfg.optimizer, num_updates=1)
    state = jax.eval_shape(optimizer.init, shapes)
    shardings = state_shardings(shapes, optimizer, case.mesh).opt_state
    return bytes_per_chip(
        jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            state,
            shardings,
        )
    )


def decode_copy_bytes(case: Case) -> int:
    """Bytes per chip of the decoding copy of the weights, adapters included.

    The copy is in the compute dtype, replicated over shards and split over `tensor`.
    """
    params = abstract_params(case.model)
    if case.cfg.model.lora_rank:
        params = with_adapters(params, trained_shapes(case))
    return bytes_per_chip(abstract_weights(case.model, case.mesh, params))


def train_length(case: Case) -> int:
    """The row length of training batches that contain the longest possible sequence."""
    longest = longest_sequence(case.cfg, case.model.cfg.context)
    least = (case.cfg.ppo.row_tokens or 0) if case.cfg.ppo.packing else 0
    return row_length(max(longest, least))


def usual_length(case: Case) -> int:
    """The row length of training batches in most iterations.

    We assume that the longest sequence is a prompt of mean length and `sample.max_tokens` tokens.
    """
    most = longest_sequence(case.cfg, case.model.cfg.context)
    usual = min(math.ceil(mean_prompt_tokens(case)) + case.cfg.sample.max_tokens, most)
    if not case.cfg.ppo.packing:
        return row_length(usual)
    return max(packed_length(most, usual), row_length(case.cfg.ppo.row_tokens or 0))


def kv_room(case: Case, resident: int) -> int:
    """Bytes per chip for keys and values.

    The number is `rollout.memory_gib` if that is set. Otherwise, it is the share FREE_SHARE of what
    remains of the chip's memory limit after the `resident` bytes.
    """
    if case.cfg.rollout.memory_gib is not None:
        return int(case.cfg.rollout.memory_gib * 2**30)
    return int(FREE_SHARE * max(case.limit - resident, 0))


def planned_phases(case: Case, resident: int) -> list[PlannedPhase]:
    """The phases of an iteration, with sizes for the longest possible sequences.

    `resident` bytes per chip are not available for keys and values. Raises ValueError if not even
    one trunk and one slot fit.
    """
    cfg = case.cfg
    mean, mean_prompt = mean_tokens(case), mean_prompt_tokens(case)
    episodes = cfg.rollout.prompts * cfg.rollout.per_prompt
    prompt = min(cfg.data.max_prompt_tokens, case.model.cfg.context)
    loads = [("rollout", cfg.rollout.prompts, episodes, prompt, mean_prompt, mean, 1)]
    if case.method.has_continuations:
        positions, continuations, waves = expected_states(cfg, PlanConfig.of(cfg).steps, mean)
        states = episodes * len(positions)
        if cfg.values.dedup:  # a prompt's solutions share the first state
            states -= episodes - cfg.rollout.prompts
        # Mean tokens of a response after a state.
        left = mean * sum(1 - position for position in positions) / len(positions)
        longest = longest_sequence(case.cfg, case.model.cfg.context)
        branches = math.ceil(states * continuations)
        loads.append(("values", episodes, branches, longest, mean_prompt + mean, left, waves))
    room = kv_room(case, resident)
    slots = cfg.rollout.slots or slots_for(
        case.model, case.mesh, case.platform, room, cfg.sample.max_tokens
    )
    settings = EngineSettings(slots, attention=cfg.rollout.attention)
    phases = []
    for name, trunks, branches, longest, mean_trunk, tokens, waves in loads:
        per_wave = math.ceil(branches / waves)
        workload = Workload(trunks, per_wave, longest, budget=cfg.sample.max_tokens)
        sizes, _ = sizes_of(case.model, case.mesh, case.platform, room, settings, workload)
        shapes = sizes, *drain_sizes(case.model, case.mesh, room, sizes)
        phases.append(
            PlannedPhase(
                name=name,
                trunks=trunks,
                branches=branches,
                trunk_tokens=longest,
                mean_trunk=mean_trunk,
                tokens=tokens,
                sizes=sizes,
                shapes=shapes,
                waves=waves,
            )
        )
    return phases


def mean_tokens(case: Case) -> float:
    """Mean tokens of a response: `plan.tokens`, or else a quarter of `sample.max_tokens`."""
    return PlanConfig.of(case.cfg).tokens or max(case.cfg.sample.max_tokens / 4, 1)


def mean_prompt_tokens(case: Case) -> float:
    """Mean tokens of a prompt: `plan.prompt_tokens`, or else half of `data.max_prompt_tokens`."""
    return PlanConfig.of(case.cfg).prompt_tokens or case.cfg.data.max_prompt_tokens / 2


def fixed_parts(case: Case) -> MemoryParts:
    """The parts of memory, with 0 bytes for keys and values."""
    weights, trained = weight_bytes(case), trained_bytes(case)
    reference = weights if case.method.keeps_start(case.cfg) else 0
    if case.cfg.model.lora_rank:  # the reference is the weights below the adapters
        weights, reference = weights + trained, 0
    reference += bytes_per_chip(case.method.state.loaded_shapes(case.cfg, case.model, case.mesh))
    optimizer, critic = optimizer_bytes(case, trained_shapes(case)), 0
    if case.method.state.has_critic:  # PPO's critic has no output matrix
        shapes = {name: x for name, x in trained_shapes(case).items() if name != "head"}
        critic = bytes_per_chip(placed_shapes(case.mesh, shapes)) + optimizer_bytes(case, shapes)
    return MemoryParts(weights, optimizer, reference, critic, decode_copy_bytes(case), 0, 0)


def memory_and_phases(case: Case) -> tuple[MemoryParts, list[PlannedPhase]]:
    """The parts of memory, and the phases of an iteration.

    The memory for keys and values is that of the phase that needs most. Raises ValueError if not
    even one trunk and one slot fit.
    """
    fixed = fixed_parts(case)
    phases = planned_phases(case, sum(fixed.during("rollout", case).values()))
    trunk_kv, suffix_kv = max((kv_bytes(case, phase.sizes) for phase in phases), key=sum)
    return dataclasses.replace(fixed, trunk_kv=trunk_kv, suffix_kv=suffix_kv), phases


def kv_bytes(case: Case, sizes: Sizes) -> tuple[int, int]:
    """Bytes per chip of keys and values in the trunks' window and in the branches' ring or pool."""
    window = sizes.rows * cache_bytes(case.model, case.mesh, sizes.columns)
    return window, phase_bytes(case.model, case.mesh, sizes) - window


def main_phase(phases: list[PlannedPhase]) -> PlannedPhase:
    """The last of `phases`, which has the longest trunks; prefill is compiled for its `sizes`."""
    return phases[-1]


def call_name(n: int) -> str:
    """'decode', 'drain', 'drain 2', ...: the name of decode calls with a phase's `shapes[n]`."""
    return "decode" if n == 0 else "drain" if n == 1 else f"drain {n}"


def decode_name(n: int, phase: PlannedPhase, phases: list[PlannedPhase]) -> str:
    """The name of the program that decodes with the n-th shape of `phase`, such as 'decode'.

    If `phase` is not the main phase, the name of `phase` is appended, as in 'decode, rollout'.
    """
    call = call_name(n)
    return call if phase.name == main_phase(phases).name else f"{call}, {phase.name}"


def decode_programs(phases: list[PlannedPhase]) -> dict[str, PlannedPhase]:
    """Maps the name of each decoding program to its phase.

    In the result, the `sizes` of a phase are those with which the program decodes.
    """
    return {
        decode_name(n, phase, phases): phase.in_shape(n)
        for phase in reversed(phases)
        for n in range(len(phase.shapes))
    }


def program_phase(program: str, phases: list[PlannedPhase]) -> PlannedPhase:
    """The phase with a program's sizes; the main phase for a program that does not decode."""
    decodes = decode_programs(phases)
    return decodes[program] if program in decodes else main_phase(phases)


def is_decode(program: str) -> bool:
    """Whether a program of this name is one of `decode_programs`."""
    return program.split(",")[0] == call_name(0) or program.startswith(call_name(1))


def temporaries_guess(case: Case, program: str, phase: PlannedPhase) -> int:
    """Estimated bytes per chip of the temporaries of a program that was not compiled.

    An update's temporaries are the gradients, the activations saved for the backward pass, the
    gathered weights of two layers, and the embedding and output matrix. To compute
    log-probabilities, an update also holds a chunk's logits twice, and the gradient of the hidden
    states. Kernels do not write attention scores.
    """
    cfg = case.model.cfg
    sizes = phase.sizes
    tensor = case.tensor
    if program == "decode copy":
        return 0
    if is_decode(program):
        return 4 * FLOAT32 * sizes.slots * cfg.vocab_size // tensor
    inner = (2 * cfg.num_heads + 2 * cfg.num_kv_heads) * cfg.head_dim
    # Width of a token's rows for its experts. Each device along `tensor` has room for all of them.
    routed = 0
    if cfg.experts is None:
        inner += 3 * cfg.ffn
    else:
        routed = cfg.experts.per_token * (2 * cfg.width + 3 * cfg.experts.ffn)
    passing = 4 * cfg.width + inner // tensor + routed
    if program == "prefill":
        return case.item_bytes * sizes.batch * sizes.columns * passing
    tokens = case.pass_rows // case.shards * train_length(case)
    weights = abstract_params(case.model)
    rounded = bytes_per_chip(placed_shapes(case.mesh, weights, case.model.compute.dtype))
    trained = trained_bytes(case)
    layer = 4 * rounded // cfg.num_layers * case.cfg.mesh.fsdp
    # Embedding and output matrix are in the compute dtype, and replicated over fsdp.
    ends = (1 if cfg.tied_head else 2) * case.item_bytes * cfg.vocab_size * cfg.width // tensor
    chunk = chunk_columns(tokens, -(-cfg.vocab_size // tensor))
    passed = layer + ends + FLOAT32 * tokens * (2 * chunk + cfg.width)
    if program == "score":
        passed += case.item_bytes * tokens * routed
        return passed + case.item_bytes * tokens * (4 * cfg.width + inner) // tensor
    saved_width = cfg.width + (0 if case.model.compute.remat == "full" else inner)
    gradients = trained + trained * case.item_bytes // FLOAT32
    saved = case.item_bytes * tokens * saved_width * cfg.num_layers // tensor
    # The backward pass computes the experts of one layer again, beside the gradients of their rows.
    return passed + gradients + saved + 2 * case.item_bytes * tokens * routed
