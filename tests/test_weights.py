"""Hugging Face folders: what is saved comes back bit for bit, and what is wrong says so by name."""

import json
import pathlib
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_oracles import ALL_BIASES, Model, random_model
from safetensors.numpy import load_file, save_file
from tokenizer_cases import shared

from vinejax.errors import ModelError
from vinejax.model.decoder import apply
from vinejax.model.weights import load_pretrained, save_pretrained
from vinejax.tasks.arithmetic import TOKENIZER

VARIANTS = {
    "gqa": dict(),
    "mha, tied head": dict(num_kv_heads=4, tied_head=True),
    "biases": ALL_BIASES,
    "other sizes": dict(head_dim=6, rope_theta=500.0, norm_eps=1e-3, bos_id=0, eos_ids=(1, 3)),
}
IN_A_LAYER = {
    "input_layernorm.weight": (32,),
    "post_attention_layernorm.weight": (32,),
    "self_attn.q_proj.weight": (32, 32),
    "self_attn.k_proj.weight": (16, 32),
    "self_attn.v_proj.weight": (16, 32),
    "self_attn.o_proj.weight": (32, 32),
    "mlp.gate_proj.weight": (48, 32),
    "mlp.up_proj.weight": (48, 32),
    "mlp.down_proj.weight": (32, 48),
}


def assert_equal(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def edit_json(file: pathlib.Path, **fields: Any) -> None:
    """Sets fields; None removes one."""
    raw = json.loads(file.read_text()) | fields
    file.write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))


def edit_tensors(folder: pathlib.Path, **changes: np.ndarray | None) -> None:
    file = folder / "model.safetensors"
    tensors = {**load_file(file), **changes}
    save_file({k: v for k, v in tensors.items() if v is not None}, file)


@pytest.fixture
def folder(tiny: Model, tmp_path: pathlib.Path) -> pathlib.Path:
    """A good model folder, to be damaged."""
    save_pretrained(tmp_path / "model", *tiny)
    return tmp_path / "model"


# --- what is saved comes back ---


@pytest.mark.parametrize("name", VARIANTS)
def test_round_trip_is_bit_equal(name, tiny, tmp_path):
    model, params, _ = random_model(**VARIANTS[name])
    save_pretrained(str(tmp_path), model, params, tiny.tokenizer)
    loaded, again, tokenizer = load_pretrained(str(tmp_path))
    assert loaded.cfg == model.cfg
    assert_equal(again, params)
    assert tokenizer.get_vocab() == tiny.tokenizer.get_vocab()
    assert tokenizer.eos_token_id == tiny.tokenizer.eos_token_id


def test_a_folder_is_laid_out_as_transformers_writes_a_llama(tiny, folder):
    names = {file.name for file in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["torch_dtype"] == "float32"
    tensors = load_file(folder / "model.safetensors")
    expected = {f"model.layers.{i}.{k}": v for i in range(2) for k, v in IN_A_LAYER.items()}
    top = ("model.embed_tokens.weight", "lm_head.weight")
    expected |= {"model.norm.weight": (32,)} | {name: (20, 32) for name in top}
    assert {name: x.shape for name, x in tensors.items()} == expected

    layer = jax.tree.map(lambda x: np.asarray(x[1]), tiny.params["layers"])
    prefix = "model.layers.1.self_attn"
    # Rows of a torch matrix are outputs, head by head.
    head_2 = tensors[f"{prefix}.q_proj.weight"][16:24]
    np.testing.assert_array_equal(head_2, layer["q"]["kernel"][:, 2].T)
    from_head_2 = tensors[f"{prefix}.o_proj.weight"][:, 16:24]
    np.testing.assert_array_equal(from_head_2, layer["out"]["kernel"][2].T)
    np.testing.assert_array_equal(tensors["lm_head.weight"], tiny.params["head"].T)


def test_a_trained_model_survives_being_saved(stories, tmp_path):
    source = shared("tiny_model/stories260K/hf")
    save_pretrained(str(tmp_path), *stories)
    original, saved = (load_file(x / "model.safetensors") for x in (source, tmp_path))
    assert original.keys() == saved.keys()
    for name, x in original.items():
        np.testing.assert_array_equal(saved[name], x)
    theirs, ours = (json.loads((x / "config.json").read_text()) for x in (source, tmp_path))
    not_ours = {"pad_token_id": 0, "initializer_range": 0.02}
    assert ours | not_ours == theirs | {"eos_token_id": [2]}
    assert stories.decoder.cfg.eos_ids == (2,)
    text = "Lily's  dog,\n12+3=15"
    tokenizer = load_pretrained(tmp_path)[2]
    assert tokenizer.encode(text) == stories.tokenizer.encode(text)


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_weights_stored_in_half_precision(stored, tiny, tmp_path):
    save_pretrained(str(tmp_path), *tiny, dtype=stored)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == stored
    rounded = jax.tree.map(lambda x: x.astype(stored), tiny.params)
    assert_equal(load_pretrained(str(tmp_path), dtype=stored)[1], rounded)
    widened = load_pretrained(tmp_path)[1]
    assert_equal(widened, jax.tree.map(lambda x: x.astype(jnp.float32), rounded))


def test_weights_in_several_files(tiny, folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    for i, part in enumerate((names[::2], names[1::2]), start=1):
        save_file({k: tensors[k] for k in part}, folder / f"model-0000{i}-of-00002.safetensors")
    assert_equal(load_pretrained(folder)[1], tiny.params)


def test_a_mesh_places_the_weights(tiny, folder):
    from vinejax.config import MeshConfig
    from vinejax.model.sharding import make_mesh, param_shardings

    mesh = make_mesh(MeshConfig())
    params = load_pretrained(str(folder), mesh=mesh)[1]
    assert jax.tree.map(lambda x: x.sharding, params) == param_shardings(mesh, params)
    assert_equal(params, tiny.params)


def test_ids_that_end_a_text_are_merged(folder):
    edit_json(folder / "config.json", eos_token_id=1, rope_parameters={"rope_theta": 77.0})
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 1]}')
    model, _, _ = load_pretrained(folder)
    assert model.cfg.eos_ids == (1, 3)
    assert model.cfg.rope_theta == 77.0, "where transformers 5 writes it"


def test_defaults_of_old_configs(folder):
    edit_json(
        folder / "config.json",
        **dict.fromkeys(["num_key_value_heads", "head_dim", "rope_theta", "eos_token_id"]),
        **dict.fromkeys(["attention_bias", "mlp_bias", "tie_word_embeddings", "hidden_act"]),
    )
    for i in range(2):
        wide = np.zeros((32, 32), np.float32)
        names = [f"model.layers.{i}.self_attn.{x}_proj.weight" for x in "kv"]
        edit_tensors(folder, **dict.fromkeys(names, wide))
    model, params, _ = load_pretrained(folder)
    assert (model.cfg.num_kv_heads, model.cfg.head_dim) == (4, 8)
    assert (model.cfg.rope_theta, model.cfg.eos_ids) == (10000.0, ())
    assert apply(model, params, [[1, 2]]).shape == (1, 2, 20)


# --- what is wrong says so ---

DAMAGE: dict[str, tuple[Any, str]] = {
    "no folder": (shutil.rmtree, "model: no such model folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "half a config": (lambda f: (f / "config.json").write_text('{"a'), "config.json is not JSON"),
    "binary config": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "is not JSON"),
    "list for config": (lambda f: (f / "config.json").write_text("[]"), "not a JSON object"),
    "half a generation config": (
        lambda f: (f / "generation_config.json").write_text("{"),
        "generation_config.json is not JSON",
    ),
    "no size": (lambda f: edit_json(f / "config.json", hidden_size=None), "hidden_size = None"),
    "text for size": (
        lambda f: edit_json(f / "config.json", num_hidden_layers="2"),
        "num_hidden_layers = '2' must be a positive integer",
    ),
    "another family": (
        lambda f: edit_json(f / "config.json", model_type="gpt2"),
        "model_type = 'gpt2' is not supported",
    ),
    "another activation": (
        lambda f: edit_json(f / "config.json", hidden_act="gelu"),
        "hidden_act = 'gelu' is not supported",
    ),
    "scaled rope": (
        lambda f: edit_json(f / "config.json", rope_scaling={"rope_type": "llama3", "factor": 8}),
        "rope_type = 'llama3' is not supported",
    ),
    "scaled rope, old": (
        lambda f: edit_json(f / "config.json", rope_scaling={"type": "linear", "factor": 2}),
        "rope_type = 'linear' is not supported",
    ),
    "scaled rope, new": (
        lambda f: edit_json(f / "config.json", rope_parameters={"rope_type": "yarn"}),
        "rope_type = 'yarn' is not supported",
    ),
    "a tensor missing": (
        lambda f: edit_tensors(f, **{"model.layers.1.mlp.up_proj.weight": None}),
        "tensor model.layers.1.mlp.up_proj.weight is missing",
    ),
    "a bias missing": (
        lambda f: edit_json(f / "config.json", attention_bias=True),
        "tensor model.layers.0.self_attn.k_proj.bias is missing",
    ),
    "a tensor of another shape": (
        lambda f: edit_tensors(f, **{"lm_head.weight": np.zeros((20, 31), np.float32)}),
        "model.safetensors: tensor lm_head.weight has shape (20, 31), the config says (20, 32)",
    ),
    "cut short": (
        lambda f: (f / "model.safetensors").write_bytes(
            (f / "model.safetensors").read_bytes()[:-100]
        ),
        "model.safetensors is not a whole safetensors file",
    ),
    "empty weights": (
        lambda f: (f / "model.safetensors").write_bytes(b""),
        "model.safetensors is not a whole safetensors file",
    ),
    "pickled only": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "pickled weights are refused",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "too many tokens": (
        lambda f: edit_json(f / "config.json", vocab_size=19),
        "the tokenizer has 20 tokens, the model only 19",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_bad_folder_is_one_line_that_names_it(name, folder, monkeypatch):
    damage, message = DAMAGE[name]
    damage(folder)
    monkeypatch.setattr(jax, "device_put", lambda *_: pytest.fail("something was allocated"))
    with pytest.raises(ModelError) as error:
        load_pretrained(folder)
    said = str(error.value)
    assert message in said and str(folder) in said
    assert "\n" not in said and error.value.__cause__ is None


def test_a_model_that_no_llama_is_like_cannot_be_saved(tiny, tmp_path):
    model, params, _ = random_model(qkv_bias=True)
    with pytest.raises(ModelError, match="cannot be saved"):
        save_pretrained(str(tmp_path), model, params, tiny.tokenizer)


def test_the_shipped_tokenizer_is_a_folder_without_a_model():
    with pytest.raises(ModelError, match="config.json is missing"):
        load_pretrained(TOKENIZER)
