"""The programs as the TPU compiles them: two layers of math7b at true widths, on v5e:4x4.

Needs libtpu (`pip install -e '.[test,tpu]'`), no TPU. None of what is asked for here shows on a
CPU, and nothing would fail without it: the run would only need more memory and time than planned.
"""

import dataclasses
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.compiling import LESS_OPTIMIZED
from helpers.paths import CONFIGS

from vinejax.config.load import from_dict, from_file
from vinejax.core.settings import Config, as_tree
from vinejax.tools.plan.aot.compiler import ENVIRONMENT, compile_program
from vinejax.tools.plan.aot.hlo import Collective
from vinejax.tools.plan.case import Case, open_case
from vinejax.tools.plan.planned_memory import main_phase, memory_and_phases, train_length

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None,
        reason="NO TPU COMPILER: pip install -e '.[test,tpu]' to test the compiled programs",
    ),
]
TOPOLOGY, LAYERS = "v5e:4x4", 2
TIMEOUT_S = 1500
MIB, GIB = 2**20, 2**30


@pytest.fixture(scope="module")
def cfg(tmp_path_factory: pytest.TempPathFactory) -> Config:
    fields = from_file(str(CONFIGS), "configs/math7b.py")
    sizes = json.loads(Path(fields.model.architecture).read_text())
    file = tmp_path_factory.mktemp("aot") / "config.json"
    file.write_text(json.dumps(sizes | {"num_hidden_layers": LAYERS}))
    fields.model.architecture = str(file)
    fields.topology = TOPOLOGY
    fields.data.max_prompt_tokens, fields.sample.max_tokens = 512, 512
    fields.meshes[TOPOLOGY] = dict(fsdp=4, tensor=4, slots=128, microbatch=4)
    fields.ppo.minibatch = 8  # two passes
    return from_dict(fields)


@pytest.fixture(scope="module")
def case(cfg: Config) -> Case:
    return open_case(cfg)


@pytest.fixture(scope="module")
def compiled(case: Case, cfg: Config):
    """Compiles a program the first time that it is asked for."""
    done: dict[str, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        if name not in done:
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv(LESS_OPTIMIZED, raising=False)
                done[name] = compile_program(case, as_tree(cfg), name, TIMEOUT_S)
        assert "error" not in done[name], done[name]
        return done[name]

    return of


def collectives(program: dict[str, Any]) -> list[Collective]:
    return [Collective(**x) for x in program["collectives"]]


def sizes(x: Collective) -> list[int]:
    """The number of entries of each array of a collective."""
    dims = re.findall(r"\[([\d,]*)\]", x.shape)
    return [math.prod(int(n) for n in dim.split(",") if n) for dim in dims]


def listed(found: list[Collective]) -> str:
    return "\n".join(map(str, found))


PROGRAMS = ("decode copy", "prefill", "decode", "score", "train_step")


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_gathered_because_the_partitioner_gave_up(compiled, name: str):
    assert compiled(name)["gathered"] == 0, "[SPMD] Involuntary full rematerialization"


def test_decoding_speaks_over_the_tensor_axis_alone_and_in_small_sums(compiled, case: Case):
    found = collectives(compiled("decode"))
    looped = [x for x in found if x.in_loop]
    assert {x.kind for x in looped} == {"all-reduce"}, listed(looped)
    assert {x.group for x in looped} == {case.tensor}
    slots = main_phase(memory_and_phases(case)[1]).sizes.slots
    hidden = [x for x in looped if max(sizes(x)) == slots * case.model.cfg.width]
    # After attention and after the MLP of each layer, and the embedding.
    assert sum(x.count for x in hidden) == 2 * LAYERS + 1, listed(hidden)
    small = [x for x in looped if x not in hidden]
    assert sum(x.sent for x in small) < 0.1 * MIB, listed(small)
    # Out of the loop, once a chunk: what the hosts read.
    assert sum(x.sent for x in found if not x.in_loop) < MIB, listed(found)


def test_decoding_copies_nothing_large(compiled, case: Case):
    """XLA copies, silently, what it wants in another layout: no cache, no weight and no
    probabilities are, neither when the loop begins nor in it."""
    decode = compiled("decode")
    held, _ = memory_and_phases(case)
    assert decode["copies"] == {}
    assert decode["memory"]["temp"] < 128 * MIB
    assert decode["memory"]["alias"] >= held.suffix_kv, "the rings are written in place"
    arguments = held.decode_copy + held.trunk_kv + held.suffix_kv
    assert decode["memory"]["peak"] < 1.02 * arguments + 128 * MIB


def test_prefill_speaks_over_the_tensor_axis_alone(compiled, case: Case):
    found = collectives(compiled("prefill"))
    large = [x for x in found if x.sent > MIB]
    assert {x.kind for x in large} == {"all-reduce"}, listed(large)
    assert {x.group for x in large} == {case.tensor}


@pytest.mark.parametrize("name", ["score", "train_step"])
def test_attention_is_the_kernel_and_cycles_are_known(compiled, name: str):
    assert compiled(name)["kernels"] >= 1
    assert sum(compiled(name)["cycles"].values()) > 1e4


def test_decoding_attends_by_the_kernel(compiled):
    """One kernel call per layer for slots and one for rows; the rest of a step takes little."""
    assert compiled("decode")["kernels"] == 2 * LAYERS
    assert compiled("decode")["cycles"]["trip"] < 2e6


@pytest.mark.parametrize("name", ["score", "train_step"])
def test_logits_and_tokens_stay_where_they_are(compiled, case: Case, name: str):
    """No collective makes an array of tokens x vocabulary, nor of more rows than a chip has."""
    cfg, length = case.model.cfg, train_length(case)
    found = collectives(compiled(name))
    rows = case.pass_rows // case.shards
    for x in found:
        if "," in x.shape and x.kind != "reduce-scatter":  # which is as large as a gradient
            largest = max(rows * length * cfg.width, cfg.vocab_size // case.tensor * cfg.width)
            assert max(sizes(x)) <= largest, x
    vocabulary = {cfg.vocab_size, cfg.vocab_size // case.tensor}
    # Of the output matrix, whose width on a device happens to be the length here.
    gradient = {cfg.width // case.shards, cfg.vocab_size // case.tensor}
    for x in found:
        dims = {int(n) for dim in re.findall(r"\[([\d,]+)\]", x.shape) for n in dim.split(",")}
        if x.kind == "reduce-scatter" and dims == gradient:
            continue
        assert not (dims & vocabulary and dims & {length, length - 1}), x


@pytest.mark.parametrize("name", ["score", "train_step"])
def test_the_output_matrix_is_gathered_once(compiled, case: Case, name: str):
    """The program gathers it neither per pass nor again in the backward pass."""
    cfg = case.model.cfg
    local = cfg.vocab_size // case.tensor * cfg.width
    found = [x for x in collectives(compiled(name)) if x.kind == "all-gather"]
    ends = [x for x in found if max(sizes(x)) == local]
    assert sum(x.count for x in ends) == 2, "the embedding and the output matrix\n" + listed(found)


def test_a_layers_weights_are_gathered_as_often_as_they_are_used(compiled, case: Case):
    """In each forward and backward pass; gradients are summed and split by one collective."""
    cfg = case.model.cfg
    passes = case.cfg.ppo.minibatch // case.pass_rows
    local = cfg.ffn // case.tensor * cfg.width
    found = collectives(compiled("train_step"))
    gathers = [x for x in found if x.kind == "all-gather" and max(sizes(x)) == local]
    assert sum(x.count for x in gathers) == 3 * 2 * LAYERS * passes, listed(gathers)
    whole = [x for x in found if x.kind == "all-reduce" and max(sizes(x)) >= local // case.shards]
    # For v5e libtpu sums the activations of three products a layer whole before it splits them by
    # position, where for v5p it does both at once. Gradients it must never sum so.
    activations = case.pass_rows // case.shards * train_length(case) * cfg.width
    assert all(sizes(x) == [activations] for x in whole), listed(whole)
    # Beside the layers', those of both ends of the model: embeddings and the output matrix.
    assert sum(x.count for x in whole) <= passes * (3 * LAYERS + 2), listed(whole)


def test_products_of_eight_parts_are_computed_once(cfg: Config):
    """Unhindered, the compiler interleaves products with their sums, piece by piece, and twice."""
    row = dataclasses.replace(cfg.meshes[TOPOLOGY], fsdp=2, tensor=8)
    split = dataclasses.replace(cfg, meshes={TOPOLOGY: row})
    case = open_case(split)
    found = compile_program(case, as_tree(split), "score", TIMEOUT_S)
    assert "error" not in found, found
    pieces = [x for x in collectives(found) if x.kind == "collective-permute"]
    piece = case.pass_rows // case.shards * train_length(case) * case.model.cfg.width // 8
    assert all(max(sizes(x)) < piece for x in pieces), listed(pieces)


def test_memory_of_an_update(compiled, case: Case):
    held, _ = memory_and_phases(case)
    state = held.weights + held.optimizer
    memory = compiled("train_step")["memory"]
    assert memory["argument"] == pytest.approx(state, rel=0.01), "the arithmetic of the plan"
    assert memory["alias"] >= 0.99 * state, "the old state's memory is the new one's"
    assert memory["peak"] < 3.2 * GIB
    assert compiled("score")["memory"]["peak"] < 1.6 * GIB
    assert compiled("decode copy")["memory"]["peak"] < 2.2 * GIB


MESHES = """
import os, sys
from vinejax.config.load import from_dict, from_file
from vinejax.model.sharding import AXES, mesh_over
from vinejax.tools.plan.case import open_case
from vinejax.tools.plan.aot.compile_child import devices_of

for name in ("math7b", "rho1b_math"):
    fields = from_file(sys.argv[1], f"configs/{name}.py")
    for fields.topology in [row for row in fields.meshes if row.startswith("v")]:
        case = open_case(from_dict(fields))
        sizes = tuple(case.mesh.shape[axis] for axis in AXES)
        mesh = mesh_over(sizes, devices_of(case))
        assert mesh.size == case.topology.chips, fields.topology
        hosts = len({device.process_index for device in mesh.devices.flat})
        assert hosts == case.topology.hosts, fields.topology
"""


def test_every_row_is_a_mesh_of_that_slice():
    """A side of a slice may have to be cut in two, which `jax.make_mesh` refuses."""
    done = subprocess.run(
        [sys.executable, "-c", MESHES, str(CONFIGS)],
        env=os.environ | ENVIRONMENT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
