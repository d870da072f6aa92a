"""Bytes that each part takes on one chip, by arithmetic: what lies there whatever is compiled."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from vinejax.model.hf.names import abstract_params
from vinejax.model.sharding import spec_for, tensor_only
from vinejax.plan.case import Case
from vinejax.rollout.arrays import FREE_SHARE, cache_bytes, sizes_of
from vinejax.rollout.assign import Sizes
from vinejax.rollout.split import num_kv_heads, vocab_axis
from vinejax.shapes import bucket

FLOAT32 = 4
MOMENTS = 2  # of Adam


class Phase(NamedTuple):
    """One call of the engine in an iteration."""

    name: str  # 'rollout': the solutions; 'values': their continuations
    trunks: int
    branches: int
    trunk_tokens: int  # of the longest trunk that may come
    tokens: float  # of a branch, on average
    sizes: Sizes


@dataclasses.dataclass(frozen=True)
class Parts:
    """Bytes on one chip. The first four lie there for the whole run unless they are offloaded."""

    weights: int  # float32
    optimizer: int
    reference: int
    critic: int  # with its optimizer
    decode_copy: int  # while text is sampled, as all below
    trunk_kv: int
    suffix_kv: int

    def of(self, stage: str, case: Case) -> dict[str, int]:
        """The parts that are there in a stage, by name."""
        rollout, offload = stage == "rollout", case.cfg.offload
        parts = {"weights": self.weights, "optimizer": self.optimizer, "critic": self.critic}
        parts["reference"] = self.reference
        if offload.optimizer and rollout:
            parts["optimizer"] = 0
        if offload.reference and stage != "score":
            parts["reference"] = 0
        if rollout:
            parts |= {"decode copy": self.decode_copy, "trunk KV": self.trunk_kv}
            parts["suffix KV"] = self.suffix_kv
        return parts


def leaves(case: Case) -> list[tuple[tuple[Any, ...], jax.ShapeDtypeStruct]]:
    """(path, shape) of every weight."""
    return jax.tree_util.tree_leaves_with_path(abstract_params(case.model))


def local_size(spec: Any, shape: tuple[int, ...], case: Case) -> int:
    """Numbers of an array that lie on one chip."""
    axes = [(entry,) if isinstance(entry, str) else entry or () for entry in spec]
    ways = math.prod(case.mesh.shape[name] for names in axes for name in names)
    return math.prod(shape) // ways


def weight_bytes(case: Case) -> int:
    """Of the float32 weights, split by the table."""
    return sum(
        FLOAT32 * local_size(spec_for(path, x.shape, case.mesh), x.shape, case)
        for path, x in leaves(case)
    )


def critic_bytes(case: Case) -> int:
    """Of PPO's second model and its optimizer; it has no output matrix."""
    if case.cfg.method != "ppo":
        return 0
    head = 0
    for path, x in leaves(case):
        if path[-1].key == "head":
            head = FLOAT32 * local_size(spec_for(path, x.shape, case.mesh), x.shape, case)
    return (1 + MOMENTS) * (weight_bytes(case) - head)


def decode_copy_bytes(case: Case) -> int:
    """Of the weights as decoding wants them: rounded, whole on every shard, split by tensor."""
    item = np.dtype(case.model.compute.dtype).itemsize
    repeats = num_kv_heads(case.model, case.mesh) // case.model.cfg.num_kv_heads
    total = 0
    for path, x in leaves(case):
        names = [key.key for key in path]
        spec = tensor_only(spec_for(path, x.shape, case.mesh))
        if names[0] in ("embed", "head") and vocab_axis(case.model, case.mesh) is None:
            spec = ()
        size = local_size(spec, x.shape, case)
        if {"k", "v"} & set(names) and repeats > 1:
            size = size * repeats // case.tensor  # K is whole where it does not divide
        total += size * (FLOAT32 if names[-1] == "scale" else item)
    return total


def longest_sequence(case: Case) -> int:
    """Tokens of a prompt and its response at most."""
    cfg = case.cfg
    return min(cfg.data.max_prompt_tokens + cfg.sample.max_tokens, case.model.cfg.context)


def train_length(case: Case) -> int:
    """T of the batches, which is a bucket."""
    return bucket(longest_sequence(case), least=32)


def kv_room(case: Case, resident: int) -> int:
    """Bytes that keys and values may take, as the engine decides when it is not told."""
    if case.cfg.rollout.memory_gib is not None:
        return int(case.cfg.rollout.memory_gib * 2**30)
    return int(FREE_SHARE * max(case.limit - resident, 0))


def phases(case: Case, resident: int) -> list[Phase]:
    """The engine's calls of an iteration, with the longest sequences that may come.

    `resident` bytes of a chip are taken before keys and values. Raises ValueError where no trunk
    and no slot has room.
    """
    cfg, mean = case.cfg, mean_tokens(case)
    episodes = cfg.rollout.prompts * cfg.rollout.per_prompt
    prompt = min(cfg.data.max_prompt_tokens, case.model.cfg.context)
    wanted = [("rollout", cfg.rollout.prompts, episodes, prompt, mean)]
    if cfg.method == "vineppo":
        steps = cfg.plan.steps
        valued = steps if cfg.values.max_states is None else min(steps, cfg.values.max_states + 1)
        states = episodes * valued
        if cfg.values.dedup:  # a prompt's solutions share the first state
            states -= episodes - cfg.rollout.prompts
        # What is left of a response at each of its states, evenly apart.
        left = mean * sum(1 - c / steps for c in range(valued)) / valued
        longest = longest_sequence(case)
        wanted.append(("values", episodes, states * cfg.values.k, longest, left))
    room = kv_room(case, resident)
    return [
        Phase(name, trunks, branches, longest, tokens, sizes_of(
            case.model, case.mesh, case.platform, room, cfg.rollout.slots, num_trunks=trunks,
            num_branches=branches, longest=longest, budget=cfg.sample.max_tokens,
        )[0])
        for name, trunks, branches, longest, tokens in wanted
    ]  # fmt: skip


def mean_tokens(case: Case) -> float:
    """Of a response: `plan.tokens`, else a quarter of the most."""
    return case.cfg.plan.tokens or max(case.cfg.sample.max_tokens / 4, 1)


def fixed_parts(case: Case) -> Parts:
    """The parts, without keys and values."""
    weights = weight_bytes(case)
    return Parts(
        weights, MOMENTS * weights, weights, critic_bytes(case), decode_copy_bytes(case), 0, 0
    )


def parts(case: Case) -> tuple[Parts, list[Phase]]:
    """The parts, with keys and values of the phase that takes most, and the phases.

    Raises ValueError where no keys and values have room.
    """
    fixed = fixed_parts(case)
    each = phases(case, sum(fixed.of("rollout", case).values()))
    row, column = (
        max(n * cache_bytes(case.model, case.mesh, columns) for n, columns in pairs)
        for pairs in (
            [(phase.sizes.rows, phase.sizes.columns) for phase in each],
            [(phase.sizes.slots, phase.sizes.width) for phase in each],
        )
    )
    return dataclasses.replace(fixed, trunk_kv=row, suffix_kv=column), each


def main_phase(each: list[Phase]) -> Phase:
    """The one whose programs are compiled: the last, which has the longest trunks."""
    return each[-1]


def gathered_ends_bytes(case: Case) -> int:
    """Of the embedding and the output matrix, rounded and whole over fsdp."""
    cfg = case.model.cfg
    item = np.dtype(case.model.compute.dtype).itemsize
    return (1 if cfg.tied_head else 2) * item * cfg.vocab_size * cfg.width // case.tensor


def temporaries_guess(case: Case, program: str, phase: Phase) -> int:
    """Bytes that a program takes beside its arguments and results, where none compiles it.

    The largest of what it must hold: gradients, what the backward pass reads again, logits twice,
    the gathered weights of two layers and of both ends. Kernels never write attention's scores.
    """
    cfg, sizes = case.model.cfg, phase.sizes
    item, tensor = np.dtype(case.model.compute.dtype).itemsize, case.tensor
    if program == "decode copy":
        return 0
    if program == "decode":
        return 4 * FLOAT32 * sizes.slots * cfg.vocab_size // tensor
    inner = (2 * cfg.num_heads + 2 * cfg.num_kv_heads) * cfg.head_dim + 3 * cfg.ffn
    if program == "prefill":
        return item * sizes.batch * sizes.columns * (4 * cfg.width + inner // tensor)
    rows = case.cfg.ppo.microbatch or case.cfg.ppo.minibatch
    tokens = rows // case.shards * train_length(case)
    layer = 4 * weight_bytes(case) // FLOAT32 * item // cfg.num_layers * case.cfg.mesh.fsdp
    passed = layer + gathered_ends_bytes(case) + 2 * FLOAT32 * tokens * cfg.vocab_size // tensor
    if program == "score":
        return passed + item * tokens * (4 * cfg.width + inner) // tensor
    kept = cfg.width + (0 if case.model.compute.remat == "full" else inner)
    gradients = weight_bytes(case) + weight_bytes(case) * item // FLOAT32
    return passed + gradients + item * tokens * kept * cfg.num_layers // tensor
