"""The configs of slices and of eight GPUs: the paper's hyperparameters, and rows that can be."""

import math
from pathlib import Path

import jax
import pytest
from helpers.paths import CONFIGS, FIXTURES
from helpers.refusals import refuses
from helpers.tools.plan_cases import small_fields

from vinejax.config.checks import check_config
from vinejax.config.load import from_dict, from_file
from vinejax.core.errors import ModelError
from vinejax.core.settings import Config, flatten
from vinejax.core.shapes import doubled
from vinejax.model.decoder import Decoder
from vinejax.model.hf.architecture import PLANNED_FIELDS, check_architecture, read_architecture
from vinejax.model.hf.names import abstract_params
from vinejax.runtime.topology import parse_topology
from vinejax.tools.plan.case import open_case
from vinejax.tools.plan.cost import num_multiplied, program_costs, rounded_weights
from vinejax.tools.plan.planned_memory import memory_and_phases, temporaries_guess
from vinejax.tools.plan.propose import with_proposed_row

PODS = {
    "math7b": "deepseek,math",
    "gsm8k7b": "deepseek,gsm8k",
    "rho1b_math": "rho,math",
    "rho1b_gsm8k": "rho,gsm8k",
}
# What a config for a slice may say anew; none of it changes what is computed.
OWN = ("model.architecture", "model.remat", "mesh.data", "mesh.fsdp", "meshes")
LANES = 128  # of a TPU's vector


def load(name: str, topology: str = "") -> Config:
    fields = from_file(str(CONFIGS), f"configs/{name}.py")
    fields.topology = topology
    return from_dict(fields)


def rows() -> list[tuple[str, str]]:
    return [(name, topology) for name in PODS for topology in load(name).meshes]


@pytest.mark.parametrize("name", PODS)
def test_hyperparameters_are_the_papers(name: str):
    ours = load(name)
    paper = from_dict(from_file(str(CONFIGS), f"configs/paper.py:{PODS[name]},vineppo"))
    check_config(ours)
    assert ours.method == "vineppo"
    fields = dict(flatten(paper))
    assert {field for field, x in flatten(ours) if fields[field] != x} <= set(OWN)
    text = (CONFIGS / f"{name}.py").read_text(encoding="utf-8")
    for part in (f"--config=configs/{name}.py", "Hardware: ", "Reproduces: ", "Departs: "):
        assert part in text


@pytest.mark.parametrize("name", PODS)
def test_there_are_rows_for_pods_small_slices_and_gpus(name: str):
    meshes = set(load(name).meshes)
    assert {"v5e:16x16", "v5p:4x4x4", "v6e:8x8", "h100:8", "h200:8"} <= meshes
    if name.startswith("rho"):
        assert {"h100:1", "h200:1", "v5e:2x4", "v6e:2x4", "v4:2x2x1", "v5e:4x4"} <= meshes
    for kind in ("v5e", "v5p", "v6e"):
        assert min(parse_topology(x).chips for x in meshes if x.startswith(kind)) <= 16


@pytest.mark.parametrize(("name", "topology"), rows())
def test_each_row_can_be_and_has_room_by_arithmetic(name: str, topology: str):
    case = open_case(load(name, topology))
    held, phases = memory_and_phases(case)
    assert set(program_costs(case, phases)) >= {"prefill", "decode", "score", "train_step"}
    assert sum(held.during("rollout", case).values()) < 0.95 * case.limit
    gradients = held.weights
    assert sum(held.during("train", case).values()) + gradients < 0.9 * case.limit
    spare = temporaries_guess(case, "train_step", phases[-1])
    assert sum(held.during("train", case).values()) + spare < 0.9 * case.limit
    assert case.model.compute.remat == (case.cfg.meshes[topology].remat or "full")
    slots = case.cfg.meshes[topology].slots
    assert slots is not None and slots == phases[-1].sizes.slots * case.shards, "memory cut them"


@pytest.mark.parametrize("topology", ["rtx4090:1", "h100:1", "v5e:2x4"])
def test_the_recipe_with_adapters_has_room_by_arithmetic(topology: str):
    for stage, method in (("sft", "sft"), ("", "vineppo")):
        fields = from_file(
            str(CONFIGS),
            f"configs/qwen05b_gsm8k.py:{stage}" if stage else "configs/qwen05b_gsm8k.py",
        )
        fields.topology = topology
        cfg = from_dict(fields)
        check_config(cfg)
        assert cfg.method == method and cfg.model.lora_rank > 0
        case = open_case(cfg)
        held, phases = memory_and_phases(case)
        assert sum(held.during("rollout", case).values()) < 0.9 * case.limit
        spare = temporaries_guess(case, "train_step", phases[-1])
        assert sum(held.during("train", case).values()) + spare < 0.9 * case.limit
        branches = doubled(-(-phases[-1].branches // case.shards))
        slots = case.cfg.meshes[topology].slots or 1024 * case.shards  # by memory, on GPUs
        assert phases[-1].sizes.slots == min(slots // case.shards, branches)


def test_adapters_take_a_third_of_the_memory_of_training_at_most():
    def bytes_of(rank: int) -> int:
        fields = from_file(str(CONFIGS), "configs/rho1b_gsm8k.py")
        fields.topology, fields.model.lora_rank = "h100:1", rank
        fields.meshes["h100:1"].remat = "full"  # what is kept is as large for adapters
        case = open_case(from_dict(fields))
        held, phases = memory_and_phases(case)
        spare = temporaries_guess(case, "train_step", phases[-1])
        return sum(held.during("train", case).values()) + spare

    assert bytes_of(32) < bytes_of(0) / 3


@pytest.mark.parametrize(("name", "topology"), [row for row in rows() if row[1][0] == "v"])
def test_no_shard_is_under_the_lanes_of_a_tpu(name: str, topology: str):
    """Else gradients are summed whole and weights gathered whole (reference: docs/plan.md)."""
    case = open_case(load(name, topology))
    assert case.model.cfg.width // case.cfg.mesh.fsdp >= LANES
    assert case.model.cfg.ffn // case.tensor >= LANES


def test_the_architectures_are_those_of_the_models():
    deepseek = read_architecture(CONFIGS / "models" / "deepseek_math_7b.json")
    assert (deepseek.num_layers, deepseek.width, deepseek.num_heads) == (30, 4096, 32)
    assert (deepseek.ffn, deepseek.vocab_size, deepseek.context) == (11008, 102400, 4096)
    rho = read_architecture(CONFIGS / "models" / "rho_1b.json")
    assert (rho.num_layers, rho.width, rho.num_heads, rho.num_kv_heads) == (22, 2048, 32, 4)
    assert (rho.ffn, rho.vocab_size, rho.context, rho.head_dim) == (5632, 32000, 2048, 64)


def test_another_model_than_declared_is_named(tmp_path: Path):
    file = CONFIGS / "models" / "rho_1b.json"
    check_architecture(file, Decoder(read_architecture(file)))
    text = file.read_text(encoding="utf-8")
    other = tmp_path / "config.json"
    other.write_text(text.replace('"num_hidden_layers": 22', '"num_hidden_layers": 24'))
    with pytest.raises(ModelError, match="num_hidden_layers gives num_layers = 24, .* 22;"):
        check_architecture(other, Decoder(read_architecture(file)))
    with pytest.raises(ModelError, match="cannot be read"):
        read_architecture(tmp_path / "none.json")
    other.write_text("[]")
    with pytest.raises(ModelError, match="JSON object"):
        read_architecture(other)


def test_what_is_compared_are_fields_of_an_architecture():
    declared = read_architecture(CONFIGS / "models" / "rho_1b.json")
    assert all(hasattr(declared, name) for name in PLANNED_FIELDS)


def test_a_rows_microbatch_replaces_the_configs_and_divides_the_minibatch():
    case = open_case(load("math7b", "v5e:16x16"))
    assert case.cfg.ppo.microbatch == case.cfg.meshes["v5e:16x16"].microbatch == 32
    fields = from_file(str(CONFIGS), "configs/math7b.py")
    fields.meshes["v5e:16x16"].microbatch = 48
    with refuses("meshes.v5e:16x16.microbatch"):
        check_config(from_dict(fields))
    fields.meshes["v5e:16x16"].microbatch, fields.sft.batch = 32, 48  # supervised steps have it too
    with refuses("meshes.v5e:16x16.microbatch"):
        check_config(from_dict(fields))


MIXTURE = [("", "v5p:2x2x1"), ("", "v5p:4x4x4"), ("", "h100:8"), ("all", "v5p:4x4x4")]


@pytest.mark.parametrize(("trained", "topology"), [*MIXTURE, ("all", "v5p:2x4x4")])
def test_the_mixture_of_experts_has_room_by_arithmetic(trained: str, topology: str):
    name = "configs/qwen3_30b_a3b.py"
    fields = from_file(str(CONFIGS), f"{name}:{trained}" if trained else name)
    fields.topology = topology
    cfg = from_dict(fields)
    check_config(cfg)
    case = open_case(cfg)
    held, phases = memory_and_phases(case)
    assert sum(held.during("rollout", case).values()) < 0.95 * case.limit
    spare = temporaries_guess(case, "train_step", phases[-1])
    assert sum(held.during("train", case).values()) + spare < 0.9 * case.limit


def test_a_mixture_multiplies_by_few_of_its_weights():
    fields = from_file(str(CONFIGS), "configs/qwen3_30b_a3b.py")
    fields.topology = "h100:8"
    case = open_case(from_dict(fields))
    ends = 2 * 151936 * 2048
    attention = 48 * 2 * (32 + 4) * 128 * 2048
    router, expert = 48 * 2048 * 128, 3 * 2048 * 768
    assert num_multiplied(case, with_head=True) == (
        ends // 2 + attention + router + 48 * 8 * expert  # 3.0 billion
    )
    norms = 48 * (2 * 2048 + 2 * 128) + 2048
    total = ends + attention + router + 48 * 128 * expert + norms
    assert total == 30_532_122_624, "as the model card says: 30.5 billion"
    shapes = abstract_params(case.model)
    assert sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)) == total
    matrices = total - norms - ends // 2  # a pass reads all experts, and no whole embedding
    assert rounded_weights(case) == 2 * matrices / case.tensor


@pytest.mark.parametrize(
    "family",
    ["qwen3_moe", "olmoe", "olmo2", "olmo3", "smollm3", "granite", "exaone4", "seed_oss"],
)
def test_each_family_has_a_plan(family: str, tmp_path: Path):
    config = FIXTURES / "models" / family / "config.json"
    fields = small_fields(tmp_path, "h100:8", {"meshes": {}, "model.architecture": str(config)})
    cfg = with_proposed_row(from_dict(fields), parse_topology("h100:8"))
    case = open_case(cfg)
    held, phases = memory_and_phases(case)
    costs = program_costs(case, phases)
    assert all(cost.flops >= 0 and cost.bytes > 0 for cost in costs.values())
    assert sum(held.during("train", case).values()) < case.limit
