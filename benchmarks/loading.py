"""Peak memory and time of loading, and saving again, a checkpoint of 1 GB.

    python benchmarks/loading.py [--gb=1]

Random Llamas (1536 wide) are written as float32 and as bfloat16, in files of 400 MB, and loaded by
`load_pretrained` in processes of their own under /usr/bin/time. What peak memory may grow by over
that after imports: the model in the dtype that it is loaded as, and 1.2 times its largest stacked
tensor. Saving is measured in the same process, on top.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import transformers  # noqa: F401 (its import is not what is measured)
from etils import epath

from vinejax.model.decoder import Decoder, DecoderConfig
from vinejax.model.hf.families import config_json
from vinejax.model.hf.names import param_sources
from vinejax.model.hf.tensors import NewTensor, put_in_place, write_temporary
from vinejax.model.hf.weights import load_pretrained, save_pretrained
from vinejax.tasks.arithmetic import TOKENIZER

WIDTH, FFN, VOCAB = 1536, 4096, 32000
CASES = (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"))
MB = 10**6


def random_llama(gb: float, dtype: str) -> Decoder:
    """A Llama whose weights take about `gb` gigabytes."""
    layer, top = 4 * WIDTH**2 + 3 * WIDTH * FFN, 2 * VOCAB * WIDTH
    num_layers = round((gb * 1e9 / jnp.dtype(dtype).itemsize - top) / layer)
    return Decoder(
        DecoderConfig(
            vocab_size=VOCAB, num_layers=max(num_layers, 1), width=WIDTH, num_heads=12,
            num_kv_heads=12, head_dim=128, ffn=FFN, context=2048, eos_ids=(1,),
        )
    )  # fmt: skip


def write_checkpoint(folder: epath.Path, model: Decoder, dtype: str) -> None:
    """The model's folder with random weights."""
    rng, stored = np.random.default_rng(0), jnp.dtype(dtype)

    def tensor(name: str, shape: tuple[int, ...]) -> NewTensor:
        return NewTensor(name, stored, shape, lambda: rng.random(shape, np.float32).astype(stored))

    tensors = [
        tensor(source.name.format(i), source.shape)
        for path, source in param_sources(model).items()
        for i in (range(model.cfg.num_layers) if path[0] == "layers" else [None])
    ]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_json(model.cfg, dtype)))
    for file in Path(TOKENIZER).glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    put_in_place(folder, write_temporary(folder, tensors, max_bytes=400 * MB))


def peak_bytes() -> int:
    """The process's largest resident set so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def load_and_save(folder: str, dtype: str) -> None:
    """In a process of its own: prints what was measured as JSON."""
    jax.devices()
    after_imports, start = peak_bytes(), time.perf_counter()
    model, params, tokenizer = load_pretrained(folder, dtype=dtype)
    loaded, load_s = peak_bytes(), time.perf_counter() - start
    start = time.perf_counter()
    save_pretrained(f"{folder}-saved", model, params, tokenizer)
    save_s = time.perf_counter() - start
    stacked = [x.nbytes for x in jax.tree.leaves(params["layers"])]
    record = {
        "model": sum(x.nbytes for x in jax.tree.leaves(params)),
        "largest": max(stacked),
        "after_imports": after_imports,
        "load_growth": loaded - after_imports,
        "save_growth": peak_bytes() - loaded,
        "load_s": load_s,
        "save_s": save_s,
    }
    print(json.dumps(record))


def measure(folder: epath.Path, dtype: str) -> dict[str, float]:
    """`load_and_save` under /usr/bin/time, whose figure has to be that of the process itself."""
    command = ["/usr/bin/time", "-v", sys.executable, __file__, f"--child={folder}:{dtype}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    record = json.loads(done.stdout.splitlines()[-1])
    [line] = [x for x in done.stderr.splitlines() if "Maximum resident set size" in x]
    record["peak"] = int(line.split()[-1]) * 1024
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        load_and_save(*arguments.child.rsplit(":", 1))
        return
    print("| stored | loaded as | model | largest stacked | after imports | peak growth | limit | "
          "of it | load | save, on top | save |\n" + "|---" * 11 + "|")  # fmt: skip
    for stored, dtype in CASES:
        with tempfile.TemporaryDirectory(prefix="vinejax-loading-") as parent:
            folder = epath.Path(parent) / "model"
            write_checkpoint(folder, random_llama(arguments.gb, stored), stored)
            found = measure(folder, dtype)
        limit = found["model"] + 1.2 * found["largest"]
        sizes = [found[x] for x in ("model", "largest", "after_imports", "load_growth")]
        cells = [stored, dtype, *(f"{x / MB:,.0f} MB" for x in (*sizes, limit))]
        cells += [f"{found['load_growth'] / limit:.0%}", f"{found['load_s']:.1f} s"]
        cells += [f"{found['save_growth'] / MB:,.0f} MB", f"{found['save_s']:.1f} s"]
        print("|", " | ".join(cells), "|", flush=True)
        total = found["after_imports"] + found["load_growth"] + found["save_growth"]
        assert abs(found["peak"] - total) < MB, "/usr/bin/time measured another process"


if __name__ == "__main__":
    main()
