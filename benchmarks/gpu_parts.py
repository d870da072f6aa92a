"""The parts of `gpu.py`, each run in a process of its own.

A part is a generator of figures: dictionaries with `name`, `value` and `unit`, and what else tells
one from another (`slots`, `path`, ...). Each is written as soon as it is known, so that a part that
is stopped leaves what it had measured. See benchmarks/README.md.

Decoding, scoring and updates are measured as single programs, which are those of `--mode=plan`: it
compiles the same for the same card, absent or not.
"""

import argparse
import dataclasses
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from bandwidth import Needed, Speeds, copy_bandwidth, needed_for, product_speed
from etils import epath
from gpu_correctness import compared, paths_compared
from workload import Lengths, make_workload

from vinejax.config.load import default, from_dict
from vinejax.core.errors import ConfigError
from vinejax.core.settings import MeshConfig
from vinejax.core.types import Batch
from vinejax.engine.decode import ChunkInputs, Queue
from vinejax.engine.memory import empty_caches
from vinejax.engine.split import abstract_weights
from vinejax.engine.window import WindowRows
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.update import fresh_state
from vinejax.model.sharding import make_mesh
from vinejax.records.read import read_run
from vinejax.runtime.topology import find_topology
from vinejax.tools.plan.aot import gpu_program, hlo
from vinejax.tools.plan.aot.planned_programs import UPDATES, Lowering
from vinejax.tools.plan.case import Case, open_case
from vinejax.tools.plan.cost import attention_flops, num_multiplied
from vinejax.tools.plan.planned_memory import main_phase, memory_and_phases, train_length

REPO = Path(__file__).parents[1]
PATHS = ("xla", "kernel")  # values of rollout.attention
GROUP = 8  # slots that share a trunk
TINY = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 512,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
}  # fmt: skip
# Shape -> the file of its sizes, and the rank of adapters where all weights do not fit one card.
SHAPES = {
    "135m": ("smollm2_135m", 0),
    "0.5b": ("qwen2.5_0.5b", 0),
    "1.1b": ("rho_1b", 0),
    "1.5b": ("qwen2.5_1.5b", 0),
    "7b": ("qwen2.5_7b", 32),
    "tiny": ("", 0),
}

Figure = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much each part does."""

    slots: tuple[int, ...] = (64, 256, 1024)
    trunk: int = 192  # tokens before a branch
    tokens: int = 512  # of a branch
    rows: int = 16  # of an update, of the longest sequence each
    updated: tuple[str, ...] = ("0.5b", "1.1b")  # shapes of the part `update`
    repeats: int = 3
    dtype: str = "bfloat16"
    measured_bytes: int = 2**30  # of the arrays that are copied and multiplied
    checked: str = "10m"  # shape of the checks, of workload.py
    checked_slots: int = 64
    checked_lengths: Lengths = Lengths(trajectories=8, k=1, prompt=32, trajectory=96, cap=64)
    config: str = "configs/alice.py"
    iterations: int = 10


FULL = Sizes()
SMALL = Sizes(
    slots=(8,),
    trunk=16,
    tokens=64,
    rows=2,
    updated=("tiny",),
    repeats=1,
    dtype="float32",
    measured_bytes=2**18,
    checked="tiny",
    checked_slots=8,
    checked_lengths=Lengths(trajectories=2, k=1, prompt=8, trajectory=32, cap=16),
    config="configs/tiny.py",
    iterations=2,
)


class Given(NamedTuple):
    """What a part is given."""

    sizes: Sizes
    folder: Path  # of this run of gpu.py, for files
    shape: str = ""  # a key of SHAPES, of parts that have one


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
    work = make_workload(sizes.checked, 512, sizes.checked_lengths, sizes.checked_slots)
    yield from compared(work, count=len(work.branches), most=sizes.checked_lengths.cap)


def paths(given: Given) -> Iterator[Figure]:
    """Tokens of decoding with kernels against those of plain XLA, in float32."""
    sizes = given.sizes
    work = make_workload(sizes.checked, 512, sizes.checked_lengths, sizes.checked_slots)
    yield from paths_compared(work, PATHS)


# --- single programs


def case_of(given: Given, slots: int, path: str = "xla") -> Case:
    """The plan's case of a run with this shape on the device that is here."""
    sizes, (file, rank) = given.sizes, SHAPES[given.shape]
    fields = default()
    fields.method = "grpo"
    fields.model.architecture = str(REPO / "configs" / "models" / f"{file}.json")
    if not file:
        fields.model.architecture = str(given.folder / "tiny.json")
        Path(fields.model.architecture).write_text(json.dumps(TINY))
    fields.model.lora_rank, fields.model.remat = rank, "full"
    fields.model.compute_dtype = sizes.dtype
    fields.data.max_prompt_tokens, fields.sample.max_tokens = sizes.trunk, sizes.tokens
    fields.sample.temperature, fields.sample.top_p = 0.6, 0.9
    fields.rollout.prompts, fields.rollout.per_prompt = -(-slots // GROUP), GROUP
    fields.rollout.attention = path
    fields.ppo.minibatch = sizes.rows
    found = find_topology(jax.devices()[0].device_kind, 1)
    fields.topology = "h100:1" if found is None else found.name  # an unknown card
    fields.meshes[fields.topology] = dict(slots=slots, microbatch=max(sizes.rows // 2, 1))
    return open_case(from_dict(fields))


def lowering_of(case: Case) -> Lowering:
    """The programs of a case for the first device."""
    phase = main_phase(memory_and_phases(case)[1])
    return Lowering(case, phase, make_mesh(MeshConfig()))


def random_tree(shapes: Any) -> Any:
    """Arrays of small random numbers; with zeros a GPU is faster."""

    def draw(x: jax.ShapeDtypeStruct, number: int) -> jax.Array:
        key = jax.random.key(number)
        return _normal(key, x.shape, x.dtype.name)

    leaves, tree = jax.tree.flatten(shapes)
    return jax.tree.unflatten(tree, [draw(x, number) for number, x in enumerate(leaves)])


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def _normal(key: jax.Array, shape: tuple[int, ...], dtype: str) -> jax.Array:
    return (0.02 * jax.random.normal(key, shape)).astype(dtype)


def decode(given: Given) -> Iterator[Figure]:
    """A decode step of one shape, by slots and path, and what a sampled token costs."""
    sizes = given.sizes
    speeds = Speeds(
        copy_bandwidth(sizes.measured_bytes), product_speed(sizes.measured_bytes, sizes.dtype)
    )
    yield {"name": "copies", "value": speeds.bytes / 1e9, "unit": "GB/s"}
    yield {"name": "products", "value": speeds.flops / 1e12, "unit": "TFLOP/s"}
    sampled = []
    for slots in sizes.slots:
        for path in PATHS:
            more = {"slots": slots, "path": path}
            try:
                case = case_of(given, slots, path)
                lowering = lowering_of(case)
            except (ConfigError, ValueError) as error:  # no such path; no room
                yield {"name": "left out", "value": None, "unit": str(error)} | more
                continue
            if lowering.phase.sizes.slots != slots:
                yield {"name": "left out", "value": None, "unit": "no room for the slots"} | more
                continue
            step, kernels = step_seconds(lowering)
            yield from step_figures(case, lowering, step, kernels, speeds, more)
            sampled.append((step / slots, more))
    trained = update(given, rounds=1)
    seconds = next(f["value"] / 1e6 for f in trained if f["name"] == "trained token")
    yield {"name": "trained token", "value": 1e6 * seconds, "unit": "µs"}
    for price, more in sampled:
        unit = "of the seconds of a trained token"
        yield {"name": "price of a sampled token", "value": price / seconds, "unit": unit} | more


def step_figures(
    case: Case, lowering: Lowering, step: float, kernels: int | None, speeds: Speeds, more: Figure
) -> Iterator[Figure]:
    """The figures of a decode step that takes `step` seconds."""
    needed, slots = step_needs(case, lowering), lowering.phase.sizes.slots
    yield {"name": "step", "value": 1e3 * step, "unit": "ms"} | more
    yield {"name": "sampled", "value": slots / step, "unit": "tokens/s"} | more
    if kernels is not None:
        yield {"name": "kernels a step", "value": kernels, "unit": "kernels"} | more
    for kind in ("weights", "trunks", "suffixes", "logits"):
        took = 1e3 * getattr(needed, kind) / speeds.bytes
        yield {"name": f"limit, {kind}", "value": took, "unit": "ms"} | more
    yield {"name": "limit, FLOP", "value": 1e3 * needed.flops / speeds.flops, "unit": "ms"} | more
    share = needed.seconds(speeds) / step
    yield {"name": "of the limit", "value": share, "unit": "share"} | more


def step_needs(case: Case, lowering: Lowering) -> Needed:
    """What a mean one of the timed decode steps must move and compute."""
    sizes = lowering.phase.sizes
    own = (sizes.chunk + sizes.width) / 2  # the first chunk is not timed
    return needed_for(
        case.model.cfg,
        case.model.compute.dtype,
        multiplied=num_multiplied(case, with_head=True),
        steps=1,
        tokens=sizes.slots,
        trunk_columns=sizes.slots * lowering.phase.trunk_tokens,
        own_columns=sizes.slots * own,
        group=GROUP,
    )


def step_seconds(lowering: Lowering) -> tuple[float, int | None]:
    """(seconds of a decode step with all slots busy, kernels a step on a GPU or None).

    All branches begin together and are as long as the ring, so a step reads half of its columns on
    average. Chunks follow each other as in a run, without waiting for the host.
    """
    sizes, model, mesh = lowering.phase.sizes, lowering.model, lowering.mesh
    program = lowering.lower("decode").compile()
    weights = random_tree(abstract_weights(model, mesh, lowering.params))
    window, rows, slots = empty_caches(model, mesh, sizes)
    numbers = np.arange(sizes.queue, dtype=np.int32)
    ends = np.full(sizes.queue, sizes.width + 1, np.int32)  # budgets; no branch ends
    queue = Queue._make(
        [
            np.full(sizes.queue, lowering.phase.trunk_tokens, np.int32),
            numbers % model.cfg.vocab_size,
            np.stack([numbers, numbers], axis=1).astype(np.uint32),
            ends,
            np.zeros(sizes.queue, np.int32),
            numbers * ends,
        ]
    )
    stops = np.zeros((0, model.cfg.vocab_size), np.int32)
    edges = np.linspace(0, sizes.slots, sizes.rows + 1).astype(np.int32)
    loaded = np.arange(sizes.rows, dtype=np.int32)
    rows = WindowRows._make([edges[:-1], edges[1:], loaded])
    inputs = ChunkInputs._make([weights, window, queue, stops, np.bool_(False)])
    inputs, rows = jax.device_put(inputs), jax.device_put(rows)
    slots, rows, _ = jax.block_until_ready(program(inputs, slots, rows))
    start = time.perf_counter()
    count = sizes.width // sizes.chunk - 1
    for _ in range(count):
        slots, rows, _ = program(inputs, slots, rows)
    busy = int(jnp.sum(jax.block_until_ready(slots).item >= 0))
    seconds = (time.perf_counter() - start) / (count * sizes.chunk)
    assert busy == sizes.slots and int(slots.step[0]) == sizes.width, "all slots, all steps"
    kernels = None
    if lowering.case.platform == "gpu":
        kernels = round(gpu_program.kernels(hlo.parse_hlo(program.as_text())).trip)
    return seconds, kernels


def update(given: Given, rounds: int | None = None) -> Iterator[Figure]:
    """Scoring and updating on full rows: seconds of a trained token, and how busy the card is."""
    shapes = [given.shape] if given.shape else given.sizes.updated
    for shape in shapes:
        own = given._replace(shape=shape)
        case = case_of(own, slots=GROUP)
        scoring, updating = learner_seconds(case, rounds or given.sizes.repeats)
        tokens = case.cfg.ppo.minibatch * train_length(case)
        more = {"shape": shape, "tokens": tokens}
        passes = case.cfg.ppo.minibatch / case.pass_rows
        took = updating + passes * scoring
        yield {"name": "scoring pass", "value": 1e3 * scoring, "unit": "ms"} | more
        yield {"name": "update", "value": 1e3 * updating, "unit": "ms"} | more
        yield {"name": "trained token", "value": 1e6 * took / tokens, "unit": "µs"} | more
        # Forward and backward pass, without what rematerialisation computes again.
        forward = 2 * num_multiplied(case, with_head=True)
        forward += attention_flops(case, train_length(case) / 2)
        factor = 2 if case.cfg.model.lora_rank else 3  # frozen weights have no gradient
        used = factor * forward * tokens / updating
        if find_topology(jax.devices()[0].device_kind, 1) is not None:
            peak = case.topology.chip.bf16_tflops * 1e12
            yield {"name": "MFU of an update", "value": used / peak, "unit": "share"} | more


def learner_seconds(case: Case, repeats: int) -> tuple[float, float]:
    """(median seconds of a scoring pass, of an update on a minibatch), after one of each."""
    lowering = lowering_of(case)
    scoring, updating = (lowering.lower(name).compile() for name in ("score", "train_step"))
    base = None if lowering.base is None else random_tree(lowering.base)
    trained = random_tree(lowering.trained)
    params = trained if base is None else random_tree(lowering.params)
    scored = [
        timed(lambda: scoring(params, full_batch(case, case.pass_rows)))[0]
        for _ in range(repeats + 1)
    ]
    del params
    optimizer = make_optimizer(case.cfg.optimizer, UPDATES)
    state, batch = fresh_state(trained, optimizer, lowering.mesh), full_batch(case)
    if case.cfg.ppo.correction != "none":
        batch = batch._replace(weights=np.ones(batch.tokens.shape, np.float32))
    del trained
    updated = []
    for _ in range(repeats + 1):
        seconds, (state, _) = timed(lambda state=state: updating(state, batch, base))
        updated.append(seconds)
    return statistics.median(scored[1:]), statistics.median(updated[1:])


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds of a call on the clock, its result)."""
    start = time.perf_counter()
    result = jax.block_until_ready(call())
    return time.perf_counter() - start, result


def full_batch(case: Case, rows: int | None = None) -> Batch:
    """A batch whose rows are one sequence of the longest length each."""
    shape = (rows or case.cfg.ppo.minibatch, train_length(case))
    rng, ones = np.random.default_rng(0), np.ones(shape, np.int32)
    places = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
    near = rng.normal(-np.log(case.model.cfg.vocab_size), 0.01, shape).astype(np.float32)
    return Batch(
        tokens=rng.integers(0, case.model.cfg.vocab_size, shape, np.int32),
        segment_ids=ones,
        positions=places,
        mask=places > 0,
        advantages=rng.standard_normal(shape).astype(np.float32),
        old_logprobs=near,
        ref_logprobs=near,
        seen_until=shape[1] * ones if case.cfg.ppo.share_prefixes else None,
    )


# --- a run


def train(given: Given) -> Iterator[Figure]:
    """The first iterations of a run as a user starts it, by stage."""
    sizes, workdir = given.sizes, given.folder / "run"
    if sizes.config == FULL.config:
        prepare_alice()
    command = [sys.executable, "-m", "vinejax.main", f"--config={sizes.config}"]
    command += [f"--workdir={workdir}", f"--config.iterations={sizes.iterations}"]
    command += ["--config.eval.every=0", "--config.eval.problems=16"]
    start = time.perf_counter()
    subprocess.run(command, cwd=REPO, check=True)
    yield {"name": "whole run", "value": time.perf_counter() - start, "unit": "s"}
    records = [r for r in read_run(epath.Path(workdir)).records if r.stage == "train"]
    for record in records:
        at = {"iteration": record.position}
        for stage in ("rollout", "value", "score", "train"):
            if (seconds := record.values.get(f"timing_s/{stage}")) is not None:
                yield {"name": stage, "value": seconds, "unit": "s"} | at
        yield {"name": "reward", "value": record.values["reward/mean"], "unit": "mean"} | at


def prepare_alice() -> None:
    """Makes what configs/alice.py reads, as far as it is not there."""
    for folder, command in (
        ("models/smollm2", ["benchmarks/real/model.py", "models/smollm2"]),
        ("data/alice", ["benchmarks/real/problems.py", "data/alice"]),
        ("runs/alice_start", ["-m", "vinejax.main", "--config=configs/alice.py:sft"]),
    ):
        if not (REPO / folder).exists():
            start = ["--workdir=runs/alice_start"] if folder == "runs/alice_start" else []
            subprocess.run([sys.executable, *command, *start], cwd=REPO, check=True)


# --- a part as a process

PARTS: dict[str, Callable[[Given], Iterator[Figure]]] = {
    "machine": machine,
    "paths": paths,
    "decode": decode,
    "update": update,
    "train": train,
    "correctness": correctness,
}


def main(arguments: Sequence[str]) -> None:
    """Runs one part, and writes its figures, one JSON object per line, as they come."""
    parser = argparse.ArgumentParser(description="One part of gpu.py.")
    parser.add_argument("part", help="a name of PARTS; decode:SHAPE for one of SHAPES")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    name, _, shape = options.part.partition(":")
    given = Given(SMALL if options.small else FULL, options.folder, shape)
    file = options.folder / f"{options.part.replace(':', '_')}.jsonl"
    with file.open("w", encoding="utf-8") as stream:
        for figure in PARTS[name](given):
            stream.write(json.dumps(figure) + "\n")
            stream.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
