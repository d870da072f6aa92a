"""What it saves that continuations begin where they differ from their trunk.

    python benchmarks/repeats.py [--rounds=7] [--solutions=64] [--slots=128]

Three really trained models: the tiny start, the start of bifurcation (12 free lines) and
stories260K. Solutions are drawn from the model in float32, and 9 continuations at each of 8 states
that lie evenly in a solution, with the budget that it has left there, as a values phase draws them.
Two engines do the same work by turns in one process, one with `skip_repeats` and one without.

The table has a line per model and temperature: the number of continuations, the share of them with
equal ids, their mean length and that of their repeats; then, over those of the engine that decodes
everything, the tokens decoded, the slot-steps (and the decode steps of both), the time by the clock
and that of the processor. Times are medians over the rounds of the ratios of one round.

`--flips=N` counts instead, in bfloat16 with random weights of 2 and of 8 layers, N first tokens
that both engines draw with equal seeds: how many become the solution's by skipping, and how many no
longer are. Rounding flips as many one way as the other, if it favours no token.
"""

import argparse
import dataclasses
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import vinejax
from vinejax.core.seeds import row_seed
from vinejax.core.settings import DataConfig, SampleConfig
from vinejax.model.config import Compute, DecoderConfig
from vinejax.model.decoder import Decoder
from vinejax.tasks.arithmetic import Arithmetic
from vinejax.tasks.base import Task
from vinejax.tasks.bifurcation import make

REPO = Path(__file__).parents[1]
MODELS = ("tiny_start", "bifurcation_start", "stories260K")
STATES, K = 8, 9
STORIES = ("Once upon a time, there was a little girl named Lily.", "Tom had a red ball. He went")


class Work(NamedTuple):
    """A model, its prompts, and the most tokens of a response."""

    name: str
    folder: Path
    prompts: list[str]
    max_tokens: int


def of_task(name: str, task: Task, solutions: int, max_tokens: int) -> Work:
    prompts = [task.prompt(problem) for problem in task.load("train")[:solutions]]
    return Work(name, REPO / "configs" / name, prompts, max_tokens)


def works(solutions: int) -> list[Work]:
    stories = [STORIES[i % len(STORIES)] for i in range(solutions)]
    bifurcation = make(DataConfig(task="vinejax.tasks.bifurcation", free_steps=12))
    return [
        of_task(MODELS[0], Arithmetic(), solutions, 48),
        of_task(MODELS[1], bifurcation, solutions, 54),
        Work(MODELS[2], REPO / "tests" / "data" / "stories260K" / "hf", stories, 128),
    ]


class Call(NamedTuple):
    """Arguments of `Engine.grow`, without weights."""

    trunks: list[list[int]]
    branches: list[vinejax.Branch]
    budgets: list[int]


def values_call(engine: vinejax.Engine, params: Any, work: Work) -> Call:
    """The continuations of a solution of each prompt."""
    prompts = [engine.tokenizer.encode(prompt) for prompt in work.prompts]
    starts = [vinejax.Branch(i, len(prompt), i) for i, prompt in enumerate(prompts)]
    solutions = [grown.tokens for grown in engine.grow(params, prompts, starts)]
    call = Call([a + b for a, b in zip(prompts, solutions, strict=True)], [], [])
    for i, (prompt, solution) in enumerate(zip(prompts, solutions, strict=True)):
        for used in sorted({len(solution) * n // STATES for n in range(STATES)}):
            for _ in range(K):
                seed = 1 << 32 | len(call.branches)
                start = len(prompt)
                call.branches.append(vinejax.Branch(i, start + used, seed, start))
                call.budgets.append(work.max_tokens - used)
    return call


class Spent(NamedTuple):
    seconds: float
    cpu_seconds: float
    counts: Any  # EngineStats


def timed(engine: vinejax.Engine, params: Any, call: Call) -> tuple[list[Any], Spent]:
    before = dataclasses.replace(engine.stats)
    clock, cpu = time.perf_counter(), time.process_time()
    grown = engine.grow(params, *call)
    seconds = time.perf_counter() - clock, time.process_time() - cpu
    return grown, Spent(*seconds, engine.stats.minus(before))


def measure(work: Work, temperature: float, args: argparse.Namespace) -> str:
    model, params, tokenizer = vinejax.load_pretrained(str(work.folder))
    sampling = SampleConfig(temperature=temperature, top_p=args.top_p, max_tokens=work.max_tokens)
    plain, skipping = (
        vinejax.Engine(model, sampling, tokenizer, slots=args.slots, skip_repeats=skips)
        for skips in (False, True)
    )
    call = values_call(plain, params, work)
    expected, found = (engine.grow(params, *call) for engine in (plain, skipping))
    num_same = sum(a.tokens == b.tokens for a, b in zip(expected, found, strict=True))
    rounds = []
    for n in range(args.rounds):
        engines = (plain, skipping) if n % 2 else (skipping, plain)
        spent = {engine: timed(engine, params, call)[1] for engine in engines}
        rounds.append((spent[plain], spent[skipping]))
    whole, less = (one.counts for one in rounds[0])
    count = len(call.branches)

    def ratio(field: str) -> float:
        return statistics.median(getattr(b, field) / getattr(a, field) for a, b in rounds)

    return (
        f"| {work.name} | {temperature} | {count:,} | {num_same / count:.2%} "
        f"| {np.mean([len(one.tokens) for one in expected]):.1f} "
        f"| {less.repeated_tokens / count:.1f} "
        f"| {less.decoded_tokens / whole.decoded_tokens:.3f} "
        f"| {less.slot_steps / whole.slot_steps:.3f} ({whole.decode_steps} to {less.decode_steps}) "
        f"| {ratio('seconds'):.3f} | {ratio('cpu_seconds'):.3f} |"
    )


def random_model(num_layers: int) -> tuple[Decoder, Any]:
    """A model in bfloat16 whose logits are spread: its tokens are far from equally likely."""
    cfg = DecoderConfig(
        vocab_size=20, num_layers=num_layers, width=128, num_heads=8, num_kv_heads=4, head_dim=16,
        ffn=256, context=160, eos_ids=(1,),
    )  # fmt: skip
    model = Decoder(cfg, compute=Compute(dtype="bfloat16"))
    rng = np.random.default_rng(43)

    def draw(path: Any, x: jax.ShapeDtypeStruct) -> jax.Array:
        noise = rng.normal(size=x.shape)
        is_scale = path[-1].key == "scale"
        return jnp.asarray(1 + 0.3 * noise if is_scale else 1.3 * noise * 128**-0.5, jnp.float32)

    abstract = jax.eval_shape(model.init, jax.random.key(0))
    return model, jax.tree_util.tree_map_with_path(draw, abstract)


def count_flips(num_layers: int, count: int, of_each: int = 50) -> str:
    """The first tokens of `count` continuations, `of_each` prompt, skipping or not.

    Rounding moves the continuations of one prompt the same way, so many prompts are needed.
    """
    states = count // of_each
    model, params = random_model(num_layers)
    tokenizer = vinejax.load_pretrained(str(REPO / "configs" / "tiny_start"))[2]
    rng = np.random.default_rng(3)
    prompts = [rng.integers(2, 20, 20).tolist() for _ in range(states)]
    plain, skipping = (
        vinejax.Engine(model, SampleConfig(), tokenizer, slots=512, skip_repeats=skips)
        for skips in (False, True)
    )
    starts = [vinejax.Branch(i, 20, row_seed(9, i, "solution")) for i in range(states)]
    solutions = plain.grow(params, prompts, starts, 8)
    trunks = [a + b.tokens for a, b in zip(prompts, solutions, strict=True)]
    branches = [
        vinejax.Branch(i, 20, row_seed(9, i, "continuation", 0, 1, k), 20)
        for i in range(states)
        for k in range(of_each)
    ]

    def follows(engine: vinejax.Engine) -> np.ndarray:
        """bool[count], whether the first token of each continuation is its solution's."""
        first = [grown.tokens[0] for grown in engine.grow(params, trunks, branches, 2)]
        return np.array(first) == [trunks[branch.trunk][20] for branch in branches]

    before, after = follows(plain), follows(skipping)
    towards, away = int((after & ~before).sum()), int((before & ~after).sum())
    return f"{num_layers} layers: {towards} : {away} of {len(branches):,} first tokens"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--solutions", type=int, default=64)
    parser.add_argument("--slots", type=int, default=128)
    parser.add_argument("--top_p", type=float, default=1.0)
    parser.add_argument("--model", choices=MODELS, help="one of the models alone")
    parser.add_argument("--flips", type=int, help="count flips of so many first tokens instead")
    args = parser.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}, {vars(args)}")
    if args.flips:
        for num_layers in (2, 8):
            print(count_flips(num_layers, args.flips), flush=True)
        return
    for work in works(args.solutions):
        for temperature in (0.6, 1.0) if args.model in (None, work.name) else ():
            print(measure(work, temperature, args), flush=True)


if __name__ == "__main__":
    main()
