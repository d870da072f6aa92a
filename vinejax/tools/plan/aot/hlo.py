"""Reads collectives, copies, kernels and estimated cycles from the text of a compiled program.

Counts and bytes are per device and call. Instructions in a loop are multiplied by the loop's trip
count. If the trip count depends on data, as in decoding, they count once and are marked.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
ITEM_BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16, "f16": 16} | {
    f"{kind}{bits}": bits for kind in "sufc" for bits in (8, 16, 32, 64, 128)
}

_SHAPE = re.compile(r"\b([a-z]+\d*|pred)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_CALLED = re.compile(
    r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_MEMORY = re.compile(r"S\(\d+\)")
_RINGS = re.compile(r"\bcolors:(\d+)")  # in the TPU compiler's description of its algorithm
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_GROUPS = re.compile(
    r"replica_groups=(\{\{[\d,]*\}|\[\d+,(\d+)\]|mesh\[([^\]]*)\][^{]*\{([^}]*)\})"
)


class Instruction(NamedTuple):
    name: str
    shape: str  # of the result, as written in the text
    op: str
    arguments: str  # operands and attributes, as written in the text


class Collective(NamedTuple):
    kind: str  # one of KINDS
    shape: str  # the result's; for a reduce-scatter inside a fusion, the operand's
    group: int  # devices that take part together
    count: float  # times per call
    sent: float  # bytes that a device sends in all `count` times
    in_loop: bool  # in a loop of unknown trip count; then `count` is for one trip of this loop
    source: str  # the op_name in the text, which names the operation in the JAX program
    in_branch: bool = False  # in a branch of a conditional, which a call may skip
    rings: int = 0  # number of rings, each with one link, that a device sends over; 0: unknown


class HloProgram(NamedTuple):
    """The computations of a module, by name, and the name of its entry computation."""

    entry: str
    computations: dict[str, list[Instruction]]


def parse_hlo(text: str | None) -> HloProgram:
    """Parses a text of `compiled.as_text()`. Raises ValueError for a text without ENTRY."""
    computations: dict[str, list[Instruction]] = {}
    entry, body = "", None
    for line in (text or "").splitlines():
        if body is None:
            if header := _COMPUTATION.match(line):
                body = computations[header[2]] = []
                entry = header[2] if header[1] else entry
        elif line.rstrip() == "}":  # a kernel's metadata has lines that only start with it
            body = None
        elif instruction := _INSTRUCTION.match(line):
            body.append(Instruction._make(instruction.groups()))
    if not entry:
        raise ValueError("not the text of a compiled program: it has no ENTRY")
    return HloProgram(entry, computations)


def array_bytes(shape: str) -> list[int]:
    """Bytes of each array in the text of a shape or of a tuple of shapes."""
    sizes = []
    for kind, dims in _SHAPE.findall(shape):
        if kind in ITEM_BITS:
            numbers = math.prod(int(dim) for dim in dims.split(",") if dim)
            sizes.append(numbers * ITEM_BITS[kind] // 8)
    return sizes


def trip_count(program: HloProgram, loop: Instruction) -> int | None:
    """The trip count of a while loop; None if it is not a constant in the text."""
    if match := _TRIPS.search(loop.arguments):
        return int(match[1])
    called = dict(_CALLED.findall(loop.arguments))
    condition = program.computations.get(called.get("condition", ""), [])
    constants = {x.name: x.arguments for x in condition if x.op == "constant"}
    root = condition[-1] if condition else None
    # Scan and fori_loop become a loop from 0 in steps of 1 that ends at a constant.
    if root is not None and root.op == "compare" and "direction=LT" in root.arguments:
        limit = root.arguments.split(")")[0].split(",")[-1].strip().lstrip("%")
        if limit in constants:
            return int(constants[limit].split(")")[0])
    return None


class PlacedInstruction(NamedTuple):
    """An instruction and its place in the program."""

    computation: str
    instruction: Instruction
    count: float  # times per call
    in_unknown_loop: bool  # in a loop with an unknown trip count, whose body counts once
    fusion: Instruction | None  # the fusion that contains the instruction
    in_branch: bool  # in a branch of a condition


def walk_instructions(program: HloProgram) -> Iterator[PlacedInstruction]:
    """Yields the instructions of the entry computation and of all computations that it calls.

    The branches of conditionals are among these computations.
    """

    def visit(
        name: str, count: float, unknown: bool, fusion: Instruction | None, branch: bool
    ) -> Iterator[PlacedInstruction]:
        for instruction in program.computations.get(name, []):
            yield PlacedInstruction(name, instruction, count, unknown, fusion, branch)
            trips = trip_count(program, instruction) if instruction.op == "while" else 1
            times = 1 if trips is None else trips
            called = [callee for _, callee in _CALLED.findall(instruction.arguments)]
            if branches := _BRANCHES.search(instruction.arguments):
                called += [part.strip().lstrip("%") for part in branches[1].split(",")]
            for callee in called:
                runs = instruction.op in ("while", "conditional", "call")
                inside = fusion if fusion or runs else instruction
                taken = branch or instruction.op == "conditional"
                yield from visit(callee, count * times, unknown or trips is None, inside, taken)

    return visit(program.entry, 1, False, None, False)


def collectives(program: HloProgram) -> list[Collective]:
    """All collectives of the program.

    The TPU compiler splits an all-gather into several fusions with the same channel, which overlap
    with other work. So of fused collectives with equal kind and channel only the first counts.
    """
    collectives = []
    seen = set()
    for step in walk_instructions(program):
        x = step.instruction
        kind = x.op.removesuffix("-start")
        if kind not in KINDS:
            continue
        channel = re.search(r"channel_id=(\d+)", x.arguments)
        if step.fusion and channel:
            if (kind, channel[1]) in seen:
                continue
            seen.add((kind, channel[1]))
        collectives.append(_collective(kind, step))
    return collectives


def _collective(kind: str, step: PlacedInstruction) -> Collective:
    x = step.instruction
    shape = re.sub(r"\{[^}]*\}|/\*[^/]*\*/", "", x.shape)
    if x.op.endswith("-start") and kind in ("all-gather", "collective-permute"):
        shape = _second_part(shape)  # the results in (operands, results, ...)
    group = group_size(x.arguments)
    size = sum(array_bytes(shape))
    if kind == "reduce-scatter":
        size *= group
    elif step.computation.startswith("all-reduce-scatter"):  # a fusion of an all-reduce and a slice
        kind = "reduce-scatter"
    source = re.search(r'op_name="([^"]*)"', x.arguments)
    share = 1.0  # bytes that a device sends per byte of the array, by the best algorithm known
    if kind != "collective-permute":
        share = (2 if kind == "all-reduce" else 1) * (group - 1) / group
    sent = step.count * size * share
    name = source[1] if source else ""
    described = x.arguments + (step.fusion.arguments if step.fusion else "")
    rings = int(match[1]) if (match := _RINGS.search(described)) else 0
    return Collective(
        kind, shape, group, step.count, sent, step.in_unknown_loop, name, step.in_branch, rings
    )


def _second_part(shape: str) -> str:
    """The second part of a tuple of shapes.

    The part is a tuple itself if the compiler has combined several collectives into one.
    """
    parts, depth = [""], 0
    for letter in shape[1:-1]:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts[1].strip(" ()")


def group_size(arguments: str) -> int:
    """The number of devices in a replica group; 2 for a permutation, which has no groups."""
    groups = _GROUPS.search(arguments)
    if groups is None:
        return 2
    if groups[2]:
        return int(groups[2])
    if groups[3]:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", groups[3]))
        return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", groups[4]))
    return len(groups[1].strip("{}").split(","))


def totals_by_kind(collectives: list[Collective]) -> dict[str, tuple[float, float]]:
    """Maps each kind of collective to (number of collectives, bytes that a device sends)."""
    total = {}
    for x in collectives:
        count, sent = total.get(x.kind, (0, 0))
        total[x.kind] = (count + x.count, sent + x.sent)
    return dict(sorted(total.items()))


def large_copies(program: HloProgram, at_least: int) -> dict[str, int]:
    """Maps shapes of copied or transposed arrays of `at_least` bytes or more to bytes per call.

    The compiler inserts such copies to change a memory layout. Copies in a loop count once per
    trip, or once if the trip count is unknown. Copies inside fusions are left out, and also copies
    between memories, which keep the layout.
    """
    total: dict[str, int] = defaultdict(int)
    for name, x, count, _, fusion, _ in walk_instructions(program):
        if not fusion and x.op in ("copy", "transpose"):
            size = sum(array_bytes(x.shape))
            if size >= at_least and not _is_move(x, program.computations[name]):
                total[re.sub(r"\{[^}]*\}", "", x.shape)] += int(count * size)
    return dict(total)


def _is_move(copy: Instruction, computation: list[Instruction]) -> bool:
    """Whether a copy keeps the layout of its source, so that at most the memory space differs.

    The text of a shape writes the memory space as S(n).
    """
    source = copy.arguments.split(")")[0].strip().lstrip("%")
    shapes = [copy.shape, *(x.shape for x in computation if x.name == source)]
    layouts = {_MEMORY.sub("", shape) for shape in shapes if "{" in shape}
    return copy.op == "copy" and len(shapes) == 2 and len(layouts) == 1


class Totals(NamedTuple):
    """Sums over the instructions of a program, such as of cycles or of kernels."""

    always: float = 0.0  # of a call outside branches and loops of unknown trip count
    branches: float = 0.0  # of a call in branches of conditionals
    trip: float = 0.0  # of one trip of the loops whose trip count is unknown


def add_up(program: HloProgram, amount: Callable[[PlacedInstruction], float]) -> Totals:
    """Adds up `amount` over all instructions outside fusions; those in a loop count per trip."""
    always = branches = trip = 0.0
    for step in walk_instructions(program):
        if step.fusion or not (count := amount(step)):
            continue
        if step.in_unknown_loop:
            trip += step.count * count
        elif step.in_branch:
            branches += step.count * count
        else:
            always += step.count * count
    return Totals(always, branches, trip)


def cycles(program: HloProgram) -> Totals:
    """The TPU compiler's estimate of a program's cycles.

    The estimate includes neither collectives, nor the bodies of Pallas kernels, nor waits for
    memory.
    """

    def amount(step: PlacedInstruction) -> int:
        estimate = _CYCLES.search(step.instruction.arguments)
        return int(estimate[1]) if estimate else 0

    return add_up(program, amount)


def count_kernels(program: HloProgram) -> int:
    """The number of calls of Pallas kernels in the text of a program."""
    return sum("tpu_custom_call" in x.arguments for xs in program.computations.values() for x in xs)
