"""The parts of `gpu.py`, each run in a process of its own.

A part is a generator of figures: dictionaries with `name`, `value` and `unit`, and what else tells
one from another (`slots`, `rows`, `estimator`, ...). Each is written as soon as it is known, so
that a part that is stopped leaves what it had measured. See benchmarks/README.md.
"""

import argparse
import dataclasses
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from bandwidth import bytes_needed, copy_bandwidth
from contenders import ours, transformers_generate
from etils import epath
from gpu_correctness import batch_of, compared, objective_of, with_advantages
from runs import timed_rounds
from workload import (
    SHAPES,
    VOCABULARIES,
    Lengths,
    NotInstalled,
    make_workload,
    solutions,
)

from vinejax.config.checks import check_config
from vinejax.config.load import from_dict, from_file
from vinejax.core.settings import Config, MeshConfig, OptimizerConfig
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.update import fresh_state, update_step
from vinejax.model.config import Compute
from vinejax.model.sharding import make_mesh
from vinejax.records.read import read_run
from vinejax.runtime.workdir import write_atomic
from vinejax.tools.bench.bench_mode import credit_bench, fixed_parts
from vinejax.tools.bench.measure import steady
from vinejax.tools.bench.price import Price, training_seconds
from vinejax.tools.bench.results import BenchResult, as_json
from vinejax.tools.bench.settings import BenchConfig
from vinejax.training.startup import Session, open_session
from vinejax.training.warmup import warm_up

CONFIGS = Path(__file__).parents[1] / "configs"
VOCABULARY = 512  # of the parts without a task
START = "start.txt"  # in the folder of a run of gpu.py: the folder of the newest warm-up
SAMPLED = 4  # times that solutions are sampled for their price; the first compiles

Figure = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much each part does."""

    checked: str  # shape of the model of `correctness`
    model: str  # shape of all others
    checked_lengths: Lengths
    lengths: Lengths
    slots: tuple[int, ...]
    generated: str  # shape of the model that is sampled beside transformers
    prompts: tuple[int, ...]  # of one batch of it
    rows: tuple[int, ...]  # of an update
    repeats: int
    copy_bytes: int  # of the array whose copy gives the bandwidth
    dtype: str  # of matrix products, except in `correctness`
    rounds: int  # of the warm-up, each `steps` updates from the last one's weights
    steps: int
    batch: int  # of the warm-up and of updates
    learning_rate: float  # of the warm-up
    is_fresh: bool  # the warm-up begins with random weights, not with those of the configuration
    free_lines: int  # of the task
    per_prompt: int
    priced: int  # problems whose solutions `price` samples at once
    estimators: tuple[str, ...]  # of the bench
    benches: tuple[dict[str, int], ...]  # fields of `bench`, from the smallest on


FULL = Sizes(
    checked="10m",
    model="25m",
    checked_lengths=Lengths(trajectories=8, k=1, prompt=32, trajectory=96, cap=64),
    lengths=Lengths(k=64),
    slots=(64, 256, 1024),
    generated="135m",
    prompts=(16, 256),
    rows=(16, 64, 256),
    repeats=3,
    copy_bytes=2**30,
    dtype="bfloat16",
    rounds=3,
    steps=100,
    batch=64,
    learning_rate=1e-3,
    is_fresh=True,
    free_lines=12,
    per_prompt=8,
    priced=256,
    estimators=("rloo", "grpo", "vineppo_k1", "vineppo_k3", "vineppo_k9", "backup"),
    benches=(
        dict(problems=16, repeats=3, reference=2048, truth=32, states=64, ranked=32),
        dict(problems=16, repeats=10, reference=8192, truth=64, states=256, ranked=64),
    ),
)
TINY = Sizes(
    checked="tiny",
    model="tiny",
    checked_lengths=Lengths(trajectories=2, k=1, prompt=8, trajectory=32, cap=16),
    lengths=Lengths(trajectories=2, k=1, prompt=8, trajectory=32, cap=16),
    slots=(8,),
    generated="tiny",
    prompts=(4,),
    rows=(4,),
    repeats=1,
    copy_bytes=2**20,
    dtype="float32",
    rounds=2,
    steps=2,
    batch=8,
    learning_rate=1e-5,
    is_fresh=False,
    free_lines=0,
    per_prompt=4,
    priced=4,
    estimators=("rloo", "vineppo_k3"),
    benches=(dict(problems=4, repeats=2, reference=256, truth=4, states=8, ranked=4),),
)


class Given(NamedTuple):
    """What a part is given."""

    sizes: Sizes
    folder: Path  # of this run of gpu.py, for workdirs
    seconds: float  # after which the part is stopped


def machine(given: Given) -> Iterator[Figure]:
    """The device and the software, as one record."""
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit")
    yield {
        "record": {
            "device": device.device_kind,
            "platform": device.platform,
            "devices found": len(jax.devices()),
            "memory that JAX may use, bytes": memory,
            "runtime": device.client.platform_version.split("\n")[0],
            "driver": driver_version() if device.platform != "cpu" else None,
            "jax": jax.__version__,
        }
    }


def driver_version() -> str | None:
    """NVIDIA's driver; None where `nvidia-smi` does not say."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split("\n")[0].strip() or None


def correctness(given: Given) -> Iterator[Figure]:
    """The device against the CPU: see gpu_correctness.py."""
    sizes = given.sizes
    work = make_workload(sizes.checked, VOCABULARY, sizes.checked_lengths, sizes.slots[0])
    yield from compared(work, count=len(work.branches), most=sizes.checked_lengths.cap)


def sampling(given: Given) -> Iterator[Figure]:
    """Useful tokens per second of the engine, and their share of what the bandwidth allows."""
    sizes = given.sizes
    bandwidth = copy_bandwidth(sizes.copy_bytes)
    yield {"name": "bandwidth of a copy", "value": bandwidth / 1e9, "unit": "GB/s"}
    for slots in sizes.slots:
        work = make_workload(sizes.model, VOCABULARY, sizes.lengths, slots, sizes.dtype)
        rounds = timed_rounds({"ours": ours(work, devices=1)}, sizes.repeats)
        seconds, made = rounds.seconds["ours"], rounds.first["ours"]
        more = {"slots": slots, "branches": len(work.branches), "dtype": sizes.dtype}
        yield rates("sampling", work.useful_tokens, seconds) | more
        limit = bytes_needed(work, made.decode_steps).total / bandwidth
        share = limit / statistics.median(seconds)
        yield {"name": "of the bandwidth's limit", "value": share, "unit": "share"} | more


def rates(name: str, tokens: int, seconds: Sequence[float]) -> Figure:
    """A figure of tokens per second: the median over rounds, with the slowest and the fastest."""
    return {
        "name": name,
        "value": tokens / statistics.median(seconds),
        "low": tokens / max(seconds),
        "high": tokens / min(seconds),
        "unit": "tokens/s",
        "rounds": len(seconds),
    }


def generate(given: Given) -> Iterator[Figure]:
    """64 tokens on each prompt of a batch, beside transformers' `generate` if torch is there."""
    sizes, tokens = given.sizes, 64
    for prompts in sizes.prompts:
        work = make_workload(sizes.generated, VOCABULARIES["49k"], Lengths(), prompts, sizes.dtype)
        work = solutions(work, prompts, tokens)
        ready = {"ours": ours(work, devices=1)}
        try:
            ready["transformers"] = transformers_generate(work)
        except NotInstalled:
            pass
        seconds = timed_rounds(ready, sizes.repeats).seconds
        for name, taken in seconds.items():
            more = {"by": name, "prompts": prompts, "dtype": sizes.dtype}
            yield rates("generate", prompts * tokens, taken) | more


def training(given: Given) -> Iterator[Figure]:
    """Tokens per second of whole updates of the policy, prompts included, for several batches."""
    sizes = given.sizes
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-6), 100)
    for rows in sizes.rows:
        lengths = dataclasses.replace(sizes.lengths, trajectories=rows, k=1)
        work = make_workload(sizes.model, VOCABULARY, lengths, slots=1)
        model = dataclasses.replace(work.model, compute=Compute(sizes.dtype))
        batch = batch_of(work)
        batch = with_advantages(batch, np.full(batch.tokens.shape, -math.log(VOCABULARY)))
        objective = objective_of(model, rows)
        state = fresh_state(work.params, optimizer, make_mesh(MeshConfig()))
        seconds = []
        for _ in range(sizes.repeats + 1):
            start = time.perf_counter()
            state, _ = jax.block_until_ready(update_step(objective, optimizer, state, batch))
            seconds.append(time.perf_counter() - start)
        count = sum(x.size for x in jax.tree.leaves(state.params))
        tokens = rows * lengths.trajectory
        more = {"rows": rows, "tokens": tokens, "dtype": sizes.dtype}
        measured = rates("training", tokens, seconds[1:]) | more
        yield measured
        # Six per weight and token: two forward, four backward. Attention's own are left out.
        flops = 6 * count * measured["value"] / 1e12
        yield {"name": "training, 6 per weight", "value": flops, "unit": "TFLOP/s"} | more


def start(given: Given) -> Iterator[Figure]:
    """A start for `price` and `credit`: supervised warm-up on the demonstrations of the task.

    Rounds begin as long as one more fits the time, each from the weights of the last.
    """
    deadline, sizes = time.monotonic() + given.seconds, given.sizes
    path, cfg, took = None, bifurcation(sizes), 0.0
    for number in range(sizes.rounds):
        begun = time.monotonic()
        if begun + 1.5 * took > deadline:
            break
        if path is not None:
            cfg = changed(cfg, "model", path=path)
        workdir = given.folder / f"start{number}"
        path = str(warm_up(cfg, workdir))
        write_atomic(epath.Path(given.folder / START), path)
        took = time.monotonic() - begun
        losses = [r.values["sft/loss"] for r in read_run(epath.Path(workdir)).records]
        more = {"round": number + 1, "batch": sizes.batch}
        yield {"name": "loss of the warm-up", "value": losses[-1], "unit": "nats/token"} | more
        yield {"name": "warm-up", "value": took, "unit": "s", "updates": sizes.steps} | more
    cfg = bench_config(given, sizes.slots[-1])
    with open_session(cfg, given.folder / "solved", ("train",)) as session:
        count = sum(x.size for x in jax.tree.leaves(session.start))
        yield {"name": "parameters", "value": count, "unit": "weights"}
        fixed, _ = fixed_parts(session)
        sampler = fixed.sampler(cfg, 0)
        episodes = sampler.solutions(fixed.params, fixed.problems, len(fixed.problems))
        rewards = [episode.reward for episode in episodes]
    more = {"solutions": len(rewards)}
    yield {"name": "reward of the start", "value": float(np.mean(rewards)), "unit": "mean"} | more


def price(given: Given) -> Iterator[Figure]:
    """w, the price of a trained token in sampled tokens, with different numbers of slots."""
    for slots in given.sizes.slots:
        cfg = with_bench(bench_config(given, slots), problems=given.sizes.priced)
        with open_session(cfg, given.folder / f"price{slots}", ("train",)) as session:
            found, solutions = price_of(session)
        more = {"slots": slots, "solutions": solutions, "dtype": cfg.model.compute_dtype}
        sampled, trained = 1e6 * found.sampled, 1e6 * found.trained
        yield {"name": "price of a sampled token", "value": sampled, "unit": "µs"} | more
        yield {"name": "price of a trained token", "value": trained, "unit": "µs"} | more
        unit = "sampled tokens per trained token"
        yield {"name": "w", "value": found.w, "unit": unit} | more


def price_of(session: Session) -> tuple[Price, int]:
    """(the price at the settings of a session, how many solutions it was measured on)."""
    cfg = session.cfg
    fixed, _ = fixed_parts(session)
    seconds, episodes = [], []
    for number in range(SAMPLED):
        before = session.engine.stats.decoded_tokens
        begun = time.perf_counter()
        sampler = fixed.sampler(cfg, number)
        episodes = sampler.solutions(fixed.params, fixed.problems, len(fixed.problems))
        took = time.perf_counter() - begun
        seconds.append(took / (session.engine.stats.decoded_tokens - before))
    session.engine.release()
    trained = sum(len(episode.response) for episode in episodes)
    return Price(steady(seconds), training_seconds(fixed, cfg, episodes) / trained), len(episodes)


def credit(given: Given) -> Iterator[Figure]:
    """The credit bench, first at a small size, then at a larger one if it fits the time."""
    deadline, before = time.monotonic() + given.seconds, None
    for number, bench in enumerate(given.sizes.benches):
        begun = time.monotonic()
        if before is not None:
            took, earlier = before
            # The first run compiled, too: an estimate from above.
            if begun + took * bench["repeats"] / earlier["repeats"] > deadline:
                yield {"name": "sizes left out for time", "value": 1, "unit": "of the bench"}
                return
        cfg = bench_config(given, given.sizes.slots[-1])
        cfg = with_bench(cfg, **bench, estimators=given.sizes.estimators)
        result = credit_bench(cfg, given.folder / f"credit{number}")
        before = time.monotonic() - begun, bench
        yield {"record": as_json(result) | {"sizes": bench}}
        yield from figures_of(result, bench)
        yield {"name": "credit bench", "value": before[0], "unit": "s"} | bench


def figures_of(result: BenchResult, bench: dict[str, int]) -> Iterator[Figure]:
    """The few numbers of a record of the bench that the table shows."""
    more = {"repeats": bench["repeats"]}
    yield {"name": "mean reward", "value": result.reward, "unit": "mean"} | more
    name = "squared error of the reference"
    yield {"name": name, "value": result.reference_error, "unit": "relative"} | more
    unit = "sampled tokens per trained token"
    yield {"name": "w", "value": result.price.w, "unit": unit} | more
    for estimator, row in result.rows.items():
        own = more | {"estimator": estimator}
        error = dataclasses.asdict(row.gradient.error)
        yield {"name": "squared error of the gradient", "unit": "relative"} | error | own
        yield {"name": "tokens", "value": row.tokens, "unit": "per solution"} | own
        yield {"name": "time", "value": 1e3 * row.seconds, "unit": "ms per solution"} | own
        if row.second_cost is not None:
            cost = dataclasses.asdict(row.second_cost)
            yield {"name": "cost in seconds", "unit": "of RLOO's"} | cost | own


# --- configurations


def changed(cfg: Config, section: str, **fields: Any) -> Config:
    """The configuration with some fields of a section replaced."""
    return dataclasses.replace(
        cfg, **{section: dataclasses.replace(getattr(cfg, section), **fields)}
    )


def with_bench(cfg: Config, **fields: Any) -> Config:
    """The configuration with some fields of the credit bench replaced."""
    bench = dataclasses.replace(BenchConfig.of(cfg), **fields)
    return dataclasses.replace(cfg, sections=cfg.sections | {"bench": bench})


def bifurcation(sizes: Sizes) -> Config:
    """configs/bifurcation.py with the model and the warm-up of `sizes`."""
    fields: Any = from_file(str(CONFIGS / "tiny.py"), f"bifurcation.py:{sizes.free_lines}")
    fields.model.compute_dtype = sizes.dtype
    if sizes.is_fresh:
        fields.model.path = ""
        for name in ("num_layers", "width", "num_heads", "num_kv_heads", "ffn"):
            fields.model[name] = SHAPES[sizes.model][name]
    fields.sft.steps = sizes.steps
    fields.sft.batch = sizes.batch
    fields.sft.learning_rate = sizes.learning_rate
    fields.rollout.per_prompt = sizes.per_prompt
    fields.ppo.minibatch = sizes.batch
    cfg = from_dict(fields)
    check_config(cfg)
    return cfg


def bench_config(given: Given, slots: int) -> Config:
    """The configuration of the bench on the start that part `start` made.

    Raises RuntimeError if there is none.
    """
    file = given.folder / START
    if not file.exists():
        raise RuntimeError("part start made no weights")
    cfg = changed(bifurcation(given.sizes), "model", path=file.read_text())
    cfg = with_bench(cfg, problems=given.sizes.benches[0]["problems"])
    return changed(cfg, "rollout", slots=slots)


# --- a part as a process

PARTS: dict[str, Callable[[Given], Iterator[Figure]]] = {
    "machine": machine,
    "correctness": correctness,
    "sampling": sampling,
    "generate": generate,
    "training": training,
    "start": start,
    "price": price,
    "credit": credit,
}


def main(arguments: Sequence[str]) -> None:
    """Runs one part, and writes its figures, one JSON object per line, as they come."""
    parser = argparse.ArgumentParser(description="One part of gpu.py.")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--model", default=FULL.model)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    sizes = TINY if options.tiny else dataclasses.replace(FULL, model=options.model)
    given = Given(sizes, options.folder, options.seconds)
    with (options.folder / f"{options.part}.jsonl").open("w", encoding="utf-8") as stream:
        for figure in PARTS[options.part](given):
            stream.write(json.dumps(figure) + "\n")
            stream.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
