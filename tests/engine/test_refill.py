"""Slots that take items, compared with a walk over rows and slots."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vinejax.engine.decode import ChunkInputs, Queue, Slots, _refill
from vinejax.engine.window import WindowRows

SLOTS, ROWS, LANES, ITEMS = 12, 7, 3, 64


class State(NamedTuple):
    queue: Queue
    slots: Slots
    rows: WindowRows


def random_state(seed: int) -> State:
    """Rows with some of their items in slots, some full and some without items; many ties."""
    rng = np.random.default_rng(seed)
    count = rng.integers(0, 9, ROWS)
    end = np.cumsum(count)
    taken = np.minimum(rng.integers(0, LANES + 1, ROWS), count)
    next_item = end - count + taken
    slots = [(row, end[row] - count[row] + n) for row in range(ROWS) for n in range(taken[row])]
    slots = [slots[i] for i in rng.permutation(len(slots))[:SLOTS]]
    idle = [(int(rng.integers(ROWS)), -1)] * (SLOTS - len(slots))
    row, item = np.array([*slots, *idle], np.int64)[rng.permutation(SLOTS)].T
    budgets = rng.integers(1, 4, ITEMS)
    token, match = rng.integers(0, 99, ITEMS), rng.integers(0, 9, ITEMS)
    zeros = np.zeros((ITEMS, 2))
    queue = [zeros[:, 0], token, zeros, budgets, match, np.cumsum(budgets) - budgets]
    of_slots = [np.zeros(1), item, row, *rng.integers(0, 99, (3, SLOTS)), None]
    of_rows = [next_item, end, rng.permutation(ROWS) // 2]
    state = State(Queue._make(queue), Slots._make(of_slots), WindowRows._make(of_rows))
    return jax.tree.map(lambda x: np.asarray(x, np.int32), state)


def walk(state: State, trunks_wait: bool) -> tuple[Slots, WindowRows]:
    """The oracle: the next idle slot takes the next item of the most urgent row with a lane."""
    queue, slots, rows = jax.tree.map(np.copy, state)
    work_left = queue.before[rows.end] - queue.before[rows.next]
    urgency = -rows.loaded if trunks_wait else work_left
    free = LANES - np.bincount(slots.row[slots.item >= 0], minlength=ROWS)
    for slot in np.flatnonzero(slots.item < 0):
        ready = [i for i in range(ROWS) if rows.next[i] < rows.end[i] and free[i] > 0]
        if not ready:
            break
        row = max(ready, key=lambda i: (urgency[i], -i))
        item = rows.next[row]
        slots.item[slot], slots.row[slot], slots.age[slot] = item, row, 0
        slots.token[slot], slots.match[slot] = queue.token[item], queue.match[item]
        rows.next[row] += 1
        free[row] -= 1
    return slots, rows


@jax.jit
def refilled(state: State, trunks_wait: Any) -> tuple[Slots, WindowRows]:
    nothing: Any = None
    inputs = ChunkInputs(nothing, nothing, state.queue, nothing, trunks_wait)
    return _refill(inputs, state.slots, state.rows, LANES)


@pytest.mark.parametrize("trunks_wait", [False, True])
def test_idle_slots_take_the_items_of_a_walk(trunks_wait: bool):
    for seed in range(100):
        state = random_state(seed)
        found, expected = refilled(state, jnp.array(trunks_wait)), walk(state, trunks_wait)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
