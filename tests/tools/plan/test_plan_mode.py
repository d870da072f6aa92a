"""`--mode=plan`: its arithmetic against numbers made by hand, its verdicts, and bad input."""

import dataclasses
import importlib.metadata
import importlib.util
import io
import json
import math
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import huggingface_hub
import jax
import pytest
from helpers.paths import CONFIGS
from helpers.refusals import refuses
from helpers.tools.plan_cases import small, small_fields
from rich.console import Console
from rich.table import Table

from vinejax.config.load import from_dict, from_file
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config, ModelConfig, as_tree
from vinejax.engine.memory import cache_bytes
from vinejax.methods.stages import MethodState
from vinejax.model.hf.names import abstract_params
from vinejax.model.sharding import make_mesh, placed_shapes
from vinejax.tools.plan.aot import compile_child, compiler, plan_mode, planned_programs
from vinejax.tools.plan.aot.iteration_time import (
    KERNEL_S,
    MOVED_SHARE,
    PRODUCT_SHARE,
    iteration_stages,
)
from vinejax.tools.plan.aot.plan_table import print_whole
from vinejax.tools.plan.case import Case, model_sizes, open_case
from vinejax.tools.plan.cost import (
    attention_flops,
    calls_per_phase,
    decode_cost,
    expected_largest,
    num_multiplied,
    planned_passes,
    program_costs,
    update_cost,
)
from vinejax.tools.plan.planned_memory import (
    decode_copy_bytes,
    kv_room,
    memory_and_phases,
    program_phase,
    train_length,
    trained_bytes,
    usual_length,
    weight_bytes,
)
from vinejax.tools.plan.roofline import plan_program

GIB = 2**30


def test_bytes_of_the_parts(tmp_path: Path):
    case = small(tmp_path)
    # embed and head 320, q and out 64, k and v 32 (one head: not split by tensor), gate, up and
    # down 128, norms 8: not split.
    layer = (64 + 64 + 3 * 128) // 8 + 2 * 32 // 4 + 2 * 8
    assert weight_bytes(case) == 4 * (2 * 320 // 8 + 8 + 2 * layer)
    # Over tensor alone, in bfloat16 but for the norms; the one KV head is on both places.
    layer = 2 * ((64 + 64 + 3 * 128) // 2 + 2 * 32) + 4 * 2 * 8
    assert decode_copy_bytes(case) == 2 * 2 * 320 // 2 + 4 * 8 + 2 * layer
    # 2 layers, keys and values, one head of 4 a place, bfloat16.
    assert cache_bytes(case.model, case.mesh, 10) == 2 * 2 * 10 * 4 * 2
    held, (rollout, values) = memory_and_phases(case)
    counts = 2 * 4  # of updates, by AdamW and by the schedule
    assert held.optimizer == 2 * held.weights + counts and held.reference == held.weights
    assert (values.sizes.slots, values.sizes.width, values.sizes.columns) == (4, 32, 64)
    assert rollout.sizes.columns == 32
    assert held.suffix_kv == 4 * cache_bytes(case.model, case.mesh, 32)
    assert held.trunk_kv == values.sizes.rows * cache_bytes(case.model, case.mesh, 64)
    assert memory_and_phases(small(tmp_path, fields={"kl.coef": 0.0}))[0].reference == 0


def test_bytes_with_adapters(tmp_path: Path):
    plain, case = small(tmp_path), small(tmp_path, fields={"model.lora_rank": 4})
    held, before = memory_and_phases(case)[0], memory_and_phases(plain)[0]
    # A chip has of each layer A [8, 4] of q, k, v, gate and up in parts of 4, of out [2, 4, 4] in
    # halves, of down [16, 4] in 8; B [4, 2, 4] of q and [4, 16] of gate and up in halves, of k and
    # v (one head) and of down whole, of out in 4.
    factors_a = 5 * 8 * 4 // 4 + 2 * 4 * 4 // 2 + 16 * 4 // 8
    factors_b = 4 * 8 // 2 + 2 * 4 * 16 // 2 + 2 * 4 * 4 + 4 * 8 + 4 * 8 // 4
    trained = 4 * 2 * (factors_a + factors_b)
    assert trained_bytes(case) == trained
    assert held.weights == before.weights // 2 + trained  # in bfloat16 below the adapters
    assert (held.optimizer, held.reference) == (2 * trained + 2 * 4, 0)
    # The decoding copy has them in bfloat16, split over tensor alone; the one KV head is repeated.
    factors_a = 5 * 8 * 4 + 2 * 4 * 4 // 2 + 16 * 4 // 2
    factors_b = 4 * 8 // 2 + 2 * 4 * 16 // 2 + 2 * 4 * 4 + 2 * 4 * 8
    assert held.decode_copy == before.decode_copy + 2 * 2 * (factors_a + factors_b)


def test_bytes_of_adafactor(tmp_path: Path):
    fields = {"optimizer.name": "adafactor"}
    held = memory_and_phases(small(tmp_path, fields=fields))[0]
    # No matrix of this model has two sides of 32, so that all have one moment per number: as many
    # bytes as weights, a number for each absent factor, and three counts.
    assert held.weights < held.optimizer < held.weights + 4 * 100


def test_what_waits_in_the_hosts_memory(tmp_path: Path):
    case = small(tmp_path, fields={"offload.reference": True, "offload.optimizer": True})
    held, _ = memory_and_phases(case)
    assert (
        held.during("rollout", case)["optimizer"] == held.during("rollout", case)["reference"] == 0
    )
    assert held.during("score", case)["reference"] == held.reference
    assert held.during("train", case)["optimizer"] == held.optimizer
    assert "decode copy" not in held.during("train", case)


def test_a_model_that_the_method_loads_counts_with_the_reference(tmp_path: Path):
    case = small(tmp_path, fields={"offload.reference": True})

    class Loads(MethodState):
        def loaded_shapes(self, cfg: Any, model: Any, mesh: Any) -> Any:
            return placed_shapes(mesh, abstract_params(model), "bfloat16")

    method = dataclasses.replace(case.method, state=Loads())
    held, _ = memory_and_phases(dataclasses.replace(case, method=method))
    assert held.reference == held.weights + held.weights // 2
    assert held.during("rollout", case)["reference"] == 0


def test_operations(tmp_path: Path):
    case = small(tmp_path, fields={"ppo.packing": False})
    a_layer = 64 + 64 + 2 * 32 + 3 * 128
    assert num_multiplied(case, with_head=False) == 2 * a_layer
    assert num_multiplied(case, with_head=True) == 2 * a_layer + 320
    assert attention_flops(case, 10) == 2 * 4 * (2 * 4) * 10
    _, (_, values) = memory_and_phases(case)
    # 4 slots a shard; a quarter of 32 tokens and half a trunk of 64 are seen.
    flops = 4 * (2 * (2 * a_layer + 320) + attention_flops(case, 16 + 8 + 5)) / 2
    assert decode_cost(case, values).flops == flops
    # 16 sequences of 48 tokens, half of the longest prompt and the longest response, over 4 shards;
    # 3 passes through the layers, or 4 with all computed again; products with the output matrix are
    # always computed again.
    tokens = 16 * 48 / 4
    layers = tokens * (2 * 2 * a_layer + attention_flops(case, 24)) / 2
    output = tokens * 2 * 320 / 2
    assert update_cost(case).flops == 3 * layers + 4 * output
    full = small(tmp_path, fields={"model.remat": "full", "ppo.packing": False})
    assert update_cost(full).flops == 4 * layers + 4 * output


@pytest.mark.parametrize("method", ["grpo", "restem", "dpo_positive"])
def test_the_update_of_every_method_has_passes_of_the_runs_size(
    tmp_path: Path, monkeypatch, method: str
):
    fields = small_fields(tmp_path, "cpu:1", {"method": method})
    fields.meshes["cpu:1"] = dict(fsdp=1)
    case, lowered, other = open_case(from_dict(fields)), [], jax.jit(lambda: 0).lower()
    update = types.SimpleNamespace(lower=lambda *arguments: lowered.append(arguments) or other)
    monkeypatch.setattr(planned_programs, "update_step", update)
    phase, mesh = memory_and_phases(case)[1][-1], make_mesh(case.cfg.mesh)
    planned_programs.Lowering(case, phase, mesh).lower("train_step")
    ((objective, _, _, batch, _),) = lowered
    assert (objective.microbatch, len(batch.tokens)) == (case.pass_rows, case.cfg.ppo.minibatch)


def test_packed_rows_make_fewer_passes(tmp_path: Path):
    # Half of 32 and a quarter of 32 tokens are 24 of 64: 16 sequences fill 7 rows, a pass of 8.
    case, plain = small(tmp_path), small(tmp_path, fields={"ppo.packing": False})
    assert case.pass_rows == plain.pass_rows == 8
    assert planned_passes(case, 16) == (1, 2) and planned_passes(case, 64) == (4, 8)
    assert planned_passes(plain, 16) == (2, 2) and planned_passes(plain, 64) == (8, 8)
    fields = {"plan.prompt_tokens": 32, "plan.tokens": 8}  # both have rows of 64
    longest = small(tmp_path, fields=fields | {"ppo.packing": False})
    assert update_cost(case).flops == update_cost(longest).flops / 2
    assert update_cost(case).bytes > update_cost(longest).bytes / 2  # AdamW's are the same
    assert update_cost(plain).flops < update_cost(longest).flops  # rows of 48
    for fields in ({"plan.tokens": 48}, {"plan.prompt_tokens": 56}):
        assert planned_passes(small(tmp_path, fields=fields), 16).num_used == 2


def test_what_skipped_passes_do_not_send(tmp_path: Path):
    """Collectives in a branch belong to passes and count by their share; others count in full."""
    case = small(tmp_path, "cpu:8")
    memory, (_, phase) = memory_and_phases(case)
    one = {"kind": "all-gather", "shape": "f32[8]", "group": 2, "count": 4.0, "sent": 8e9,
           "in_loop": False, "source": "x"}  # fmt: skip
    branches = [one | {"in_branch": is_in_branch} for is_in_branch in (False, True)]
    answer = {"memory": {"peak": GIB}, "collectives": branches}
    for name, share in (("train_step", 0.5), ("score", 1.0)):
        program = plan_program(case, memory, phase, name, update_cost(case), answer)
        assert [x.count for x in program.collectives] == [4.0, 4.0 * share]
        assert program.sent == 8e9 * (1 + share)


def test_branches_of_an_iteration(tmp_path: Path):
    case = small(tmp_path)
    _, (rollout, values) = memory_and_phases(case)
    assert (rollout.trunks, rollout.branches, rollout.tokens) == (8, 32, 8)
    # 32 solutions of 4 states, of which a problem's 4 share the first; 9 continuations each, as
    # long as what is left: 1, 3/4, 1/2 and 1/4 of 8 tokens.
    assert (values.trunks, values.branches) == (32, (32 * 4 - 24) * 9)
    assert values.tokens == 8 * 2.5 / 4
    # Each of 4 shards fills its 4 slots again until no branch waits; then the last 16 end.
    ends = sum(1 / n for n in range(1, 17))
    waiting = 104 * 9 / 4 - 4
    behind = 5 * waiting**0.5 / 4 * expected_largest(4)  # the shard with the longest branches
    steps = calls_per_phase(case, values)["decode"]
    assert steps == pytest.approx(waiting * 5 / 4 + 5 * ends + behind)
    waiting = 32 / 4 - 4
    steps = calls_per_phase(case, rollout)["decode"]
    assert steps == pytest.approx(waiting * 8 / 4 + 8 * ends + 8 * waiting / (2 * 4**2))
    _, (_, first) = memory_and_phases(
        small(tmp_path, fields={"values.max_states": 0, "values.dedup": False})
    )
    assert (first.branches, first.tokens) == (32 * 9, 8)


def test_both_phases_decode_with_one_copy_of_the_weights(tmp_path: Path):
    case = small(tmp_path)
    held, (rollout, values) = memory_and_phases(case)
    estimated = {
        name: plan_program(case, held, program_phase(name, [rollout, values]), name, cost, {})
        for name, cost in program_costs(case, [rollout, values]).items()
    }
    for name in ("decode", "decode, rollout", "decode copy"):
        assert estimated[name].parts["decode copy"] == decode_copy_bytes(case)
    stages = iteration_stages(case, [rollout, values], estimated)
    assert [stage.calls.get("decode copy") for stage in stages[:2]] == [1, None]


def test_each_wave_prefills_and_waits_for_its_longest_branch(tmp_path: Path):
    one, waves = (
        memory_and_phases(small(tmp_path, fields=fields))[1][1]
        for fields in ({"values.reuse": True, "values.k": 1}, {"values.allocation": "bisection"})
    )
    case = small(tmp_path)
    assert (one.waves, waves.waves) == (1, 3)
    # Of 4 states: the first and one on each of two levels.
    assert waves.branches == (32 * 4 - 24) * 9 * 3 / 4
    calls = calls_per_phase(case, waves)
    assert calls["prefill"] == 3 * math.ceil(32 / 4 / waves.sizes.batch)
    ends, waiting = sum(1 / n for n in range(1, 17)), 104 * 9 / 16 - 4
    behind = 5 * waiting / (2 * 4**2)
    assert calls["decode"] == pytest.approx(3 * (waiting * 5 / 4 + 5 * ends + behind))


def test_room_for_keys_and_values(tmp_path: Path):
    case = small(tmp_path)
    assert kv_room(case, resident=case.limit - 40 * GIB) == pytest.approx(0.8 * 40 * GIB)
    assert kv_room(small(tmp_path, fields={"rollout.memory_gib": 2.0}), 0) == 2 * GIB
    assert kv_room(case, resident=100 * GIB) == 0


def fake(monkeypatch: pytest.MonkeyPatch, **answers: dict[str, Any]) -> list[str]:
    """Compilers that answer at once; returns the list of what was compiled."""
    asked = []
    plain = {"compile_s": 1.0, "memory": {"peak": GIB}, "collectives": [], "gathered": 0}

    def compile_program(case: Case, config: dict, name: str, timeout_s: float) -> dict:
        asked.append(name)
        return answers.get(name.replace(" ", "_"), plain)

    monkeypatch.setattr(plan_mode, "compile_program", compile_program)
    monkeypatch.setattr(plan_mode, "check_compiler", lambda case: "")
    return asked


def test_a_plan_that_fits(tmp_path: Path, monkeypatch, capsys):
    gather = {"kind": "all-gather", "shape": "f32[8]", "group": 2, "count": 3.0, "sent": 6e9,
              "in_loop": False, "source": "x"}  # fmt: skip
    plain = {"compile_s": 1.0, "memory": {"peak": GIB}, "gathered": 2}
    asked = fake(monkeypatch, train_step=plain | {"collectives": [gather]})
    case = small(tmp_path, "cpu:8")
    assert plan_mode.plan_run(from_dict(small_fields(tmp_path, "cpu:8")), tmp_path) is True
    decodes = ["decode", "decode, rollout"]
    assert asked == ["decode copy", "prefill", *decodes, "score", "train_step"]
    shown = capsys.readouterr().out
    for part in ("trunk KV", "all-gather x 3", "It fits.", "cpu-8.json", "Involuntary"):
        assert part in shown
    plan = json.loads((tmp_path / "plan" / "cpu-8.json").read_text())
    assert plan["fits"] and plan["topology"]["mesh"] == {"data": 1, "fsdp": 4, "tensor": 2}
    step = plan["programs"]["train_step"]
    assert step["seconds"]["interconnect"] == 6e9 / (case.topology.chip.link_gb_s * 1e9)
    held, _ = memory_and_phases(case)
    assert step["memory_bytes"]["together"] == GIB + held.reference
    train = plan["iteration"][-1]
    assert train["calls"] == {"train_step": 4.0} and train["bound"] == "interconnect"
    assert train["seconds"] == pytest.approx(4 * 6)


def test_a_plan_that_does_not_fit_says_what_to_change(tmp_path: Path, monkeypatch, capsys):
    too_much = {"error": "memory", "needs": 4.5 * GIB, "limit": 4.0 * GIB}
    fake(monkeypatch, train_step=too_much, decode=too_much)
    fields = small_fields(tmp_path, "cpu:8")
    assert plan_mode.plan_run(from_dict(fields), tmp_path) is False
    shown = capsys.readouterr().out
    for part in ("decode: does not fit", "train_step: does not fit", "It does not fit."):
        assert part in shown
    assert "ppo.microbatch = 4 instead of 8" in shown and "model.remat = 'full'" in shown
    assert "a slice of" in shown


def test_a_compile_that_takes_too_long_or_fails(tmp_path: Path, monkeypatch, capsys):
    fake(monkeypatch, score={"error": "time"}, prefill={"error": "INTERNAL: a bug"})
    assert plan_mode.plan_run(from_dict(small_fields(tmp_path, "cpu:8")), tmp_path) is False
    shown = capsys.readouterr().out
    assert "score: did not compile within plan.timeout_s" in shown and "INTERNAL: a bug" in shown


def test_numbers_of_a_wide_table_are_whole():
    """Rich cuts the cells of a table that is wider than the console."""
    table = Table("", *(f"program {i}" for i in range(12)))
    table.add_row("total", *(f"{100 + i}.25" for i in range(12)))
    shown_in = io.StringIO()
    console = Console(width=80, file=shown_in)
    print_whole(table, console)
    shown = shown_in.getvalue()
    assert all(f"{100 + i}.25" in shown and f"program {i}" in shown for i in range(12))
    assert console.width == 80


def test_brackets_in_the_compilers_words_are_no_markup(tmp_path: Path, monkeypatch, capsys):
    words = "INTERNAL: [tpu] no such device [/device:TPU:0]"
    fake(monkeypatch, prefill={"error": words})
    folder = tmp_path / "run[a]"
    assert plan_mode.plan_run(from_dict(small_fields(tmp_path, "cpu:8")), folder) is False
    shown = capsys.readouterr().out
    assert f"prefill: {words}" in shown and f"in full: {folder}/plan/cpu-8.json" in shown


def test_a_plan_may_be_in_the_home_folder(tmp_path: Path, monkeypatch):
    fake(monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert plan_mode.plan_run(from_dict(small_fields(tmp_path, "cpu:8")), "~/run")
    assert (tmp_path / "home/run/plan/cpu-8.json").exists() and not Path("~").exists()


def test_without_a_compiler_for_gpus_the_plan_is_arithmetic(tmp_path: Path, monkeypatch, capsys):
    asked = fake(monkeypatch)
    missing = "nvidia-nvvm is not installed: pip install -e '.[gpu-plan]'"
    monkeypatch.setattr(plan_mode, "missing_gpu_compiler", lambda: missing)
    assert plan_mode.plan_run(from_dict(small_fields(tmp_path, "h100:8")), tmp_path) is True
    shown = " ".join(capsys.readouterr().out.split())
    assert asked == [] and f"No compiler for h100 on this machine, since {missing}." in shown
    assert "Kernels per call" not in shown


def test_a_plan_for_gpus_shows_kernels_graphs_and_a_model_of_time(
    tmp_path: Path, monkeypatch, capsys
):
    counted = {
        "compile_s": 1.0, "memory": {"peak": GIB}, "gathered": 0, "graphs": [1, 0],
        "largest_copy": 2048, "spills": False,
        "gpu_kernels": {"always": 3.0, "branches": 8.0, "trip": 829.0},
        "gpu_bytes": {"always": 1e9, "branches": 2e9, "trip": 4e9},
    }  # fmt: skip
    answers = {name: counted for name in ("decode", "train_step")}
    answers["train_step"] = counted | {"spills": True}
    asked = fake(monkeypatch, score=counted | {"graphs": None, "spills": None}, **answers)
    monkeypatch.setattr(plan_mode, "missing_gpu_compiler", lambda: "")
    case = small(tmp_path)
    assert plan_mode.plan_run(from_dict(small_fields(tmp_path, "h100:8")), tmp_path) is True
    shown = capsys.readouterr().out
    assert "train_step" in asked and "Estimates for GPUs are a model" in shown
    rows = [line.split() for line in shown[shown.index("Kernels per call") :].splitlines()]
    assert ["decode", "829", "1", "0", "4", "2", "KiB", "no"] in rows
    # Passes without tokens are skipped: half of the kernels inside the condition run.
    assert ["train_step", "7", "1", "0", "2", "yes"] in rows
    assert ["score", "11", "?", "?", "3"] in rows
    stages = json.loads((tmp_path / "plan" / "h100-8.json").read_text())["iteration"]
    update = update_cost(case).flops / (PRODUCT_SHARE * case.topology.chip.bf16_tflops * 1e12)
    update += 7 * KERNEL_S + 2e9 / (MOVED_SHARE * case.topology.chip.hbm_gb_s * 1e9)
    usual = usual_length(case) / train_length(case)
    assert stages[-1]["estimate"] == pytest.approx(4 * update * usual)


def test_what_is_missing_to_compile_for_gpus(monkeypatch):
    versions = dict.fromkeys(compiler.GPU_WHEELS, "13.0") | {"jaxlib": "0.11.2"}
    versions |= {"jax-cuda13-plugin": "0.11.2", "jax-cuda13-pjrt": "0.11.1"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    remedy = "pip install -e '.[gpu-plan]'"
    expected = f"jax-cuda13-pjrt is 0.11.1, and jaxlib 0.11.2: {remedy}"
    assert compiler.missing_gpu_compiler() == expected
    versions["jax-cuda13-pjrt"] = "0.11.2"
    assert compiler.missing_gpu_compiler() == ""
    del versions["nvidia-nvvm"]
    assert compiler.missing_gpu_compiler() == f"nvidia-nvvm is not installed: {remedy}"


def seven_billion(tmp_path: Path, row: str) -> str:
    file = tmp_path / "mine.py"
    file.write_text(
        "from vinejax.config.load import from_file\n"
        "def get_config():\n"
        f"    cfg = from_file({str(CONFIGS / 'math7b.py')!r}, 'math7b.py')\n"
        f"    {row}\n"
        "    return cfg\n"
    )
    return str(file)


def run(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    code = "import sys; from vinejax import main; main.run()"
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, "--mode=plan", *arguments],
        cwd=cwd, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_status_of_what_cannot_fit_and_of_bad_input(tmp_path: Path):
    config = seven_billion(tmp_path, "cfg.meshes['h100:1'] = dict(slots=8, microbatch=1)")
    status, out, _ = run(f"--config={config}", "--config.topology=h100:1", cwd=tmp_path)
    assert (
        status == 1
        and "It does not fit." in out
        and "Not compiled: weights and caches alone" in out
    )
    assert json.loads((tmp_path / "runs/mine/plan/h100-1.json").read_text())["fits"] is False
    status, out, err = run(f"--config={config}", "--config.topology=v5e:3x3", cwd=tmp_path)
    assert (status, out) == (2, "") and err.count("\n") == 1 and "v5e is offered as" in err


@pytest.mark.slow
def test_eight_devices_of_this_machine(tmp_path: Path):
    """The real programs, compiled for eight virtual devices without initialising a backend."""
    status, out, err = run(
        f"--config={CONFIGS / 'tiny.py'}", "--config.topology=cpu:8", "--config.mesh.data=2",
        "--config.mesh.fsdp=2", "--config.mesh.tensor=2", "--config.model.path=",
        "--config.model.num_layers=1", "--workdir=here", cwd=tmp_path,
    )  # fmt: skip
    assert status == 0, err
    plan = json.loads((tmp_path / "here" / "plan" / "cpu-8.json").read_text())
    for name, program in plan["programs"].items():
        assert program["verdict"] == "" and program["compiled"]["compile_s"] > 0, name
        assert program["collectives"], name
    decode = plan["programs"]["decode"]["collectives"]
    assert decode["all-reduce"]["times"] >= 2, "two a layer over tensor"


def test_the_parent_starts_no_device(tmp_path: Path):
    code = (
        "from vinejax.config.load import from_dict\n"
        "from vinejax.config.load import from_file\n"
        f"cfg = from_file({str(CONFIGS / 'math7b.py')!r}, 'math7b.py')\n"
        "cfg.topology = 'v5e:16x16'\n"
        "from vinejax.tools.plan.case import open_case\n"
        "from vinejax.tools.plan.planned_memory import memory_and_phases\n"
        "from vinejax.tools.plan.aot import plan_mode\n"
        "memory_and_phases(open_case(from_dict(cfg)))\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("topology", "fields", "field"),
    [
        ("v7:2x2", {}, "topology"),
        ("v5e:8x16", {}, "topology"),
        ("v5e:16x16", {"ppo.minibatch": 48}, "ppo.microbatch"),
        ("v5e:16x16", {"model.attention": "cudnn"}, "model.attention"),
        ("v5e:16x16", {"model.architecture": ""}, "model.path"),
    ],
)
def test_bad_input_is_one_line(topology: str, fields: dict[str, Any], field: str):
    cfg = from_file(str(CONFIGS), "configs/math7b.py")
    cfg.topology = topology
    if "ppo.minibatch" in fields:
        cfg.meshes[topology].microbatch = 24
    cfg.update_from_flattened_dict(fields)
    with refuses(field):
        open_case(from_dict(cfg))


def test_the_base_of_adapters_may_be_in_the_hubs_cache(tmp_path: Path, monkeypatch):
    base, adapters, cache = "owner/base-1.0", tmp_path / "adapters", tmp_path / "cache"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    adapters.mkdir()
    config = (CONFIGS / "tiny_start" / "config.json").read_text()
    (adapters / "config.json").write_text(config)
    (adapters / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    cfg = Config(model=ModelConfig(path=str(adapters)))
    with pytest.raises(ConfigError, match="has adapters on owner/base-1.0, which is no folder"):
        model_sizes(cfg)
    snapshot = cache / "models--owner--base-1.0" / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(config)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0123abc")
    assert model_sizes(cfg).vocab_size == json.loads(config)["vocab_size"]


def test_without_a_topology_the_known_ones_are_named():
    with pytest.raises(ConfigError, match="^topology: .*v5e:16x16, "):
        open_case(from_dict(from_file(str(CONFIGS), "configs/math7b.py")))


def test_a_mesh_that_is_not_the_slice(tmp_path: Path):
    with refuses("meshes.h100:16"):
        small(tmp_path, "h100:16")
    fields = small_fields(tmp_path, "h100:8")
    fields.meshes["h100:8"] = dict(fsdp=-1, tensor=8)
    with refuses("mesh.tensor"):
        open_case(from_dict(fields))


def test_the_compiler_is_missing_or_another(tmp_path: Path, monkeypatch):
    case = small(tmp_path, "v5e:2x4")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refuses("topology"):
        compiler.check_compiler(case)
    assert compiler.check_compiler(small(tmp_path)) == "", "not needed for a GPU"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    versions = {"libtpu": "0.0.51", "jax": "0.10.2"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    pin = ["numpy", 'libtpu==0.0.42.*; extra == "tpu"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: pin)
    assert "libtpu 0.0.51 is not what jax 0.10.2 is made for" in compiler.check_compiler(case)
    versions["libtpu"] = "0.0.42.1"
    assert compiler.check_compiler(case) == ""


def test_a_compile_is_ended_at_its_limit_and_its_last_words_kept(tmp_path: Path):
    case = small(tmp_path, "cpu:8")
    config = as_tree(from_dict(small_fields(tmp_path, "cpu:8")))
    assert compiler.compile_program(case, config, "score", 0.05) == {"error": "time"}
    found = compiler.compile_program(case, config, "nonsense", 300)
    assert "KeyError: 'nonsense'" in found["error"]


def test_both_ways_in_which_the_compiler_says_that_there_is_no_room():
    message = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (24.16G) exceeds available HBM (15.75G)."
    )
    found = compile_child.compile_error(message)
    assert found == {"error": "memory", "needs": 24.16 * GIB, "limit": 15.75 * GIB}
    found = compile_child.compile_error("RESOURCE_EXHAUSTED: Used 900.0M of 512.5M hbm. Exceeded")
    assert found["needs"] == 900 * 2**20
    assert compile_child.compile_error("INTERNAL: RET_CHECK\nfailed") == {
        "error": "INTERNAL: RET_CHECK failed"
    }
