"""Converts a GGUF file, the format of llama.cpp, to a Hugging Face folder with transformers.

transformers runs in a separate process, because it loads torch. Quantized weights become float32,
so training starts from the rounded weights. transformers does not read `tokenizer.ggml.pre`, the
pattern by which a tokenizer splits texts, and uses GPT-2's pattern instead. For SmolLM2, only the
tokens of spaces before digits differ.

The script fails for a file without all tensors of its model, such as one of several parts, because
transformers would fill the others with random numbers.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile

from etils import epath

from vinejax.core.errors import ModelError
from vinejax.runtime.workdir import users_cache

SUFFIX = ".gguf"
NEEDED_PACKAGES = ("gguf", "accelerate", "torch")  # besides transformers
CONVERT = """
import os, sys
from gguf import GGUFReader
folder, file, out = sys.argv[1:]
fields = GGUFReader(os.path.join(folder, file)).fields
parts = fields["split.count"].parts[-1][0] if "split.count" in fields else 1
if parts > 1:
    sys.exit(f"it is one of {parts} parts; join them with `llama-gguf-split --merge`")

import transformers as t
model, info = t.AutoModelForCausalLM.from_pretrained(
    folder, gguf_file=file, dtype="float32", output_loading_info=True
)
if info["missing_keys"]:
    sys.exit(f"it finds no tensor for {min(info['missing_keys'])}")
model.hf_quantizer = None  # transformers saves no model that it thinks is quantized
vars(model.config).pop("quantization_config", None)
model.save_pretrained(out)
t.AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(out)
"""


def converted_folder(file: epath.Path) -> epath.Path:
    """The Hugging Face folder for a GGUF file, in the user's cache folder.

    The first call for a file converts it. If the file or the script changes, the next call converts
    it to another folder. Raises ModelError as `convert` does.
    """
    stat = os.stat(file)
    made_from = f"{os.path.realpath(file)} {stat.st_size} {stat.st_mtime_ns} {CONVERT}"
    key = hashlib.blake2b(made_from.encode(), digest_size=8).hexdigest()
    folder = users_cache() / "gguf" / f"{file.stem}-{key}"
    if not folder.exists():
        convert(file, folder)
    return folder


def convert(file: epath.Path, folder: epath.Path) -> None:
    """Write the model, in float32, and the tokenizer of a GGUF file to a new folder.

    Raises ModelError if packages are missing, or if transformers cannot read the file.
    """
    if missing := [name for name in NEEDED_PACKAGES if importlib.util.find_spec(name) is None]:
        message = f"a GGUF file needs {', '.join(missing)}: pip install 'vinejax[real]'"
        raise ModelError(f"{file}: {message}, or name a folder with safetensors")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".gguf-", dir=folder.parent) as unfinished:
        out = os.path.join(unfinished, "model")
        folder_of_file = os.path.dirname(os.path.abspath(file))
        command = [sys.executable, "-c", CONVERT, folder_of_file, file.name, out]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = done.stderr.strip().rpartition("\n")[2]
            raise ModelError(f"{file}: transformers cannot read it: {reason}")
        try:
            os.rename(out, folder)
        except OSError:
            if not folder.exists():  # otherwise another process has just converted the file
                raise
