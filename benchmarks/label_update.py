"""An update with labels, over the same update without: medians by turns, in one process.

    python benchmarks/label_update.py --model=10m --vocab=32k

Random weights and random tokens of the given lengths. Every `--every`-th trained token has a label,
so with 5 there are as many labels as continuations of states every five tokens, of which each
leaves its solution. The two updates take turns, so that other work on the machine meets both.
"""

import argparse
import dataclasses
import statistics
import time

import jax
import numpy as np
from learner_step import CLIP, KL_COEF, OPTIMIZER, TEMPERATURE, make_work
from packed_rows import gsm8k_lengths
from workload import SHAPES, VOCABULARIES, Lengths, make_model

from vinejax.core.shapes import label_width
from vinejax.core.types import Batch, Labels
from vinejax.learner.policy import PolicyObjective, clipped_loss
from vinejax.learner.update import fresh_state, update_step
from vinejax.model.sharding import mesh_over

CONTEXT = Lengths(trajectory=512, cap=512)


def with_labels(batch: Batch, every: int, vocab: int) -> Batch:
    """The batch with a label at every n-th trained token."""
    rng = np.random.default_rng(2)
    places = [np.flatnonzero(row)[::every] for row in np.asarray(batch.mask)]
    shape = (len(places), label_width(max(map(len, places)), batch.tokens.shape[1]))
    position, token = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    coefficients, old = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for row, place in enumerate(places):
        n = len(place)
        position[row, :n] = place
        token[row, :n] = (batch.tokens[row, place] + rng.integers(1, vocab, n)) % vocab
        coefficients[row, :n] = rng.normal(size=n)
        old[row, :n] = -np.log(vocab)
    return batch._replace(labels=Labels(position, token, coefficients, old))


def seconds_by_turns(
    programs: list[tuple[PolicyObjective, Batch]], rounds: int
) -> list[list[float]]:
    """[programs][rounds] seconds of an update of each program, which take turns."""
    states = []
    for objective, _ in programs:
        mesh = objective.model.mesh
        assert mesh is not None
        params = jax.jit(objective.model.init)(jax.random.key(0))
        states.append(fresh_state(params, OPTIMIZER, mesh))
    seconds: list[list[float]] = [[] for _ in programs]
    for turn in range(rounds + 1):
        for i, (objective, batch) in enumerate(programs):
            began = time.perf_counter()
            states[i], update = update_step(objective, OPTIMIZER, states[i], objective.pack(batch))
            jax.block_until_ready((states[i], update))
            if turn:  # the first compiles
                seconds[i].append(time.perf_counter() - began)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="An update with labels over one without.")
    parser.add_argument("--model", choices=SHAPES, default="1m")
    parser.add_argument("--vocab", choices=VOCABULARIES, default="512")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--microbatch", type=int, default=4)
    parser.add_argument("--every", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    vocab = VOCABULARIES[args.vocab]
    model, _ = make_model(args.model, vocab, CONTEXT, "float32")
    model = dataclasses.replace(model, mesh=mesh_over((1, 1, 1), jax.devices()[:1]))
    lengths = gsm8k_lengths(np.random.default_rng(0), args.rows)
    batch = make_work(model, lengths, args.microbatch).batch
    objective = PolicyObjective(
        model=model, temperature=TEMPERATURE, loss=clipped_loss, kl_coef=KL_COEF, clip=CLIP,
        microbatch=args.microbatch, packed=True,
    )  # fmt: skip
    batches = [batch, *(with_labels(batch, every, vocab) for every in args.every)]
    plain, *labelled = seconds_by_turns([(objective, x) for x in batches], args.rounds)
    platform = jax.devices()[0].platform
    print(f"{platform}, {args.model}, vocabulary {vocab}: seconds over those without labels")
    for every, seconds in zip(args.every, labelled, strict=True):
        ratios = [x / y for x, y in zip(seconds, plain, strict=True)]
        ratio = statistics.median(seconds) / statistics.median(plain)
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        print(f"a label every {every} tokens: {ratio:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
