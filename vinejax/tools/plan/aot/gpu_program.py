"""Reads kernels, the bytes that they move, and CUDA graphs from a program compiled for a GPU.

A kernel is an instruction outside of fusions that the GPU runs: a fusion, a call of a library or of
a Pallas kernel, a copy or a collective. The text of a program does not say which kernels XLA puts
into CUDA graphs. The list of its thunks does, which XLA writes if `--xla_dump_to` names a folder.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from vinejax.tools.plan.aot.hlo import (
    HloProgram,
    Instruction,
    PlacedInstruction,
    Totals,
    add_up,
    array_bytes,
    walk_instructions,
)

# Instructions for which nothing runs on the GPU, or whose bodies are counted instead.
NO_KERNEL = {
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "partition-id",
    "replica-id", "while", "conditional", "call",
}  # fmt: skip
PALLAS = "__gpu$xla.gpu.triton"  # the target of a call of a Pallas kernel
CUDNN_ATTENTION = "__cudnn$fmha"
DUMPED = "*thunk_sequence_after_thunk_passes.txt"
# Thunks that only hold others.
HOLDERS = {"kSequential", "kWhile", "kConditional", "kCommandBuffer"}
_THUNK = re.compile(r"^( *)\d+: (k\w+)")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLS = re.compile(r"\bcalls=%?([\w.\-]+)")


class Graphs(NamedTuple):
    """The CUDA graphs of a program."""

    graphs: int
    outside: int  # thunks that run outside of graphs, such as kernels


def facts(program: HloProgram, dump: Path) -> dict[str, Any]:
    """Facts about a program compiled for a GPU, for `compile_child.compile_request`.

    XLA wrote its list of the program's thunks to the folder `dump`; without it 'graphs' is None.
    """
    lists = list(dump.glob(DUMPED))
    largest = max(lists, key=lambda file: file.stat().st_size, default=None)
    calls = [x.arguments for body in program.computations.values() for x in body]
    return {
        "gpu_kernels": kernels(program)._asdict(),
        "gpu_bytes": moved_bytes(program)._asdict(),
        "graphs": None if largest is None else list(read_graphs(largest.read_text())),
        "largest_copy": largest_copy(program),
        "cudnn_calls": sum(CUDNN_ATTENTION in arguments for arguments in calls),
    }


def read_graphs(text: str) -> Graphs:
    """The CUDA graphs in a list of thunks, where indentation says which thunk holds others."""
    graphs = outside = 0
    within = None  # the indentation of the graph that the lines belong to
    for line in text.splitlines():
        if not (thunk := _THUNK.match(line)):
            continue
        indent, kind = len(thunk[1]), thunk[2]
        if within is not None and indent > within:
            continue
        within = indent if kind == "kCommandBuffer" else None
        graphs += kind == "kCommandBuffer"
        outside += kind not in HOLDERS
    return Graphs(graphs, outside)


def is_kernel(step: PlacedInstruction) -> bool:
    """Whether an instruction is a kernel; the end of an asynchronous one is not."""
    x = step.instruction
    return not step.fusion and x.op not in NO_KERNEL and not x.op.endswith("-done")


def kernels(program: HloProgram) -> Totals:
    """The numbers of kernels that a program runs."""
    return add_up(program, lambda step: float(is_kernel(step)))


def moved_bytes(program: HloProgram) -> Totals:
    """The bytes that kernels read and write, in the memory or in the cache of the GPU.

    Of an array from which a fusion takes a slice or some rows, only these count, and of an array
    that it changes in place only the changed part. Pallas kernels do not count, since their text
    does not say which part of their arrays they read.
    """
    shapes = {name: {x.name: x.shape for x in body} for name, body in program.computations.items()}

    def amount(step: PlacedInstruction) -> float:
        if not is_kernel(step) or PALLAS in step.instruction.arguments:
            return 0.0
        return _kernel_bytes(program, step.instruction, shapes[step.computation])

    return add_up(program, amount)


def _kernel_bytes(program: HloProgram, x: Instruction, shapes: dict[str, str]) -> float:
    """The bytes that one kernel reads and writes; `shapes` are those of its computation."""
    operands = [shapes.get(name, "") for name in operand_names(x)]
    called = _CALLS.search(x.arguments)
    body = program.computations.get(called[1]) if called and x.op == "fusion" else None
    if body is None:
        return float(sum(map(_size, operands)) + _size(x.shape))
    changed = {y.name: y for y in body if y.op == "dynamic-update-slice"}
    inner = {y.name: y for y in body}
    total = 0.0
    for number, shape in enumerate(operands):
        parameter = next((y for y in body if _is_parameter(y, number)), None)
        total += _size(shape) if parameter is None else _read_bytes(parameter, body, inner, shape)
    written = _size(x.shape)
    for y in changed.values():
        written += _size(inner[operand_names(y)[1]].shape) - _size(y.shape)
    return total + max(written, 0)


def _is_parameter(x: Instruction, number: int) -> bool:
    return x.op == "parameter" and x.arguments.startswith(f"{number})")


def _read_bytes(
    parameter: Instruction, body: list[Instruction], inner: dict[str, Instruction], shape: str
) -> float:
    """The bytes of a fusion's operand that the fusion reads."""
    users = [(y, operand_names(y)) for y in body if parameter.name in operand_names(y)]
    total = 0.0
    for user, names in users:
        is_first = names[0] == parameter.name
        if is_first and user.op in ("dynamic-slice", "slice", "gather"):
            total += _size(user.shape)
        elif not (is_first and user.op == "dynamic-update-slice"):
            return float(_size(shape))
    return min(total, float(_size(shape)))


def operand_names(x: Instruction) -> list[str]:
    """The names of an instruction's operands."""
    return _NAME.findall(x.arguments.split(")")[0])


def _size(shape: str) -> int:
    return sum(array_bytes(shape))


def largest_copy(program: HloProgram) -> int:
    """The bytes of the largest array that a loop of unknown trip count copies in each trip.

    Fusions count that do nothing but copy or transpose. 0 if there is no such copy.
    """
    largest = 0
    for step in walk_instructions(program):
        if step.in_unknown_loop and is_kernel(step) and _is_copy(program, step.instruction):
            largest = max(largest, *array_bytes(step.instruction.shape), 0)
    return largest


def _is_copy(program: HloProgram, x: Instruction) -> bool:
    if x.op in ("copy", "copy-start", "transpose"):
        return True
    called = _CALLS.search(x.arguments)
    body = program.computations.get(called[1], []) if called and x.op == "fusion" else []
    work = {y.op for y in body} - {"parameter", "bitcast", "tuple"}
    return bool(work) and work <= {"copy", "transpose"}
