"""The bias of values whose continuations are sampled with kernels in 8 bits (values.dtype='int8').

    python benchmarks/int8_values.py [--draws=128] [--problems=32]

Two really trained models: the tiny start on its arithmetic, and stories260K, whose return is 1 if a
continuation of 48 tokens speaks of a mother. A solution of each problem is drawn from the model in
bfloat16, and states are taken evenly from it. At each state V is the mean return of `draws`
continuations: of the model in float32, in bfloat16, and of the bfloat16 model with kernels in 8
bits. The draws have the same seeds, so that two policies differ in few of their continuations, and
differences of V are known far better than V itself.

Printed are the mean difference of V with its 95% interval over problems, the largest of a state
with the standard error of that state's difference, and the share of continuations that differ.
"""

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import vinejax
from vinejax.core.settings import ModelConfig, SampleConfig
from vinejax.core.text import decode
from vinejax.statistics.accuracy import bootstrap_interval
from vinejax.tasks.arithmetic import Arithmetic

REPO = Path(__file__).parents[1]
STATES = 4  # of a solution
DTYPES = ("float32", "bfloat16", "int8")
STORIES = (
    "Once upon a time, there was a little girl named Lily.",
    "Tom had a red ball. He went to the park",
    "One day, a small bird sat in a tree.",
    "The cat saw a big dog. The dog was",
)


class Work(NamedTuple):
    """A model, its prompts, and the return of a response."""

    folder: Path
    prompts: list[str]
    reward: Callable[[int, str], float]  # (number of the prompt, text of the response)
    max_tokens: int


def arithmetic(problems: int) -> Work:
    task = Arithmetic()
    chosen = task.load("test")[:problems]
    prompts = [task.prompt(problem) for problem in chosen]
    folder = REPO / "configs" / "tiny_start"
    return Work(folder, prompts, lambda i, text: task.reward(chosen[i], text), 48)


def stories(problems: int) -> Work:
    prompts = [STORIES[i % len(STORIES)] for i in range(problems)]
    folder = REPO / "tests" / "data" / "stories260K" / "hf"
    return Work(folder, prompts, lambda _, text: float("mom" in text.lower()), 48)


class Grower:
    """Continuations of one model, in float32, in bfloat16 or with kernels in 8 bits."""

    def __init__(self, work: Work):
        model, self.params, self.tokenizer = vinejax.load_pretrained(str(work.folder))
        sampling = SampleConfig(temperature=1.0, max_tokens=work.max_tokens)
        self.engines = {
            dtype: vinejax.Engine(
                model.computing(ModelConfig(compute_dtype=dtype)),
                sampling,
                self.tokenizer,
                slots=256,
            )
            for dtype in DTYPES[:2]
        }

    def grow(self, dtype: str, trunks: Any, branches: Any, budgets: Any = None) -> list[Any]:
        engine = self.engines["bfloat16" if dtype == "int8" else dtype]
        return engine.stream(
            self.params, trunks, branches, budgets, int8=dtype == "int8"
        ).in_order()


class State(NamedTuple):
    """The first `used` tokens of the solution of a prompt."""

    prompt: int
    used: int


def measure(work: Work, draws: int) -> None:
    grower = Grower(work)
    prompts = [grower.tokenizer.encode(prompt) for prompt in work.prompts]
    starts = [vinejax.Branch(i, len(prompt), i) for i, prompt in enumerate(prompts)]
    solutions = [grown.tokens for grown in grower.grow("bfloat16", prompts, starts)]
    states = [
        State(i, len(solution) * n // STATES)
        for i, solution in enumerate(solutions)
        for n in range(STATES)
    ]
    trunks = [prompt + solution for prompt, solution in zip(prompts, solutions, strict=True)]
    drawn_from = [state for state in states for _ in range(draws)]
    branches = [
        vinejax.Branch(i, len(prompts[i]) + used, 1 << 32 | seed, len(prompts[i]))
        for seed, (i, used) in enumerate(drawn_from)
    ]
    budgets = [work.max_tokens - state.used for state in drawn_from]
    returns, tokens = {}, {}
    for dtype in DTYPES:
        tokens[dtype] = [x.tokens for x in grower.grow(dtype, trunks, branches, budgets)]
        rewards = [
            work.reward(i, decode(grower.tokenizer, solutions[i][:used] + after))
            for (i, used), after in zip(drawn_from, tokens[dtype], strict=True)
        ]
        returns[dtype] = np.array(rewards).reshape(len(states), draws)
    print(
        f"{work.folder.relative_to(REPO)}: {len(states)} states of {len(prompts)} problems, "
        f"{draws} continuations each; mean V {returns['bfloat16'].mean():.3f}"
    )
    for one, other in itertools.pairwise(DTYPES):
        differ = np.mean([x != y for x, y in zip(tokens[one], tokens[other], strict=True)])
        print(f"  {other} less {one}: {compared(states, returns[one], returns[other])}; ", end="")
        print(f"{differ:.1%} of the continuations differ")


def compared(states: list[State], one: np.ndarray, other: np.ndarray) -> str:
    """What the values by the returns `other` [S, draws] are more than those by `one`."""
    pairs = other - one
    problem = np.array([state.prompt for state in states])
    by_problem = [pairs[problem == i].mean() for i in range(problem[-1] + 1)]
    low, high = bootstrap_interval(by_problem, seed=0)
    worst = int(np.abs(pairs.mean(axis=1)).argmax())
    error = pairs[worst].std(ddof=1) / pairs.shape[1] ** 0.5
    return (
        f"{pairs.mean():+.4f} ({low:+.4f} to {high:+.4f}), at most {pairs[worst].mean():+.3f} "
        f"(standard error {error:.3f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=128)
    parser.add_argument("--problems", type=int, default=32)
    args = parser.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}")
    for make in (arithmetic, stories):
        measure(make(args.problems), args.draws)


if __name__ == "__main__":
    main()
