"""AutoTriton: a reward for Triton kernels that do the work of a PyTorch module.

    --config.data.task=vinejax.contrib.examples.triton_kernels --config.code.sandbox=command
    --config.data.answer=code --config.code.command="('bwrap', ..., 'python3')"

    r = r_rule·r_exec

A row's column `data.answer` has code with `Model`, `get_inputs` and `get_init_inputs`, as
KernelBench has it. A response defines `ModelNew`. r_rule reads the syntax tree (`keeps_rule`).
r_exec is 1 if the outputs of `ModelNew` are close to those of `Model`, which runs in a process of
its own, so that no response sees what is expected. The command must find torch and triton, as by
`--setenv PYTHONPATH FOLDER` of bwrap; with `--setenv TRITON_INTERPRET 1` kernels run on CPUs. It
needs more than the default `grader.memory_mb` and `grader.timeout_s`.

Source: https://arxiv.org/abs/2507.05687, rule-based and execution-based reward; the form of the
data and the tolerance: ScalingIntelligence/KernelBench.

Departs: the rule is ours. It does not see arithmetic and methods of tensors outside of kernels. It
forbids the modules and random numbers of torch, so that `ModelNew` cannot draw the weights that
`Model` draws: leave out rows whose `Model` has random weights.
"""

import ast
import json
from typing import Any

import numpy as np

from vinejax.contrib.code.blocks import parsed
from vinejax.contrib.code.task import Code
from vinejax.contrib.code.task import make as make_code
from vinejax.contrib.code.verdict import TestOutcome
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.tasks.table import ContextQuestion, answer_of, chat_of

TOLERANCE = 1e-2  # absolute and relative
IMPORTS = {"import torch", "import torch.nn as nn", "from torch import nn", "import math"}
IMPORTS |= {"import triton", "import triton.language as tl"}
# What a response may use of torch: nothing that computes.
TORCH = {"torch.nn.Module", "nn.Module", "nn.Parameter", "torch.Tensor", "torch.empty"}
TORCH |= {"torch.empty_like", "torch.float16", "torch.float32", "torch.bfloat16"}
EVASIONS = {"Model", "eval", "exec", "getattr", "globals", "vars", "open", "__import__"}
# Prints the shape and up to 8,192 evenly spaced entries of each output, a line each.
DRIVER = """
import json, torch
torch.manual_seed(0)
model = {name}(*get_init_inputs())
torch.manual_seed(1)
inputs = get_inputs()
with torch.no_grad():
    outputs = model(*inputs)
for x in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
    flat = x.flatten().tolist()
    print(json.dumps([list(x.shape), flat[:: max(len(flat) // 4096, 1)]]))
"""


def keeps_rule(code: str) -> bool:
    """Whether a program launches a kernel of its own, and uses nothing of torch that computes.

    A kernel is a function with the decorator `triton.jit`, and is launched as `kernel[grid](...)`.
    """
    nodes = list(ast.walk(parsed(code) or ast.Pass()))
    inner = {id(x.value) for x in nodes if isinstance(x, ast.Attribute)}
    named = [x for x in nodes if isinstance(x, ast.Name | ast.Attribute) and id(x) not in inner]
    names = set(map(ast.unparse, named))
    of_torch = {name for name in names if name.split(".")[0] in ("torch", "nn")}
    imports = {ast.unparse(x) for x in nodes if isinstance(x, ast.Import | ast.ImportFrom)}
    functions = [x for x in nodes if isinstance(x, ast.FunctionDef)]
    kernels = {f.name for f in functions if "triton.jit" in map(ast.unparse, f.decorator_list)}
    calls = [x.func for x in nodes if isinstance(x, ast.Call)]
    launched = {ast.unparse(x.value) for x in calls if isinstance(x, ast.Subscript)}
    has_product = any(isinstance(x, ast.MatMult) for x in nodes)
    is_clean = of_torch <= TORCH and imports <= IMPORTS and not names & EVASIONS
    return bool(kernels & launched) and is_clean and not has_product


def without_classes(code: str) -> str:
    """The code of a reference without its classes: the functions that make inputs."""
    tree = ast.parse(code)
    tree.body = [node for node in tree.body if not isinstance(node, ast.ClassDef)]
    return ast.unparse(tree)


def close(out: str, expected: str) -> bool:
    """Whether two texts of `DRIVER` have outputs of the same shapes with values that are close."""
    lines, wanted = out.splitlines(), expected.splitlines()
    try:
        pairs = [(*json.loads(a), *json.loads(b)) for a, b in zip(lines, wanted, strict=True)]
        return bool(pairs) and all(
            shape == other and len(x) == len(y) and np.allclose(x, y, TOLERANCE, TOLERANCE)
            for shape, x, other, y in pairs
        )
    except (ArithmeticError, RecursionError, TypeError, ValueError):
        return False


class TritonKernels(Code):
    """The task of the module's docstring; `tasks/base.py` documents the methods."""

    name = "triton_kernels"

    def __init__(self, data: DataConfig):
        super().__init__(data)
        self._expected: dict[str, str] = {}  # printed outputs of references, by their code

    def _pair(self, row: dict[str, Any]) -> tuple[ContextQuestion, str]:
        return chat_of(row, self._data.question), answer_of(row, self._data.answer)

    def gold(self, problem: Problem) -> str | None:
        """The code of the reference; None if it is no Python."""
        return problem.answer if parsed(problem.answer) else None

    def _result(self, job: tuple[Problem, str]) -> TestOutcome:
        problem, code = job
        if not keeps_rule(code) or not self.gold(problem):
            return TestOutcome(0, 1)
        expected = self._outputs_of_reference(problem.answer)
        if expected is None:
            return TestOutcome(0, 1, None, "lost")
        status, out = self._outputs(f"{code}\n\n{without_classes(problem.answer)}", "ModelNew")
        return TestOutcome(int(status == "ok" and close(out, expected)), 1, None, status)

    def _outputs_of_reference(self, code: str) -> str | None:
        """The printed outputs of a reference; None if it was too slow this time, to be run again.

        The first programs of a run may wait for the disk and the device.
        """
        if code not in self._expected:
            status, out = self._outputs(code, "Model")
            if status in ("timeout", "lost"):
                return None
            self._expected[code] = out
        return self._expected[code]

    def _outputs(self, code: str, name: str) -> tuple[str, str]:
        """(the status, the printed outputs) of the module `name` in a process of its own."""
        outcome = self._sandbox.get().run(code + DRIVER.format(name=name))
        return outcome.status, outcome.out


def make(data: DataConfig) -> TritonKernels:
    make_code(data)  # raises the errors of the task `code`
    return TritonKernels(data)
