"""Lowers the programs of a run for CUDA, over eight virtual CPU devices, and prints their texts.

    python -m helpers.tools.cuda_programs FOLDER METHOD=vineppo FIELD=VALUE ...

cuDNN's version is not asked, as there is none: what is lowered is what a GPU would compile.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
from jax._src.cudnn import fused_attention_stablehlo

from vinejax.config.load import default, from_dict
from vinejax.model.sharding import AXES, mesh_over
from vinejax.tools.plan.aot import planned_programs
from vinejax.tools.plan.case import open_case
from vinejax.tools.plan.cost import program_costs
from vinejax.tools.plan.planned_memory import memory_and_phases, program_phase

CUDNN = 91000  # a version that is new enough
SIZES = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 64,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
}  # fmt: skip


class ForCuda:
    """A compiled function that lowers for CUDA, whatever this machine has."""

    def __init__(self, function: Any):
        self.function = function

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self.function(*arguments, **settings)

    def lower(self, *arguments: Any, **settings: Any) -> Any:
        return self.function.trace(*arguments, **settings).lower(lowering_platforms=("cuda",))


def main(folder: str, *settings: str) -> None:
    fused_attention_stablehlo.check_cudnn_version = lambda: CUDNN
    for module, name in (
        (planned_programs.split, "for_decoding"),
        (planned_programs.window, "prefill"),
        (planned_programs, "score"),
        (planned_programs, "update_step"),
    ):
        setattr(module, name, ForCuda(getattr(module, name)))
    chunk = ForCuda(planned_programs.decode.chunk_program("gpu"))
    planned_programs.decode.chunk_program = lambda platform: chunk
    file = Path(folder) / "config.json"
    file.write_text(json.dumps(SIZES))
    fields = default()
    fields.model.architecture = str(file)
    fields.data.max_prompt_tokens = fields.sample.max_tokens = 128
    fields.sample.top_p = 0.9
    fields.rollout.attention = "xla"  # Pallas lowers kernels only for the GPU of a mesh
    fields.rollout.prompts, fields.rollout.per_prompt, fields.rollout.slots = 8, 4, 16
    fields.ppo.minibatch, fields.ppo.microbatch = 16, 8
    fields.topology = "h100:8"
    fields.meshes["h100:8"] = dict(data=2, fsdp=2, tensor=2)
    for name, value in (setting.split("=", 1) for setting in settings):
        fields.update_from_flattened_dict({name: json.loads(value)})
    case = open_case(from_dict(fields))
    phases = memory_and_phases(case)[1]
    mesh = mesh_over(tuple(case.mesh.shape[name] for name in AXES), jax.devices())
    for name in program_costs(case, phases):
        lowering = planned_programs.Lowering(case, program_phase(name, phases), mesh)
        text = lowering.lower(name).as_text()
        (Path(folder) / f"{name.replace(' ', '_')}.txt").write_text(text)
        print(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
