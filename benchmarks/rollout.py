"""How fast continuations are drawn: the engine against other ways, on the same lengths.

    python benchmarks/rollout.py [--model=1m|10m] [--vocab=512|32k] [--contenders=ours,host,...]
    python benchmarks/rollout.py --scaling     # time and memory at K and at 2 K
    python benchmarks/rollout.py --items       # utilisation at unknown lengths, and the drain
    python benchmarks/rollout.py --solutions --model=135m --vocab=49k --devices=1  # seconds of CPUs
    python benchmarks/rollout.py --device --model=rho1b --vocab=32k --slots=256    # on a GPU

On a CPU ours has a virtual device a core (`--devices`), as its mesh would have on an accelerator;
the others use the cores as their libraries do. All contenders run in one process, on the work of
`workload.py`. A first call compiles; then come `--repeats` rounds in which each runs once, and
medians are printed. Before that, all must write the same at temperature 0, and those that draw with
the engine's random numbers the same at 0.6. Seconds of the processor are printed beside the
clock's: they hardly change when others use the machine.
"""

import argparse
import dataclasses
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from bandwidth import measure_device
from contenders import CONTENDERS
from runs import assert_alike, greedy_part, slower, timed_rounds
from workload import (
    SHAPES,
    STATES,
    VOCABULARIES,
    Lengths,
    NotInstalled,
    Run,
    Workload,
    make_workload,
    solutions,
)

from vinejax.engine import drain


def prepare(work: Workload, names: list[str]) -> tuple[dict[str, Callable[[], Run]], list[str]]:
    """The contenders that are installed, ready to run, and a line on each that is not."""
    ready, lines = {}, []
    for name in names:
        try:
            ready[name] = CONTENDERS[name](work)
        except NotInstalled as missing:
            lines.append(f"{name}: not measured, {missing} is not installed")
    return ready, lines


def check(work: Workload, names: list[str]) -> list[str]:
    """All contenders at temperature 0 on a part of the work; a line on each."""
    ready, _ = prepare(greedy_part(work), names)
    made = {name: run() for name, run in ready.items()}
    return [
        f"temperature 0, {assert_alike(name, run, made['ours'])}"
        for name, run in made.items()
        if name != "ours"
    ]


def compare(work: Workload, names: list[str], repeats: int) -> tuple[list[str], list[dict]]:
    """What is to be printed, and the table's rows."""
    lines = check(work, names)
    ready, missing = prepare(work, names)
    rounds = timed_rounds(ready, repeats)
    first, seconds, cpu_seconds = rounds.first, rounds.seconds, rounds.cpu_seconds
    for name, made in first.items():
        if name != "ours" and made.logprobs is not None:  # it draws with the same numbers
            lines.append(f"temperature 0.6, {assert_alike(name, made, first['ours'])}")
    rows = []
    for name, made in first.items():
        rows.append(
            {
                "contender": name,
                "tokens_per_s": work.useful_tokens / statistics.median(seconds[name]),
                "time_ratio": slower(seconds, name, "ours"),
                "cpu_ratio": slower(cpu_seconds, name, "ours"),
                "prefill_tokens": made.prefill_tokens,
                "decode_steps": made.decode_steps,
                "slot_utilisation": made.slot_utilisation,
                "seconds": seconds[name],
                "cpu_seconds": cpu_seconds[name],
            }
        )
    lines.append(f"programs compiled in the timed rounds: {rounds.compiles}")
    return [*lines, "", *table(rows), *missing], rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown."""
    lines = [
        "| contender | useful tokens/s | time / ours | CPU time / ours | prefill tokens | "
        "decode steps | utilisation |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['contender']} | {row['tokens_per_s']:,.0f} | {row['time_ratio']:.2f} | "
            f"{row['cpu_ratio']:.2f} | "
            f"{row['prefill_tokens']:,} | {row['decode_steps']:,} | {row['slot_utilisation']:.3f} |"
        )
    return lines


def peak_memory(run: Callable[[], Run]) -> int:
    """Bytes this process held at most during a run (Linux); 0 where the kernel does not say."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    except OSError:
        return 0
    run()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def scaling(make: Callable[[int], Workload], k: int, repeats: int) -> list[str]:
    """Time and peak memory of ours at `k` and at 2 `k` continuations a state."""
    ready = {str(n): CONTENDERS["ours"](make(n)) for n in (k, 2 * k)}
    rounds = timed_rounds(ready, repeats)
    less, more = ready
    lines = ["| K | seconds | peak memory of the process |", "|---|---|---|"]
    for n, run in ready.items():
        peak = peak_memory(run) / 2**20
        lines.append(f"| {n} | {statistics.median(rounds.seconds[n]):.2f} | {peak:,.0f} MiB |")
    ratios = slower(rounds.seconds, more, less), slower(rounds.cpu_seconds, more, less)
    return [*lines, f"time at {more} / time at {less}: {ratios[0]:.2f}, CPU time {ratios[1]:.2f}"]


def ends_at_random(work: Workload, cap: int) -> Workload:
    """The work with lengths that no one knows: an EOS is drawn with probability 4 / cap.

    The output matrix is zero, so that all tokens are equally likely, whatever the text.
    """
    size = work.model.cfg.vocab_size
    cfg = dataclasses.replace(work.model.cfg, eos_ids=tuple(range(round(size * 4 / cap))))
    params = work.params | {"head": work.params["head"] * 0}
    budgets = [cap] * len(work.budgets)
    model = dataclasses.replace(work.model, cfg=cfg)
    return dataclasses.replace(work, model=model, params=params, budgets=budgets)


def without_drain(run: Callable[[], Run]) -> Run:
    """A run of ours whose last branches stay in the phase's slots."""
    fewest, drain.MIN_SLOTS = drain.MIN_SLOTS, sys.maxsize
    try:
        return run()
    finally:
        drain.MIN_SLOTS = fewest


def items_a_slot(
    make: Callable[[int], Workload], lengths: Lengths, slots: int, counts: list[int], repeats: int
) -> list[str]:
    """Ours where only sampling tells a branch's length, with a drain and without, by turns."""
    head = "items a slot | K | mean length | drain | decode steps | utilisation | time | CPU time"
    lines = [f"| {head} |", "|---|---|---|---|---|---|---|---|"]
    for count in counts:
        k = max(1, round(count * slots / (lengths.trajectories * STATES)))
        run = CONTENDERS["ours"](ends_at_random(make(k), lengths.cap))
        ready = {"yes": run, "no": functools.partial(without_drain, run)}
        rounds = timed_rounds(ready, repeats)
        assert_alike("without a drain", rounds.first["no"], rounds.first["yes"])
        for name, made in rounds.first.items():
            mean = statistics.mean(map(len, made.tokens))
            times = [slower(of, name, "yes") for of in (rounds.seconds, rounds.cpu_seconds)]
            lines.append(
                f"| {count} | {k} | {mean:.1f} | {name} | {made.decode_steps:,} | "
                f"{made.slot_utilisation:.3f} | {times[0]:.2f} | {times[1]:.2f} |"
            )
    return lines


def seconds_of_solutions(work: Workload, repeats: int) -> list[str]:
    """Processor time of ours for one text on each prompt."""
    rounds = timed_rounds({"ours": CONTENDERS["ours"](work)}, repeats)
    taken = statistics.median(rounds.cpu_seconds["ours"])
    return [
        f"{rounds.first['ours'].prefill_tokens:,} tokens of prompts: {taken:.1f} seconds of the "
        f"processor, {work.useful_tokens / taken:.0f} written tokens a second"
    ]


def parse(arguments: list[str]) -> argparse.Namespace:
    whole = Lengths()
    parser = argparse.ArgumentParser(description="Speed of drawing continuations.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--scaling", action="store_true", help="time and memory at K and 2 K")
    mode.add_argument("--items", action="store_true", help="utilisation at unknown lengths")
    mode.add_argument("--solutions", action="store_true", help="64 tokens on each of 64 prompts")
    mode.add_argument("--device", action="store_true", help="share of the bandwidth limit")
    parser.add_argument("--model", choices=SHAPES, default="10m")
    parser.add_argument("--vocab", choices=VOCABULARIES, default="512")
    parser.add_argument("--trajectories", type=int, default=whole.trajectories)
    parser.add_argument("--k", type=int, default=whole.k)
    parser.add_argument("--prompt", type=int, default=whole.prompt)
    parser.add_argument("--trajectory", type=int, default=whole.trajectory)
    parser.add_argument("--cap", type=int, default=whole.cap)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--devices", type=int, default=os.cpu_count(), help="of ours, on a CPU")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--copy-mib", type=int, default=1024, help="array of the copy, --device")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    parsed = parser.parse_args(arguments)
    unknown = set(parsed.contenders.split(",")) - set(CONTENDERS)
    if unknown:
        parser.error(
            f"--contenders: {', '.join(sorted(unknown))} not among {', '.join(CONTENDERS)}"
        )
    return parsed


def main(arguments: list[str]) -> None:
    args = parse(arguments)
    if args.devices > 1:
        jax.config.update("jax_num_cpu_devices", args.devices)
    lengths = Lengths(args.trajectories, args.k, args.prompt, args.trajectory, args.cap)
    dtype = "bfloat16" if args.device else "float32"

    def make(k: int) -> Workload:
        of_k = dataclasses.replace(lengths, k=k)
        return make_workload(args.model, VOCABULARIES[args.vocab], of_k, args.slots, dtype)

    work, rows = make(args.k), []
    if args.solutions:
        work = solutions(work, prompts=64, tokens=64)
    print(
        f"{args.model}, vocabulary {args.vocab}, {args.slots} slots, {len(work.branches)} branches "
        f"on {len(work.trunks)} trunks, {work.useful_tokens:,} tokens, {jax.device_count()} "
        f"{jax.default_backend()} devices, jax {jax.__version__}, "
        f"{time.strftime('%Y-%m-%d')}"
    )
    if args.scaling:
        lines = scaling(make, args.k, args.repeats)
    elif args.items:
        lines = items_a_slot(make, lengths, args.slots, [8, 16, 32], args.repeats)
    elif args.solutions:
        lines = seconds_of_solutions(work, args.repeats)
    elif args.device:
        lines = measure_device(work, args.repeats, args.copy_mib * 2**20)
    else:
        others = [name for name in args.contenders.split(",") if name != "ours"]
        lines, rows = compare(work, ["ours", *others], args.repeats)
    print("\n".join(lines))
    if args.json:
        record = vars(args) | {"json": None, "rows": rows, "lines": lines}
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
