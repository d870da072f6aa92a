"""The learner's programs on episodes of unequal lengths: rows of one episode against packed rows.

`python benchmarks/learner.py --packing` runs this: scoring of all episodes, and one epoch of
updates, in both ways by turns in one process."""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vinejax.core.settings import OptimizerConfig
from vinejax.core.types import Batch, Episode
from vinejax.learner.batch import collate, minibatches
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.packing import Passes, pack_rows
from vinejax.learner.policy import PolicyObjective, clipped_loss
from vinejax.learner.score import scores_of
from vinejax.learner.update import fresh_state, update_step
from vinejax.model.decoder import Decoder, Params

TEMPERATURE = 0.6
OPTIMIZER = make_optimizer(OptimizerConfig(), 1000)


def gsm8k_lengths(rng: np.random.Generator, count: int) -> np.ndarray:
    """i64[count, 2] lengths of prompt and response of model solutions to GSM8K."""
    pairs = json.loads(Path(__file__).with_name("gsm8k_lengths.json").read_text())
    return rng.permutation(np.array(pairs))[:count]


def lognormal_lengths(rng: np.random.Generator, count: int) -> np.ndarray:
    """i64[count, 2] as above, with a long tail: a median of 148 tokens in all, at most 1,024."""
    totals = np.clip(rng.lognormal(5.0, 0.9, count).astype(int), 2, 1024)
    return np.stack([totals // 4, totals - totals // 4], axis=1)


def num_tokens(batch: Batch) -> int:
    """The tokens of a batch without padding."""
    return int(np.count_nonzero(batch.segment_ids))


LENGTHS = {"GSM8K": gsm8k_lengths, "lognormal": lognormal_lengths}


def episode(prompt: list[int], response: list[int], given: int = 0) -> Episode:
    """An episode with all that `collate` reads."""
    return Episode(
        problem_id="",
        prompt=prompt,
        response=response,
        logprobs=[],
        text="",
        finished=True,
        reward=0.0,
        step_ends=[],
        given=given,
    )


def batch_of(episodes: list[Episode], rows: int, vocab: int) -> Batch:
    """The episodes with advantages of chance, and log-probabilities of a uniform policy."""
    batch = collate(episodes, rows)
    advantages = np.random.default_rng(2).normal(size=batch.mask.shape).astype(np.float32)
    logprobs = np.full(batch.mask.shape, -np.log(vocab), np.float32)
    return batch._replace(advantages=advantages, old_logprobs=logprobs, ref_logprobs=logprobs)


@dataclasses.dataclass
class Case:
    """An iteration of the learner: scoring of all episodes, and one epoch of updates."""

    model: Decoder
    batch: Batch
    timed: Batch  # the rows that are timed, of the length that the whole batch has
    minibatch: int
    microbatch: int

    @classmethod
    def of(cls, model: Decoder, lengths: np.ndarray, options: argparse.Namespace) -> "Case":
        rng = np.random.default_rng(1)
        vocab = model.cfg.vocab_size
        episodes = [
            episode(*(rng.integers(3, vocab, n).tolist() for n in pair))
            for pair in lengths.tolist()
        ]
        batch = batch_of(episodes, options.minibatch, vocab)
        timed = jax.tree.map(lambda x: x[: options.timed], batch)
        return cls(model, batch, timed, options.minibatch, options.microbatch)

    def objective(self, packed: bool) -> PolicyObjective:
        return PolicyObjective(
            model=self.model,
            temperature=TEMPERATURE,
            loss=clipped_loss,
            kl_coef=1e-4,
            microbatch=self.microbatch,
            packed=packed,
        )

    def run(self, program: str, packed: bool, params: Params) -> float:
        """Seconds of scoring all episodes, or of an epoch of updates."""
        assert self.model.mesh is not None
        state = fresh_state(params, OPTIMIZER, self.model.mesh)
        jax.block_until_ready(state)
        start = time.perf_counter()
        if program == "score":
            passes = Passes(self.microbatch, packed)
            scores_of(self.model, params, self.timed, TEMPERATURE, passes)
            return time.perf_counter() - start
        objective = self.objective(packed)
        for minibatch in minibatches(self.timed, self.minibatch, 0, 0, 0):
            state, _ = update_step(objective, OPTIMIZER, state, objective.pack(minibatch))
        jax.block_until_ready(state)
        return time.perf_counter() - start

    def efficiency(self, program: str) -> tuple[float, float]:
        """Tokens over (positions of packed rows, positions of passes over these rows)."""
        parts = [self.batch]
        if program == "train_step":
            parts = minibatches(self.batch, self.minibatch, 0, 0, 0)
        length, rows, passes = self.batch.tokens.shape[1], 0, 0
        for part in parts:
            packing = pack_rows(part.segment_ids, self.microbatch)
            rows += int(np.count_nonzero(packing.segment_ids.any(axis=1)))
            passes += packing.num_passes
        computed = passes * self.microbatch
        tokens = num_tokens(self.batch)
        return tokens / (rows * length), tokens / (computed * length)


HEAD = """\
| lengths | program | T | mean | rows filled | passes filled | tokens/s alone | packed | ratio |
|---|---|---|---|---|---|---|---|---|"""


def measure(case: Case, programs: Sequence[str], repeats: int) -> list[dict[str, Any]]:
    """Both programs, in rows of one episode and packed, by turns; the first calls compile."""
    params = jax.jit(case.model.init)(jax.random.key(0))
    found = []
    for program in programs:
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(repeats + 1):
            for packed, times in seconds.items():
                times.append(case.run(program, packed, params))
        alone, packed = (statistics.median(times[1:]) for times in seconds.values())
        filled, computed = case.efficiency(program)
        found.append(
            {
                "program": program,
                "length": case.batch.tokens.shape[1],
                "mean": num_tokens(case.batch) / len(case.batch.tokens),
                "rows_filled": filled,
                "passes_filled": computed,
                "alone": num_tokens(case.timed) / alone,
                "packed": num_tokens(case.timed) / packed,
                "seconds": list(seconds.values()),
            }
        )
    return found


def table_row(name: str, row: dict[str, Any]) -> str:
    """A line of the Markdown table."""
    shares = f"{row['rows_filled']:.3f} | {row['passes_filled']:.3f}"
    speeds = f"{row['alone']:,.0f} | {row['packed']:,.0f} | {row['packed'] / row['alone']:.2f}"
    start = f"| {name} | {row['program']} | {row['length']} | {row['mean']:.0f}"
    return f"{start} | {shares} | {speeds} |"


def compare(model: Callable[[int], Decoder], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Prints the table for all distributions of lengths; `model` has room for so many tokens."""
    print(HEAD)
    rows = []
    for name in options.lengths:
        lengths = LENGTHS[name](np.random.default_rng(0), options.episodes)
        case = Case.of(model(int(lengths.sum(axis=1).max())), lengths, options)
        for row in measure(case, options.programs, options.repeats):
            rows.append({"lengths": name, **row})
            print(table_row(name, row), flush=True)
    return rows
