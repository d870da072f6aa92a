"""GGUF files as models: a tiny one, converted by transformers, and errors without packages."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers
from etils import epath
from helpers import tokenizer_cases
from transformers import PreTrainedTokenizerFast

from vinejax.core.errors import ModelError
from vinejax.model.decoder import Decoder, DecoderConfig
from vinejax.model.hf import gguf
from vinejax.model.hf.hub import find_folder
from vinejax.model.hf.tensors import find_tensors
from vinejax.model.hf.weights import load_pretrained, read_config, save_pretrained
from vinejax.model.rope import Rope

HEADS, KV_HEADS, WIDTH = 4, 2, 32
NAMES = {  # names in Hugging Face -> names in llama.cpp
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vinejax" / "gguf"


# llama.cpp's converter writes the scaling as a tensor of factors, one per frequency.
ROPE = Rope(
    "llama3", rope_theta=5e5, factor=32.0, original_max_position_embeddings=8192,
    low_freq_factor=1.0, high_freq_factor=4.0,
)  # fmt: skip


def write_gguf(
    file: Path, folder: Path, tokenizer: Any, left_out: str = "", biased: str = ""
) -> None:
    """The float32 GGUF file that llama.cpp's converter writes for the folder of a Llama 3.

    The tensor `left_out` is not written. The projection `biased` of the first layer has a bias.
    """
    from gguf import GGUFWriter  # pyright: ignore[reportMissingImports]

    writer = GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(2)
    writer.add_feed_forward_length(48)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(ROPE.rope_theta)
    plain = Rope(rope_theta=ROPE.rope_theta).frequencies(WIDTH // HEADS)
    writer.add_tensor("rope_freqs.weight", np.round(plain / ROPE.frequencies(WIDTH // HEADS), 4))
    writer.add_vocab_size(len(tokenizer))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    special = tokenizer.eos_token_id
    writer.add_token_types([3 if i == special else 1 for i in range(len(tokenizer))])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(special)
    writer.add_bos_token_id(special)
    writer.add_tokenizer_pre("llama-bpe")
    for name, tensor in find_tensors(epath.Path(folder)).items():
        parts = name.removesuffix(".weight").split(".")
        layer = f"blk.{parts[2]}." if parts[1] == "layers" else ""
        stem = ".".join(parts[3:]) if layer else ".".join(parts)
        value = tensor.rows(0, tensor.shape[0])
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(NAMES[stem])
        if heads:  # llama.cpp pairs neighbouring columns in RoPE
            halves = value.reshape(heads, 2, len(value) // heads // 2, WIDTH)
            value = halves.swapaxes(1, 2).reshape(value.shape)
        if name != left_out:
            writer.add_tensor(f"{layer}{NAMES[stem]}.weight", np.ascontiguousarray(value))
    if biased:
        writer.add_tensor(f"blk.0.{biased}.bias", np.ones(WIDTH, np.float32))
    finish(writer)


def finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.slow
def test_a_gguf_file_is_the_model_that_it_was_made_of(tmp_path: Path, cache: Path):
    for package in gguf.NEEDED_PACKAGES:
        pytest.importorskip(package, reason="needs vinejax[real]")
    text = tokenizer_cases.load("byte_level").backend_tokenizer.to_str()
    eos_token = "<|endoftext|>"  # transformers adds this token if a file lacks it
    backend = tokenizers.Tokenizer.from_str(text.replace("<eos>", eos_token))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos_token)
    eos: Any = tokenizer.eos_token_id
    cfg = DecoderConfig(
        vocab_size=len(tokenizer), num_layers=2, width=WIDTH, num_heads=HEADS,
        num_kv_heads=KV_HEADS, head_dim=WIDTH // HEADS, ffn=48, context=64, eos_ids=(eos,),
        tied_head=True, rope=ROPE,
    )  # fmt: skip
    model = Decoder(cfg)
    params = model.init(jax.random.key(1))
    save_pretrained(tmp_path / "folder", model, params, tokenizer)
    file = tmp_path / "tiny.gguf"
    write_gguf(file, tmp_path / "folder", tokenizer)
    found, read, spelled = load_pretrained(file)
    assert (found.cfg.num_kv_heads, found.cfg.context, found.cfg.eos_ids) == (2, 64, (eos,))
    assert found.cfg.rope == ROPE
    jax.tree.map(np.testing.assert_array_equal, read, params)
    assert spelled.get_vocab() == tokenizer.get_vocab()
    assert spelled.encode("") == [eos]  # BOS, which files of Llama 3 do not ask for
    # A GGUF file names the pattern that splits a text before merges. Here it makes no difference.
    text = "this is 7+8=15"
    assert spelled.encode(text, add_special_tokens=False) == tokenizer.encode(text)
    (made,) = cache.iterdir()
    assert str(find_folder(file)) == str(made)  # once
    file.write_bytes(b"GGUF and no more")
    with pytest.raises(ModelError, match="tiny.gguf: transformers cannot read it: ") as error:
        find_folder(file)
    assert "\n" not in str(error.value)
    name = "model.layers.1.mlp.up_proj.weight"  # transformers would draw random numbers for it
    write_gguf(file, tmp_path / "folder", tokenizer, left_out=name)
    with pytest.raises(ModelError, match=f"cannot read it: it finds no tensor for {name}"):
        find_folder(file)
    write_gguf(file, tmp_path / "folder", tokenizer, biased="attn_output")  # no part of its model
    with pytest.raises(ModelError, match="it does not know the tensor blk.0.attn_output.bias; "):
        find_folder(file)
    assert list(cache.iterdir()) == [made]  # no unfinished folder is left


def write_ones(file: Path, family: str, num_layers: int, layer: dict[str, Any], top: Any) -> None:
    """The GGUF file of a model of width 8 and a window of 20, whose weights are all 1.

    `layer` has the shapes of a layer's tensors, and `top` those of tensors outside the layers.
    """
    from gguf import GGUFWriter  # pyright: ignore[reportMissingImports]

    writer = GGUFWriter(file, family)
    writer.add_name(family)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_sliding_window(20)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab", "<|endoftext|>"])
    writer.add_token_types([1, 1, 1, 3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(3)
    writer.add_pad_token_id(3)
    shapes = {"token_embd": (4, 8), "output_norm": (8,), **top}
    for i in range(num_layers):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
    finish(writer)


@pytest.mark.slow
def test_the_window_of_phi_3_is_kept(tmp_path: Path, cache: Path):
    for package in gguf.NEEDED_PACKAGES:
        pytest.importorskip(package, reason="needs vinejax[real]")
    layer = {"attn_qkv": (16, 8), "attn_output": (8, 8), "ffn_up": (32, 8), "ffn_down": (8, 16)}
    layer |= {"attn_norm": (8,), "ffn_norm": (8,)}
    write_ones(tmp_path / "phi.gguf", "phi3", 1, layer, {"output": (4, 8)})
    cfg, _ = read_config(find_folder(tmp_path / "phi.gguf"))
    assert (cfg.family, cfg.windows) == ("phi3", (20,))


@pytest.mark.slow
@pytest.mark.parametrize(("num_layers", "scalar"), [(1, 256), (46, 4)])
def test_the_scale_of_gemma_2_27b_is_that_of_its_heads(
    num_layers: int, scalar: int, tmp_path: Path, cache: Path
):
    """llama.cpp tells the model by its 46 layers; files have no field for the scale."""
    for package in gguf.NEEDED_PACKAGES:
        pytest.importorskip(package, reason="needs vinejax[real]")
    layer = {"attn_q": (8, 8), "attn_k": (4, 8), "attn_v": (4, 8), "attn_output": (8, 8)}
    layer |= {"ffn_gate": (16, 8), "ffn_up": (16, 8), "ffn_down": (8, 16)}
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    write_ones(tmp_path / "g.gguf", "gemma2", num_layers, layer | dict.fromkeys(norms, (8,)), {})
    cfg, _ = read_config(find_folder(tmp_path / "g.gguf"))
    assert (cfg.family, cfg.num_layers, cfg.score_scale) == ("gemma2", num_layers, scalar**-0.5)


IGNORED = {  # by transformers: fields, or a tensor -> words of the error
    "split.count": "it is one of 2 parts; join them with `llama-gguf-split --merge`",
    "llama.rope.scaling.factor": "it does not know llama.rope.scaling.factor = 2; name a folder",
    "llama.attention.head_count": "it needs llama.attention.head_count_kv; name a folder with",
    "rope_factors_long.weight": "it does not know the tensor rope_factors_long.weight; name a",
}


@pytest.mark.parametrize("name", IGNORED)
def test_what_transformers_would_ignore_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    writing = pytest.importorskip("gguf", reason="needs vinejax[real]")
    monkeypatch.setattr(gguf, "NEEDED_PACKAGES", ())
    writer = writing.GGUFWriter(tmp_path / "a.gguf", "llama")
    if name.endswith(".weight"):
        writer.add_tensor(name, np.ones(4, np.float32))
    else:
        writer.add_float32(name, 2.0) if "rope" in name else writer.add_uint16(name, 2)
    finish(writer)
    with pytest.raises(ModelError, match=f"a.gguf: transformers cannot read it: {IGNORED[name]}"):
        find_folder(tmp_path / "a.gguf")


def test_without_its_reader_one_line_says_what_to_install(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    here = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name in gguf.NEEDED_PACKAGES else here(name),
    )
    line = r"a GGUF file needs gguf, accelerate, torch: pip install 'vinejax\[real\]', or name"
    with pytest.raises(ModelError, match=line):
        load_pretrained(file)
    assert not cache.exists()


def test_a_file_is_converted_once_and_again_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    script = "import os, sys; os.mkdir(sys.argv[3]); print(*sys.argv[1:3])"
    monkeypatch.setattr(gguf, "CONVERT", script)
    monkeypatch.setattr(gguf, "NEEDED_PACKAGES", ())
    first = find_folder(file)
    assert first.is_dir() and find_folder(file) == first and first.name.startswith("model-")
    os.utime(file, ns=(0, 0))
    assert find_folder(file) != first


def test_two_processes_may_convert_a_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder of the first one stays, and the second one uses it."""
    file, folder = tmp_path / "model.gguf", tmp_path / "made"
    script = f"import os, sys; os.makedirs(sys.argv[3]); os.makedirs('{folder}/of_the_first')"
    monkeypatch.setattr(gguf, "CONVERT", script)
    monkeypatch.setattr(gguf, "NEEDED_PACKAGES", ())
    gguf.convert(epath.Path(file), epath.Path(folder))
    assert [x.name for x in folder.iterdir()] == ["of_the_first"]
    assert list(tmp_path.iterdir()) == [folder]  # no unfinished folder is left
