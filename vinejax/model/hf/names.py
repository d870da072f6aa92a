"""Finds where a Hugging Face checkpoint holds each parameter, and in which layout.

The weight of a torch Linear is [outputs, inputs]. Here a kernel is [inputs, outputs], with heads on
a separate axis. Phi-3 stacks the rows of q, k and v in one tensor, and the rows of gate and up in
another.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from vinejax.model.decoder import Decoder, Params
from vinejax.model.hf.families import FAMILIES
from vinejax.model.hf.tensors import StoredTensor

ParamPath = tuple[str, ...]  # path of a parameter, such as ("layers", "q", "kernel")
TensorShape = tuple[int, ...]
Index = tuple[slice, ...]  # one slice per axis

EMBED, HEAD = ("embed",), ("head",)
TOP_TENSORS = {
    EMBED: "model.embed_tokens.weight",
    ("norm", "scale"): "model.norm.weight",
    HEAD: "lm_head.weight",
}
MODULES = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "q_joint_norm": "self_attn.q_norm",
    "k_joint_norm": "self_attn.k_norm",
    "router": "mlp.gate",
    **{f"expert_{name}": f"mlp.experts.{{}}.{name}_proj" for name in ("gate", "up", "down")},
}
SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
FUSED_MODULES = {"self_attn.qkv_proj": ("q", "k", "v"), "mlp.gate_up_proj": ("gate", "up")}
BLOCK_BYTES = 2**22  # maximum size of the part of a file that is read at a time


class Source(NamedTuple):
    """The rows of a torch tensor that hold a parameter, or its part for one layer or expert."""

    name: str  # name of the tensor, with {} for the layer, and another {} for the expert
    shape: TensorShape  # shape of the whole tensor
    start: int  # index of the first row
    stacked: TensorShape = ()  # first axes of the parameter, each of whose entries is a tensor

    def names(self) -> list[str]:
        """The names of the tensors of all layers and experts."""
        return [self.name.format(*place) for place in np.ndindex(self.stacked)]


def by_path(params: Params) -> dict[ParamPath, Any]:
    """Path -> leaf, for all leaves of nested parameters."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {tuple(key.key for key in path): leaf for path, leaf in leaves}


@functools.lru_cache(maxsize=16)  # a plan needs the shapes many times
def abstract_params(model: Decoder) -> Params:
    """Float32 ShapeDtypeStructs of a model's parameters. Callers must not change the result."""
    return jax.eval_shape(lambda: dataclasses.replace(model, mesh=None).init(jax.random.key(0)))


def num_stacked(path: ParamPath) -> int:
    """The number of a parameter's first axes that a checkpoint does not have.

    A tensor of a checkpoint belongs to one layer, and to one expert if the layer has several.
    """
    return 0 if path[0] != "layers" else 2 if path[1].startswith("expert_") else 1


def param_sources(model: Decoder) -> dict[ParamPath, Source]:
    """Path of a parameter -> its tensor and rows in a checkpoint of the model's family."""
    cfg = model.cfg
    modules = MODULES | (SANDWICH if cfg.sandwich_norms else {})
    fused = FUSED_MODULES if FAMILIES[cfg.family].fused else {}
    whole = {path: x.shape for path, x in by_path(abstract_params(model)).items()}
    shapes = {path: torch_shape(path, x[num_stacked(path) :]) for path, x in whole.items()}
    sources = {}
    for path, shape in shapes.items():
        if path[0] != "layers":
            sources[path] = Source(TOP_TENSORS[path], shape, 0)
            continue
        _, module, kind = path
        name, members = modules[module], (module,)
        for fused_name, group in fused.items():
            if module in group:
                name, members = fused_name, group
        rows = [shapes["layers", member, kind][0] for member in members]
        name = f"model.layers.{{}}.{name}.{'bias' if kind == 'bias' else 'weight'}"
        start = sum(rows[: members.index(module)])
        stacked = whole[path][: num_stacked(path)]
        sources[path] = Source(name, (sum(rows), *shape[1:]), start, stacked)
    return sources


def _matrix_axes(path: ParamPath, rank: int) -> tuple[slice, slice]:
    """(axes of a parameter that become rows of a matrix, axes that become columns).

    `rank` is the parameter's number of axes without stacked ones. The matrix is the parameter's
    form in a checkpoint. For a vector, the second slice is empty.
    """
    if path == EMBED:
        return slice(0, 1), slice(1, 2)
    if path == HEAD or path[-1] == "kernel":
        num_in = 2 if "out" in path else 1
        return slice(num_in, rank), slice(0, num_in)
    return slice(0, rank), slice(rank, rank)


def torch_shape(path: ParamPath, shape: TensorShape) -> TensorShape:
    """The shape that a parameter has in a checkpoint. `shape` has no stacked axes."""
    rows, columns = _matrix_axes(path, len(shape))
    matrix = math.prod(shape[rows]), math.prod(shape[columns])
    return matrix if shape[columns] else matrix[:1]


def torch_matrix(path: ParamPath, x: np.ndarray) -> np.ndarray:
    """A view of a parameter as the matrix [rows, columns] of a checkpoint."""
    rows, _ = _matrix_axes(path, x.ndim)
    num_rows = math.prod(x.shape[rows])
    return x.reshape(num_rows, -1) if rows.start == 0 else x.reshape(-1, num_rows).T


def _flat_range(shape: TensorShape, index: Index) -> tuple[int, int]:
    """(start, stop) of the range that `index` selects after all axes of `shape` are flattened.

    Only the first slice of `index` may select a part of its axis.
    """
    if not shape:
        return 0, 1
    start, stop, _ = index[0].indices(shape[0])
    return start * math.prod(shape[1:]), stop * math.prod(shape[1:])


def read_part(
    tensor: StoredTensor,
    path: ParamPath,
    source: Source,
    shape: TensorShape,
    index: Index,
    out: np.ndarray,
) -> None:
    """Fill `out` with the part `index` of the parameter `path`.

    `source` says which rows of `tensor` hold the parameter. `shape` is the parameter's whole shape
    without stacked axes.
    """
    rows, columns = _matrix_axes(path, len(shape))
    first, last = _flat_range(shape[rows], index[rows])
    left, right = _flat_range(shape[columns], index[columns])
    matrix = torch_matrix(path, out)
    for start, stop in row_blocks(tensor, first, last):
        block = tensor.rows(source.start + start, source.start + stop)
        matrix[start - first : stop - first] = block.reshape(stop - start, -1)[:, left:right]


def row_blocks(tensor: StoredTensor, first: int, last: int) -> list[tuple[int, int]]:
    """(start, stop) of each block into which rows first .. last - 1 are divided.

    A block has at most BLOCK_BYTES, or one row if a row is larger than that.
    """
    step = max(1, BLOCK_BYTES // (math.prod(tensor.shape[1:]) * tensor.dtype.itemsize))
    return [(start, min(start + step, last)) for start in range(first, last, step)]
