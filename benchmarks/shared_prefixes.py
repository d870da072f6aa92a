"""The learner's programs on rows that begin alike: packed rows against packed rows that share.

`python benchmarks/learner.py --prefixes` runs this. `solutions` are eight to a prompt; `tails` are
these with continuations of their states, the longest beginnings that rows can share. Lengths are
those of GSM8K's prompts and model solutions. An iteration has eight minibatches. Scored are rows of
whole problems, as in a run; an update takes a shuffled minibatch, or for comparison whole problems.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from packed_rows import OPTIMIZER, TEMPERATURE, batch_of, episode, gsm8k_lengths, num_tokens

from vinejax.core.types import Batch, Episode
from vinejax.learner.batch import minibatches
from vinejax.learner.packing import Packing, Passes, packing_for
from vinejax.learner.policy import PolicyObjective, clipped_loss
from vinejax.learner.score import scores_of
from vinejax.learner.update import fresh_state, update_step
from vinejax.model.decoder import Decoder, Params

SOLUTIONS, STATES, CONTINUATIONS = 8, 6, 9
SPREAD = 0.3  # of the logarithm of the lengths of one problem's solutions
WAYS = {"packed": False, "shared": True}


def solutions(rng: np.random.Generator, prompts: int, vocab: int) -> Iterator[Episode]:
    """Eight solutions of each of `prompts` prompts, one prompt after the other."""
    for prompt, response in gsm8k_lengths(rng, prompts).tolist():
        question = rng.integers(3, vocab, prompt).tolist()
        for stretch in rng.lognormal(0, SPREAD, SOLUTIONS):
            yield episode(
                question, rng.integers(3, vocab, max(int(response * stretch), 8)).tolist()
            )


def tails(rng: np.random.Generator, prompts: int, vocab: int) -> Iterator[Episode]:
    """Solutions, each followed by the continuations of its states."""
    for whole in solutions(rng, prompts, vocab):
        yield whole
        left = len(whole.response)
        for given in np.linspace(0, left, STATES, endpoint=False).astype(int).tolist():
            for stretch in rng.lognormal(0, SPREAD, CONTINUATIONS):
                own = rng.integers(3, vocab, max(int((left - given) * stretch), 2)).tolist()
                yield episode(whole.prompt, whole.response[:given] + own, given)


# Rows, and the part of the prompts that is taken: of a problem there are 55 times as many tails.
KINDS = {"solutions": (solutions, 1), "tails": (tails, 32)}


def seconds_of(
    program: str, model: Decoder, params: Params, rows: Batch, passes: Passes
) -> tuple[float, Packing]:
    """Seconds of scoring the rows, or of an update on them, and where their tokens lie."""
    assert model.mesh is not None
    state = jax.block_until_ready(fresh_state(params, OPTIMIZER, model.mesh))
    start = time.perf_counter()
    if program == "score":
        scores_of(model, params, rows, TEMPERATURE, passes)
        seconds = time.perf_counter() - start
        return seconds, packing_for(rows, passes, None)
    size, packed, shared = passes
    objective = PolicyObjective(
        model=model,
        temperature=TEMPERATURE,
        loss=clipped_loss,
        kl_coef=1e-4,
        microbatch=size,
        packed=packed,
        shared=shared,
    )
    state, _ = update_step(objective, OPTIMIZER, state, objective.pack(rows))
    jax.block_until_ready(state)
    return time.perf_counter() - start, packing_for(rows, passes, None)


def compare(
    model_of: Callable[[int], Decoder], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Prints the table; `model_of` has room for so many tokens."""
    print("| rows | program | T | tokens | computed | ratio | tokens/s packed | shared | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    found = []
    for kind, (make, part) in KINDS.items():
        rng = np.random.default_rng(0)
        prompts = max(options.prompts // part, 1)
        episodes = list(make(rng, prompts, options.vocab))
        size = len(episodes) // SOLUTIONS
        batch = batch_of(episodes, size, options.vocab)
        model = model_of(batch.tokens.shape[1])
        params = jax.jit(model.init)(jax.random.key(0))
        first = jax.tree.map(lambda x, size=size: x[:size], batch)
        parts = {
            ("score", "score"): first,
            ("train_step", "train_step"): next(minibatches(batch, size, 0, 0, 0)),
            ("train_step", "train_step, whole problems"): first,
        }
        for (program, name), rows in parts.items():
            if program not in options.programs:
                continue
            row = {"rows": kind, "program": name, **measure(program, model, params, rows, options)}
            found.append(row)
            print(table_row(row), flush=True)
    return found


def measure(
    program: str, model: Decoder, params: Params, rows: Batch, options: argparse.Namespace
) -> dict[str, Any]:
    """Both ways by turns; the first calls compile. Tokens are those of the rows, however shared."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    computed = {}
    for _ in range(options.repeats + 1):
        for way, shared in WAYS.items():
            passes = Passes(options.microbatch, True, shared)
            taken, packing = seconds_of(program, model, params, rows, passes)
            seconds[way].append(taken)
            computed[way] = packing.num_passes * options.microbatch * rows.tokens.shape[1]
    speeds = {way: num_tokens(rows) / statistics.median(x[1:]) for way, x in seconds.items()}
    result = {"length": rows.tokens.shape[1], "tokens": num_tokens(rows), "computed": computed}
    return result | {"tokens_per_s": speeds, "seconds": seconds}


def table_row(row: dict[str, Any]) -> str:
    """A line of the Markdown table; `computed` is positions of passes, padding included."""
    packed, shared = (row["computed"][way] for way in WAYS)
    before, after = (row["tokens_per_s"][way] for way in WAYS)
    counts = f"{row['length']} | {row['tokens']:,} | {shared:,} | {packed / shared:.2f}"
    speeds = f"{before:,.0f} | {after:,.0f} | {after / before:.2f}"
    return f"| {row['rows']} | {row['program']} | {counts} | {speeds} |"
