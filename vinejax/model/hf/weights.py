"""Hugging Face folders in and out: config.json, safetensors, tokenizer files.

Weights are read by range, a parameter at a time and of it the parts that this host's devices
hold, and written a tensor at a time: host memory is bounded by the largest parameter.
"""

import dataclasses
import json
import os
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from jax.sharding import Mesh, SingleDeviceSharding

from vinejax.errors import ModelError
from vinejax.model.decoder import Decoder, DecoderConfig, Params
from vinejax.model.hf.families import config_json, eos_ids, parse_config
from vinejax.model.hf.fields import Reader
from vinejax.model.hf.hub import find_folder, local_copy
from vinejax.model.hf.names import (
    EMBED,
    HEAD,
    TOP,
    Path,
    Source,
    abstract_params,
    blocks,
    path_of,
    read_part,
    sources,
    torch_matrix,
)
from vinejax.model.hf.tensors import (
    NewTensor,
    StoredTensor,
    find_tensors,
    put_in_place,
    read_json,
    write_unfinished,
)
from vinejax.model.sharding import auto, check_heads, param_shardings
from vinejax.text import Tokenizer

DTYPES = ("float32", "bfloat16", "float16")
GENERATION = "generation_config.json"
MAX_SHARD_BYTES = 5 * 10**9
NOT_A_WEIGHT = "rotary_emb.inv_freq"  # a buffer that early Llama checkpoints carry


def load_pretrained(
    path: epath.PathLike, dtype: str = "float32", mesh: Mesh | None = None
) -> tuple[Decoder, Params, Tokenizer]:
    """Model, parameters and tokenizer of a Hugging Face folder, gs:// folder or hub name.

    `dtype` is that of the returned parameters: float32, bfloat16 or float16. Raises ModelError,
    one line, for what is missing, misshapen or unsupported, and ConfigError for heads that do not
    divide over the mesh, before anything is allocated on a device; ValueError for a mesh whose
    axes are not data, fsdp and tensor.
    """
    _check_dtype(dtype)
    mesh = None if mesh is None else auto(mesh)
    folder = find_folder(path)
    model, tokenizer = load_model(folder)
    model = dataclasses.replace(model, mesh=mesh)
    return model, load_params(folder, model, dtype, mesh), tokenizer


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise ModelError(f"dtype = {dtype!r} is none of {', '.join(DTYPES)}")


def load_model(folder: epath.Path) -> tuple[Decoder, Tokenizer]:
    """Architecture and tokenizer of a folder, without its weights."""
    cfg = read_config(folder)
    tokenizer = load_tokenizer(folder)
    if len(tokenizer) > cfg.vocab_size:
        raise ModelError(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens, the model only {cfg.vocab_size}"
        )
    if not cfg.eos_ids and tokenizer.eos_token_id is None:
        places = f"config.json, {GENERATION} or tokenizer_config.json"
        raise ModelError(f"{folder}: no EOS token in {places}, so no response could ever end")
    return Decoder(cfg), tokenizer


def read_config(folder: epath.Path) -> DecoderConfig:
    """The architecture of a folder's config.json, with all ids that end a text.

    generation_config.json may know more of them. ModelError names the field that we refuse.
    """
    file, generation = folder / "config.json", folder / GENERATION
    if not file.exists():
        raise ModelError(f"{file} is missing: not a Hugging Face model folder")
    cfg = parse_config(read_json(file), os.fspath(file))
    ids, text = set(cfg.eos_ids), ""
    if generation.exists():
        text = generation.read_text()
        ids |= set(eos_ids(Reader(os.fspath(generation), read_json(generation))))
    for i in ids:
        if not 0 <= i < cfg.vocab_size:
            raise ModelError(f"{file}: eos_token_id = {i} is outside vocab_size = {cfg.vocab_size}")
    return dataclasses.replace(cfg, eos_ids=tuple(sorted(ids)), generation=text)


def load_tokenizer(folder: epath.PathLike) -> Tokenizer:
    """The folder's fast tokenizer and chat template, through transformers.

    As tokenizer.json has it: AutoTokenizer of transformers 5 rebuilds the tokenizers of some
    families, and then a text can come apart differently from how the model was trained.
    """
    if not (epath.Path(folder) / "tokenizer.json").exists():
        raise ModelError(f"{folder}/tokenizer.json is missing")
    # Otherwise its import says on every run that torch is missing, which is not needed.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import PreTrainedTokenizerFast

    with local_copy(epath.Path(folder)) as local:
        try:
            return PreTrainedTokenizerFast.from_pretrained(local)
        except Exception as error:  # the tokenizers library raises bare Exceptions
            reason = " ".join(str(error).split())[:200]
            raise ModelError(f"{folder}: its tokenizer cannot be loaded: {reason}") from None


def load_params(folder: epath.Path, model: Decoder, dtype: str, mesh: Mesh | None) -> Params:
    """The folder's weights as our stacked tree, placed by the sharding table on the mesh.

    Every tensor's name, shape and bytes are checked before anything is allocated on a device.
    """
    if mesh is not None:
        check_heads(mesh, model.cfg.num_heads, model.cfg.ffn)
    where, abstract = sources(model), abstract_params(model)
    tensors = find_tensors(folder)
    _check_tensors(folder, tensors, where, model.cfg)
    if mesh is None:
        shardings = jax.tree.map(lambda _: SingleDeviceSharding(jax.local_devices()[0]), abstract)
    else:
        shardings = param_shardings(mesh, abstract)

    def load(path: Path, x: jax.ShapeDtypeStruct, sharding: Any) -> jax.Array:
        source, parts = where[path], {}

        def read(index: Any) -> np.ndarray:
            ranges = tuple(s.indices(n)[:2] for s, n in zip(index, x.shape, strict=True))
            if ranges not in parts:  # devices along `data` hold the same
                out = np.empty([stop - start for start, stop in ranges], jnp.dtype(dtype))
                if path[0] == "layers":
                    for i in range(model.cfg.num_layers):
                        tensor = tensors[source.name.format(i)]
                        read_part(tensor, path, source, x.shape[1:], index[1:], out[i])
                else:
                    read_part(tensors[source.name], path, source, x.shape, index, out)
                parts[ranges] = out
            return parts[ranges]

        # Waited for: the host's copy lives until the device has it.
        return jax.block_until_ready(jax.make_array_from_callback(x.shape, sharding, read))

    leaves, tree = jax.tree_util.tree_flatten_with_path(abstract)
    wanted = [
        (path_of(key_path), x, sharding)
        for (key_path, x), sharding in zip(leaves, jax.tree.leaves(shardings), strict=True)
    ]
    # Largest first: where the devices' memory is the host's, its copy comes while there is room.
    order = sorted(range(len(wanted)), key=lambda i: -wanted[i][1].size)
    loaded = {i: load(*wanted[i]) for i in order}
    return jax.tree.unflatten(tree, [loaded[i] for i in range(len(wanted))])


def _check_tensors(
    folder: epath.Path,
    tensors: dict[str, StoredTensor],
    where: dict[Path, Source],
    cfg: DecoderConfig,
) -> None:
    """ModelError for the first tensor that is missing, misshapen or one too many."""
    wanted = {}
    for path, source in where.items():
        layers = range(cfg.num_layers) if path[0] == "layers" else [None]
        wanted |= {source.name.format(layer): source.shape for layer in layers}
    for name, shape in wanted.items():
        if name not in tensors:
            raise ModelError(f"{folder}: tensor {name} is missing")
        if tensors[name].shape != shape:
            rule = f"has shape {tensors[name].shape}, the config says {shape}"
            raise ModelError(f"{tensors[name].file}: tensor {name} {rule}")
    for name in sorted(tensors.keys() - wanted.keys()):
        if name == TOP[HEAD] and cfg.tied_head:
            rule = "differs from the embedding, yet tie_word_embeddings is true"
            is_wrong = not _equal(tensors[name], tensors[TOP[EMBED]])
        else:
            rule = f"is no part of a {cfg.family} model with this config.json"
            is_wrong = not name.endswith(NOT_A_WEIGHT)
        if is_wrong:
            raise ModelError(f"{tensors[name].file}: tensor {name} {rule}")


def _equal(a: StoredTensor, b: StoredTensor) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape) and all(
        np.array_equal(a.rows(*rows), b.rows(*rows)) for rows in blocks(a, 0, a.shape[0])
    )


def save_pretrained(
    path: epath.PathLike,
    model: Decoder,
    params: Params,
    tokenizer: Tokenizer,
    dtype: str | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write a folder that transformers and `load_pretrained` load; dtype None: the params' own.

    Weights of more than `max_shard_bytes` become several files with an index. Every process of a
    run makes the call, the first one writes. What the folder held goes when the new weights are
    whole. Raises ModelError, before anything is written, for a dtype that is none, for parameters
    that are not the model's, and if the family has no such model.
    """
    folder, cfg = epath.Path(path), model.cfg
    if dtype is not None:
        _check_dtype(dtype)
    _check_params(model, params)
    config = config_json(cfg, jnp.dtype(dtype or params["embed"].dtype).name)
    tensors = _new_tensors(model, params, dtype)
    if jax.process_index() > 0:
        for tensor in tensors:
            tensor.make()  # takes part in the gathering
        return
    folder.mkdir(parents=True, exist_ok=True)
    written = write_unfinished(folder, tensors, max_shard_bytes)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if cfg.generation:
        (folder / GENERATION).write_text(cfg.generation)
    else:
        (folder / GENERATION).unlink(missing_ok=True)
    _save_tokenizer(folder, tokenizer)
    # Last, so that a folder with weights is a whole one.
    put_in_place(folder, written)


def _check_params(model: Decoder, params: Params) -> None:
    """ModelError for the first parameter that is missing, misshapen, one too many or no float."""
    leaves = {path_of(p): x for p, x in jax.tree_util.tree_leaves_with_path(params)}
    wanted = jax.tree_util.tree_leaves_with_path(abstract_params(model))
    shapes = {path_of(p): x.shape for p, x in wanted}
    for path, shape in shapes.items():
        name = "/".join(path)
        if path not in leaves:
            raise ModelError(f"parameter {name} is missing")
        if leaves[path].shape != shape:
            rule = f"has shape {leaves[path].shape}, the model says {shape}"
            raise ModelError(f"parameter {name} {rule}")
        if leaves[path].dtype.name not in DTYPES:
            known = ", ".join(DTYPES)
            raise ModelError(f"parameter {name} is {leaves[path].dtype.name}, none of {known}")
    for path in sorted(leaves.keys() - shapes.keys()):
        raise ModelError(f"parameter {'/'.join(path)} is no part of the model")


def _save_tokenizer(folder: epath.Path, tokenizer: Tokenizer) -> None:
    with tempfile.TemporaryDirectory(prefix="vinejax-tokenizer-") as local:
        tokenizer.save_pretrained(local)
        config = epath.Path(local) / "tokenizer_config.json"
        raw = read_json(config)
        if raw.get("tokenizer_class") == "TokenizersBackend":
            raw["tokenizer_class"] = "PreTrainedTokenizerFast"  # which transformers 4 knows as well
            config.write_text(json.dumps(raw, indent=2, ensure_ascii=False) + "\n")
        for file in epath.Path(local).iterdir():
            (folder / file.name).write_bytes(file.read_bytes())


def _new_tensors(model: Decoder, params: Params, dtype: str | None) -> list[NewTensor]:
    """The tensors of the family's layout; each fetches its parameters when it is made."""
    where = sources(model)
    leaves = {path_of(p): x for p, x in jax.tree_util.tree_leaves_with_path(params)}
    parts: dict[str, list[Path]] = {}  # of a tensor, in the order of its rows
    for path in sorted(where, key=lambda path: where[path].start):
        parts.setdefault(where[path].name, []).append(path)

    def tensor(name: str, paths: list[Path], layer: int | None) -> NewTensor:
        wanted = jnp.dtype(dtype or leaves[paths[0]].dtype)

        def make() -> np.ndarray:
            rows = [torch_matrix(path, _fetch(leaves[path], layer)) for path in paths]
            value = rows[0] if len(rows) == 1 else np.concatenate(rows)
            return value.astype(wanted, copy=False).reshape(shape)

        shape = where[paths[0]].shape
        return NewTensor(name.format(layer), wanted, shape, make)

    return [
        tensor(name, paths, layer)
        for name, paths in parts.items()
        for layer in (range(model.cfg.num_layers) if paths[0][0] == "layers" else [None])
    ]


def _fetch(x: jax.Array | np.ndarray, layer: int | None) -> np.ndarray:
    """A parameter, or one layer of it, on this host, wherever its parts are."""
    x = x if layer is None else x[layer]
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        x = multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(x)
