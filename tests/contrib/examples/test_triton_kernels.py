"""AutoTriton's reward with stand-ins for torch and triton: the rule, outputs, hangs."""

import json
import sys
from typing import Any

import pytest

from vinejax.contrib.code.settings import CodeConfig
from vinejax.contrib.examples import triton_kernels
from vinejax.contrib.examples.triton_kernels import TritonKernels, close, keeps_rule, make
from vinejax.core.settings import DataConfig, GraderConfig
from vinejax.core.types import Problem
from vinejax.grading import Grader

TORCH = """
import contextlib, random
from torch import nn
float32 = "float32"
no_grad = contextlib.nullcontext
manual_seed = random.seed
class Tensor:
    def __init__(self, values): self.values, self.shape = values, (len(values),)
    def flatten(self): return self
    def tolist(self): return self.values
def rand(n): return Tensor([random.random() for _ in range(n)])
def relu(x): return Tensor([max(v - 0.5, 0.0) for v in x.values])
def empty_like(x): return Tensor([0.0] * len(x.values))
"""
NN = "class Module:\n    def __call__(self, *inputs): return self.forward(*inputs)\n"
TRITON = """
class jit:
    def __init__(self, function): self.function = function
    def __getitem__(self, grid): return lambda *x: [self.function(i, *x) for i in range(*grid)]
"""
REFERENCE = """
import torch
import torch.nn as nn
SIZE = 6

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.rand(SIZE)]

def get_init_inputs():
    return []
"""
KERNEL = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def relu_kernel(i, x, out):
    out[i] = max(x[i] - 0.5, 0.0)

class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        relu_kernel[(len(x.values),)](x.values, out.values)
        return out
"""


def changed(*pairs: tuple[str, str]) -> str:
    code = KERNEL
    for before, after in pairs:
        assert before in code
        code = code.replace(before, after)
    return code


RETURN = "        return out\n"
BREAKS_RULE = {
    "torch computes": changed((RETURN, "        return torch.relu(x)\n")),
    "functional": changed(
        ("import torch.nn as nn", "import torch.nn as nn\nfrom torch.nn import *")
    ),
    "another name of torch": changed((RETURN, "        t = torch\n        return t.relu(x)\n")),
    "another name of nn": changed((RETURN, "        t = torch.nn\n        return t.ReLU()(x)\n")),
    "the reference": changed(("ModelNew(nn.Module)", "ModelNew(Model)")),
    "getattr": changed((RETURN, "        return getattr(torch, 're' + 'lu')(x)\n")),
    "a module with weights": changed((RETURN, "        self.w = nn.Linear(6, 6)\n" + RETURN)),
    "random weights": changed((RETURN, "        self.w = torch.rand(6)\n" + RETURN)),
    "product": changed((RETURN, "        return x @ x\n")),
    "other package": changed(("import torch\n", "import torch\nimport numpy\n")),
    "no launch": changed(("relu_kernel[(len(x.values),)](x.values, out.values)", "pass")),
    "no kernel": changed(("@triton.jit\n", "")),
    "malformed": changed(("def forward", "def def forward")),
    "nothing": "",
}
FAILS = {
    "wrong values": changed(("0.5", "0.4")),
    "wrong shape": changed((RETURN, "        out.shape = (1,)\n" + RETURN)),
    "an error": changed((RETURN, "        return 1 / 0\n")),
    "prints more": changed((RETURN, "        print([[6], [0]])\n" + RETURN)),
    "no ModelNew": changed(("ModelNew", "Other")),
    "ends early": changed((RETURN, "        raise SystemExit(0)\n")),
}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> TritonKernels:
    """The task in a sandbox 'command' that finds the stand-ins, and confines nothing."""
    folder = tmp_path_factory.mktemp("packages")
    for name, text in {"torch/__init__": TORCH, "torch/nn": NN, "triton/__init__": TRITON,
                       "triton/language": ""}.items():  # fmt: skip
        file = folder / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    rows = [{"problem": f"{i}: relu above a half", "code": REFERENCE} for i in range(3)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    fields: dict[str, Any] = {
        "path": str(folder / "rows.jsonl"),
        "question": "problem",
        "answer": "code",
    }
    found = make(DataConfig(task=triton_kernels.__name__, **fields))
    command = ("env", f"PYTHONPATH={folder}", "TRITON_INTERPRET=1", sys.executable)
    found._sandbox.code = CodeConfig(sandbox="command", command=command)
    found._sandbox.limits = GraderConfig(workers=1, timeout_s=20.0)
    return found


@pytest.fixture
def problem(task: TritonKernels) -> Problem:
    return task.load("train")[0]


def test_the_rule():
    assert keeps_rule(KERNEL)
    assert keeps_rule(changed(("import torch.nn as nn", "from torch import nn"), ("tl\n", "tl\n")))
    assert not {name for name, code in BREAKS_RULE.items() if keeps_rule(code)}
    assert all(map(keeps_rule, FAILS.values()))


def earned(task: TritonKernels, problem: Problem, programs: list[str]) -> list[float]:
    with Grader(workers=1) as grader:
        items = [(problem, f"```python\n{code}```") for code in programs]
        return task.rewards(items, grader)


def test_kernels_with_the_outputs_of_the_reference_earn_1(task: TritonKernels, problem: Problem):
    assert task.gold(problem) == REFERENCE.strip()
    near = changed(("0.5,", "0.5001,"))
    assert earned(task, problem, [KERNEL, near]) == [1.0, 1.0]
    assert "relu above a half" in task.prompt(problem)


def test_what_breaks_the_rule_or_fails_earns_0(task: TritonKernels, problem: Problem):
    broken = [*BREAKS_RULE.values(), *FAILS.values()]
    assert earned(task, problem, broken) == [0.0] * len(broken)
    with Grader(workers=1) as grader:
        assert task.rewards([(problem, "I would write a kernel.")], grader) == [0.0]


def test_a_kernel_that_hangs_earns_0(task: TritonKernels, problem: Problem):
    sandbox = task._sandbox.get()
    sandbox.timeout_s = 2.0
    hangs = changed((RETURN, "        while True: pass\n"))
    assert earned(task, problem, [hangs]) == [0.0]
    assert task._result((problem, hangs)).status == "timeout"


@pytest.mark.parametrize(
    ("out", "is_close"),
    [
        ("[[2], [1.0, 2.0]]\n", True),
        ("[[2], [1.001, 1.99]]\n", True),
        ("[[2], [1.1, 2.0]]\n", False),
        ("[[1, 2], [1.0, 2.0]]\n", False),
        ("[[2], [1.0]]\n", False),
        ("[[2], [NaN, 2.0]]\n", False),
        ('[[2], ["a", 2.0]]\n', False),
        ("[[2]]\n", False),
        ("7\n", False),
        ("", False),
        ("[" * 10**5, False),
    ],
)
def test_outputs_are_compared_outside_of_the_program(out: str, is_close: bool):
    assert close(out, "[[2], [1.0, 2.0]]\n") == is_close
    assert not close("[[2], [1.0]]\n", "[[2], [1.0, 1.0]]\n")  # one entry stands for no other


def test_a_reference_that_fails_gives_no_reward(task: TritonKernels):
    broken = Problem("p", "", REFERENCE.replace("torch.relu", "torch.gelu"))
    assert earned(task, broken, [KERNEL]) == [0.0]
    assert task.gold(Problem("p", "", "def def")) is None


def test_a_reference_that_was_too_slow_runs_again(
    task: TritonKernels, monkeypatch: pytest.MonkeyPatch
):
    """As in the first seconds of a run. The responses until then are lost, and not wrong."""
    problem, answers = Problem("p", "", f"{REFERENCE}\n# slow"), iter(["timeout", "lost", "ok"])
    ran: list[str] = []

    def outputs(code: str, name: str) -> tuple[str, str]:
        ran.append(name)
        return next(answers) if name == "Model" else "ok", "[[1], [1.0]]"

    monkeypatch.setattr(task, "_outputs", outputs)
    found = [task._result((problem, KERNEL)) for _ in range(4)]
    assert [(x.passed, x.status) for x in found] == [(0, "lost")] * 2 + [(1, "ok")] * 2
    assert ran == ["Model"] * 3 + ["ModelNew"] * 2
