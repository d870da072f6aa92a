"""Plans of solutions and values in one stream."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import plan_cases
from helpers.plan_cases import small

from vinejax.tools.plan.aot.iteration import iteration_stages
from vinejax.tools.plan.beside import has_stream
from vinejax.tools.plan.cost import decode_cost, prefill_cost, program_costs
from vinejax.tools.plan.memory import memory_and_phases, program_phase
from vinejax.tools.plan.roofline import least_seconds, plan_program
from vinejax.tools.plan.stream import StreamSteps, simulated, simulated_early, stream_steps


@pytest.fixture(autouse=True)
def heads_for_the_kernel(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(plan_cases.SMALL, "head_dim", 64)


def step_by_step(
    solutions: np.ndarray,
    values: np.ndarray,
    shards: int,
    slots: int,
    drains: list[int],
    chunk: int,
) -> StreamSteps:
    """The oracle: every token of every branch."""
    each = solutions.shape[1]
    of_shards: list[list[list[int]]] = [[] for _ in range(shards)]  # [tokens left, problem]
    for i, tokens in enumerate(solutions.ravel()):
        of_shards[i * shards // solutions.size].append([int(tokens), i // each])
    left, due, fed = [each] * len(solutions), {}, set()
    step = worked = 0
    begins = [(0, 0)]  # (step, tokens until then) at which each shape's steps begin
    while any(of_shards) or len(fed) < len(solutions):
        for problem in sorted(p for p, at in due.items() if at == step and p not in fed):
            fed.add(problem)
            for lengths in values[problem]:
                place = int(np.argmin([len(branches) for branches in of_shards]))
                of_shards[place] += [[int(tokens), -1] for tokens in lengths]
        for drain in drains[len(begins) - 1 :]:
            if len(fed) == len(solutions) and max(map(len, of_shards)) <= drain:
                begins.append((step, worked))
        for branches in of_shards:
            for branch in branches[:slots]:
                branch[0] -= 1
                worked += 1
        step += 1
        for branches in of_shards:
            for _, problem in [branch for branch in branches if not branch[0]]:
                if problem >= 0:
                    left[problem] -= 1
                    if not left[problem]:
                        due[problem] = (step // (chunk // 2) + 2) * (chunk // 2)
            branches[:] = [branch for branch in branches if branch[0]]
    begins += [(step, worked)] * (len(drains) + 2 - len(begins))
    steps, tokens = np.diff(begins, axis=0).T
    busy = tokens / shards / np.maximum(steps, 1)
    return StreamSteps(tuple(steps), tuple(busy), len(set(due.values())))


@pytest.mark.parametrize(
    ("shards", "slots", "drains"), [(1, 3, []), (2, 4, [1]), (3, 2, [2]), (2, 50, [5, 2])]
)
def test_a_stream_has_the_steps_of_its_tokens(shards: int, slots: int, drains: list[int]):
    rng = np.random.default_rng(shards)
    solutions, values = rng.integers(1, 40, (4, 3)), rng.integers(1, 30, (4, 3, 2))
    given = solutions, values, shards, slots, drains, 8
    for found, wanted in zip(simulated(*given), step_by_step(*given), strict=True):
        np.testing.assert_allclose(found, wanted)


def early_step_by_step(
    solutions: np.ndarray,
    places: list[np.ndarray],
    values: list[np.ndarray],
    shards: int,
    slots: int,
    drains: list[int],
    chunk: int,
) -> StreamSteps:
    """The oracle: every token of every branch; each prefill has one trunk."""
    half, step, worked, begun = chunk // 2, 0, 0, [(0, 0)]
    shard_of = [i * shards // len(solutions) for i in range(len(solutions))]
    first = [[i for i, at in enumerate(shard_of) if at == shard] for shard in range(shards)]
    left = [sum(1 + values[i].size for i in own) for own in first]
    waiting: list[list[list[int]]] = [[] for _ in first]  # [step, number, tokens]
    under_way: list[list[int]] = [[] for _ in first]  # tokens left
    loads: dict[int, list[int]] = {}
    known = number = 0
    while any(left):
        for drain in drains[len(begun) - 1 :]:
            if not any(first) and step >= known and max(left) <= drain:
                begun.append((step, worked))
        for shard, (queue, busy) in enumerate(zip(waiting, under_way, strict=True)):
            while len(busy) < slots and (first[shard] or (queue and queue[0][0] <= step)):
                if not first[shard]:
                    busy.append(queue.pop(0)[2])
                    continue
                i = first[shard].pop(0)
                busy.append(int(solutions[i]))
                end = step + int(solutions[i])
                entered = (end // half + 2) * half
                known, is_late = max(known, entered), False
                for place, lengths in zip(places[i].tolist(), values[i].tolist(), strict=True):
                    begins = ((step + place) // half + 2) * half
                    is_late = begins >= end
                    for n in lengths:
                        number += 1
                        queue.append([entered if is_late else begins, number, n])
                if is_late:
                    loads.setdefault(entered, []).append(shard)
                queue.sort()
            worked += len(busy)
            busy[:] = [n - 1 for n in busy]
            left[shard] -= busy.count(0)
            busy[:] = [n for n in busy if n]
        step += 1
    begun += [(step, worked)] * (len(drains) + 2 - len(begun))
    steps, tokens = np.diff(begun, axis=0).T
    calls = sum(max(np.bincount(of_shards)) for of_shards in loads.values())
    return StreamSteps(tuple(steps), tuple(tokens / shards / np.maximum(steps, 1)), calls)


@pytest.mark.parametrize(
    ("shards", "slots", "drains"), [(1, 3, []), (2, 4, [1]), (3, 2, [2]), (2, 50, [5, 2])]
)
def test_continuations_that_begin_early(shards: int, slots: int, drains: list[int]):
    rng = np.random.default_rng(shards)
    solutions = rng.integers(1, 40, 12)
    places = [np.arange(0, tokens, 7) for tokens in solutions]
    values = [rng.integers(1, 30, (len(x), 2)) for x in places]
    given = solutions, places, values, shards, slots, drains, 8
    for found, wanted in zip(simulated_early(*given, 1), early_step_by_step(*given), strict=True):
        np.testing.assert_allclose(found, wanted)


def test_it_is_planned_where_it_runs(tmp_path: Path):
    def has(topology: str = "v5e:2x4", **fields: Any) -> bool:
        named = {name.replace("__", "."): value for name, value in fields.items()}
        case = small(tmp_path, topology, named)
        return has_stream(case, memory_and_phases(case)[1][-1].sizes)

    assert has()  # 32 solutions in 16 slots, by the kernel
    assert not has(rollout__slots=64)
    assert not has(rollout__attention="xla")
    assert not has(rollout__one_stream="off") and has(rollout__slots=64, rollout__one_stream="on")
    assert not has(method="grpo") and not has(values__dtype="int8")
    waits = {"values__allocation": "bisection"}
    assert has(rollout__slots=64, values__positions="tokens", values__budget="left")
    assert has(**waits)
    assert not has("v4:2x2x2", **waits) and has("v4:2x2x2")  # two hosts


def test_values_take_what_solutions_alone_do_not(tmp_path: Path):
    """Calls of the whole stream, each at the cost that its program has."""
    fields = {"rollout.slots": 4 * 128, "rollout.prompts": 400}
    case = small(tmp_path, "v5e:2x4", fields)
    held, phases = memory_and_phases(case)
    programs = {
        name: plan_program(case, held, program_phase(name, phases), name, cost, {})
        for name, cost in program_costs(case, phases).items()
    }
    alone, values = iteration_stages(case, phases, programs)[:2]
    steps = stream_steps(case, *phases)
    assert [values.calls[name] for name in ("decode", "drain", "drain 2")] == [*steps.steps]
    assert values.calls["prefill"] >= steps.feeds > 1
    tokens = sum(phase.branches * phase.tokens for phase in phases)
    mean = tokens / sum(phase.branches for phase in phases)
    stream = phases[1]._replace(tokens=mean, busy=steps.busy)
    costs = program_costs(case, phases) | {
        "prefill": prefill_cost(case, stream),
        "decode": decode_cost(case, stream),
        "drain": decode_cost(case, stream.in_shape(1)),
        "drain 2": decode_cost(case, stream.in_shape(2)),
    }
    whole = sum(
        count * max(least_seconds(case, costs[name], 0).values())
        for name, count in values.calls.items()
    )
    assert values.seconds == pytest.approx(whole - alone.seconds) and values.seconds > 0
    fields |= {"rollout.one_stream": "off"}
    assert iteration_stages(small(tmp_path, "v5e:2x4", fields), phases, programs)[0] == alone
