"""Tests files of arrays, such as the batch that a run leaves whose updates were not finite."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from vinejax.runtime import host_arrays
from vinejax.runtime.host_arrays import save_arrays


def test_arrays_have_their_paths_as_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tree = {"batch": {"tokens": np.arange(3)}, "rows": [jnp.ones(2), np.zeros((1, 2))]}
    save_arrays(epath.Path(tmp_path / "found.npz"), tree)
    with np.load(tmp_path / "found.npz") as found:
        assert set(found) == {"batch.tokens", "rows.0", "rows.1"}
        np.testing.assert_array_equal(found["batch.tokens"], [0, 1, 2])
        assert found["rows.0"].shape == (2,) and found["rows.1"].shape == (1, 2)
    monkeypatch.setattr(host_arrays, "is_writer", lambda: False)
    save_arrays(epath.Path(tmp_path / "other.npz"), tree)
    assert [path.name for path in tmp_path.iterdir()] == ["found.npz"]
