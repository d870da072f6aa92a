"""How many programs a run compiles, and when, if the lengths of its texts vary wildly.

    python benchmarks/programs.py
    python benchmarks/programs.py --method=ppo --iterations=20

A small model is warmed up on texts of lognormal lengths after prompts of lognormal lengths, so that
the longest prompt and the longest solution of an iteration differ several times from one iteration
to the next. Programs are counted as they are compiled; nothing is loaded from a cache.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vinejax.config.load import from_dict
from vinejax.core.settings import Config, DataConfig
from vinejax.core.types import Problem
from vinejax.methods.base import Method
from vinejax.methods.known import find_method
from vinejax.session.iteration import Iteration
from vinejax.session.session import Session
from vinejax.tasks import arithmetic
from vinejax.tasks.base import Split
from vinejax.training import loop
from vinejax.training import loop as train

COMPILED = "/jax/core/compile/backend_compile_duration"
PROMPT, SOLUTION = 300, 256  # tokens at most
SIZES: dict[Split, int] = {"train": 512, "validation": 4, "test": 4}


class Lengths(arithmetic.Arithmetic):
    """Digits to be continued by digits and lines; a number of sevens that 3 divides is right."""

    def load(self, split: Split) -> list[Problem]:
        rng = np.random.default_rng(["train", "validation", "test"].index(split))
        return [
            Problem(f"{split}/{i}", _text(rng, 60, PROMPT - 4), _text(rng, 60, SOLUTION - 8))
            for i in range(SIZES[split])
        ]

    def solution(self, problem: Problem) -> str:
        return problem.answer

    def reward(self, problem: Problem, response: str) -> float:
        return float(response.count("7") % 3 == 0)


def _text(rng: np.random.Generator, median: int, most: int) -> str:
    """Digits of lognormal number, in lines of 15 on average."""
    count = int(np.clip(rng.lognormal(np.log(median), 0.9), 4, most))
    return "".join("\n" if rng.random() < 1 / 15 else str(rng.integers(10)) for _ in range(count))


def make(data: DataConfig) -> Lengths:
    return Lengths()


def config_of(options: argparse.Namespace) -> Config:
    """A run of so many iterations on the task above, with packed rows."""
    fields: dict[str, Any] = {
        "method": options.method,
        "iterations": options.iterations,
        "compile_cache": "none",
        "data": {"task": "programs", "max_prompt_tokens": PROMPT},
        "model": {
            **{"compute_dtype": "float32", "num_layers": 1, "width": 32, "num_heads": 4},
            **{"num_kv_heads": 2, "ffn": 64, "context": 640},
        },
        "sample": {"max_tokens": SOLUTION, "temperature": 1.0},
        "rollout": {"prompts": 4, "per_prompt": 4, "slots": 64},
        "ppo": {"minibatch": 8, "epochs": 1},
        "optimizer": {"learning_rate": 1e-6},
        "sft": {"steps": 60, "batch": 16, "learning_rate": 1e-2},
        "eval": {"every": 0, "samples": 1},
        "checkpoint": {"every": options.iterations},
        "log": {"vines": 0},
    }
    if find_method(options.method).has_continuations:
        fields["values"] = {"k": 3, "max_states": 4}
    return from_dict(fields)


class Counted:
    """Programs by the iteration in which they were compiled, and the longest texts of each."""

    def __init__(self):
        self.names: list[list[str]] = [[]]  # first those before the first iteration
        self.longest: list[tuple[int, int]] = []  # tokens of prompt, of solution
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, event: str, duration_secs: float, **facts: Any) -> None:
        if event == COMPILED:
            self.names[-1].append(str(facts.get("fun_name", "?")))

    @contextlib.contextmanager
    def listening(self):
        """Counts by iterations of `train` within."""
        opened = loop.open_session

        def counted(method: Method, iteration: Iteration, state: Any) -> Any:
            self.names.append([])
            state = find_method(iteration.cfg.method).iteration(method, iteration, state)
            lines = (
                iteration.session.workdir / "episodes" / f"{iteration.number}.jsonl"
            ).read_text()
            episodes = [json.loads(line) for line in lines.splitlines()]
            encode = iteration.session.tokenizer.encode
            self.longest.append(
                (
                    max(len(encode(episode["prompt"])) for episode in episodes),
                    max(len(encode(episode["response"])) for episode in episodes),
                )
            )
            return state

        def opened_with(*arguments: Any, **options: Any) -> Session:
            session = opened(*arguments, **options)
            method = dataclasses.replace(session.method, iteration=counted)
            return dataclasses.replace(session, method=method)

        loop.open_session = opened_with
        try:
            yield
        finally:
            loop.open_session = opened


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--method", default="vineppo")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--json", type=Path, help="file for the result")
    options = parser.parse_args()
    jax.config.update("jax_compilation_cache_dir", None)
    counted = Counted()
    with tempfile.TemporaryDirectory() as folder, counted.listening():
        train.train(config_of(options), Path(folder) / "run")
    for i, (names, longest) in enumerate(zip(counted.names[1:], counted.longest, strict=True)):
        said = ", ".join(f"{n} {x}" for x, n in collections.Counter(names).items())
        print(f"iteration {i + 1}: prompt {longest[0]}, solution {longest[1]}: {said or 'none'}")
    totals = collections.Counter(name for names in counted.names[1:] for name in names)
    late = sum(len(names) for names in counted.names[11:])
    print(f"before: {len(counted.names[0])} programs")
    print(f"iterations: {sum(totals.values())} programs, {late} of them after the tenth: {totals}")
    if options.json:
        options.json.write_text(
            json.dumps({"names": counted.names, "longest": counted.longest}, indent=1)
        )


if __name__ == "__main__":
    main()
