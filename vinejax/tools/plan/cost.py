"""Computes FLOPs and moved bytes of each program per chip and call, or per decode step.

FLOPs are those of the model: two per weight and token, plus those of causal attention. A plain XLA
attention needs twice the FLOPs of causal attention. Bytes are those of weights, keys and values,
and operands and results of products; with less fusion, a program moves more. We do not use XLA's
`cost_analysis`, because it counts the body of a loop once.
"""

import itertools
import math
from statistics import NormalDist
from typing import NamedTuple

from vinejax.core.shapes import bucket
from vinejax.engine.memory import cache_bytes
from vinejax.learner.packing import passes_for
from vinejax.model.lora import kernel_shapes
from vinejax.tools.plan.case import Case
from vinejax.tools.plan.planned_memory import (
    FLOAT32,
    PlannedPhase,
    call_name,
    decode_copy_bytes,
    decode_programs,
    main_phase,
    mean_prompt_tokens,
    mean_tokens,
    optimizer_bytes,
    trained_bytes,
    trained_shapes,
    usual_length,
    weight_bytes,
)

# Number of products per weight in the parts of a pass over a microbatch. The backward pass computes
# the logits again, because they are not kept for all tokens.
FORWARD = 1
BACKWARD = 2
RECOMPUTED = 1
PACKED = 0.95  # least share of packed rows that tokens fill (benchmarks/README.md)


class Cost(NamedTuple):
    """Cost of a program per chip: FLOPs, and bytes read from and written to the chip's memory."""

    flops: float
    bytes: float

    def times(self, count: float) -> "Cost":
        return Cost(self.flops * count, self.bytes * count)

    def plus(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


def token_products(case: Case) -> list[tuple[int, int]]:
    """(inputs, outputs) of each matrix by which a layer multiplies the vector of one token."""
    products = [(math.prod(x), math.prod(y)) for x, y in kernel_shapes(case.model).values()]
    width, experts = case.model.cfg.width, case.model.cfg.experts
    if experts is not None:
        inward, outward = (width, experts.ffn), (experts.ffn, width)
        products += [(width, experts.count), *[inward, inward, outward] * experts.per_token]
    return products


def num_multiplied(case: Case, with_head: bool) -> int:
    """Number of weights by which a token is multiplied in all layers.

    With `with_head`, the weights of the output matrix count too. Of a mixture of experts, only the
    experts that a token uses count.
    """
    cfg = case.model.cfg
    layers = cfg.num_layers * sum(a * b for a, b in token_products(case))
    return layers + (cfg.width * cfg.vocab_size if with_head else 0)


def attention_flops(case: Case, visible: float) -> float:
    """FLOPs of the attention of one token, summed over all layers.

    The token attends to `visible` positions or, in a layer with a smaller window, to the window.
    """
    cfg = case.model.cfg
    positions = sum(min(visible, cfg.window(i) or math.inf) for i in range(cfg.num_layers))
    return 4 * cfg.num_heads * cfg.head_dim * positions


def forward_pass(case: Case, rows: float, length: int) -> Cost:
    """The cost of a pass of `rows` sequences per shard through all layers.

    The cost of reading the weights is not included.
    """
    tokens = rows * length
    flops = 2 * num_multiplied(case, with_head=False) + attention_flops(case, length / 2)
    moved = case.item_bytes * sum(a + b for a, b in token_products(case))
    moved *= case.model.cfg.num_layers
    return Cost(tokens * flops / case.tensor, tokens * moved / case.tensor)


def output_pass(case: Case, rows: float, length: int) -> Cost:
    """The cost to multiply `rows` sequences per shard by the output matrix.

    The cost of reading the matrix is not included.
    """
    cfg = case.model.cfg
    tokens = rows * length
    flops = 2 * cfg.width * cfg.vocab_size
    moved = 2 * FLOAT32 * cfg.vocab_size  # logits are written and read, chunk by chunk
    return Cost(tokens * flops / case.tensor, tokens * moved / case.tensor)


def rounded_weights(case: Case) -> float:
    """Bytes per chip of the weights that a pass reads, which are those of all experts.

    The weights are in the compute dtype, gathered over `fsdp` and split over `tensor`.
    """
    cfg, unused = case.model.cfg, 0  # weights of the experts that a single token does not use
    if cfg.experts is not None:
        unused = cfg.experts.count - cfg.experts.per_token
        unused *= 3 * cfg.num_layers * cfg.width * cfg.experts.ffn
    return case.item_bytes * (num_multiplied(case, with_head=True) + unused) / case.tensor


def prefill_columns(phase: PlannedPhase) -> int:
    """The number of columns (token positions) of a prefill whose trunks have the mean length."""
    return min(bucket(math.ceil(phase.mean_trunk)), phase.sizes.columns)


def prefill_cost(case: Case, phase: PlannedPhase) -> Cost:
    """The cost of one prefill of a batch of trunks."""
    sizes, columns = phase.sizes, prefill_columns(phase)
    kv = sizes.batch * cache_bytes(case.model, case.mesh, columns)
    cost = forward_pass(case, sizes.batch, columns)
    return cost.plus(Cost(0, kv + decode_copy_bytes(case)))


def columns_read(phase: PlannedPhase) -> tuple[float, float]:
    """Numbers of columns that a decode step reads from one row of the window, and from one slot.

    We assume that branches begin at the end of their row, and that the mean number of tokens drawn
    so far in a busy slot is the mean length of a branch, as it is for geometric lengths.
    """
    sizes, read = phase.sizes, phase.sizes.storage.columns_read
    return read(phase.mean_trunk, sizes.columns), read(phase.tokens, sizes.width)


def columns_bytes(case: Case, phase: PlannedPhase) -> float:
    """The mean bytes of keys and values that a decode step of a phase reads per chip."""
    sizes, (row_columns, slot_columns) = phase.sizes, columns_read(phase)
    rows, slots = sizes.storage.sequences_read(sizes, busy_slots(case, phase))
    return (rows * row_columns + slots * slot_columns) * cache_bytes(case.model, case.mesh, 1)


def decode_cost(case: Case, phase: PlannedPhase) -> Cost:
    """The cost of a decode step, which draws a token in every slot.

    We assume that the slots' tokens use all experts, so that the step reads all weights.
    """
    sizes = phase.sizes
    cfg = case.model.cfg
    visible = phase.mean_trunk + phase.tokens
    flops = 2 * num_multiplied(case, with_head=True) + attention_flops(case, visible)
    table = 0 if cfg.tied_head else cfg.vocab_size * cfg.width
    # Only a few rows of the embedding are read.
    read = decode_copy_bytes(case) - table * case.item_bytes / case.tensor
    read += columns_bytes(case, phase)
    read += 2 * FLOAT32 * sizes.slots * cfg.vocab_size / case.tensor
    return Cost(sizes.slots * flops / case.tensor, read)


class PlannedPasses(NamedTuple):
    """The number of passes over a batch, with packing and without."""

    num_used: int  # passes that have tokens after packing; an update skips the remaining ones
    num_all: int  # all passes, as many as without packing

    @property
    def share(self) -> float:
        return self.num_used / self.num_all


def planned_passes(case: Case, sequences: int) -> PlannedPasses:
    """The passes over `sequences` rows that have a prompt and a response of mean lengths."""
    passes = passes_for(case.cfg, case.cfg.ppo.minibatch, case.mesh)
    rows, unpacked = sequences, math.ceil(sequences / passes.rows)
    if passes.packed:
        mean = mean_prompt_tokens(case) + mean_tokens(case)
        packed = math.ceil(sequences * mean / (PACKED * usual_length(case)))
        rows = min(rows, packed)
    return PlannedPasses(math.ceil(rows / passes.rows), unpacked)


def score_cost(case: Case) -> Cost:
    """The cost of one pass that computes log-probabilities."""
    rows, length = case.pass_rows / case.shards, usual_length(case)
    cost = forward_pass(case, rows, length).plus(output_pass(case, rows, length))
    return cost.plus(Cost(0, weight_bytes(case) + 2 * rounded_weights(case)))


def update_cost(case: Case) -> Cost:
    """The cost of one update on a minibatch: passes over its microbatches, then the optimizer.

    Microbatches without tokens cost nothing. Each forward or backward pass writes and reads the
    gathered weights. The optimizer reads weights, gradients and its state in float32, and writes
    weights and state.
    """
    recomputed = RECOMPUTED if case.cfg.model.remat == "full" else 0
    rows, length = case.pass_rows / case.shards, usual_length(case)
    layers = forward_pass(case, rows, length).times(FORWARD + BACKWARD + recomputed)
    output = output_pass(case, rows, length).times(FORWARD + BACKWARD + RECOMPUTED)
    gathered = Cost(0, 2 * (2 + recomputed) * rounded_weights(case))
    microbatch = layers.plus(output).plus(gathered)
    count = planned_passes(case, case.cfg.ppo.minibatch).num_used
    state = optimizer_bytes(case, trained_shapes(case))
    update = Cost(0, 3 * trained_bytes(case) + 2 * state)
    return microbatch.times(count).plus(update)


def useful_flops(case: Case) -> float:
    """FLOPs of an iteration's updates on all chips, without those of padding and recomputation."""
    cfg = case.cfg
    length = mean_prompt_tokens(case) + mean_tokens(case)
    flops = 2 * num_multiplied(case, with_head=True) + attention_flops(case, length / 2)
    tokens = cfg.rollout.prompts * cfg.rollout.per_prompt * length * cfg.ppo.epochs
    return (FORWARD + BACKWARD) * tokens * flops


def program_costs(case: Case, phases: list[PlannedPhase]) -> dict[str, Cost]:
    """Maps names of an iteration's programs to costs; the cost of 'prefill' is for `main_phase`."""
    decodes = decode_programs(phases)
    costs = {
        # The program reads the weights and writes them in the compute dtype.
        "decode copy": Cost(0, weight_bytes(case) + decode_copy_bytes(case)),
        "prefill": prefill_cost(case, main_phase(phases)),
        **{name: decode_cost(case, phase) for name, phase in decodes.items()},
        "score": score_cost(case),
        "train_step": update_cost(case),
    }
    if case.method.state.has_critic:
        costs["critic_step"] = update_cost(case)
    return costs


class DecodeSteps(NamedTuple):
    """The decode steps of one wave (one call of the engine) on one shard.

    Each tuple has one entry for each of the phase's `shapes`.
    """

    steps: tuple[float, ...]  # number of steps in the shape
    live_branches: tuple[float, ...]  # branches that have not ended before the steps in the shape


def usable_slots(phase: PlannedPhase) -> int:
    """The number of a shard's slots that can be busy at once; the number of pages may limit it."""
    return phase.sizes.storage.usable_slots(phase.sizes, phase.tokens)


def decode_steps(case: Case, phase: PlannedPhase) -> DecodeSteps:
    """The decode steps of one wave (one call of the engine), for each of `phase.shapes`.

    The first shape has all slots; the later shapes, called drains, have fewer. All shards change to
    a drain at the same step, as soon as the remaining branches of each shard fit into its slots of
    the drain. All shards stop when the last of all their branches ends. We assume that the lengths
    of branches are exponential, and that the step at which a shard can change to a drain is
    normally distributed over shards. Tokens that are decoded a second time, because a branch gave
    its pages to a longer branch, are not counted.
    """
    branches, mean = phase.branches / (case.shards * phase.waves), phase.tokens
    busy = min(usable_slots(phase.in_shape(0)), math.ceil(branches))
    # All slots are busy while branches wait for a slot. Afterwards, slots become free one by one.
    waiting = max(branches - busy, 0)
    filled, spread = waiting * mean / busy, mean * math.sqrt(waiting) / busy
    # The mean of the largest of many sums of a normal and an exponential number. With few shards
    # whose sums of lengths differ much, the largest of the normal numbers decides.
    until_end = min(steps_until(mean, case.shards * busy, 0), case.cfg.sample.max_tokens)
    until_end += min(spread**2 / (2 * mean), spread * expected_largest(case.shards))
    begins, live_branches = [-filled], [branches]
    for drain in phase.shapes[1:]:
        last = min(drain.slots, busy)
        ends = mean * math.sqrt(sum(1 / n**2 for n in range(last + 1, busy + 1)))
        behind = math.hypot(spread, ends) * expected_largest(case.shards)
        begins.append(min(steps_until(mean, busy, last) + behind, until_end))
        # While a shard waits for slower shards, some of its last branches end.
        live_branches.append(last * math.exp(-behind / mean))
    spans = itertools.pairwise([*begins, until_end])
    return DecodeSteps(tuple(end - begin for begin, end in spans), tuple(live_branches))


def expected_largest(count: int) -> float:
    """The mean of the largest of `count` standard normal numbers, by Blom's approximation."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def busy_slots(case: Case, phase: PlannedPhase) -> float:
    """The mean number of a shard's busy slots, over the decoding steps made with `phase.sizes`."""
    n = phase.shapes.index(phase.sizes)
    steps, live_branches = decode_steps(case, phase)
    tokens = (live_branches[n] - (*live_branches, 0.0)[n + 1]) * phase.tokens
    return min(tokens / steps[n], phase.sizes.slots) if steps[n] else float(phase.sizes.slots)


def calls_per_phase(case: Case, phase: PlannedPhase) -> dict[str, float]:
    """Maps programs to their numbers of calls in a phase of the engine.

    For decoding, steps are counted instead of calls: 'decode' has the number of steps with all
    slots. Towards the end fewer slots are decoded: 'drain' has the number of steps with the first
    smaller number of slots, 'drain 2' with the second, and so on.
    """
    trunks_per_shard = math.ceil(phase.trunks / case.shards)
    prefills = phase.waves * math.ceil(trunks_per_shard / phase.sizes.batch)
    steps = decode_steps(case, phase).steps
    decoding = {call_name(n): phase.waves * count for n, count in enumerate(steps)}
    return {"prefill": prefills, **decoding}


def steps_until(mean: float, busy: int, left: int) -> float:
    """Expected steps until `left` of `busy` branches remain, if their lengths are exponential.

    `mean` is the mean length of a branch. While n branches remain, the first of them to end does so
    after `mean` / n steps on average.
    """
    return mean * sum(1 / n for n in range(left + 1, busy + 1))
