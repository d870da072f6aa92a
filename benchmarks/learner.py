"""Memory and speed of the learner's programs: chunks of log-probabilities, packed rows, an update.

    python benchmarks/learner.py                             # memory, by the compiler for CPUs
    python benchmarks/learner.py --topology=v5p:2x2x1        # for one TPU chip, which needs libtpu
    python benchmarks/learner.py --vocab=8192 --length=256 --repeats=5       # and tokens per second
    python benchmarks/learner.py --packing --model=tiny --vocab=512 --repeats=5      # packed rows
    python benchmarks/learner.py --prefixes --model=tiny --vocab=512 --repeats=5   # shared prefixes
    python benchmarks/learner.py --step --model=10m --vocab=512 --repeats=9      # beside PyTorch's

`score` is the forward pass that gives old and reference log-probabilities, `train_step` an update
on one microbatch with AdamW. Memory is what the compiler plans: arguments (weights, batch, the
optimizer's state), temporaries, and the sum of all that is live at once. Nothing is allocated for
it, so the model may be larger than the machine. With --repeats both programs also run, on random
weights and tokens.

`all logits` is the plain way: an array [B, T, V] of float32 and its softmax, in the same programs.

With --packing, episodes of unequal lengths are scored and learned from, in rows of their own and in
packed rows, by turns in one process. Lengths are those of model solutions to GSM8K
(gsm8k_lengths.json) and lognormal ones. With --prefixes, packed rows are compared with packed rows
that share prefixes, on solutions of the same prompts and on tails of the same solutions. With
--step a whole update on such episodes is timed beside that of PyTorch and transformers:
learner_step.py.
"""

import argparse
import dataclasses
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import learner_step
import numpy as np
import packed_rows
import shared_prefixes
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from vinejax.core.settings import OptimizerConfig
from vinejax.core.types import Batch, TrainState
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.policy import PolicyObjective, clipped_loss
from vinejax.learner.score import score
from vinejax.learner.update import fresh_state, state_shardings, update_step
from vinejax.model.chunked_softmax import LabelTokens
from vinejax.model.config import Compute, DecoderConfig
from vinejax.model.decoder import Decoder, Params
from vinejax.model.sharding import mesh_over, param_shardings
from vinejax.model.token_logprobs import TokenScores
from vinejax.runtime.topology import parse_topology
from vinejax.tools.plan.aot.compile_child import compile_error, memory_stats
from vinejax.tools.plan.aot.compiler import ENVIRONMENT

MIB = 2**20
TEMPERATURE = 0.6
OPTIMIZER = make_optimizer(OptimizerConfig(), 1000)
MODELS: dict[str, dict[str, Any]] = {
    "tiny": {"num_layers": 3, "width": 64, "num_heads": 4, "num_kv_heads": 2, "ffn": 192},
    "narrow": {"num_layers": 2, "width": 256, "num_heads": 4, "num_kv_heads": 2, "ffn": 1024},
    "10m": {"num_layers": 6, "width": 384, "num_heads": 6, "num_kv_heads": 2, "ffn": 1536},
    # The sizes of Qwen2.5-0.5B, whose output matrix is the embedding.
    "0.5b": {"num_layers": 24, "width": 896, "num_heads": 14, "num_kv_heads": 2, "ffn": 4864},
}
TIED = ("0.5b",)


class AllLogits(Decoder):
    """A decoder whose log-probabilities come from the logits of all tokens."""

    def scores_of(
        self,
        params: Params,
        x: jax.Array,
        tokens: jax.Array,
        labels: LabelTokens | None,
        temperature: float,
        axis: str | None = None,
    ) -> TokenScores:
        log_probs = jax.nn.log_softmax(self.logits(params, x) / temperature, axis=-1)
        # By comparison, so that the gradient is no scatter.
        is_taken = jnp.arange(log_probs.shape[-1]) == tokens[..., None]
        taken = jnp.sum(jnp.where(is_taken, log_probs, 0.0), axis=-1)
        return TokenScores(taken, -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1), None)


WAYS = {"chunks": Decoder, "all logits": AllLogits}
PROGRAMS = ("score", "train_step")


@dataclasses.dataclass(frozen=True)
class Case:
    """A model on one device, and the shape of a microbatch."""

    model: Decoder
    rows: int
    length: int

    @property
    def mesh(self) -> Mesh:
        assert self.model.mesh is not None
        return self.model.mesh

    @property
    def objective(self) -> PolicyObjective:
        return PolicyObjective(
            model=self.model, temperature=TEMPERATURE, loss=clipped_loss, kl_coef=1e-4
        )

    def batch(self) -> Batch:
        """Rows of random tokens without padding; the first half of each is the prompt."""
        rng = np.random.default_rng(0)
        shape = (self.rows, self.length)
        positions = np.broadcast_to(np.arange(self.length, dtype=np.int32), shape)
        tokens = rng.integers(0, self.model.cfg.vocab_size, shape, np.int32)
        logprobs = np.full(shape, -np.log(self.model.cfg.vocab_size), np.float32)
        advantages = rng.normal(size=shape).astype(np.float32)
        mask = positions >= self.length // 2
        arrays: Any = (tokens, np.ones_like(tokens), positions, mask, advantages)
        return Batch(*arrays, old_logprobs=logprobs, ref_logprobs=logprobs)

    def lowered(self, program: str) -> jax.stages.Lowered:
        """The program for shapes alone."""
        params = self._shapes()
        params = _placed(params, param_shardings(self.mesh, params))
        batch = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, self.batch()))
        whole = NamedSharding(self.mesh, P())
        batch = _placed(batch, jax.tree.map(lambda _: whole, batch))
        if program == "score":
            return score.lower(self.model, params, batch, TEMPERATURE)
        state = jax.eval_shape(
            lambda params: TrainState(jnp.int32(0), params, OPTIMIZER.init(params)), params
        )
        state = _placed(state, state_shardings(params, OPTIMIZER, self.mesh))
        return update_step.lower(self.objective, OPTIMIZER, state, batch)

    def seconds(self, program: str, repeats: int) -> list[float]:
        """Seconds of each of `repeats` calls, after one that compiles."""
        params = jax.jit(self.model.init, out_shardings=param_shardings(self.mesh, self._shapes()))(
            jax.random.key(0)
        )
        batch, times = self.batch(), []
        state = fresh_state(params, OPTIMIZER, self.mesh) if program == "train_step" else None
        for _ in range(repeats + 1):
            start = time.perf_counter()
            if state is None:
                jax.block_until_ready(score(self.model, params, batch, TEMPERATURE))
            else:
                state, update = update_step(self.objective, OPTIMIZER, state, batch)
                jax.block_until_ready(update)
            times.append(time.perf_counter() - start)
        return times[1:]

    def _shapes(self) -> Params:
        return jax.eval_shape(self.model.init, jax.random.key(0))


def _placed(shapes: Any, shardings: Any) -> Any:
    """The shapes, each with its sharding."""
    return jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), shapes, shardings
    )


def devices_of(topology: str) -> list[Any]:
    """One device to compile for: this machine's first, or a chip of a TPU slice."""
    if not topology:
        return jax.devices()[:1]
    from jax.experimental.topologies import get_topology_desc

    slice_ = parse_topology(topology)
    os.environ["TPU_ACCELERATOR_TYPE"] = slice_.accelerator_type
    return list(get_topology_desc(topology, "tpu", **slice_.compiler_options).devices)[:1]


def make_case(options: argparse.Namespace, way: str, mesh: Mesh) -> Case:
    sizes = MODELS[options.model]
    cfg = DecoderConfig(
        vocab_size=options.vocab,
        head_dim=min(64, sizes["width"] // sizes["num_heads"]),
        context=options.length,
        tied_head=options.model in TIED,
        **sizes,
    )
    compute = Compute(dtype=options.dtype, remat=options.remat)
    return Case(WAYS[way](cfg, mesh, compute), options.rows, options.length)


def measure(case: Case, program: str, repeats: int) -> dict[str, Any]:
    """Bytes per device by kind, or 'needs' if the program does not fit; with `repeats` tokens/s."""
    try:
        found: dict[str, Any] = memory_stats(case.lowered(program).compile())
    except jax.errors.JaxRuntimeError as error:
        return compile_error(str(error))
    if case.mesh.devices.flat[0].platform == "cpu":  # whose compiler reports the arguments alone
        found["peak"] = found["argument"] + found["output"] + found["temp"] - found["alias"]
    if repeats:
        seconds = case.seconds(program, repeats)
        found["seconds"] = seconds
        found["tokens_per_s"] = case.rows * case.length / statistics.median(seconds)
    return found


HEAD = """\
| program | log-probabilities | arguments | temporaries | peak | tokens/s |
|---|---|---|---|---|---|"""


def table_row(row: dict[str, Any]) -> str:
    """A line of the Markdown table, in MiB."""
    start = f"| {row['program']} | {row['way']} |"
    if "error" in row:
        needs = f"does not fit: {row['needs'] / MIB:,.0f}" if "needs" in row else row["error"]
        return f"{start} | | {needs} | |"
    sizes = " | ".join(f"{row[kind] / MIB:,.0f}" for kind in ("argument", "temp", "peak"))
    speed = f"{row['tokens_per_s']:,.0f}" if "tokens_per_s" in row else ""
    return f"{start} {sizes} | {speed} |"


def compare_memory(options: argparse.Namespace, mesh: Mesh) -> list[dict[str, Any]]:
    """Prints the table of memory for all programs and ways."""
    print(HEAD)
    rows = []
    for program in options.programs:
        for way in WAYS:
            found = measure(make_case(options, way, mesh), program, options.repeats)
            rows.append({"program": program, "way": way, **found})
            print(table_row(rows[-1]), flush=True)
    return rows


def compare_episodes(options: argparse.Namespace, mesh: Mesh) -> list[dict[str, Any]]:
    """Prints the table of packed rows, of shared prefixes, or of an update beside PyTorch's."""

    def model(length: int) -> Decoder:
        options.length = length
        return make_case(options, "chunks", mesh).model

    kind = learner_step if options.step else shared_prefixes if options.prefixes else packed_rows
    return kind.compare(model, options)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Memory and speed of the learner's programs.")
    parser.add_argument("--model", choices=MODELS, default="narrow")
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--topology", default="", help="a TPU slice: compile for one of its chips")
    parser.add_argument("--repeats", type=int, default=0, help="timed calls; 0: memory alone")
    parser.add_argument("--packing", action="store_true", help="packed rows against single ones")
    parser.add_argument("--prefixes", action="store_true", help="shared prefixes against packing")
    parser.add_argument("--step", action="store_true", help="an update beside PyTorch's")
    parser.add_argument("--remat", choices=("full", "dots", "none"), default="full")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="of --step")
    names = tuple(packed_rows.LENGTHS)
    parser.add_argument("--lengths", nargs="+", choices=names, default=names, help="of episodes")
    parser.add_argument("--episodes", type=int, default=512, help="of an iteration, of --packing")
    parser.add_argument("--timed", type=int, default=64, help="episodes of these that are timed")
    parser.add_argument("--minibatch", type=int, default=64, help="of --packing")
    parser.add_argument("--microbatch", type=int, default=4, help="rows of a pass of episodes")
    parser.add_argument("--prompts", type=int, default=64, help="of an iteration, of --prefixes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if options.topology:
        os.environ |= ENVIRONMENT
    if options.step:
        jax.config.update("jax_platforms", "cpu" if options.device == "cpu" else "cuda,cpu")
    mesh = mesh_over((1, 1, 1), devices_of(options.topology))
    of_episodes = options.packing or options.prefixes or options.step
    rows = (compare_episodes if of_episodes else compare_memory)(options, mesh)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
