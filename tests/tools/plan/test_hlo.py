"""The reader of compiled programs, on text as the TPU's and the CPU's compilers write it."""

import pytest

from vinejax.tools.plan.aot import hlo

# Cut from what libtpu 0.0.42 wrote for a train step and for decoding; names and sizes shortened.
TPU = """HloModule jit_step, is_scheduled=true

FileNames
1 "step.py"

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(f32[] %x, f32[] %y)
}

%cond.1 (p: (s32[], bf16[8,128])) -> pred[] {
  %constant.3 = s32[]{:T(128)} constant(30)
  %p = (s32[]{:T(128)}, bf16[8,128]{1,0:T(8,128)(2,1)S(1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %constant.3), direction=LT, metadata={op_name="lt"}
}

%piece.0 (p: bf16[2,128]) -> bf16[8,128] {
  %all-gather.1 = bf16[8,128]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=30, replica_groups=[4,4]<=[4,4]T(1,0), dimensions={0}, frontend_attributes={chain_id="0"}, metadata={op_name="w"}
}

%async_collective_fusion.1 (p: bf16[2,128]) -> bf16[8,128] {
  %all-gather.2 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} all-gather(%p), channel_id=30, replica_groups=[4,4]<=[4,4]T(1,0), dimensions={0}, frontend_attributes={chain_id="0"}
}

%all-reduce-scatter.2.clone.1 (input: bf16[64,128]) -> bf16[16,128] {
  %all-reduce.1 = bf16[64,128]{1,0:T(8,128)(2,1)} all-reduce(%input), channel_id=7, replica_groups={{0,4,8,12},{1,5,9,13},{2,6,10,14},{3,7,11,15}}, to_apply=%add
  ROOT %slice = bf16[16,128]{1,0:T(8,128)(2,1)} dynamic-slice(%all-reduce.1, %zero)
}

%body.1 (p: (s32[], bf16[8,128])) -> (s32[], bf16[8,128]) {
  %kernel.1 = bf16[8,128]{1,0:T(8,128)(2,1)} custom-call(%q), custom_call_target="tpu_custom_call", metadata={
 "xprof_metadata":"{\\"block_q\\": 512"
}}, metadata={op_name="splash"}
  %start.1 = (bf16[2,128]{1,0}, bf16[8,128]{1,0}) fusion(%w), kind=kCustom, calls=%piece.0
  %fusion.1 = (bf16[8,128]{1,0}, bf16[8,128]{1,0}) fusion(%w), kind=kOutput, calls=%async_collective_fusion.1
  %scatter.1 = bf16[16,128]{1,0} fusion(%g), kind=kCustom, calls=%all-reduce-scatter.2.clone.1
  %all-reduce.2 = f32[16,8]{1,0:T(8,128)} all-reduce(%y), channel_id=1, replica_groups=mesh['axis_0'=1,'axis_1'=4,'axis_2'=4] {'axis_2'}, to_apply=%add
  %copy.9 = bf16[8,128]{0,1} copy(%kernel.1)
}

%unknown (p: (s32[])) -> pred[] {
  ROOT %more = pred[] get-tuple-element(%p), index=1
}

%turns (p: (s32[])) -> (s32[]) {
  %fusion.2 = f32[8] fusion(%x), calls=%piece.0, backend_config={"estimated_cycles":"10"}
}

%steps (p: (s32[])) -> (s32[]) {
  %permute.1 = (f32[24,8]{1,0}, f32[24,8]{1,0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x), channel_id=1, source_target_pairs={{0,4},{4,8}}
  %permute.2 = f32[24,8]{1,0} collective-permute-done(%permute.1)
  %copy.2 = f32[512,1024]{0,1:T(8,128)S(1)} copy(%permute.2), backend_config={"estimated_cycles":"700"}
  %while.3 = (s32[], bf16[8,128]{1,0}) while(%t), condition=%cond.1, body=%turns
}

ENTRY %main (a: bf16[1024,1024]) -> bf16[8,128] {
  %a = bf16[1024,1024]{1,0:T(8,128)(2,1)} parameter(0)
  %copy.1 = bf16[1024,1024]{0,1:T(8,128)(2,1)} copy(%a)
  %while.1 = (s32[], bf16[8,128]{1,0}) while(%t), condition=%cond.1, body=%body.1
  %while.2 = (s32[]) while(%t), condition=%unknown, body=%steps
  %all-gather.3 = bf16[64,16]{1,0} all-gather(%z), channel_id=53, replica_groups=mesh['axis_0'=4,'axis_1'=1,'axis_2'=64], device_ids=([64,4]T(1,0)) {'axis_0'}, dimensions={0}
  ROOT %all-reduce.3 = (f32[4]{0}, /*index=1*/f32[4]{0}) all-reduce(%s, %t), channel_id=2, replica_groups={{0,1}}, to_apply=%add
}
"""  # noqa: E501

CPU = """HloModule jit_f

%region (p: (s32[])) -> (s32[]) {
  %all-reduce = f32[2]{0} all-reduce(f32[2]{0} %x), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
}

ENTRY %main (a: f32[2]) -> f32[2] {
  %while = (s32[]) while((s32[]) %t), condition=%c, body=%region, backend_config={"known_trip_count":{"n":"3"}}
}
"""  # noqa: E501


def test_collectives_are_counted_as_often_as_their_loops_turn():
    found = {x.shape: x for x in hlo.collectives(hlo.parse_hlo(TPU))}
    gather = found["bf16[8,128]"]
    assert (gather.kind, gather.group, gather.count, gather.source) == ("all-gather", 4, 30, "w")
    assert gather.sent == 30 * 8 * 128 * 2 * 3 / 4
    scatter = found["bf16[64,128]"]
    assert (scatter.kind, scatter.group, scatter.count) == ("reduce-scatter", 4, 30)
    assert scatter.sent == 30 * 64 * 128 * 2 * 3 / 4
    reduce = found["f32[16,8]"]
    assert (reduce.kind, reduce.group, reduce.count) == ("all-reduce", 4, 30)
    assert reduce.sent == 30 * 2 * 16 * 8 * 4 * 3 / 4


def test_collectives_that_the_compiler_has_combined_count_in_full():
    text = """
ENTRY %main (p: f32[2], q: bf16[2,3]) -> f32[4] {
  %p = f32[2]{0} parameter(0)
  %q = bf16[2,3]{1,0} parameter(1)
  %one = (f32[2]{0}, f32[4]{0}) all-gather-start(%p), replica_groups={{0,1}}
  %two = ((f32[2]{0}, bf16[2,3]{1,0}), (f32[4]{0}, bf16[4,3]{1,0})) all-gather-start(%p, %q), \\
replica_groups={{0,1}}
  %moved = (f32[2]{0}, f32[2]{0}, u32[], u32[]) collective-permute-start(%p)
}
""".replace("\\\n", "")
    one, two, moved = hlo.collectives(hlo.parse_hlo(text))
    assert (one.shape, one.sent) == ("f32[4]", 4 * 4 / 2)
    assert (two.shape, two.sent) == ("f32[4], bf16[4,3]", (4 * 4 + 4 * 3 * 2) / 2)
    assert (moved.shape, moved.sent) == ("f32[2]", 2 * 4)


def test_what_only_the_data_decides_is_marked():
    found = hlo.collectives(hlo.parse_hlo(TPU))
    (permute,) = [x for x in found if x.in_loop]
    assert (permute.kind, permute.shape, permute.count) == ("collective-permute", "f32[24,8]", 1)
    assert permute.sent == 24 * 8 * 4
    assert len(found) == 6, "a piece of a gather, and the end of a permutation, are no more of them"


def test_groups_are_read_in_every_way_they_are_written():
    found = {x.shape: x.group for x in hlo.collectives(hlo.parse_hlo(TPU))}
    assert found == {
        "bf16[8,128]": 4, "bf16[64,128]": 4, "f32[16,8]": 4, "f32[24,8]": 2, "bf16[64,16]": 4,
        "(f32[4], f32[4])": 2,
    }  # fmt: skip
    pair = next(x for x in hlo.collectives(hlo.parse_hlo(TPU)) if x.shape.startswith("("))
    assert pair.sent == 2 * 32 / 2


def test_totals_copies_and_kernels():
    program = hlo.parse_hlo(TPU)
    totals = hlo.totals_by_kind(hlo.collectives(program))
    assert totals["all-gather"] == (31, 30 * 1536 + 64 * 16 * 2 * 3 / 4)
    assert totals["all-reduce"][0] == 31 and totals["reduce-scatter"][0] == 30
    copies = {"bf16[1024,1024]": 2**21, "f32[512,1024]": 2**21}
    assert hlo.large_copies(program, 2**20) == copies, "at entry and in a loop, the large ones"
    assert hlo.large_copies(program, 2**11)["bf16[8,128]"] == 30 * 2**11, "in every turn of a loop"
    assert hlo.count_kernels(program) == 1


def test_a_move_to_another_memory_is_no_copy():
    """The first goes from VMEM, S(1), to HBM in the same layout; the other changes its layout."""
    text = """
HloModule moved

ENTRY %main (x: f32[512,1024]) -> f32[512,1024] {
  %x = f32[512,1024]{1,0:T(8,128)S(1)} parameter(0)
  %moved = f32[512,1024]{1,0:T(8,128)} copy(%x), backend_config={}
  ROOT %turned = f32[512,1024]{0,1:T(8,128)} copy(%moved)
}
"""
    assert hlo.large_copies(hlo.parse_hlo(text), 2**20) == {"f32[512,1024]": 2**21}


def test_cycles_of_a_call_of_branches_and_of_a_trip():
    """A loop whose trip count is unknown counts once, apart from others, which count per trip."""
    outer = """
ENTRY %outer (x: f32[2]) -> f32[2] {
  %first = f32[2]{0} fusion(%x), calls=%piece.9, backend_config={"estimated_cycles":"5"}
  %chosen = f32[2]{0} conditional(%p, %x, %x), branch_computations={%taken, %other}
}

%taken (x: f32[2]) -> f32[2] {
  %second = f32[2]{0} fusion(%x), calls=%piece.8, backend_config={"estimated_cycles":"7"}
}
"""
    assert hlo.cycles(hlo.parse_hlo(TPU)) == hlo.Totals(0, 0, 700 + 30 * 10)
    assert hlo.cycles(hlo.parse_hlo(outer)) == hlo.Totals(5, 7, 0)


def test_a_count_that_the_compiler_gives():
    (reduce,) = hlo.collectives(hlo.parse_hlo(CPU))
    assert (reduce.count, reduce.group) == (3, 8)
    assert reduce.sent == pytest.approx(3 * 8 * 2 * 7 / 8)


def test_rings_are_those_that_the_tpu_compiler_names():
    """Rings stand in the configuration of a collective or of the fusion around it, or nowhere."""
    text = """
HloModule sums

%all-reduce-scatter (p: bf16[64]) -> bf16[16] {
  %p = bf16[64]{0} parameter(0)
  %sum = bf16[64]{0} all-reduce(%p), channel_id=3, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %own = bf16[16]{0} dynamic-slice(%sum, %place), dynamic_slice_sizes={16}
}

ENTRY %main (x: bf16[64]) -> bf16[64] {
  %x = bf16[64]{0} parameter(0)
  %split = bf16[16]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter, \
backend_config={"collective_algorithm_config":{"debug":"Strategy{colors:1 phases:1 cores:{4}"}}
  %near = bf16[64]{0} all-reduce(%x), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add, \
backend_config={"collective_algorithm_config":{"debug":"Strategy{colors:2 phases:1 cores:{4},{4}"}}
  ROOT %far = bf16[64]{0} all-reduce(%near), channel_id=2, replica_groups={{0,1,2,3}}, to_apply=%add
}
"""
    found = hlo.collectives(hlo.parse_hlo(text))
    assert [(x.kind, x.rings) for x in found] == [
        ("reduce-scatter", 1), ("all-reduce", 2), ("all-reduce", 0),
    ]  # fmt: skip


def test_text_that_is_no_program():
    with pytest.raises(ValueError, match="no ENTRY"):
        hlo.parse_hlo("HloModule nothing\n")


def test_a_real_program_of_this_jax():
    import jax
    import jax.numpy as jnp

    def loop(x):
        return jax.lax.fori_loop(0, 5, lambda _, x: jnp.sin(x @ x), x)

    text = jax.jit(loop).lower(jnp.ones((16, 16))).compile().as_text()
    assert text
    program = hlo.parse_hlo(text)
    loops = [x for _, x, *_ in hlo.walk_instructions(program) if x.op == "while"]
    assert [hlo.trip_count(program, x) for x in loops] == [5]
    assert hlo.collectives(program) == []


def test_a_branch_of_a_condition_is_marked():
    outer = """
ENTRY %outer (x: f32[2]) -> f32[2] {
  %first = f32[2]{0} all-reduce(%x), channel_id=9, replica_groups=[1,8]<=[8], to_apply=%add
  %chosen = f32[2]{0} conditional(%p, %x, %x), branch_computations={%main, %other}
}
"""
    text = CPU.replace("ENTRY ", "") + outer
    first, inner = hlo.collectives(hlo.parse_hlo(text))
    assert (first.in_branch, inner.in_branch) == (False, True) and inner.count == 3
