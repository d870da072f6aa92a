"""SmolLM2 writes texts: this engine, transformers' `generate` and llama.cpp, by turns.

    pip install -e '.[real]' xllamacpp
    python benchmarks/real/model.py models/smollm2
    taskset -c 0 python benchmarks/real/beside_llama_cpp.py models/smollm2 FILE.gguf

1, 16 and 64 prompts of GSM8K's lengths get 64 tokens each, at temperature 0.6 and top-p 0.9, on one
core. Ours and transformers compute in float32, llama.cpp with the 4 bits of the file, which is in
the wheel that model.py names. Prompts are computed anew each time. 2026-11-27, beside other work,
medians of three rounds by turns, xllamacpp 2026.10.11549, transformers 5.24:

  texts   vinejax   transformers     llama.cpp
      1     3.3 s     5.9 (1.82)    1.8 (0.54)
     16    14.3 s    28.7 (2.00)   28.0 (1.95)
     64    50.6 s    97.8 (1.93)   95.4 (1.89)
     64    49.5 s   100.9 (2.04)   96.0 (1.94)   half an hour before
"""

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import vinejax

sys.path.insert(0, str(Path(__file__).parents[1]))
from contenders import ours, transformers_generate
from workload import Lengths, Workload, make_tokenizer, make_workload, solutions

TOKENS = 64


def workload(folder: str) -> Workload:
    """The work of `rollout.py --solutions` with the folder's model, which cannot end a text."""
    model, params, _ = vinejax.load_pretrained(folder)
    cfg = dataclasses.replace(model.cfg, eos_ids=())
    some = make_workload("tiny", 512, Lengths(trajectories=1), slots=1)
    return dataclasses.replace(
        some,
        model=dataclasses.replace(model, cfg=cfg),
        params=params,
        tokenizer=make_tokenizer(cfg.vocab_size),
    )


def taken_by(run: Callable[[], object]) -> float:
    """Seconds of the processor, of all threads of the process."""
    start = time.process_time()
    run()
    return time.process_time() - start


def of_llama_cpp(work: Workload, file: str) -> float:
    """Its server's, in this process: all prompts in one request, as many slots, one thread.

    A server goes with its request, since one that waits takes the processor from the others.
    """
    import xllamacpp  # pyright: ignore[reportMissingImports]

    longest = max(map(len, work.trunks)) + TOKENS
    params: Any = xllamacpp.CommonParams()
    params.model.path = file
    params.n_ctx, params.n_parallel = len(work.trunks) * -(-longest // 256) * 256, len(work.trunks)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_gpu_layers = params.cache_ram_mib = params.verbosity = 0
    params.ui = params.warmup = False
    server = xllamacpp.Server(params)
    request = {
        "prompt": work.trunks,
        "n_predict": TOKENS,
        "ignore_eos": True,
        "cache_prompt": False,
        "temperature": work.sampling.temperature,
        "top_p": work.sampling.top_p,
        "top_k": 0,
        "min_p": 0.0,
    }

    def run() -> None:
        answer = server.handle_completions(request)
        assert len(answer["choices"]) == len(work.trunks), answer
        assert answer["usage"]["completion_tokens"] in (TOKENS, TOKENS * len(work.trunks)), answer

    return taken_by(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", help="of the model: see model.py")
    parser.add_argument("gguf", help="the same model's file, for llama.cpp")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", default="1,16,64")
    args = parser.parse_args()
    base = workload(args.folder)
    for count in map(int, args.texts.split(",")):
        work = dataclasses.replace(solutions(base, count, TOKENS), slots=count)
        here = {"vinejax": ours(work, devices=1), "transformers": transformers_generate(work)}
        here["vinejax"]()  # compiles
        taken: dict[str, list[float]] = {"vinejax": [], "transformers": [], "llama.cpp": []}
        for _ in range(args.rounds):
            for name, run in here.items():
                taken[name].append(taken_by(run))
            taken["llama.cpp"].append(of_llama_cpp(work, args.gguf))
        middle = {name: statistics.median(seconds) for name, seconds in taken.items()}
        found = ", ".join(
            f"{name} {seconds:.1f} s ({seconds / middle['vinejax']:.2f})"
            for name, seconds in middle.items()
        )
        print(f"{count} texts, processor seconds (over ours): {found}", flush=True)


if __name__ == "__main__":
    main()
