"""Reads safetensors files by range, and writes them tensor by tensor.

A file consists of 8 bytes with the length of a JSON header, the header (name -> dtype, shape, byte
range), and the data.

The `safetensors` library maps whole files into memory: when a process read 512 MB, its memory grew
by 576 MB. To save a file, the library needs all tensors at once, and it cannot open a gs:// path.
This module holds only the requested bytes in memory.
"""

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from etils import epath

from vinejax.core.errors import ModelError

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
}
MAX_HEADER = 100 * 2**20  # maximum number of bytes in a header, as in the library
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TEMPORARY = ".tmp"  # suffix of a file's name until `put_in_place` renames the file
CONVERT = (
    "import sys, transformers as t; a, b = sys.argv[1:]; "
    "t.AutoModelForCausalLM.from_pretrained(a, dtype='auto').save_pretrained(b); "
    "t.AutoTokenizer.from_pretrained(a).save_pretrained(b)"
)
PICKLED_MESSAGE = (
    "pickled weights (*.bin, *.pt) are not loaded, because that would run code in them; if you "
    "trust MODEL, a folder or hub name, convert it where torch is installed: "
    f'python -c "{CONVERT}" MODEL FOLDER'
)


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. The method `rows` reads a part of it."""

    name: str
    file: epath.Path
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int  # offset of the first byte of the tensor in the file

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows start .. stop - 1 of the first axis, in the stored dtype."""
        row = math.prod(self.shape[1:])
        with self.file.open("rb") as file:
            file.seek(self.start + start * row * self.dtype.itemsize)
            data = file.read((stop - start) * row * self.dtype.itemsize)
        shape = (stop - start, *self.shape[1:])
        if len(data) != math.prod(shape) * self.dtype.itemsize:
            raise ModelError(f"{self.file}: tensor {self.name} ends early: the file has changed")
        return np.frombuffer(data, self.dtype).reshape(shape)


def find_tensors(folder: epath.Path) -> dict[str, StoredTensor]:
    """Name -> tensor, for all safetensors files of a folder, with or without an index.

    The function reads only headers. It raises ModelError for pickled weights, for a file that is
    missing, incomplete or not a safetensors file, and for a tensor that two files contain.
    """
    index = folder / INDEX
    listed: dict[str, str] = {}
    if index.exists():
        listed = read_json(index).get("weight_map") or {}
        if not isinstance(listed, dict) or any(type(file) is not str for file in listed.values()):
            raise ModelError(f"{index}: weight_map must name the file of each tensor")
        files = [folder / name for name in sorted(set(listed.values()))]
        missing = [file for file in files if not file.exists()]
        if missing and (folder / SINGLE).exists() and folder / SINGLE not in files:
            # transformers leaves the index of an older model behind, and does not read it.
            listed, files = {}, [folder / SINGLE]
        elif missing:
            raise ModelError(f"{missing[0]} is missing, which {INDEX} names")
    elif (folder / SINGLE).exists():
        files = [folder / SINGLE]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        is_pickled = any(file.suffix in (".bin", ".pt", ".pth") for file in folder.iterdir())
        # `find_folder` downloads no other weights from the hub.
        where = "" if is_pickled else "if its weights are elsewhere, or were left on the hub: "
        raise ModelError(f"{folder} has no *.safetensors; {where}{PICKLED_MESSAGE}")
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for tensor in read_header(file):
            if tensor.name in tensors:
                file_names = f"{tensors[tensor.name].file.name} and {file.name}"
                raise ModelError(f"{folder}: tensor {tensor.name} is in both {file_names}")
            tensors[tensor.name] = tensor
    for name, file in listed.items():
        if name not in tensors or tensors[name].file.name != file:
            raise ModelError(f"{folder / file}: tensor {name} is missing, which {INDEX} puts there")
    return tensors


def read_json(file: epath.Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises ModelError if the file cannot be read or holds no object.
    """
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{file} is not a JSON object")
    return raw


def read_header(file: epath.Path) -> list[StoredTensor]:
    """The tensors in a safetensors file. Raises ModelError if the file is damaged or incomplete."""
    size = file.stat().length
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > min(MAX_HEADER, size - 8):
            raise ModelError(f"{file} is not a whole safetensors file: its header ends early")
        try:
            header = json.loads(opened.read(length))
            header.pop("__metadata__", None)
            entries = []
            for name, entry in header.items():
                shape, (start, stop) = tuple(entry["shape"]), entry["data_offsets"]
                if any(type(x) is not int or x < 0 for x in (*shape, start, stop)):
                    raise ValueError
                entries.append((name, str(entry["dtype"]), shape, start, stop))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ModelError(f"{file} is not a safetensors file: its header is damaged") from None
    tensors = []
    for name, dtype, shape, start, stop in entries:
        if dtype not in DTYPES:
            known = ", ".join(DTYPES)
            raise ModelError(f"{file}: tensor {name} is {dtype}, but must be one of {known}")
        if stop - start != math.prod(shape) * DTYPES[dtype].itemsize:
            raise ModelError(f"{file}: tensor {name} has {stop - start} bytes for shape {shape}")
        end = 8 + length + stop
        if end > size:
            message = f"tensor {name} ends at byte {end} of {size}; download it again"
            raise ModelError(f"{file} is not a whole safetensors file: {message}")
        tensors.append(StoredTensor(name, file, DTYPES[dtype], shape, 8 + length + start))
    return tensors


@dataclasses.dataclass(frozen=True)
class NewTensor:
    """A tensor that is to be written to a file."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]  # computes the tensor just before it is written

    @property
    def size(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class TemporaryFiles(NamedTuple):
    """Complete files of weights under temporary names. No program loads files of these names."""

    files: list[tuple[epath.Path, str]]  # (temporary path, final name)
    index: str  # text of the index; '' for none


def write_temporary(folder: epath.Path, tensors: list[NewTensor], max_bytes: int) -> TemporaryFiles:
    """Write tensors to temporary files in the folder; `put_in_place` later replaces the old files.

    The tensors go into one file, or into several with an index if they have more than `max_bytes`.
    The disk must have room for old and temporary files. If writing fails, the function removes the
    temporary files.
    """
    parts: list[list[NewTensor]] = [[]]
    for tensor in tensors:
        if parts[-1] and sum(x.size for x in parts[-1]) + tensor.size > max_bytes:
            parts.append([])
        parts[-1].append(tensor)
    count = len(parts)
    names = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    names = names if count > 1 else [SINGLE]
    files = [(folder / (name + TEMPORARY), name) for name in names]
    try:
        for (file, _), part in zip(files, parts, strict=True):
            _write_file(file, part)
    except BaseException:
        for file, _ in files:
            file.unlink(missing_ok=True)
        raise
    if count == 1:
        return TemporaryFiles(files, "")
    file_of = {x.name: name for name, part in zip(names, parts, strict=True) for x in part}
    size = sum(tensor.size for tensor in tensors)
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(file_of.items()))}
    return TemporaryFiles(files, json.dumps(index, indent=2) + "\n")


def put_in_place(folder: epath.Path, temporary: TemporaryFiles) -> None:
    """Replace the folder's weights by the files that `write_temporary` has written.

    The function first removes the old files, so that the folder never holds both old and new files.
    It writes the index last.
    """
    for old in [folder / INDEX, *folder.glob("model*.safetensors")]:
        old.unlink(missing_ok=True)
    for file, name in temporary.files:
        file.replace(folder / name)
    if temporary.index:
        (folder / INDEX).write_text(temporary.index)


def _write_file(file: epath.Path, tensors: list[NewTensor]) -> None:
    codes = {dtype: code for code, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.size
        entry = {"dtype": codes[tensor.dtype], "shape": list(tensor.shape)}
        header[tensor.name] = entry | {"data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            value = np.ascontiguousarray(tensor.make())
            assert (value.dtype, value.shape) == (tensor.dtype, tensor.shape), tensor.name
            opened.write(value.reshape(-1).view(np.uint8).data)
