"""Tokens a second of `--mode=serve` over those of its engine alone.

    pip install -e '.[serve]' && python benchmarks/serve.py --model=10m --requests=256

64 clients on this machine, in a process of their own, each send one request after the other. The
engine alone gets all branches by one call of `grow`. Random weights; prompts of 32 tokens,
responses of geometric lengths (mean 64, at most 128), which are their budgets; temperature 1. By
turns in one process, medians over rounds after a first one.
"""

import argparse
import asyncio
import dataclasses
import http.client
import json
import multiprocessing
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import uvicorn  # pyright: ignore[reportMissingImports]
from workload import Lengths, make_model, make_tokenizer

import vinejax
from vinejax.config.load import default, from_dict, override
from vinejax.engine.branches import Branch
from vinejax.tools.serve.serve_mode import server_config, service_of

CLIENTS, PROMPT, MEAN, MOST = 64, 32, 64, 128


class Work(NamedTuple):
    prompts: list[list[int]]
    budgets: list[int]


def make_work(requests: int, vocab_size: int) -> Work:
    rng = np.random.default_rng(0)
    prompts = rng.integers(3, vocab_size, (requests, PROMPT)).tolist()
    budgets = np.minimum(rng.geometric(1 / MEAN, requests), MOST).tolist()
    return Work(prompts, budgets)


def serving(service: Any) -> Iterator[int]:
    """Serves on a thread at a free port, which is yielded."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server = uvicorn.Server(server_config(service))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()


def clients(port: int, work: Work, pipe: Any) -> None:
    """In a process of its own: sends all requests at each word, and returns the texts."""

    def ask(i: int) -> str:
        if not hasattr(local, "connection"):
            local.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        fields = {"prompt": work.prompts[i], "max_tokens": work.budgets[i], "seed": i}
        headers = {"content-type": "application/json"}
        local.connection.request("POST", "/v1/completions", json.dumps(fields), headers)
        reply = json.loads(local.connection.getresponse().read())
        return reply["choices"][0]["text"]

    while pipe.recv():
        local = threading.local()
        with ThreadPoolExecutor(CLIENTS) as pool:
            pipe.send(list(pool.map(ask, range(len(work.prompts)))))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="10m", help="a shape of workload.py")
    parser.add_argument("--vocab", type=int, default=512)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--slots", type=int, default=32, help="of both engines")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    lengths = Lengths(trajectories=1, trajectory=PROMPT, prompt=PROMPT, cap=MOST, k=1)
    model, params = make_model(args.model, args.vocab, lengths, "float32")
    model = dataclasses.replace(model, cfg=dataclasses.replace(model.cfg, eos_ids=(0,)))
    work, fields = make_work(args.requests, args.vocab), default()
    with tempfile.TemporaryDirectory() as folder:
        vinejax.save_pretrained(folder, model, params, make_tokenizer(args.vocab))
        override(
            fields,
            {
                "model.path": folder,
                "model.compute_dtype": "float32",
                "data.max_prompt_tokens": PROMPT,
                "sample.max_tokens": MOST,
                "rollout.slots": args.slots,
                "serve.prompt_tokens": PROMPT,
            },
        )
        with service_of(from_dict(fields), f"{folder}/run") as service:
            compare(service, work, args)


def compare(service: Any, work: Work, args: argparse.Namespace) -> None:
    """Measures both by turns, and prints a line per round and the medians."""
    answerer = service.answerer
    sample = vinejax.SampleConfig(max_tokens=MOST)
    engine = vinejax.Engine(answerer.model, sample, answerer.tokenizer, slots=args.slots)
    branches = [Branch(i, PROMPT, seed=i) for i in range(len(work.prompts))]
    params = answerer.scheduler.params
    serve = serving(service)
    port = next(serve)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=clients, args=(port, work, theirs), daemon=True
    )
    process.start()
    ratios, cpu_ratios = [], []
    for n in range(args.repeats + 1):
        start, cpu_start = time.perf_counter(), time.process_time()
        alone = engine.grow(params, work.prompts, branches, work.budgets)
        middle, cpu_middle = time.perf_counter(), time.process_time()
        ours.send(True)
        texts = ours.recv()
        end, cpu_end = time.perf_counter(), time.process_time()
        cpu_seconds = cpu_middle - cpu_start, cpu_end - cpu_middle
        same = sum(a.text == b for a, b in zip(alone, texts, strict=True))
        tokens = sum(len(x.tokens) for x in alone)
        rates = tokens / (middle - start), tokens / (end - middle)
        print(
            f"round {n}: engine {rates[0]:,.0f} tokens/s, served {rates[1]:,.0f}, ratio "
            f"{rates[1] / rates[0]:.3f}, CPU seconds {cpu_seconds[0]:.1f} and "
            f"{cpu_seconds[1]:.1f}, equal texts {same} of {len(texts)}",
            flush=True,
        )
        if n:  # the first one compiles
            ratios.append(rates[1] / rates[0])
            cpu_ratios.append(cpu_seconds[0] / cpu_seconds[1])
    medians = statistics.median(ratios), statistics.median(cpu_ratios)
    print(
        f"served over engine alone, medians of {args.repeats} rounds: {medians[0]:.3f} of its "
        f"tokens a second, {medians[1]:.3f} of its tokens per CPU second"
    )
    ours.send(False)
    process.join()
    next(serve, None)


if __name__ == "__main__":
    main()
