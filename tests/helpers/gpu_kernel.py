"""Lets `attention='kernel'` mean the interpreted kernel for GPU in engines on a CPU."""

from typing import Any

import pytest

from vinejax.engine import memory
from vinejax.engine.gpu.kernel_ring import KernelRingStorage

STORAGE = KernelRingStorage("gpu", shares_heads=True, interpret=True)


def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    storage_for = memory.storage_for

    def replaced(model: Any, platform: str, attention: str) -> Any:
        return STORAGE if attention == "kernel" else storage_for(model, platform, attention)

    monkeypatch.setattr(memory, "storage_for", replaced)
