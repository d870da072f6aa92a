"""The files that `save_pretrained` writes, replaces, and leaves as they are."""

import dataclasses
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.model_oracles import Model, random_model
from safetensors.numpy import load_file

from vinejax.core.errors import ModelError
from vinejax.model.hf import weights
from vinejax.model.hf.weights import load_pretrained, save_pretrained
from vinejax.training.warmup import warm_up


def assert_equal(found: Any, expected: Any) -> None:
    """Equal parameters, bit for bit."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def files(folder: pathlib.Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def folder(tiny: Model, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder saved once, in several files, which no test may change."""
    path = tmp_path_factory.mktemp("saved") / "model"
    save_pretrained(path, *tiny, max_shard_bytes=20_000)
    return path


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_weights_stored_in_half_precision(stored, tiny, tmp_path):
    save_pretrained(str(tmp_path), *tiny, dtype=stored)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == stored
    rounded = jax.tree.map(lambda x: x.astype(stored), tiny.params)
    assert_equal(load_pretrained(str(tmp_path), dtype=stored)[1], rounded)
    widened = load_pretrained(tmp_path)[1]
    assert_equal(widened, jax.tree.map(lambda x: x.astype(jnp.float32), rounded))


def test_weights_over_a_size_are_several_files_with_an_index(tiny, folder):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    parts = {file.name: load_file(file) for file in folder.glob("*.safetensors")}
    assert len(parts) >= 3 and max(map(len, files(folder).values())) < 22_000
    assert index["weight_map"] == {name: file for file, part in parts.items() for name in part}
    size = sum(x.nbytes for part in parts.values() for x in part.values())
    assert index["metadata"] == {"total_size": size}
    assert_equal(load_pretrained(folder)[1], tiny.params)


def test_no_file_of_the_save_before_is_left(tiny, tmp_path):
    save_pretrained(tmp_path, *tiny, max_shard_bytes=20_000)
    save_pretrained(tmp_path, *tiny)
    assert {x.name for x in tmp_path.glob("*.safetensors*")} == {"model.safetensors"}
    assert_equal(load_pretrained(tmp_path)[1], tiny.params)


def test_generation_config_is_carried_along(tiny, tmp_path):
    text = '{"eos_token_id": [3, 1], "temperature": 0.6}'
    save_pretrained(tmp_path / "model", *tiny)
    (tmp_path / "model" / "generation_config.json").write_text(text)
    model, params, tokenizer = load_pretrained(tmp_path / "model")
    save_pretrained(tmp_path / "again", model, params, tokenizer)
    assert (tmp_path / "again" / "generation_config.json").read_text() == text
    save_pretrained(tmp_path / "again", *tiny)
    assert not (tmp_path / "again" / "generation_config.json").exists()


@pytest.mark.parametrize(
    "text, stops, expected",
    [
        ("", (), None),
        ("", (1,), None),
        ("", (4,), {"bos_token_id": None, "eos_token_id": [1, 4]}),
        ('{"temperature": 0.6}', (), {"temperature": 0.6, "eos_token_id": [1]}),
        ('{"eos_token_id": 3}', (), {"eos_token_id": [1, 3]}),
        ('{"eos_token_id": [3, 1]}', (3,), {"eos_token_id": [3, 1]}),
        ('{"eos_token_id": [3, 1]}', (4,), {"eos_token_id": [1, 3, 4]}),
    ],
)
def test_generation_config_has_all_ids_that_end_a_text(tiny, tmp_path, text, stops, expected):
    """transformers reads no other ids where the file has some."""
    model = dataclasses.replace(tiny.decoder, generation_config=text)
    save_pretrained(tmp_path, model, tiny.params, tiny.tokenizer, stop_ids=stops)
    file = tmp_path / "generation_config.json"
    assert (json.loads(file.read_text()) if file.exists() else None) == expected


# --- what cannot be saved changes nothing ---


def without(params: Any, name: str) -> Any:
    return {key: value for key, value in params.items() if key != name}


WRONG: dict[str, tuple[Any, str]] = {
    "missing": (lambda p: without(p, "head"), "parameter head is missing"),
    "too many": (lambda p: p | {"bias": p["head"]}, "parameter bias is no part of the model"),
    "misshapen": (
        lambda p: p | {"norm": {"scale": p["norm"]["scale"][:31]}},
        r"parameter norm/scale has shape \(31,\), the model says \(32,\)",
    ),
    "quantized": (lambda p: p | {"head": p["head"].astype(jnp.int8)}, "parameter head is int8"),
}


@pytest.mark.parametrize("name", WRONG)
def test_parameters_that_are_not_the_model_s(name, tiny, folder):
    change, message = WRONG[name]
    before = files(folder)
    with pytest.raises(ModelError, match=message) as error:
        save_pretrained(folder, tiny.decoder, change(tiny.params), tiny.tokenizer)
    assert "\n" not in str(error.value) and files(folder) == before


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "half"])
def test_a_dtype_that_is_none(dtype, tiny, folder):
    before = files(folder)
    with pytest.raises(ModelError, match=f"dtype = '{dtype}' is none of float32, bfloat16"):
        save_pretrained(folder, *tiny, dtype=dtype)
    assert files(folder) == before


def test_a_model_that_no_llama_is_like(tiny, folder):
    model, params, _ = random_model(qkv_bias=True)
    before = files(folder)
    with pytest.raises(ModelError, match="cannot be saved"):
        save_pretrained(folder, model, params, tiny.tokenizer)
    assert files(folder) == before


def test_a_disk_that_is_full_leaves_the_folder_as_it_was(tiny, folder, monkeypatch):
    """This includes config and tokenizer, which belong to the old weights."""
    other, made = random_model(num_layers=3), []

    def fetch(x: Any) -> np.ndarray:
        made.append(x.shape)
        if len(made) == 9:
            raise OSError("No space left on device")
        return np.asarray(x)

    monkeypatch.setattr(weights, "whole_array", fetch)
    before = files(folder)
    with pytest.raises(OSError, match="No space left"):
        save_pretrained(folder, other.decoder, other.params, tiny.tokenizer, max_shard_bytes=20_000)
    assert files(folder) == before


# --- what is computed otherwise is saved the same ---


@pytest.mark.parametrize("how", [dict(remat="full"), dict(attention="xla"), dict(remat="dots")])
def test_a_model_is_saved_however_it_computes(how, tiny, tmp_path):
    model, params, _ = random_model(vocab_size=tiny.decoder.cfg.vocab_size, **how)
    save_pretrained(tmp_path, model, params, tiny.tokenizer)
    assert_equal(load_pretrained(tmp_path)[1], params)


@pytest.mark.slow
def test_a_warm_up_that_recomputes_layers_is_saved(tmp_path):
    model = {"remat": "full", "attention": "xla"}
    data = {"task": "helpers.loop_cases"}
    folder = warm_up(cases.config(model=model, data=data, sft={"steps": 1}), tmp_path)
    assert load_pretrained(folder)[0].cfg.num_layers == 1
