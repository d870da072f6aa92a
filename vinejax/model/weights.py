"""Hugging Face folders in and out: config.json, model*.safetensors, tokenizer files.

The supported family is Llama (LlamaForCausalLM, default RoPE). What a config asks for and we do not
compute is refused by name, never ignored.
"""

import json
import os
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import Mesh

from vinejax.errors import ModelError
from vinejax.model.decoder import Decoder, DecoderConfig, Params
from vinejax.model.sharding import param_shardings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Ours -> (theirs, axes of theirs that make ours); {} is the layer. A torch Linear is [out, in].
_TOP = {
    ("embed",): "model.embed_tokens.weight",
    ("norm", "scale"): "model.norm.weight",
    ("head",): "lm_head.weight",
}
_LAYER = {
    "attention_norm": "model.layers.{}.input_layernorm",
    "mlp_norm": "model.layers.{}.post_attention_layernorm",
    "q": "model.layers.{}.self_attn.q_proj",
    "k": "model.layers.{}.self_attn.k_proj",
    "v": "model.layers.{}.self_attn.v_proj",
    "out": "model.layers.{}.self_attn.o_proj",
    "gate": "model.layers.{}.mlp.gate_proj",
    "up": "model.layers.{}.mlp.up_proj",
    "down": "model.layers.{}.mlp.down_proj",
}


def theirs(path: tuple[str, ...]) -> str:
    """The Hugging Face tensor name of a parameter path; a layer's keeps `{}` for its number."""
    if path[0] != "layers":
        return _TOP[path]
    return f"{_LAYER[path[1]]}.{'bias' if path[2] == 'bias' else 'weight'}"


def _to_theirs(path: tuple[str, ...], x: np.ndarray) -> np.ndarray:
    """One layer's parameter, or a top one, in torch's shape."""
    if path[-1] == "kernel":
        width_in = x.shape[0] * x.shape[1] if path[1] == "out" else x.shape[0]
        return x.reshape(width_in, -1).T
    if path[-1] == "bias":
        return x.reshape(-1)
    return x.T if path == ("head",) else x


def _to_ours(path: tuple[str, ...], x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    transposed = path[-1] == "kernel" or path == ("head",)
    return (x.T if transposed else x).reshape(shape)


def _read_json(file: epath.Path) -> dict[str, Any]:
    try:
        raw = json.loads(file.read_text())
    except ValueError as error:
        raise ModelError(f"{file} is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{file} is not a JSON object")
    return raw


def read_config(folder: epath.Path) -> DecoderConfig:
    """The architecture of a folder's config.json; ModelError names the field that we refuse."""
    file = folder / "config.json"
    if not file.exists():
        raise ModelError(f"{file} is missing: not a Hugging Face model folder")
    raw = _read_json(file)
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    for field, value, supported in (
        ("model_type", raw.get("model_type"), "llama"),
        ("hidden_act", raw.get("hidden_act", "silu"), "silu"),
        ("rope_type", rope.get("rope_type", rope.get("type", "default")), "default"),
    ):
        if value != supported:
            raise ModelError(f"{file}: {field} = {value!r} is not supported, only {supported!r}")

    def size(field: str, otherwise: int | None = None) -> int:
        value = otherwise if raw.get(field) is None else raw[field]
        if not isinstance(value, int) or value < 1:
            raise ModelError(f"{file}: {field} = {value!r} must be a positive integer")
        return value

    num_heads = size("num_attention_heads")
    return DecoderConfig(
        vocab_size=size("vocab_size"),
        num_layers=size("num_hidden_layers"),
        width=size("hidden_size"),
        num_heads=num_heads,
        num_kv_heads=size("num_key_value_heads", num_heads),
        head_dim=size("head_dim", size("hidden_size") // num_heads),
        ffn=size("intermediate_size"),
        context=size("max_position_embeddings"),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta", 10000.0)),
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        tied_head=raw.get("tie_word_embeddings", False),
        qkv_bias=raw.get("attention_bias", False),
        out_bias=raw.get("attention_bias", False),
        mlp_bias=raw.get("mlp_bias", False),
        bos_id=raw.get("bos_token_id"),
        eos_ids=_eos_ids(folder, raw),
    )


def _eos_ids(folder: epath.Path, config: dict[str, Any]) -> tuple[int, ...]:
    """All ids that end a text: generation_config.json may know more than config.json."""
    found: list[int] = []
    generation = folder / "generation_config.json"
    for raw in (config, _read_json(generation) if generation.exists() else {}):
        ids = raw.get("eos_token_id")
        found += ids if isinstance(ids, list) else [] if ids is None else [ids]
    return tuple(sorted(set(found)))


def _open_tensors(folder: epath.Path) -> dict[str, Any]:
    """Tensor name -> lazy safetensors slice, over all files of the folder."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"{folder} has no *.safetensors; pickled weights are refused, as loading them runs code"
        )
    tensors = {}
    for file in files:
        try:
            handle = safe_open(os.fspath(file), framework="numpy")
        except SafetensorError as error:
            raise ModelError(f"{file} is not a whole safetensors file: {error}") from None
        tensors |= {name: (handle, file) for name in handle.keys()}  # noqa: SIM118 (not a dict)
    return tensors


def _check_tensors(folder: epath.Path, tensors: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Every tensor there with its shape, before anything is allocated."""
    for name, shape in wanted.items():
        if name not in tensors:
            raise ModelError(f"{folder}: tensor {name} is missing")
        handle, file = tensors[name]
        found = tuple(handle.get_slice(name).get_shape())
        if found != shape:
            raise ModelError(f"{file}: tensor {name} has shape {found}, the config says {shape}")


def load_params(folder: epath.Path, model: Decoder, dtype: str, mesh: Mesh | None) -> Params:
    """The folder's weights as our stacked tree, placed by the sharding table on the mesh."""
    cfg = model.cfg
    tensors = _open_tensors(folder)
    abstract = jax.eval_shape(model.init, jax.random.key(0))
    leaves = jax.tree_util.tree_leaves_with_path(abstract)
    paths = {tuple(key.key for key in path): x for path, x in leaves}  # pyright: ignore
    wanted = {}
    for path, x in paths.items():
        layers = range(cfg.num_layers) if path[0] == "layers" else [None]
        shape = x.shape[1:] if path[0] == "layers" else x.shape
        torch_shape = _to_theirs(path, np.broadcast_to(np.int8(0), shape)).shape
        wanted |= {theirs(path).format(layer): torch_shape for layer in layers}
    _check_tensors(folder, tensors, wanted)

    def read(name: str) -> np.ndarray:
        return tensors[name][0].get_tensor(name)

    def leaf(path: tuple[Any, ...], x: jax.ShapeDtypeStruct, sharding: Any) -> jax.Array:
        names = tuple(key.key for key in path)
        if names[0] == "layers":
            layers = [read(theirs(names).format(i)) for i in range(cfg.num_layers)]
            value = np.stack([_to_ours(names, layer, x.shape[1:]) for layer in layers])
        else:
            value = _to_ours(names, read(theirs(names)), x.shape)
        return jax.device_put(value.astype(jnp.dtype(dtype)), sharding)

    device = jax.tree.map(lambda _: jax.devices()[0], abstract)
    shardings = device if mesh is None else param_shardings(mesh, abstract)
    return jax.tree_util.tree_map_with_path(leaf, abstract, shardings)


def load_pretrained(
    path: epath.PathLike, dtype: str = "float32", mesh: Mesh | None = None
) -> tuple[Decoder, Params, "PreTrainedTokenizerBase"]:
    """Model, parameters and tokenizer of a Hugging Face folder.

    `dtype` is that of the returned parameters. Raises ModelError, one line, for what is missing,
    misshapen or unsupported, before anything is allocated on a device.
    """
    folder = epath.Path(path)
    if not folder.is_dir():
        raise ModelError(f"{path}: no such model folder")
    model = Decoder(read_config(folder))
    tokenizer = load_tokenizer(folder)
    if len(tokenizer) > model.cfg.vocab_size:
        raise ModelError(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens, "
            f"the model only {model.cfg.vocab_size}"
        )
    return model, load_params(folder, model, dtype, mesh), tokenizer


def load_tokenizer(folder: epath.PathLike) -> "PreTrainedTokenizerBase":
    """The folder's fast tokenizer, through transformers."""
    if not (epath.Path(folder) / "tokenizer.json").exists():
        raise ModelError(f"{folder}/tokenizer.json is missing")
    # Otherwise its import says on every run that torch is missing, which is not needed.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(os.fspath(folder))


def save_pretrained(
    path: epath.PathLike,
    model: Decoder,
    params: Params,
    tokenizer: "PreTrainedTokenizerBase",
    dtype: str | None = None,
) -> None:
    """Write a folder that transformers and `load_pretrained` load; dtype None: the params' own."""
    from safetensors.numpy import save_file

    folder = epath.Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, np.ndarray] = {}
    for key_path, x in jax.tree_util.tree_leaves_with_path(params):
        names = tuple(key.key for key in key_path)  # pyright: ignore
        value = np.asarray(jax.device_get(x)).astype(jnp.dtype(dtype or x.dtype))
        layers = enumerate(value) if names[0] == "layers" else [(None, value)]
        for i, layer in layers:
            tensors[theirs(names).format(i)] = np.ascontiguousarray(_to_theirs(names, layer))
    stored = next(iter(tensors.values())).dtype.name
    (folder / "config.json").write_text(json.dumps(hf_config(model.cfg, stored), indent=2) + "\n")
    tokenizer.save_pretrained(os.fspath(folder))
    # Last, so that a folder with weights is a whole one.
    save_file(tensors, os.fspath(folder / "model.safetensors"), metadata={"format": "pt"})


def hf_config(cfg: DecoderConfig, dtype: str) -> dict[str, Any]:
    """config.json of a LlamaForCausalLM; ModelError where there is no such Llama."""
    if cfg.qkv_bias != cfg.out_bias:
        raise ModelError("a Llama has biases on all of q, k, v and out or on none: cannot be saved")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": cfg.vocab_size,
        "num_hidden_layers": cfg.num_layers,
        "hidden_size": cfg.width,
        "num_attention_heads": cfg.num_heads,
        "num_key_value_heads": cfg.num_kv_heads,
        "head_dim": cfg.head_dim,
        "intermediate_size": cfg.ffn,
        "max_position_embeddings": cfg.context,
        "rope_theta": cfg.rope_theta,
        "rms_norm_eps": cfg.norm_eps,
        "tie_word_embeddings": cfg.tied_head,
        "attention_bias": cfg.qkv_bias,
        "mlp_bias": cfg.mlp_bias,
        "hidden_act": "silu",
        "bos_token_id": cfg.bos_id,
        "eos_token_id": list(cfg.eos_ids),
        "torch_dtype": dtype,
    }
