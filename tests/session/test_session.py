"""The number of slots of a session that does not set it."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import jax.numpy as jnp
import pytest
from helpers import loop_cases
from jax.sharding import Mesh

from vinejax.core.settings import MeshConfig
from vinejax.engine.memory import cache_bytes
from vinejax.model.sharding import make_mesh
from vinejax.session.session import Session

MODEL = loop_cases.model()
COLUMNS = 1024 * cache_bytes(MODEL, make_mesh(MeshConfig()), 16)  # bytes of 1,024 slots


def slots_of(free: int, copy: int = 0, **rollout: Any) -> int:
    """The slots of a session on a GPU with `free` bytes; the decoding copy takes `copy` bytes."""
    device = Mock(memory_stats=lambda: {"bytes_limit": free + 99, "bytes_in_use": 99})
    shape = {"data": 1, "fsdp": 1, "tensor": 1}
    session: Any = SimpleNamespace(
        cfg=loop_cases.config(rollout={"slots": None} | rollout),
        mesh=Mock(spec=Mesh, local_devices=[device], shape=shape),
        model=MODEL,
        start={"w": jnp.zeros(copy // 4)},
    )
    return Session.slots.func(session)


def test_slots_that_are_not_set_follow_the_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch):
    """Keys and values get 0.8 of the memory beside the decoding copy, slots 2/3 of that."""
    monkeypatch.setattr("vinejax.session.session.platform_of", lambda mesh: "gpu")
    enough = COLUMNS * 15 // 8 + 4
    assert slots_of(enough) == slots_of(enough + 400, copy=400) == 1024
    assert slots_of(enough, copy=400) == slots_of(enough // 2) == 512
    assert slots_of(0, memory_gib=COLUMNS * 2 / 2**30) == 1024
    assert slots_of(0, slots=7) == 7
    monkeypatch.setattr("vinejax.session.session.platform_of", lambda mesh: "cpu")
    assert slots_of(0) == 256
