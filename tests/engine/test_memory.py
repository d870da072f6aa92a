"""A phase's shapes and the bytes of its keys and values, against figures worked out by hand."""

from typing import Any

import pytest
from helpers import loop_cases
from jax.sharding import AbstractMesh

from vinejax.core.errors import RoomError
from vinejax.engine import memory
from vinejax.engine.branches import Feeder
from vinejax.engine.cache import Sizes
from vinejax.engine.memory import EngineSettings, Workload, cache_bytes, fit_memory, sizes_of
from vinejax.engine.ring import RingStorage
from vinejax.model.sharding import AXES

MODEL = loop_cases.model()
ONE, TWO = (AbstractMesh((shards, 1, 1), AXES) for shards in (1, 2))
UNIT = cache_bytes(MODEL, ONE, 1)


def test_a_column_has_a_key_and_a_value_of_each_head_in_each_layer():
    cfg = MODEL.cfg
    numbers = 2 * cfg.num_layers * cfg.num_kv_heads * cfg.head_dim
    assert cache_bytes(MODEL, ONE, 1) == 4 * numbers, "float32"
    split = AbstractMesh((1, 1, cfg.num_kv_heads), AXES)
    assert cache_bytes(MODEL, split, 10) == 10 * 4 * numbers // cfg.num_kv_heads
    repeated = AbstractMesh((1, 1, 2 * cfg.num_kv_heads), AXES)
    assert cache_bytes(MODEL, repeated, 10) == cache_bytes(MODEL, split, 10), "one head each"


@pytest.mark.parametrize(
    "room, expected",
    [
        (240, (16, 16)),  # 16 rows of 10 columns and 16 slots of 5
        (239, (16, 15)),  # first fewer rows
        (160, (16, 8)),  # but eight of them, as long as all slots fit
        (159, (16, 7)),
        (100, (10, 5)),  # then half of the memory for rows
        (15, (1, 1)),
    ],
)
def test_rows_are_reduced_before_slots(room: int, expected: tuple[int, int]):
    assert fit(room * UNIT, columns=10, width=5) == expected


def test_a_slot_of_full_width_fits_beside_the_rows():
    """Half of the memory would hold six rows of 2 columns, but then no slot of 20."""
    assert fit(26 * UNIT, columns=2, width=20) == (1, 3)


def test_memory_for_less_than_a_row_and_a_slot_is_refused():
    with pytest.raises(RoomError, match="one trunk of 10 tokens and one slot of 5"):
        fit(15 * UNIT - 1, columns=10, width=5)


def fit(room: int, columns: int, width: int) -> tuple[int, int]:
    """Slots and rows for 16 of each in `room` bytes."""
    return fit_memory(MODEL, ONE, room, 16, 16, columns, width, RingStorage("cpu", False))


def shapes(
    workload: Workload,
    feed: Feeder | None = None,
    mesh: AbstractMesh = ONE,
    platform: str = "cpu",
    room: int = 2**34,
    **settings: Any,
) -> Sizes:
    """The shapes of a phase in `room` bytes, with 64 slots unless `settings` differ."""
    chosen: dict[str, Any] = {"slots": 64} | settings
    engine = EngineSettings(**chosen)
    sizes, taken = sizes_of(MODEL, mesh, platform, room, engine, workload, feed)
    of_slots = sizes.storage.columns(sizes.slots, sizes.width)
    assert taken == UNIT * (sizes.rows * sizes.columns + of_slots)
    return sizes


def feeder(branches: int, at_once: int, longest: int = 100) -> Feeder:
    return Feeder(lambda: None, branches, longest, at_once)


def test_shards_share_the_work():
    """Each has half of the slots, trunks and branches of a phase, and of what a feed brings."""
    phase = Workload(trunks=16, branches=20, longest=100, budget=32)
    one, two = shapes(phase), shapes(phase, mesh=TWO)
    assert (one.slots, one.rows) == (32, 16) and (two.slots, two.rows) == (16, 8)
    fed = shapes(phase, feeder(branches=10_000, at_once=40), mesh=TWO)
    assert fed.slots == 32 and fed.queue == 8192
    assert shapes(phase, feeder(branches=10_000, at_once=200)).slots == 64
    assert shapes(phase, feeder(branches=10_000, at_once=9)).slots == 16, "nine at a time"


def test_a_feed_has_room_for_its_trunks():
    """For the longest of them, and for a row each, but no more than two rows a slot."""
    phase = Workload(trunks=2, branches=2, longest=20, budget=32)
    fed = shapes(phase, feeder(branches=300, at_once=60, longest=300))
    assert (fed.columns, fed.slots, fed.rows) == (384, 64, 96)
    assert shapes(phase, feeder(branches=300, at_once=60, longest=10)).columns == 32
    assert shapes(phase, feeder(branches=300, at_once=500)).rows == 128


def test_a_feeds_rows_have_the_lanes_of_either_input():
    """With the kernel, for which empty lanes cost nothing, as many as one trunk's branches need."""
    one_trunk = Workload(trunks=1, branches=64, longest=20, budget=32)
    fed = shapes(one_trunk, feeder(branches=300, at_once=60), attention="kernel")
    assert fed.lanes == 64 and shapes(one_trunk, feeder(branches=300, at_once=60)).lanes == 1


def test_rows_that_are_set_or_lack_memory_have_lanes_for_all_slots():
    phase = Workload(trunks=64, branches=64, longest=100, budget=32)
    assert (shapes(phase).rows, shapes(phase).lanes) == (64, 2)
    assert (shapes(phase, window_rows=4).rows, shapes(phase, window_rows=4).lanes) == (4, 32)


def test_pages_get_the_memory_that_rows_leave():
    phase = Workload(trunks=64, branches=64, longest=100, budget=512)
    whole = shapes(phase, attention="kernel")
    assert (whole.rows, whole.columns, whole.storage.columns(64, 512)) == (64, 256, 64 * 512)
    less = shapes(phase, attention="kernel", room=UNIT * 64 * (256 + 384))
    assert (less.rows, less.storage.columns(64, 512)) == (64, 64 * 384)


def test_a_feeds_trunks_are_computed_in_small_batches():
    """A few of them enter at a time, while a GPU computes up to 64 trunks of other phases."""
    phase, gpu = Workload(1000, 2000, 100, 64), {"platform": "gpu", "slots": 512}
    assert shapes(phase, **gpu, attention="xla").batch == 64
    assert shapes(phase, feeder(4000, at_once=1000), **gpu, attention="xla").batch == 8


def test_a_batch_of_a_prefill_is_for_the_rows():
    batch = memory.prefill_batch
    assert batch("cpu", slots=8, rows=16, columns=64, is_fed=False) == 8
    assert batch("cpu", slots=9, rows=16, columns=64, is_fed=False) == 4, "fewer than two rows each"
    assert batch("cpu", slots=64, rows=3, columns=64, is_fed=False) == 1
    assert batch("tpu", slots=8, rows=16, columns=64, is_fed=False) == 4
    assert batch("gpu", slots=64, rows=1024, columns=64, is_fed=False) == 64
    assert batch("gpu", slots=64, rows=1024, columns=64, is_fed=True) == 8
