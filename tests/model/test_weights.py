"""Hugging Face folders: saving and loading keep every bit, and errors name the fault."""

import dataclasses
import json
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import pytest
from helpers import data
from helpers.model_oracles import ALL_BIASES, Model, random_model
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from vinejax.core.errors import ModelError
from vinejax.core.text import decode, special_tokens
from vinejax.model.decoder import apply
from vinejax.model.hf.tensors import SINGLE
from vinejax.model.hf.weights import load_pretrained, load_tokenizer, save_pretrained
from vinejax.model.rope import Rope
from vinejax.tasks.arithmetic import TOKENIZER

VARIANTS = {
    "gqa": dict(),
    "mha, tied head": dict(num_kv_heads=4, tied_head=True),
    "biases": ALL_BIASES,
    "other sizes": dict(
        head_dim=6, rope=Rope(rope_theta=500.0), norm_eps=1e-3, bos_id=0, eos_ids=(1, 3)
    ),
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
    """Sets fields of a JSON file; None removes a field."""
    raw = json.loads(file.read_text()) | fields
    file.write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))


def renumber_token(folder: pathlib.Path, token: str, number: int) -> None:
    raw = json.loads((folder / "tokenizer.json").read_text())
    assert token in raw["model"]["vocab"]
    raw["model"]["vocab"][token] = number
    (folder / "tokenizer.json").write_text(json.dumps(raw))


def edit_tensors(folder: pathlib.Path, **changes: np.ndarray | None) -> None:
    file = folder / "model.safetensors"
    tensors = {**load_file(file), **changes}
    save_file({k: v for k, v in tensors.items() if v is not None}, file)


def cut(file: pathlib.Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


def write_index(folder: pathlib.Path, weight_map: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def folder(tiny: Model, tmp_path: pathlib.Path) -> pathlib.Path:
    """A good model folder, for tests to damage."""
    save_pretrained(tmp_path / "model", *tiny)
    return tmp_path / "model"


# --- what is saved comes back ---


@pytest.mark.parametrize("name", VARIANTS)
def test_round_trip_is_bit_equal(name, tiny, tmp_path):
    model, params, _ = random_model(**VARIANTS[name])
    save_pretrained(str(tmp_path), model, params, tiny.tokenizer)
    loaded, again, tokenizer = load_pretrained(str(tmp_path))
    ends = {*model.cfg.eos_ids, tiny.tokenizer.eos_token_id}
    assert loaded.cfg == dataclasses.replace(model.cfg, eos_ids=tuple(sorted(ends)))
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
    source = data.path("stories260K/hf")
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
    written = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast", "transformers 4 has no other"
    tokenizer = load_pretrained(tmp_path)[2]
    assert tokenizer.encode(text) == stories.tokenizer.encode(text)


def test_weights_in_several_files(tiny, folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    for i, part in enumerate((names[::2], names[1::2]), start=1):
        save_file({k: tensors[k] for k in part}, folder / f"model-0000{i}-of-00002.safetensors")
    assert_equal(load_pretrained(folder)[1], tiny.params)


def test_what_old_checkpoints_carry_beside_weights(tiny, tmp_path):
    """RoPE's buffers, and a head that repeats the embedding."""
    model, params, _ = random_model(tied_head=True)
    save_pretrained(tmp_path, model, params, tiny.tokenizer)
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    edit_tensors(tmp_path, **{"lm_head.weight": np.asarray(params["embed"]), **buffer})
    assert_equal(load_pretrained(tmp_path)[1], params)


def test_files_beside_the_index_are_not_read(tiny, tmp_path):
    save_pretrained(tmp_path, *tiny, max_shard_bytes=20_000)
    save_file({"wq": np.ones(3, np.float32)}, tmp_path / "consolidated.safetensors")
    assert_equal(load_pretrained(tmp_path)[1], tiny.params)


def test_the_index_of_an_older_model_is_not_read(tiny, folder):
    """transformers removes an older model's shards from a folder, but not their index."""
    write_index(folder, {"lm_head.weight": "model-00002-of-00002.safetensors"})
    assert_equal(load_pretrained(folder)[1], tiny.params)


def test_loading_computes_nothing_on_the_device(folder, monkeypatch):
    """Parameters keep the dtype of the file, and the device makes no second copy."""
    monkeypatch.setattr(jax, "device_put", lambda *_: pytest.fail("copied"))
    with jax.transfer_guard_device_to_device("disallow"):
        assert jax.tree.leaves(load_pretrained(folder)[1])


@pytest.mark.parametrize("dtype", ["int8", "float64", "half"])
def test_a_dtype_that_is_none(dtype, folder):
    with pytest.raises(ModelError, match=f"dtype = '{dtype}' is none of float32, bfloat16"):
        load_pretrained(folder, dtype=dtype)


def test_a_mesh_places_the_weights(tiny, folder):
    """The mesh may have the Explicit axes that jax makes by default."""
    from vinejax.model.sharding import AXES, mesh_over, param_shardings

    mesh = mesh_over((1, 1, 1), jax.devices()[:1])
    for given in (mesh, jax.make_mesh((1, 1, 1), AXES)):
        model, params, _ = load_pretrained(str(folder), mesh=given)
        assert jax.tree.map(lambda x: x.sharding, params) == param_shardings(mesh, params)
        assert_equal(params, tiny.params)
        assert apply(model, params, [[1, 2]]).shape == (1, 2, 20)


def test_a_mesh_of_other_axes_is_one_line(folder):
    mesh = jax.make_mesh((1, 1), ("data", "tensor"))
    with pytest.raises(ValueError, match=r"has the axes \('data', 'tensor'\), wanted .*'fsdp'"):
        load_pretrained(folder, mesh=mesh)


def test_ids_that_end_a_text_are_merged(folder):
    edit_json(folder / "config.json", eos_token_id=1, rope_parameters={"rope_theta": 77.0})
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 1]}')
    model, _, _ = load_pretrained(folder)
    assert model.cfg.eos_ids == (1, 3)
    assert model.cfg.rope.rope_theta == 77.0, "where transformers 5 writes it"


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
    assert (model.cfg.rope.rope_theta, model.cfg.eos_ids) == (10000.0, ())
    assert apply(model, params, [[1, 2]]).shape == (1, 2, 20)


# --- what is wrong says so ---

DAMAGE: dict[str, tuple[Any, str]] = {
    "no folder": (shutil.rmtree, "model: no such model folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "a run": (
        lambda f: (f / "config.json").write_text('{"config": {}, "git_revision": null}'),
        "model: is the workdir of a run; --mode=export writes its policy to the folder export",
    ),
    "half a config": (lambda f: (f / "config.json").write_text('{"a'), "config.json is not JSON"),
    "binary config": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "is not JSON"),
    "list for config": (lambda f: (f / "config.json").write_text("[]"), "not a JSON object"),
    "half a generation config": (
        lambda f: (f / "generation_config.json").write_text("{"),
        "generation_config.json is not JSON",
    ),
    "binary generation config": (
        lambda f: (f / "generation_config.json").write_bytes(b"\xff\xfe"),
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
        lambda f: edit_json(f / "config.json", rope_scaling={"rope_type": "axial", "factor": 8}),
        "rope_type = 'axial' is not supported",
    ),
    "a field of another model": (
        lambda f: edit_json(f / "config.json", num_local_experts=8),
        "num_local_experts = 8 is not supported",
    ),
    "an id outside": (
        lambda f: edit_json(f / "config.json", eos_token_id=[1, 20]),
        "/config.json: eos_token_id = 20 is outside vocab_size = 20",
    ),
    "an id of generation outside": (
        lambda f: (f / "generation_config.json").write_text('{"eos_token_id": [1, -1, 20]}'),
        "/generation_config.json: eos_token_id = -1 is outside vocab_size = 20",
    ),
    "a token with an id outside": (
        lambda f: renumber_token(f, "=", 99),
        "/tokenizer.json: token '=' has id 99, the model only 20 tokens",
    ),
    "an EOS with an id outside": (
        lambda f: renumber_token(f, "<eos>", 99),
        "/tokenizer.json: token '<eos>' has id 99, the model only 20 tokens",
    ),
    "no EOS": (
        lambda f: (
            edit_json(f / "config.json", eos_token_id=None),
            edit_json(f / "tokenizer_config.json", eos_token=None),
        ),
        "no EOS token in config.json",
    ),
    "a tensor missing": (
        lambda f: edit_tensors(f, **{"model.layers.1.mlp.up_proj.weight": None}),
        "tensor model.layers.1.mlp.up_proj.weight is missing",
    ),
    "a bias missing": (
        lambda f: edit_json(f / "config.json", attention_bias=True),
        "tensor model.layers.0.self_attn.k_proj.bias is missing",
    ),
    "a tensor too many": (
        lambda f: edit_tensors(f, **{"model.layers.2.mlp.up_proj.weight": np.zeros((48, 32), "f")}),
        "model.safetensors: tensor model.layers.2.mlp.up_proj.weight is no part of a llama model",
    ),
    "a bias too many": (
        lambda f: edit_tensors(f, **{"model.layers.0.self_attn.q_proj.bias": np.zeros(32, "f")}),
        "tensor model.layers.0.self_attn.q_proj.bias is no part of a llama model",
    ),
    "a head that is not the embedding": (
        lambda f: edit_json(f / "config.json", tie_word_embeddings=True),
        "tensor lm_head.weight differs from the embedding, yet tie_word_embeddings is true",
    ),
    "a tensor of another shape": (
        lambda f: edit_tensors(f, **{"lm_head.weight": np.zeros((20, 31), np.float32)}),
        "model.safetensors: tensor lm_head.weight has shape (20, 31), the config says (20, 32)",
    ),
    "quantized weights": (
        lambda f: edit_tensors(f, **{"lm_head.weight": np.zeros((20, 32), np.int8)}),
        "model.safetensors: tensor lm_head.weight is I8, but must be one of F64, F32",
    ),
    "cut short": (
        lambda f: cut(f / "model.safetensors", -100),
        "model.safetensors is not a whole safetensors file: tensor model.norm.weight ends at byte",
    ),
    "a header cut short": (
        lambda f: cut(f / "model.safetensors", 200),
        "model.safetensors is not a whole safetensors file: its header ends early",
    ),
    "empty weights": (
        lambda f: (f / "model.safetensors").write_bytes(b""),
        "model.safetensors is not a whole safetensors file",
    ),
    "not weights": (
        lambda f: (f / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"[]" + bytes(9)),
        "model.safetensors is not a safetensors file: its header is damaged",
    ),
    "a file of the index missing": (
        lambda f: write_index(f, {"a": SINGLE, "b": "model-00002-of-00002.safetensors"}),
        "model-00002-of-00002.safetensors is missing, which model.safetensors.index.json names",
    ),
    "an index that is wrong": (
        lambda f: write_index(f, {"lm_head.bias": "model.safetensors"}),
        "model.safetensors: tensor lm_head.bias is missing, which model.safetensors.index.json",
    ),
    "a tensor twice": (
        lambda f: (
            shutil.copy(f / "model.safetensors", f / "a.safetensors"),
            (f / "model.safetensors").rename(f / "b.safetensors"),
        ),
        "tensor model.embed_tokens.weight is in both a.safetensors and b.safetensors",
    ),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        " has no *.safetensors; if its weights are elsewhere, or were left on the hub: pickled ",
    ),
    "pickled only": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        " has no *.safetensors; pickled weights (*.bin, *.pt) are not loaded, because that would ",
    ),
    "half a tokenizer": (
        lambda f: cut(f / "tokenizer.json", 100),
        "its tokenizer cannot be loaded: ",
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
    monkeypatch.setattr(
        jax, "make_array_from_callback", lambda *_: pytest.fail("something was allocated")
    )
    with pytest.raises(ModelError) as error:
        load_pretrained(folder)
    said = str(error.value)
    assert message in said and str(folder) in said
    assert "\n" not in said and error.value.__cause__ is None


# --- tokenizers ---


@pytest.mark.first(3)  # GPT-NeoX's is of the same kind as GPT-2's
@pytest.mark.parametrize("name", ["gpt2", "minimind_6400", "mistral_7b_v1", "gpt_neox_20b"])
def test_a_tokenizer_gives_texts_back(name, tmp_path):
    """1,000 texts of GSM8K are split as by the tokenizer's file, also after saving the model."""
    source = data.tokenizer(name)
    for file in source.glob("*.json"):
        shutil.copy(file, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    tokenizer = load_tokenizer(tmp_path)
    file = Tokenizer.from_file(str(source / "tokenizer.json"))
    rows = data.rows("gsm8k/train")[:500]
    texts = [row[field] for row in rows for field in ("question", "answer")]
    tokenizer.save_pretrained(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == file.encode(text, add_special_tokens=False).ids
        assert ids == again.encode(text, add_special_tokens=False)
        assert decode(tokenizer, ids) == text
    assert again.chat_template == tokenizer.chat_template


def test_ids_past_the_tokenizer_are_empty_text(tiny, tmp_path):
    """Vocabularies are often padded, and ids of the padding have no text."""
    model, params, _ = random_model(vocab_size=32)
    save_pretrained(tmp_path, model, params, tiny.tokenizer)
    loaded, _, tokenizer = load_pretrained(tmp_path)
    assert loaded.cfg.vocab_size == 32 and len(tokenizer) == 20
    five = tokenizer.encode("5", add_special_tokens=False)
    assert decode(tokenizer, [20, *five, 31]) == "5"


def test_several_chat_templates_survive_being_saved(tiny, folder, tmp_path):
    """Models such as Hermes 3 have a second template, for tools."""
    templates = {"default": "{{ messages[0]['content'] }}", "tool_use": "{{ tools }}"}
    listed = [{"name": name, "template": text} for name, text in templates.items()]
    edit_json(folder / "tokenizer_config.json", chat_template=listed)
    saved = tmp_path / "saved"
    save_pretrained(saved, tiny.decoder, tiny.params, load_tokenizer(folder))
    assert load_tokenizer(saved).chat_template == templates
    assert all(file.is_file() for file in saved.iterdir())


def test_nothing_of_an_earlier_tokenizer_stays(tiny, tmp_path):
    earlier = load_tokenizer(data.tokenizer("minimind_6400"))
    assert earlier.chat_template
    save_pretrained(tmp_path, tiny.decoder, tiny.params, earlier)
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "9"}')  # as transformers 4
    save_pretrained(tmp_path, *tiny)
    again = load_tokenizer(tmp_path)
    assert again.chat_template is None
    assert again.eos_token_id == tiny.tokenizer.eos_token_id


@pytest.mark.parametrize("in_vocabulary", [False, True])
def test_special_tokens_past_the_vocabulary_are_left_out(folder, tmp_path, in_vocabulary):
    """Gemma 3 has a token for images, whose id is the size of its text models' vocabulary.

    Its text is then text like any other, and transformers gives it its id again.
    """
    raw = json.loads((folder / "tokenizer.json").read_text())
    names = [token["content"] for token in raw["added_tokens"]]
    raw["added_tokens"].append(raw["added_tokens"][0] | dict(id=20, content="<image>"))
    if in_vocabulary:
        raw["model"]["vocab"]["<image>"] = 20
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    edit_json(folder / "tokenizer_config.json", image_token="<image>")
    before = load_tokenizer(folder)
    assert len(before) == 21 and before.encode("1<image>2")[-2] == 20
    tokenizer = load_pretrained(folder)[2]
    assert len(tokenizer) == 20 and list(special_tokens(tokenizer)) == names
    assert max(tokenizer.encode("1<image>2")) < 20
    assert tokenizer.encode("1+2=3") == before.encode("1+2=3")
    tokenizer.save_pretrained(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").get_vocab() == before.get_vocab()


def test_a_tokenizer_is_written_as_transformers_4_and_5_read_it(tiny, tmp_path):
    tokenizer = load_tokenizer(data.tokenizer("minimind_6400"))
    save_pretrained(tmp_path, tiny.decoder, tiny.params, tokenizer)
    written = json.loads((tmp_path / "tokenizer_config.json").read_text())
    # transformers 4 takes `extra_special_tokens` for an object and fails on the list.
    assert "extra_special_tokens" not in written
    assert "<|im_start|>" in written["additional_special_tokens"]
    # Without this field, transformers 4 also makes token_type_ids, which `generate` refuses.
    assert written["model_input_names"] == ["input_ids", "attention_mask"]
    again = load_tokenizer(tmp_path)
    assert sorted(again.all_special_ids) == sorted(tokenizer.all_special_ids)
    assert again.get_vocab() == tokenizer.get_vocab()


def test_the_shipped_tokenizer_is_a_folder_without_a_model():
    with pytest.raises(ModelError, match="config.json is missing"):
        load_pretrained(TOKENIZER)


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        ("model.layers.1.self_attn.v_proj.weight", np.nan, "has numbers that are not finite; get"),
        ("model.norm.weight", np.inf, "has numbers that are not finite; get the file again"),
        ("model.embed_tokens.weight", 0.0, "is 0 everywhere, so nothing was trained; get the file"),
    ],
)
def test_numbers_that_no_training_leaves(
    folder: pathlib.Path, name: str, number: float, message: str
):
    shape = load_file(folder / "model.safetensors")[name].shape
    edit_tensors(folder, **{name: np.full(shape, number, np.float32)})
    with pytest.raises(ModelError) as error:
        load_pretrained(folder)
    assert f"model.safetensors: tensor {name} {message}" in str(error.value)
