"""Reads a compiled program's text: its collectives, with their sizes, and its kernels.

What is counted is what one device sends in one call. A loop whose trips are known counts as often
as it turns; one whose trips only the data decides, such as decoding, as once, and is marked.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
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
_GROUPS = re.compile(
    r"replica_groups=(\{\{[\d,]*\}|\[\d+,(\d+)\]|mesh\[([^\]]*)\][^{]*\{([^}]*)\})"
)


class Instruction(NamedTuple):
    name: str
    shape: str  # as text
    op: str
    rest: str  # operands and attributes


class Collective(NamedTuple):
    kind: str  # of KINDS
    shape: str  # what it makes; of a reduce-scatter, what it takes
    group: int  # devices that speak to each other
    count: float  # times a call
    sent: float  # bytes that a device sends, all times together
    in_loop: bool  # the count is a turn's, of a loop whose turns nobody knows
    source: str  # op_name: where in the program it comes from


class Program(NamedTuple):
    """A module's computations."""

    entry: str
    computations: dict[str, list[Instruction]]


def parse(text: str) -> Program:
    """The computations of `compiled.as_text()`; ValueError where there is no entry."""
    computations: dict[str, list[Instruction]] = {}
    entry, body = "", None
    for line in text.splitlines():
        if body is None:
            if found := _COMPUTATION.match(line):
                body = computations[found[2]] = []
                entry = found[2] if found[1] else entry
        elif line.rstrip() == "}":  # a kernel's metadata has lines that only start with it
            body = None
        elif found := _INSTRUCTION.match(line):
            body.append(Instruction(*found.groups()))
    if not entry:
        raise ValueError("not the text of a compiled program: it has no ENTRY")
    return Program(entry, computations)


def size_of(shape: str) -> list[int]:
    """Bytes of each array of a shape or tuple of shapes."""
    sizes = []
    for kind, dims in _SHAPE.findall(shape):
        if kind in ITEM_BITS:
            numbers = math.prod(int(dim) for dim in dims.split(",") if dim)
            sizes.append(numbers * ITEM_BITS[kind] // 8)
    return sizes


def trips(program: Program, loop: Instruction) -> int | None:
    """How often a while loop turns; None where only the data decides."""
    if known := _TRIPS.search(loop.rest):
        return int(known[1])
    called = dict(_CALLED.findall(loop.rest))
    condition = program.computations.get(called.get("condition", ""), [])
    constants = {x.name: x.rest for x in condition if x.op == "constant"}
    root = condition[-1] if condition else None
    # A loop from 0 in steps of 1 that ends at a constant: what scan and fori_loop become.
    if root is not None and root.op == "compare" and "direction=LT" in root.rest:
        limit = root.rest.split(")")[0].split(",")[-1].strip().lstrip("%")
        if limit in constants:
            return int(constants[limit].split(")")[0])
    return None


def walk(program: Program) -> Iterator[tuple[str, Instruction, float, bool, bool]]:
    """(computation, instruction, times a call, in an unknown loop, inside a fusion), all of them.

    Both branches of a condition count, each as if it were taken.
    """

    def visit(name: str, count: float, unknown: bool, fused: bool) -> Iterator:
        for instruction in program.computations.get(name, []):
            yield name, instruction, count, unknown, fused
            inner, turns = unknown, 1
            if instruction.op == "while":
                known = trips(program, instruction)
                inner, turns = unknown or known is None, 1 if known is None else known
            called = [callee for _, callee in _CALLED.findall(instruction.rest)]
            if branches := _BRANCHES.search(instruction.rest):
                called += [part.strip().lstrip("%") for part in branches[1].split(",")]
            for callee in called:
                inside = fused or instruction.op not in ("while", "conditional", "call")
                yield from visit(callee, count * turns, inner, inside)

    return visit(program.entry, 1, False, False)


def collectives(program: Program) -> list[Collective]:
    """Every collective of the program.

    The TPU compiler cuts one all-gather into several fusions, which overlap with other work and
    share a channel: among fusions a channel counts once.
    """
    found, seen = [], set()
    for computation, x, count, unknown, fused in walk(program):
        kind = x.op.removesuffix("-start")
        if kind not in KINDS:
            continue
        channel = re.search(r"channel_id=(\d+)", x.rest)
        if fused and channel:
            if (kind, channel[1]) in seen:
                continue
            seen.add((kind, channel[1]))
        found.append(_collective(kind, computation, x, count, unknown))
    return found


def _collective(
    kind: str, computation: str, x: Instruction, count: float, unknown: bool
) -> Collective:
    shape = re.sub(r"\{[^}]*\}|/\*[^/]*\*/", "", x.shape)
    if x.op.endswith("-start") and kind in ("all-gather", "collective-permute"):
        shape = shape.strip("()").split(", ")[1]  # of (operand, result, ...)
    group, size = group_size(x.rest), sum(size_of(shape))
    if kind == "reduce-scatter":
        size *= group
    elif computation.startswith("all-reduce-scatter"):  # a fusion of two: it sums, then slices
        kind = "reduce-scatter"
    source = re.search(r'op_name="([^"]*)"', x.rest)
    sent = count * size * share_sent(kind, group)
    return Collective(kind, shape, group, count, sent, unknown, source[1] if source else "")


def share_sent(kind: str, group: int) -> float:
    """Bytes that a device sends for each byte of the whole array, the best way known."""
    if kind == "collective-permute":
        return 1.0
    return (2 if kind == "all-reduce" else 1) * (group - 1) / group


def group_size(rest: str) -> int:
    """Devices that take part together, from any of the three ways that replica groups are written.

    Without groups, as for a permutation, 2.
    """
    found = _GROUPS.search(rest)
    if found is None:
        return 2
    if found[2]:
        return int(found[2])
    if found[3]:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[3]))
        return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", found[4]))
    return len(found[1].strip("{}").split(","))


def totals(collectives: list[Collective]) -> dict[str, tuple[float, float]]:
    """kind -> (times, bytes that a device sends)."""
    total: dict[str, list[float]] = defaultdict(lambda: [0, 0])
    for x in collectives:
        total[x.kind][0] += x.count
        total[x.kind][1] += x.sent
    return {kind: (count, sent) for kind, (count, sent) in sorted(total.items())}


def copies(program: Program, at_least: int) -> dict[str, int]:
    """Bytes of copies of arrays of `at_least` bytes outside fusions and loops, by shape.

    Those are what the compiler does because it wants weights or caches in another layout.
    """
    total: dict[str, int] = defaultdict(int)
    for name, x, _, _, _ in walk(program):
        if name == program.entry and x.op in ("copy", "transpose"):
            size = sum(size_of(x.shape))
            if size >= at_least:
                total[re.sub(r"\{[^}]*\}", "", x.shape)] += size
    return dict(total)


def kernels(program: Program) -> int:
    """Calls of Pallas kernels in the text."""
    return sum("tpu_custom_call" in x.rest for xs in program.computations.values() for x in xs)
