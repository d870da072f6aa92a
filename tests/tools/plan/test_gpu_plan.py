"""Programs as they are compiled for an H100, of which this machine has none: kernels of a decode
step, CUDA graphs, copies, spills, and an update with cuDNN's attention.

Needs the compiler for GPUs (`pip install -e '.[gpu-plan]'`), no GPU and no driver. Of what is held
here only milliseconds need a card.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.compiling import LESS_OPTIMIZED
from helpers.paths import CONFIGS

from vinejax.config.load import Fields, default, from_dict, from_file
from vinejax.core.settings import as_tree
from vinejax.tools.plan.aot.compiler import compile_program, missing_gpu_compiler
from vinejax.tools.plan.case import open_case
from vinejax.tools.plan.cost import program_costs
from vinejax.tools.plan.planned_memory import main_phase, memory_and_phases
from vinejax.tools.plan.roofline import TEMPORARIES, plan_program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(missing_gpu_compiler()), reason=f"NO COMPILER FOR GPUS: {missing_gpu_compiler()}"
    ),
]
TIMEOUT_S = 900
COPY = 4096  # bytes of the largest copy in a step


# Kernels of a decode step in 64 slots, each with a trunk of its own, with top-p.
PER_LAYER, OTHERS = 10, 20
LAYERS = {"smollm2_135m": 30, "qwen2.5_0.5b": 4, "qwen2.5_1.5b": 4}  # of each shape


def compiled(fields: Fields, name: str) -> dict[str, Any]:
    """The answer of the compiler about one program."""
    cfg = from_dict(fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(LESS_OPTIMIZED, raising=False)
        answer = compile_program(open_case(cfg), as_tree(cfg), name, TIMEOUT_S)
    assert "error" not in answer, answer
    return answer


def decoding(folder: Path, shape: str, layers: int) -> dict[str, Any]:
    """A decode step of a shape with so many layers, in 64 slots on an H100."""
    sizes = json.loads((CONFIGS / "models" / f"{shape}.json").read_text())
    file = folder / f"{shape}_{layers}.json"
    file.write_text(json.dumps(sizes | {"num_hidden_layers": layers}))
    fields = default()
    fields.method, fields.topology = "grpo", "h100:1"
    fields.model.architecture = str(file)
    fields.data.max_prompt_tokens, fields.sample.max_tokens = 192, 512
    fields.sample.temperature, fields.sample.top_p = 0.6, 0.9
    fields.rollout.prompts, fields.rollout.per_prompt = 64, 1
    fields.meshes["h100:1"] = dict(slots=64)
    return compiled(fields, "decode")


@pytest.mark.parametrize(("shape", "layers"), LAYERS.items())
def test_kernels_of_a_step(tmp_path: Path, shape: str, layers: int):
    """At most so many, all in one graph; nothing large is copied, and no register is spilled."""
    found = decoding(tmp_path, shape, layers)
    assert found["gpu_kernels"]["trip"] <= layers * PER_LAYER + OTHERS
    assert found["graphs"] == [1, 0], "one graph, no kernel outside"
    assert found["largest_copy"] <= COPY
    assert found["spills"] is False


def test_an_update_with_the_attention_of_cudnn():
    """Two calls forward, as the backward pass computes the layers again, and one backward."""
    fields = from_file(str(CONFIGS), "configs/qwen05b_gsm8k.py")
    fields.topology, fields.model.path = "h100:1", ""
    found = compiled(fields, "train_step")
    assert found["cudnn_calls"] == 3
    case = open_case(from_dict(fields))
    memory, phases = memory_and_phases(case)
    cost = program_costs(case, phases)["train_step"]
    planned = plan_program(case, memory, main_phase(phases), "train_step", cost, found)
    held = memory.weights + memory.optimizer
    assert found["memory"]["argument"] == pytest.approx(held, rel=0.01), "the plan's arithmetic"
    assert found["memory"]["peak"] == held + planned.parts[TEMPORARIES]
    assert 2**30 < planned.parts[TEMPORARIES] < 3 * 2**30 and planned.total < case.limit
