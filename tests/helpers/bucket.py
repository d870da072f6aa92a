"""An object store in memory, for tests on gs:// paths in tests/model and runtime."""

from typing import Any

import pytest
from etils.epath import backend
from fsspec.implementations.memory import MemoryFileSystem


class Bucket(MemoryFileSystem):
    """Objects by name, as a client for gs:// shows them."""

    protocol = "gs"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("gs://"))

    def glob(self, path: str, **kwargs: Any) -> list[str]:
        return [str(name).lstrip("/") for name in super().glob(path, **kwargs)]


def empty_bucket(patch: pytest.MonkeyPatch) -> Bucket:
    """The store that gs:// paths are in from now on."""
    store = Bucket()
    store.store.clear()
    patch.setattr(backend.fsspec_backend, "fs", lambda path: store)
    return store
