"""Loads and saves Hugging Face folders: config.json, safetensors, tokenizer files.

Weights are read one parameter at a time, and a host reads only the ranges that its devices hold.
They are written one tensor at a time. So host memory is bounded by the largest parameter.
"""

import dataclasses
import functools
import json
import math
import os
import tempfile
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import Mesh, Sharding, SingleDeviceSharding

from vinejax.core.errors import ModelError
from vinejax.core.text import Tokenizer, special_tokens
from vinejax.model.decoder import Decoder, DecoderConfig, Params
from vinejax.model.hf import names, tensors
from vinejax.model.hf.families import config_json, eos_ids, parse_config
from vinejax.model.hf.fields import FieldReader
from vinejax.model.hf.hub import find_folder, local_copy
from vinejax.model.hf.names import EMBED, HEAD, TOP_TENSORS, ParamPath, Source, by_path
from vinejax.model.hf.tensors import NewTensor, StoredTensor, find_tensors, read_json
from vinejax.model.sharding import check_heads, param_shardings, replicate, with_auto_axes
from vinejax.runtime.host_arrays import whole_array

DTYPES = ("float32", "bfloat16", "float16")
GENERATION = "generation_config.json"
# Files that a tokenizer may lack, and that transformers reads where they are.
TOKENIZER_FILES = ("chat_template.jinja", "special_tokens_map.json", "added_tokens.json")
MAX_SHARD_BYTES = 5 * 10**9
# Families without a token-classification class.
NOT_A_CLASSIFIER = ("gemma3_text", "granite", "olmo2", "olmo3", "olmoe")
NOT_A_WEIGHT = "rotary_emb.inv_freq"  # name of a buffer in early Llama checkpoints


def load_pretrained(
    path: epath.PathLike, dtype: str = "float32", mesh: Mesh | None = None
) -> tuple[Decoder, Params, Tokenizer]:
    """Model, parameters and tokenizer of a Hugging Face folder, gs:// folder or hub name.

    `dtype` is the dtype of the parameters: float32, bfloat16 or float16. They are laid out over the
    `mesh` by `sharding.PARAM_SPECS`; without a mesh, all of them are on the first local device.

    Before it allocates memory on a device, the function raises ModelError for missing, unsupported
    or wrong content, ConfigError for heads that the mesh does not divide, and ValueError for a mesh
    with axes other than data, fsdp and tensor. After loading, it raises ModelError for numbers
    that are not finite, and for an embedding of zeros.

    Example:
      >>> model, params, tokenizer = vinejax.load_pretrained("configs/tiny_start")
      >>> model.cfg.num_layers, len(tokenizer)
      (3, 20)
    """
    _check_dtype(dtype)
    mesh = None if mesh is None else with_auto_axes(mesh)
    folder = find_folder(path)
    model, tokenizer = load_model(folder)
    model = dataclasses.replace(model, mesh=mesh)
    return model, load_params(folder, model, dtype, mesh), tokenizer


def _check_dtype(dtype: str | None) -> None:
    if dtype not in (None, *DTYPES):
        raise ModelError(f"dtype = {dtype!r} is none of {', '.join(DTYPES)}")


def load_model(folder: epath.Path) -> tuple[Decoder, Tokenizer]:
    """The model and the tokenizer in a folder, without the weights."""
    cfg, generation_config = read_config(folder)
    return Decoder(cfg, generation_config=generation_config), tokenizer_for(cfg, folder)


def tokenizer_for(cfg: DecoderConfig, folder: epath.Path) -> Tokenizer:
    """The tokenizer in a folder, for a model with the architecture `cfg`.

    Raises ModelError for a tokenizer with more tokens than the model, and if there is no EOS.
    """
    tokenizer = load_tokenizer(folder)
    _drop_special_tokens(tokenizer, cfg.vocab_size)
    if len(tokenizer) > cfg.vocab_size:
        raise ModelError(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens, the model only {cfg.vocab_size}"
        )
    vocab = tokenizer.get_vocab()
    if vocab and vocab[last := max(vocab, key=vocab.__getitem__)] >= cfg.vocab_size:
        message = f"token {last!r} has id {vocab[last]}, the model only {cfg.vocab_size} tokens"
        raise ModelError(f"{folder / 'tokenizer.json'}: {message}")
    if not cfg.eos_ids and tokenizer.eos_token_id is None:
        places = f"config.json, {GENERATION} or tokenizer_config.json"
        raise ModelError(f"{folder}: no EOS token in {places}, so no response could end")
    return tokenizer


def _drop_special_tokens(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Removes special tokens with ids of `vocab_size` and more, except BOS, EOS and UNK.

    The text models of Gemma 3 have such a token, which stands for an image. Afterwards, the text of
    a removed token is encoded like any other text.
    """
    roles = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token)
    special = special_tokens(tokenizer).items()
    surplus = {i for text, i in special if i >= vocab_size and text not in roles}
    if not surplus:
        return
    from tokenizers import Tokenizer as Backend

    fast: Any = tokenizer
    state = json.loads(fast.backend_tokenizer.to_str())
    state["added_tokens"] = [x for x in state["added_tokens"] if x["id"] not in surplus]
    vocab = state["model"]["vocab"]
    if isinstance(vocab, dict):  # not of the kind Unigram, whose list has no added tokens
        state["model"]["vocab"] = {text: i for text, i in vocab.items() if i not in surplus}
    fast._tokenizer = Backend.from_str(json.dumps(state))


def read_config(folder: epath.Path) -> tuple[DecoderConfig, str]:
    """(architecture in a folder's config.json, text of its generation_config.json or '').

    The EOS ids are the union of the ids in both files. Raises ModelError for an unsupported field
    or value.
    """
    file, generation = folder / "config.json", folder / GENERATION
    if not file.exists():
        raise ModelError(f"{file} is missing: not a Hugging Face model folder")
    raw = read_json(file)
    if "git_revision" in raw:  # `record_run` has written the file
        message = "is the workdir of a run; --mode=export writes its policy to the folder export"
        raise ModelError(f"{folder}: {message}")
    cfg = parse_config(raw, os.fspath(file))
    ids_of, text = {file: cfg.eos_ids}, ""
    if generation.exists():
        ids_of[generation] = eos_ids(FieldReader(os.fspath(generation), read_json(generation)))
        text = generation.read_text(encoding="utf-8")
    for source, ids in ids_of.items():
        for i in ids:
            if not 0 <= i < cfg.vocab_size:
                message = f"eos_token_id = {i} is outside vocab_size = {cfg.vocab_size}"
                raise ModelError(f"{source}: {message}")
    return dataclasses.replace(cfg, eos_ids=tuple(sorted(set().union(*ids_of.values())))), text


def load_tokenizer(folder: epath.PathLike) -> Tokenizer:
    """The tokenizer of a folder, exactly as tokenizer.json describes it, with the chat template.

    The function does not use AutoTokenizer. In transformers 5 that class rebuilds the tokenizers of
    some families, and a rebuilt tokenizer may split a text differently than the original.
    """
    if not (epath.Path(folder) / "tokenizer.json").exists():
        raise ModelError(f"{folder}/tokenizer.json is missing")
    # Without this, every run prints that torch is missing, although it is not needed.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import PreTrainedTokenizerFast

    with local_copy(epath.Path(folder)) as local:
        try:
            return PreTrainedTokenizerFast.from_pretrained(local)
        except Exception as error:  # the tokenizers library raises bare Exceptions
            reason = " ".join(str(error).split())[:200]
            raise ModelError(f"{folder}: its tokenizer cannot be loaded: {reason}") from None


def load_params(folder: epath.Path, model: Decoder, dtype: str, mesh: Mesh | None) -> Params:
    """The weights in a folder as parameters of the model, laid out over the mesh by PARAM_SPECS.

    The function checks name, shape and size of every tensor before it allocates memory on a device.
    Raises ModelError for missing, unknown or damaged tensors, for numbers that are not finite and
    for an embedding of zeros, and ConfigError for sizes that the axis `tensor` cannot split.
    """
    if mesh is not None:
        check_heads(mesh, *model.cfg.split_sizes)
    sources = names.param_sources(model)
    abstract = names.abstract_params(model)
    stored = find_tensors(folder)
    _check_tensors(folder, stored, sources, model.cfg)
    if mesh is None:
        shardings = jax.tree.map(lambda _: SingleDeviceSharding(jax.local_devices()[0]), abstract)
    else:
        shardings = param_shardings(mesh, abstract)

    def load(path: ParamPath, shape: tuple[int, ...], sharding: Sharding) -> jax.Array:
        source = sources[path]
        parts = {}

        def read(index: Any) -> np.ndarray:
            ranges = tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
            if ranges not in parts:  # devices along `data` hold the same part
                out = np.empty([stop - start for start, stop in ranges], jnp.dtype(dtype))
                n = len(source.stacked)
                for place in np.ndindex(out.shape[:n]):
                    numbers = (i + start for i, (start, _) in zip(place, ranges, strict=False))
                    tensor = stored[source.name.format(*numbers)]
                    names.read_part(tensor, path, source, shape[n:], index[n:], out[place])
                parts[ranges] = out
            return parts[ranges]

        # The host keeps its copy until the device has the array, so the next one must wait.
        return jax.block_until_ready(jax.make_array_from_callback(shape, sharding, read))

    shapes = {path: x.shape for path, x in by_path(abstract).items()}
    sharding_of = by_path(shardings)
    # The largest parameter comes first. If devices use the host's memory, there is still room for
    # its copy.
    largest_first = sorted(shapes, key=lambda path: -math.prod(shapes[path]))
    loaded = {path: load(path, shapes[path], sharding_of[path]) for path in largest_first}
    _check_numbers(loaded, stored, sources, mesh)
    return jax.tree.unflatten(jax.tree.structure(abstract), [loaded[path] for path in shapes])


def _check_numbers(
    loaded: dict[ParamPath, jax.Array],
    stored: dict[str, StoredTensor],
    sources: dict[ParamPath, Source],
    mesh: Mesh | None,
) -> None:
    """Raise ModelError for a tensor with numbers that are not finite, or an embedding of zeros."""
    facts = jax.device_get(_facts(loaded, mesh))
    for path, (is_finite, is_something) in facts.items():
        name = sources[path].name
        if not is_finite.all():
            tensor = stored[sources[path].names()[int(is_finite.argmin())]]
            message = "has numbers that are not finite; get the file again"
            raise ModelError(f"{tensor.file}: tensor {tensor.name} {message}")
        if path == EMBED and not is_something:
            message = "is 0 everywhere, so nothing was trained; get the file again"
            raise ModelError(f"{stored[name].file}: tensor {name} {message}")


@functools.partial(jax.jit, static_argnames="mesh")
def _facts(
    params: dict[ParamPath, jax.Array], mesh: Mesh | None
) -> dict[ParamPath, tuple[jax.Array, jax.Array]]:
    """Parameter -> (whether all numbers are finite, whether any number is not 0).

    The arrays have the stacked axes of the parameter: [L] for a parameter of the layers, [L, E]
    for one of their experts, and [] for any other parameter.
    """

    def facts(path: ParamPath, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        axes = tuple(range(names.num_stacked(path), x.ndim))
        return replicate((jnp.isfinite(x).all(axes), (x != 0).any(axes)), mesh)

    return {path: facts(path, x) for path, x in params.items()}


def _check_tensors(
    folder: epath.Path,
    stored: dict[str, StoredTensor],
    sources: dict[ParamPath, Source],
    cfg: DecoderConfig,
) -> None:
    """Raise ModelError for the first tensor that is missing, unknown or of a wrong shape."""
    shapes = {}
    for source in sources.values():
        shapes |= dict.fromkeys(source.names(), source.shape)
    for name, shape in shapes.items():
        if name not in stored:
            raise ModelError(f"{folder}: tensor {name} is missing")
        if stored[name].shape != shape:
            message = f"has shape {stored[name].shape}, the config says {shape}"
            raise ModelError(f"{stored[name].file}: tensor {name} {message}")
    for name in sorted(stored.keys() - shapes.keys()):
        if name == TOP_TENSORS[HEAD] and cfg.tied_head:
            message = "differs from the embedding, yet tie_word_embeddings is true"
            is_wrong = not _equal_tensors(stored[name], stored[TOP_TENSORS[EMBED]])
        else:
            message = f"is no part of a {cfg.family} model with this config.json"
            is_wrong = not name.endswith(NOT_A_WEIGHT)
        if is_wrong:
            raise ModelError(f"{stored[name].file}: tensor {name} {message}")


def _equal_tensors(a: StoredTensor, b: StoredTensor) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape) and all(
        np.array_equal(a.rows(start, stop), b.rows(start, stop))
        for start, stop in names.row_blocks(a, 0, a.shape[0])
    )


def save_pretrained(
    path: epath.PathLike,
    model: Decoder,
    params: Params,
    tokenizer: Tokenizer,
    dtype: str | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    stop_ids: Collection[int] = (),
) -> None:
    """Write a folder that transformers and `load_pretrained` can load.

    `dtype` is the dtype of the written weights; None: the dtype of `params`. Weights of more than
    `max_shard_bytes` become several files with an index. The EOS ids include the EOS of the
    tokenizer, at which sampling ends. In generation_config.json they also include `stop_ids`,
    further ids at which generation with the written model ends.

    Every process of a run must call the function, and the first process writes. The function
    removes an earlier model from the folder only when the new weights are complete. Before it
    writes, it raises ModelError for an unknown dtype, for parameters that do not fit the model, and
    for an architecture that the family does not have.

    Example:
      >>> model, params, tokenizer = vinejax.load_pretrained("configs/tiny_start")
      >>> vinejax.save_pretrained("copy", model, params, tokenizer, dtype="bfloat16")
    """
    folder = epath.Path(path)
    _check_dtype(dtype)
    _check_params(model, params)
    eos: Any = tokenizer.eos_token_id
    ends = {*model.cfg.eos_ids, eos} - {None}
    cfg = dataclasses.replace(model.cfg, eos_ids=tuple(sorted(ends)))
    config = config_json(cfg, jnp.dtype(dtype or params["embed"].dtype).name)
    new_tensors = _new_tensors(model, params, dtype)
    generation = _generation_config(model, ends, stop_ids)
    _write_folder(folder, config, new_tensors, generation, tokenizer, max_shard_bytes)


def _generation_config(model: Decoder, ends: Collection[int], stop_ids: Collection[int]) -> str:
    """The text of generation_config.json, or '' for no file.

    The text is that of the model's own file, unless this file lacks an id of `ends` or `stop_ids`,
    because transformers stops at the ids of this file alone. Without a file, config.json has `ends`
    and a file is only written for `stop_ids`.
    """
    text = model.generation_config
    if not text and set(stop_ids) <= set(ends):
        return ""
    fields: dict[str, Any] = json.loads(text) if text else {"bos_token_id": model.cfg.bos_id}
    there = set(eos_ids(FieldReader(GENERATION, fields)))
    if {*ends, *stop_ids} <= there:
        return text
    fields["eos_token_id"] = sorted({*there, *ends, *stop_ids})
    return json.dumps(fields, indent=2) + "\n"


def _write_folder(
    folder: epath.Path,
    config: dict[str, Any],
    new_tensors: list[NewTensor],
    generation_config: str,
    tokenizer: Tokenizer,
    max_shard_bytes: int,
) -> None:
    """Write config.json, weights and tokenizer, and `generation_config` unless it is empty."""
    if jax.process_index() > 0:
        for tensor in new_tensors:
            tensor.make()  # every process must take part in gathering the arrays
        return
    folder.mkdir(parents=True, exist_ok=True)
    temporary = tensors.write_temporary(folder, new_tensors, max_shard_bytes)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if generation_config:
        (folder / GENERATION).write_text(generation_config, encoding="utf-8")
    else:
        (folder / GENERATION).unlink(missing_ok=True)
    _save_tokenizer(folder, tokenizer)
    # Weights come last, so that a folder with weights is complete.
    tensors.put_in_place(folder, temporary)


class RewardModel(NamedTuple):
    """A model that computes a value V = norm(x)·kernel + bias of the text up to each token.

    x is the hidden state of the text's last token after the last layer.
    """

    model: Decoder
    params: Params
    kernel: np.ndarray  # f[D] weights of the value
    bias: float
    # Number to add to V for each response token so far; 0 if the value was trained without it.
    per_token: float = 0.0


def save_reward_model(path: epath.PathLike, scorer: RewardModel, tokenizer: Tokenizer) -> None:
    """Write a folder that transformers' AutoModelForTokenClassification can load, with one label.

    `scorer.per_token` becomes the field `value_per_token` of config.json. Every process must call
    the function. It raises the errors of `save_pretrained`, and ModelError for a family that has no
    model for token classification in transformers.
    """
    if scorer.model.cfg.family in NOT_A_CLASSIFIER:
        raise ModelError(
            f"{path}: transformers has no {scorer.model.cfg.family} model that labels tokens"
        )
    # The class has no output matrix, and neither has a model with a tied head.
    cfg = dataclasses.replace(scorer.model.cfg, tied_head=True)
    model = Decoder(cfg, scorer.model.mesh)
    _check_params(model, scorer.params)
    config = config_json(cfg, scorer.params["embed"].dtype.name)
    (name,) = config["architectures"]
    config["architectures"] = [name.replace("ForCausalLM", "ForTokenClassification")]
    config |= {"id2label": {"0": "value"}, "label2id": {"value": 0}}
    config["value_per_token"] = scorer.per_token
    new_tensors = _new_tensors(model, scorer.params, None)
    for name, x in {"weight": scorer.kernel[None], "bias": np.array([scorer.bias])}.items():
        x = x.astype(np.float32)
        new_tensors.append(NewTensor(f"score.{name}", x.dtype, x.shape, lambda x=x: x))
    _write_folder(epath.Path(path), config, new_tensors, "", tokenizer, MAX_SHARD_BYTES)


def _check_params(model: Decoder, params: Params) -> None:
    """Raise ModelError for a missing or unknown parameter, or one of a wrong shape or dtype."""
    leaves = by_path(params)
    expected = by_path(names.abstract_params(model))
    for path, x in expected.items():
        name = "/".join(path)
        if path not in leaves:
            raise ModelError(f"parameter {name} is missing")
        if leaves[path].shape != x.shape:
            message = f"has shape {leaves[path].shape}, the model says {x.shape}"
            raise ModelError(f"parameter {name} {message}")
        if leaves[path].dtype.name not in DTYPES:
            known = ", ".join(DTYPES)
            raise ModelError(f"parameter {name} is {leaves[path].dtype.name}, none of {known}")
    for path in sorted(leaves.keys() - expected.keys()):
        raise ModelError(f"parameter {'/'.join(path)} is no part of the model")


def _save_tokenizer(folder: epath.Path, tokenizer: Tokenizer) -> None:
    with tempfile.TemporaryDirectory(prefix="vinejax-tokenizer-") as local:
        # Several chat templates would be files of a folder beside the others.
        tokenizer.save_pretrained(local, save_jinja_files=isinstance(tokenizer.chat_template, str))
        config = epath.Path(local) / "tokenizer_config.json"
        raw = read_json(config)
        # transformers 4 and 5 both read these names; 4 fails on those that transformers 5 writes.
        if raw.get("tokenizer_class") == "TokenizersBackend":
            raw["tokenizer_class"] = "PreTrainedTokenizerFast"
        if isinstance(raw.get("extra_special_tokens"), list):
            raw["additional_special_tokens"] = raw.pop("extra_special_tokens")
        # The class in transformers 4 would add token_type_ids, with which `generate` fails.
        raw.setdefault("model_input_names", ["input_ids", "attention_mask"])
        config.write_text(json.dumps(raw, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for name in TOKENIZER_FILES:  # of an earlier tokenizer
            (folder / name).unlink(missing_ok=True)
        for file in epath.Path(local).iterdir():
            (folder / file.name).write_bytes(file.read_bytes())


def _new_tensors(model: Decoder, params: Params, dtype: str | None) -> list[NewTensor]:
    """The tensors of a checkpoint to write. `NewTensor.make` gathers the parameters of a tensor."""
    sources = names.param_sources(model)
    leaves = by_path(params)
    members: dict[str, list[ParamPath]] = {}  # tensor -> its parameters, in order of rows
    for path in sorted(sources, key=lambda path: sources[path].start):
        members.setdefault(sources[path].name, []).append(path)

    def tensor(name: str, paths: list[ParamPath], place: tuple[int, ...]) -> NewTensor:
        stored_dtype = jnp.dtype(dtype or leaves[paths[0]].dtype)

        def stored(path: ParamPath) -> np.ndarray:
            x = leaves[path][place] if place else leaves[path]
            return names.torch_matrix(path, whole_array(x))

        def make() -> np.ndarray:
            rows = [stored(path) for path in paths]
            value = rows[0] if len(rows) == 1 else np.concatenate(rows)
            return value.astype(stored_dtype, copy=False).reshape(shape)

        shape = sources[paths[0]].shape
        return NewTensor(name.format(*place), stored_dtype, shape, make)

    return [
        tensor(name, paths, place)
        for name, paths in members.items()
        for place in np.ndindex(sources[paths[0]].stacked)
    ]
