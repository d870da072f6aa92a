"""Converts a GGUF file, the format of llama.cpp, to a Hugging Face folder with transformers.

transformers runs in a separate process, because it loads torch. Quantized weights become float32,
so training starts from the rounded weights. `tokenizer.ggml.pre` names the pattern by which a
tokenizer splits texts. transformers 5.24 knows some names, such as Llama 3's and Qwen2's, and uses
GPT-2's pattern for others. For SmolLM2, only the tokens of spaces before digits differ. As in
llama.cpp, a tokenizer of Llama 3 puts BOS in front of a text unless the file says otherwise.

transformers does not read how RoPE is scaled, nor Phi-3's window of attention, nor that Gemma 2 27B
scales attention by the width over the number of heads. The script adds the window, this scale and
the scaling of Llama 3's RoPE, whose factors are a tensor, and fails for any other scaling.

The script fails for a file without all tensors of its model, such as one of several parts, because
transformers would fill the others with random numbers. It also fails for biases of a Llama, which
transformers would leave out, and for a Llama that does not say how many heads its keys have, whose
queries and keys transformers would leave in llama.cpp's order.
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
reader = GGUFReader(os.path.join(folder, file))
single = {key: x.parts[-1] for key, x in reader.fields.items() if len(x.data) == 1}
numbers = {key: part[0] for key, part in single.items() if len(part)}  # a text may be empty
if (parts := numbers.get("split.count", 1)) > 1:
    sys.exit(f"it is one of {parts} parts; join them with `llama-gguf-split --merge`")
for key, x in numbers.items():
    if key.endswith((".rope.scaling.factor", ".rope.scale_linear")) and x not in (0, 1):
        sys.exit(f"it does not know {key} = {x:.6g}; name a folder with safetensors")
ropes = {x.name: x.data for x in reader.tensors if x.name.startswith("rope_")}
factors = ropes.pop("rope_freqs.weight", None)
if ropes:
    sys.exit(f"it does not know the tensor {min(ropes)}; name a folder with safetensors")
is_llama = "llama.attention.head_count" in numbers
if is_llama and "llama.attention.head_count_kv" not in numbers:  # q and k would keep their order
    sys.exit("it needs llama.attention.head_count_kv; name a folder with safetensors")

given = {}
if "tokenizer.ggml.pre" in reader.fields and "tokenizer.ggml.bos_token_id" in numbers:
    pattern = bytes(reader.fields["tokenizer.ggml.pre"].parts[-1]).decode()
    if pattern in ("llama3", "llama-v3", "llama-bpe"):
        given["add_bos_token"] = True  # tokenizer.ggml.add_bos_token of the file takes its place

import numpy as np, transformers as t
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
model, info = t.AutoModelForCausalLM.from_pretrained(
    folder, gguf_file=file, dtype="float32", output_loading_info=True
)
if info["missing_keys"]:
    sys.exit(f"it finds no tensor for {min(info['missing_keys'])}")
biases = [x.name for x in reader.tensors if x.name.endswith(".bias")]
if biases and not any(name.endswith(".bias") for name in model.state_dict()):
    sys.exit(f"it does not know the tensor {min(biases)}; name a folder with safetensors")
if numbers.get("gemma2.block_count") == 46:  # Gemma 2 27B, which llama.cpp tells by its layers
    cfg = model.config
    cfg.query_pre_attn_scalar = cfg.hidden_size // cfg.num_attention_heads
if window := numbers.get("phi3.attention.sliding_window"):  # 0: none
    model.config.sliding_window = int(window)  # which transformers does not read
if factors is not None:
    plain = model.model.rotary_emb.inv_freq
    model.config.rope_parameters.update(
        rope_type="llama3", factor=float(factors.max()), low_freq_factor=1.0,
        high_freq_factor=4.0, original_max_position_embeddings=8192,
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](model.config)
    if not np.allclose(plain / scaled, factors, rtol=1e-3):
        sys.exit("its rope_freqs.weight are not Llama 3's; name a folder with safetensors")
model.hf_quantizer = None  # transformers saves no model that it thinks is quantized
vars(model.config).pop("quantization_config", None)
model.save_pretrained(out)
t.AutoTokenizer.from_pretrained(folder, gguf_file=file, **given).save_pretrained(out)
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
