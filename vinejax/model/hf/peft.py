"""Adapters in the format of PEFT: adapter_config.json and adapter_model.safetensors.

Some torch Linears, such as Phi-3's, hold several projections. When adapters are written, such a
Linear gets one adapter whose rank is the sum of the projections' ranks, and whose B has one block
per projection. Its alpha grows in proportion to the rank, so that alpha / rank stays the same. When
such an adapter is read, each projection of the Linear gets an adapter with its own rows of B.
"""

import json
import math
import os
import re
from collections.abc import Callable, Container

import jax
import numpy as np
from etils import epath
from safetensors.numpy import save

from vinejax.core.errors import ModelError
from vinejax.core.settings import ModelConfig
from vinejax.model.decoder import LORA_A, LORA_B, Decoder, Params
from vinejax.model.hf.fields import FieldReader
from vinejax.model.hf.hub import HUB_NAME
from vinejax.model.hf.names import Source, param_sources
from vinejax.model.hf.tensors import StoredTensor, read_header, read_json
from vinejax.model.lora import kernel_shapes
from vinejax.runtime.host_arrays import whole_array

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Fields of adapter_config.json about the creation and training of adapters, or about the choice of
# projections, which the weights show.
HARMLESS = frozenset(
    """
    task_type base_model_name_or_path target_modules exclude_modules rank_pattern r inference_mode
    revision layers_to_transform layers_pattern auto_mapping peft_version eva_config megatron_config
    megatron_core ensure_weight_tying qalora_group_size
    """.split()
)
# Values of `init_lora_weights` that leave the base model unchanged. 'pissa', for example, does not.
INITS_WITH_PLAIN_BASE = (True, False, "gaussian", "eva", "orthogonal")


def base_of(folder: epath.Path) -> str | None:
    """The model that the adapters in a folder belong to; None if the folder holds no adapters.

    A folder with a config.json and weights of its own is itself a model. Some programs, such as
    axolotl, write the config.json of the base model beside adapters. Raises ModelError if
    adapter_config.json names no base model, names its own folder, or names a model on the hub with
    a revision, because `find_folder` gets the newest one.
    """
    if not (folder / CONFIG).exists():
        return None
    is_model = any(file.name != WEIGHTS for file in folder.glob("*.safetensors"))
    if is_model and (folder / "config.json").exists():
        return None
    fields = read_json(folder / CONFIG)
    base, revision = fields.get("base_model_name_or_path"), fields.get("revision")
    if not isinstance(base, str) or not base or epath.Path(base) == folder:
        raise ModelError(f"{folder / CONFIG}: base_model_name_or_path names no other model")
    is_on_hub = HUB_NAME.fullmatch(base) and not os.path.isdir(os.path.expanduser(base))
    if is_on_hub and revision not in (None, "main"):
        message = f"revision = {revision!r} of {base} is not supported, 'main' is"
        advice = f"`hf download {base} --revision {revision} --local-dir DIR`, and name DIR"
        raise ModelError(f"{folder / CONFIG}: {message}; {advice} in base_model_name_or_path")
    return base


def read_adapters(folder: epath.Path, model: Decoder) -> Params:
    """Reads the adapters in a PEFT folder as NumPy arrays. `model` is their base model.

    The result is {layers {target {lora_a, lora_b}}} in float32, as in `lora.py`. B is multiplied by
    PEFT's scale, which is alpha / rank, or alpha / sqrt(rank) with `use_rslora`, so that a kernel
    becomes W + A B. Layers without an adapter get zeros. Raises ModelError for missing or
    unsupported content and for wrong shapes.
    """
    scale_of, file = _scales(folder), folder / WEIGHTS
    if not file.exists():
        raise ModelError(f"{folder}: holds no {WEIGHTS}; save the adapters as safetensors")
    stored = {tensor.name: tensor for tensor in read_header(file)}
    unread, shapes, layers = set(stored), kernel_shapes(model), {}
    for part, source in _sources(model, shapes).items():
        inputs, outputs = shapes[part]
        factors = []
        for layer in range(model.cfg.num_layers):
            module = _module(source).format(layer)
            names = [f"base_model.model.{module}.lora_{factor}.weight" for factor in "AB"]
            unread -= {*names}
            if not any(name in stored for name in names):
                factors.append((np.zeros((0, math.prod(inputs))), np.zeros((source.shape[0], 0))))
                continue
            a, b = (_matrix(stored, name, file) for name in names)
            if a.shape[1:] != (math.prod(inputs),) or b.shape != (source.shape[0], len(a)):
                message = f"has factors {a.shape} and {b.shape}, the projection is {source.shape}"
                raise ModelError(f"{file}: {module} {message}")
            factors.append((a, scale_of(module, len(a)) * b))
        if rank := max(len(a) for a, _ in factors):
            rows = slice(source.start, source.start + math.prod(outputs))
            of_a = [np.pad(a, ((0, rank - len(a)), (0, 0))).T for a, _ in factors]
            of_b = [np.pad(b, ((0, 0), (0, rank - b.shape[1])))[rows].T for _, b in factors]
            layers[part] = {
                LORA_A: np.stack(of_a).reshape(-1, *inputs, rank).astype(np.float32),
                LORA_B: np.stack(of_b).reshape(-1, rank, *outputs).astype(np.float32),
            }
    if unread:
        message = "is no adapter of a projection of the model (q, k, v, out, gate, up, down)"
        raise ModelError(f"{file}: tensor {min(unread)} {message}")
    return {"layers": layers}


def _scales(folder: epath.Path) -> Callable[[str, int], float]:
    """Reads adapter_config.json; returns a function (module, rank) -> factor on A B.

    Raises ModelError for settings that change more than this factor.
    """
    fields = FieldReader(os.fspath(folder / CONFIG), read_json(folder / CONFIG))
    for field, known in (("peft_type", "LORA"), ("bias", "none"), ("fan_in_fan_out", False)):
        if fields.get(field, known) != known:
            fields.fail(field, f"is not supported, {known!r} is")
    if fields.get("init_lora_weights", True) not in INITS_WITH_PLAIN_BASE:
        fields.fail("init_lora_weights", "changes the base: convert the adapters to plain ones")
    alpha, module_alphas = fields.number("lora_alpha"), fields.get("alpha_pattern", {})
    is_root = fields.flag("use_rslora")
    fields.refuse_the_rest(HARMLESS)

    def scale(module: str, rank: int) -> float:
        # As in PEFT, the first pattern that matches the end of the name counts.
        matching_alphas = (
            x for key, x in module_alphas.items() if re.fullmatch(rf"(.*\.)?({key})", module)
        )
        return next(matching_alphas, alpha) / (rank**0.5 if is_root else rank)

    return scale


def _matrix(stored: dict[str, StoredTensor], name: str, file: epath.Path) -> np.ndarray:
    """The stored matrix `name` in float32. Raises ModelError if it is missing or not a matrix."""
    if name not in stored or len(stored[name].shape) != 2:
        raise ModelError(f"{file}: tensor {name} is missing, or is no matrix")
    tensor = stored[name]
    return tensor.rows(0, tensor.shape[0]).astype(np.float32)


def save_adapters(
    path: epath.PathLike, model: Decoder, adapters: Params, settings: ModelConfig, base: str
) -> None:
    """Write float32 adapters that `peft.PeftModel.from_pretrained` adds to the model `base`.

    `base` must be a model: unlike `load_weights`, PEFT can use neither adapters nor the folder of a
    run as a base. Every process of a run must call the function, and the first process writes.
    """
    layers = jax.tree.map(whole_array, adapters["layers"])
    members = _members(model, layers)
    weights: dict[str, np.ndarray] = {}
    for name, (rows, parts) in members.items():
        for layer in range(model.cfg.num_layers):
            factors = [(start, *_matrices(layers[part], layer)) for part, start in parts.items()]
            module = f"base_model.model.{name.format(layer)}"
            weights[f"{module}.lora_A.weight"] = np.concatenate([a for _, a, _ in factors])
            weights[f"{module}.lora_B.weight"] = _blocks(rows, [(s, b) for s, _, b in factors])
    if jax.process_index() > 0:
        return
    folder = epath.Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    parts_of = {name.rsplit(".", 1)[-1]: len(parts) for name, (_, parts) in members.items()}
    fused = {name: count for name, count in parts_of.items() if count > 1}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": settings.lora_rank,
        "lora_alpha": settings.lora_alpha,
        "target_modules": sorted(parts_of),
        "rank_pattern": {name: count * settings.lora_rank for name, count in fused.items()},
        "alpha_pattern": {name: count * settings.lora_alpha for name, count in fused.items()},
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    (folder / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))


def _members(model: Decoder, layers: Params) -> dict[str, tuple[int, dict[str, int]]]:
    """Maps the name of each torch module to (its number of rows, {projection: its first row}).

    As in a result of `_module`, {} in the name stands for the layer's number.
    """
    modules: dict[str, tuple[int, dict[str, int]]] = {}
    sources = _sources(model, layers)
    for part, source in sorted(sources.items(), key=lambda pair: pair[1].start):
        modules.setdefault(_module(source), (source.shape[0], {}))[1][part] = source.start
    return modules


def _sources(model: Decoder, projections: Container[str]) -> dict[str, Source]:
    """Projection -> tensor and rows of its kernel in a checkpoint of the model's family."""
    return {
        path[1]: source
        for path, source in param_sources(model).items()
        if path[0] == "layers" and path[-1] == "kernel" and path[1] in projections
    }


def _module(source: Source) -> str:
    """The name of the torch module that holds a kernel, with {} for the layer."""
    return source.name.removesuffix(".weight")


def _matrices(adapter: Params, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """(A [rank, inputs], B [outputs, rank]) of a projection in one layer, as torch stores them."""
    a, b = adapter[LORA_A][layer], adapter[LORA_B][layer]
    rank = a.shape[-1]
    return a.reshape(-1, rank).T.copy(), b.reshape(rank, -1).T.copy()


def _blocks(rows: int, parts: list[tuple[int, np.ndarray]]) -> np.ndarray:
    """f32[rows, sum of ranks]: a block matrix of `parts`, which are (first row, block)."""
    joined = np.zeros((rows, sum(b.shape[1] for _, b in parts)), np.float32)
    column = 0
    for start, b in parts:
        joined[start : start + len(b), column : column + b.shape[1]] = b
        column += b.shape[1]
    return joined
