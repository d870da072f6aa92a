"""safetensors files: we read those of the library by range, and it reads ours."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save, save_file

from vinejax.core.errors import ModelError
from vinejax.model.hf.tensors import (
    NewTensor,
    find_tensors,
    put_in_place,
    read_header,
    write_temporary,
)

RNG = np.random.default_rng(0)
TENSORS = {
    "a": RNG.normal(size=(5, 3)).astype(np.float32),
    "b.weight": RNG.normal(size=(4, 2)).astype(jnp.bfloat16),
    "c": RNG.normal(size=7).astype(np.float16),
    "d": RNG.normal(size=(2, 3, 2)),
    "empty": np.zeros((0, 3), np.float32),
}


def new(tensors: dict[str, np.ndarray]) -> list[NewTensor]:
    return [NewTensor(k, v.dtype, v.shape, lambda v=v: v) for k, v in tensors.items()]


def write_tensors(folder: Path, tensors: list[NewTensor], max_bytes: int) -> None:
    path = epath.Path(folder)
    put_in_place(path, write_temporary(path, tensors, max_bytes))


def test_rows_of_what_the_library_wrote(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = find_tensors(epath.Path(tmp_path))
    assert found.keys() == TENSORS.keys()
    for name, x in TENSORS.items():
        assert (found[name].shape, found[name].dtype) == (x.shape, x.dtype)
        np.testing.assert_array_equal(found[name].rows(0, len(x)), x)
    np.testing.assert_array_equal(found["a"].rows(2, 4), TENSORS["a"][2:4])


@pytest.mark.parametrize("limit, files", [(10**9, 1), (60, 4), (1, 5)])
def test_the_library_reads_what_was_written(limit, files, tmp_path):
    write_tensors(tmp_path, new(TENSORS), limit)
    parts = [load_file(file) for file in sorted(tmp_path.glob("*.safetensors"))]
    assert len(parts) == files
    merged = {name: x for part in parts for name, x in part.items()}
    assert merged.keys() == TENSORS.keys()
    for name, x in TENSORS.items():
        assert merged[name].dtype == x.dtype
        np.testing.assert_array_equal(merged[name], x)


def test_tensors_are_made_one_at_a_time(tmp_path):
    """Each is computed after the one before it is written, so that memory holds one tensor."""
    seen = []

    def make(name: str) -> np.ndarray:
        written = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors*"))
        seen.append((name, written > 0))
        return np.zeros(2**16, np.float32)  # larger than a file's buffer

    names = ["a", "b", "c"]
    tensors = [NewTensor(x, np.dtype(np.float32), (2**16,), lambda x=x: make(x)) for x in names]
    write_tensors(tmp_path, tensors, 10**9)
    assert seen == [("a", False), ("b", True), ("c", True)]


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    def fail() -> np.ndarray:
        raise RuntimeError("no memory")

    save_file({"old": np.ones(3, np.float32)}, tmp_path / "model.safetensors")
    broken = [*new(TENSORS), NewTensor("z", np.dtype(np.float32), (1,), fail)]
    for limit in (10**9, 60):
        with pytest.raises(RuntimeError):
            write_tensors(tmp_path, broken, limit)
        assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
        assert load_file(tmp_path / "model.safetensors").keys() == {"old"}


WHOLE = save({"a": TENSORS["a"], "c": TENSORS["c"]})


@settings(max_examples=300, deadline=None)
@given(
    at=st.integers(0, len(WHOLE) - 1),
    new_byte=st.integers(0, 255),
    size=st.integers(0, len(WHOLE) + 20),
)
def test_damage_is_a_model_error_or_harmless(tmp_path_factory, at, new_byte, size):
    """With a changed byte or another length, there is no other error and no read past the end."""
    file = Path(tmp_path_factory.getbasetemp()) / "damaged.safetensors"
    data = bytearray(WHOLE)
    data[at] = new_byte
    file.write_bytes((data + bytes(20))[:size])
    try:
        tensors = read_header(epath.Path(file))
    except ModelError as error:
        assert str(file) in str(error) and "\n" not in str(error)
        return
    for tensor in tensors:
        if tensor.shape and 0 < tensor.shape[0] < 100:
            tensor.rows(0, tensor.shape[0])


@pytest.mark.parametrize(
    "entry",
    [
        None, 3, {}, dict(dtype="F32", shape=[1]),
        dict(dtype="F32", shape=["1"], data_offsets=[0, 4]),
        dict(dtype="F32", shape=[-1], data_offsets=[0, -4]),
        dict(dtype="F32", shape=[1], data_offsets=[4, 0]),
        dict(dtype="F32", shape=[2], data_offsets=[0, 4]),
        dict(dtype=["F32"], shape=[1], data_offsets=[0, 4]),
        dict(dtype="F32", shape=3, data_offsets=[0, 4]),
    ],
)  # fmt: skip
def test_headers_that_say_nonsense(entry, tmp_path):
    header = json.dumps({"a": entry}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    with pytest.raises(ModelError, match="model.safetensors"):
        read_header(epath.Path(file))


@pytest.mark.parametrize("weight_map", [[], ["a"], {"a": 1}, "a", 3])
def test_an_index_that_says_nonsense(weight_map, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError, match="weight_map must name|has no .*safetensors"):
        find_tensors(epath.Path(tmp_path))
