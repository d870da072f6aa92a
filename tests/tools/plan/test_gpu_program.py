"""The reader of programs compiled for GPUs, and the texts by which XLA knows absent cards."""

import fnmatch

import pytest

from vinejax.runtime.topology import KINDS
from vinejax.tools.plan.aot import gpu_program, gpu_target, hlo

# Cut from what XLA made of a decode step for an H100; names and sizes shortened.
PROGRAM = """HloModule jit_decode_chunk, is_scheduled=true

%taken (p: bf16[100,8], i: s32[4]) -> bf16[4,8] {
  %p = bf16[100,8]{1,0} parameter(0)
  %i = s32[4]{0} parameter(1)
  ROOT %rows = bf16[4,8]{1,0} gather(%p, %i), offset_dims={1}
}

%written (p: f32[64,512], x: f32[64,1], at: s32[]) -> f32[64,512] {
  %x = f32[64,1]{1,0} parameter(1)
  %at = s32[] parameter(2)
  %p = f32[64,512]{1,0} parameter(0)
  ROOT %new = f32[64,512]{1,0} dynamic-update-slice(%p, %x, %at, %at)
}

%turned (p: bf16[64,64]) -> bf16[64,64] {
  %p = bf16[64,64]{1,0} parameter(0)
  %flat = bf16[4096]{0} bitcast(%p)
  ROOT %t = bf16[64,64]{0,1} transpose(%p), dimensions={1,0}
}

%sum (p: f32[64,64]) -> f32[64] {
  %p = f32[64,64]{1,0} parameter(0)
  ROOT %r = f32[64]{0} reduce(%p, %zero), dimensions={1}, to_apply=%add
}

%search_more (p: (s32[])) -> pred[] {
  ROOT %less = pred[] fusion(%i, %ten), kind=kLoop, calls=%compare
}

%search (p: (s32[], f32[64,64])) -> (s32[], f32[64,64]) {
  %i = s32[] get-tuple-element(%p), index=0
  %pass = f32[64,64]{1,0} get-tuple-element(%p), index=1
  %sums = f32[64]{0} fusion(%pass), kind=kInput, calls=%sum
}

%more (p: (s32[])) -> pred[] {
  ROOT %busy = pred[] fusion(%p), kind=kLoop, calls=%compare
}

%step (p: (bf16[100,8], f32[64,512])) -> (bf16[100,8], f32[64,512]) {
  %table = bf16[100,8]{1,0} get-tuple-element(%p), index=0
  %ring = f32[64,512]{1,0} get-tuple-element(%p), index=1
  %at = s32[] constant(0)
  %ids = s32[4]{0} copy(%other)
  %embed = bf16[4,8]{1,0} fusion(%table, %ids), kind=kLoop, calls=%taken
  %col = f32[64,1]{1,0} custom-call(%embed), custom_call_target="__cublas$lt$matmul"
  %attend = bf16[4,8]{1,0} custom-call(%embed, %ring), custom_call_target="__gpu$xla.gpu.triton"
  %next = f32[64,512]{1,0} fusion(%ring, %col, %at), kind=kLoop, calls=%written
  %square = bf16[64,64]{1,0} fusion(%next), kind=kLoop, calls=%other
  %layout = bf16[64,64]{0,1} fusion(%square), kind=kLoop, calls=%turned
  %gather = (bf16[4,8]{1,0}, bf16[8,8]{1,0}) all-gather-start(%embed), replica_groups={{0,1}}
  %gathered = bf16[8,8]{1,0} all-gather-done(%gather)
  %search_loop = (s32[], f32[64,64]) while(%t), condition=%search_more, body=%search, \
backend_config={"known_trip_count":{"n":"10"}}
}

ENTRY %main (a: bf16[100,8]) -> f32[64,512] {
  %a = bf16[100,8]{1,0} parameter(0)
  %start = bf16[100,8]{1,0} copy(%a)
  %chunk = (bf16[100,8], f32[64,512]) while(%t), condition=%more, body=%step
}
"""
THUNKS = """000: kCommandBuffer [source | sink]
    001: kCopy         [source       | next=005 (4)] kCopy
    002: kWhile        [prev=004 (1) | next=118 (1)]
condition:
        003: kCustomKernel [source       | next=008 (2)] input_reduce grid: [1, 1, 1]
      body:
        004: kCustomKernel [source        | next=034 (18)] loop_add grid: [1, 1, 1]
"""


def test_kernels_of_a_step():
    """Ten trips of the search with its condition, the loop's own condition, and seven kernels."""
    program = hlo.parse_hlo(PROGRAM)
    assert gpu_program.kernels(program) == hlo.Totals(1, 0, 10 * 2 + 1 + 8)


def test_bytes_of_a_step_are_those_of_what_is_read_and_written():
    program = hlo.parse_hlo(PROGRAM)
    search = 10 * 4 * (64 * 64 + 64 + 0.25)  # the condition writes a byte
    rows = 2 * 2 * 4 * 8 + 4 * 4  # four rows of the table and their copy, and their numbers
    product = 2 * 4 * 8 + 4 * 64
    column = 4 * 64 + 4 + 4 * 64  # read, its place, and written into the ring
    square = 4 * 64 * 512 + 2 * 64 * 64
    layout = 2 * 2 * 64 * 64
    gather = 2 * 4 * 8 + (2 * 4 * 8 + 2 * 8 * 8)
    moved = search + 1 + 16 + rows + product + column + square + layout + gather
    found = gpu_program.moved_bytes(program)
    assert found.always == 2 * 2 * 100 * 8 and found.trip == moved


def test_copies_in_the_loop_alone():
    assert gpu_program.largest_copy(hlo.parse_hlo(PROGRAM)) == 2 * 64 * 64


def test_graphs():
    assert gpu_program.read_graphs(THUNKS) == (1, 0)
    before = "000: kCustomKernel [source] loop_add grid: [1, 1, 1]\n001: kWhile [prev=000 (1)]\n"
    before += "condition:\n    002: kCommandBuffer [source | sink]\n        003: kCopy [source]\n"
    before += "  body:\n    004: kGemm [source]\n    005: kCommandBuffer [sink]\n"
    assert gpu_program.read_graphs(before + "006: kCopy [sink]\n") == (2, 3)


def test_facts_without_a_list_of_thunks(tmp_path):
    program = hlo.parse_hlo(PROGRAM)
    assert gpu_program.facts(program, tmp_path)["graphs"] is None
    (tmp_path / "module_1.jit_f.thunk_sequence_after_thunk_passes.txt").write_text(THUNKS)
    found = gpu_program.facts(program, tmp_path)
    assert (found["graphs"], found["cudnn_calls"]) == ([1, 0], 0)
    assert found["gpu_kernels"]["trip"] == 29 and found["largest_copy"] == 8192


def test_every_gpu_has_its_figures():
    gpus = {name for name, kind in KINDS.items() if not kind.shapes and name != "cpu"}
    assert set(gpu_target.CARDS) == gpus
    for name, card in gpu_target.CARDS.items():
        assert any(fnmatch.fnmatchcase(card.name, x) for x in KINDS[name].device_kinds)


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("h100", ("shared_memory_per_core: 233472", "shared_memory_per_block_optin: 232448",
                  "core_count: 132", "l2_cache_size: 52428800", "major: 9 minor: 0")),
        ("a100", ("shared_memory_per_core: 167936", "fpus_per_core: 64", "core_count: 108",
                  "memory_bandwidth: 2039000000000")),
        ("rtx4090", ("threads_per_core_limit: 1536", "major: 8 minor: 9")),
    ],
)  # fmt: skip
def test_the_text_of_a_card(kind: str, lines: tuple[str, ...]):
    text = gpu_target.target_config(kind)
    for line in (*lines, 'driver_version: "13.0.0"', 'runtime_version: "13.0.0"'):
        assert line in text, "without the versions loops stay out of graphs"
    assert text.count("{") == text.count("}")
