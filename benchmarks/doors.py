"""Credit of turns on the doors task: methods at equal episodes, over seeds.

    python benchmarks/doors.py [--out=runs/doors] [--seeds=10] [--methods=vineppo,grpo,gigpo]
                               [--iterations=20]
    python benchmarks/doors.py --keys

One warm-up of configs/doors.py is every run's start. All runs sample 16 problems with 8 episodes
each per iteration; VinePPO's continuations come on top, and their tokens are in the table. Prints,
and writes to `doors.md` in `--out`, the mean test pass@1 of the ends over seeds with its 95%
interval (bootstrap over seeds), and the difference from GRPO's with its interval, paired by seed.
Runs that are there already are taken as they are.

With `--keys`: what sampling an iteration takes where rows keep the keys of earlier turns, over
whole trunks for every turn, and over those in waves: the start's episodes of doors, and a random
model's of 16 turns. One process, by turns, after a first round.
"""

import argparse
import dataclasses
import hashlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from workload import Lengths, make_model

import vinejax
from vinejax.config.load import from_dict, load, override
from vinejax.core.settings import Config, GraderConfig
from vinejax.core.types import Problem
from vinejax.engine.branches import Feed
from vinejax.methods import find_method
from vinejax.rollout.turns import TurnSampler
from vinejax.rollout.vine import fill_values
from vinejax.statistics.bootstrap import percentile_interval, resampled
from vinejax.tasks.doors import DoorsTask
from vinejax.tasks.environment import Observation
from vinejax.tasks.graded import GradedTask
from vinejax.tasks.prompts import encode_prompt

CONFIG = Path(__file__).parents[1] / "configs/doors.py"
DRAWS = 10_000
SIXTEEN = 16
HEAD = "| method | test pass@1 | less GRPO's | tokens drawn |\n|---|---|---|---|"


def start_of(out: Path) -> Path:
    """The folder of the weights after the warm-up."""
    fields = {"iterations": 0, "eval.samples": 1, "eval.problems": 4}
    if not (out / "start/warmup").is_dir():
        vinejax.train(CONFIG, fields, workdir=out / "start")
    return out / "start/warmup"


def end_of(workdir: Path) -> tuple[float, float]:
    """(test pass@1, tokens drawn) at the end of a run."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").open(encoding="utf-8")]
    tests = [line["test/pass_at_1"] for line in lines if line["stage"] == "test"]
    trained = [line for line in lines if line["stage"] == "train"]
    return tests[-1], trained[-1]["total/tokens"]


def interval(x: np.ndarray) -> str:
    """'78.0% (77.2 to 78.9)': the mean of [seeds] and its interval."""
    draws = x[resampled(np.random.default_rng(0), len(x), DRAWS)].mean(axis=1)
    low, high = percentile_interval(draws)
    return f"{100 * x.mean():.1f}% ({100 * low:.1f} to {100 * high:.1f})"


@dataclasses.dataclass
class Countdown:
    """Says 24 digits that depend on all actions, 15 times."""

    said: str = ""
    turns: int = 0

    def reset(self, problem: Problem, seed: int) -> str:
        self.said = f"{seed}"
        return ""

    def step(self, action: str) -> Observation:
        self.turns += 1
        self.said = hashlib.sha256(f"{self.said}{action}".encode()).hexdigest()
        digits = f"{int(self.said, 16)}"[:24]
        return Observation(f"\n{digits}\n", float(digits > "5"), self.turns == SIXTEEN)

    def fork(self, seed: int | None = None) -> "Countdown":
        return dataclasses.replace(self)


class SixteenTurns(DoorsTask):
    """Episodes of 16 turns, whatever is said."""

    max_turns = SIXTEEN

    def env(self) -> Any:
        return Countdown()


class Whole(TurnSampler):
    """Every turn computes its whole trunk."""

    def _feed(self, turns: Any) -> Feed | None:
        feed = super()._feed(turns)
        return feed and dataclasses.replace(feed, keeps=False)


class Waves(TurnSampler):
    """As on several hosts: the next turns begin when all have ended."""

    def _feed(self, turns: Any) -> Feed | None:
        return None


class Sampled(NamedTuple):
    """What a phase took, per episode or continuation, and what it drew."""

    prefilled: float
    decoded: float
    processor_s: float
    tokens: list[Any]


def sampled(kind: type[TurnSampler], engine: Any, task: Any, cfg: Config, params: Any) -> Any:
    """Solutions and values of an iteration."""
    sampler = kind(engine, GradedTask(task, GraderConfig()), cfg, 0)
    problems = [
        (x, encode_prompt(engine.tokenizer, task.prompt(x), False))
        for x in task.load("train")[: cfg.rollout.prompts]
    ]
    found, phases = [], []
    for name in ("solutions", "values"):
        before, start = engine.stats.mark(), time.process_time()
        if name == "solutions":
            episodes = sampler.solutions(params, problems, len(problems))
            count, found = len(episodes), [e.tokens for e in episodes]
        else:
            episodes = fill_values(sampler, params, problems, episodes)
            found = [e.continuations for e in episodes]
            count = sum(len(drawn) for e in episodes for drawn in e.continuations)
        took, made = time.process_time() - start, engine.stats.minus(before)
        prefilled, decoded = made.prefill_tokens / count, made.decoded_tokens / count
        phases.append(Sampled(prefilled, decoded, took, found))
    return phases


def compare_keys(name: str, model: Any, params: Any, task: Any, cfg: Config) -> list[str]:
    """Rows of the table: medians of three rounds, times over those of kept keys."""
    sample = dataclasses.replace(cfg.sample, stop=task.ends_turn)
    longest = cfg.data.max_prompt_tokens + cfg.sample.max_tokens + cfg.env.observed
    limits = cfg.data.max_prompt_tokens, min(longest, model.cfg.context)
    given = model, sample, task.tokenizer()
    engine = vinejax.Engine(*given, slots=cfg.rollout.slots, limits=limits)
    kinds = {"kept": TurnSampler, "whole": Whole, "whole, in waves": Waves}
    rounds = []
    for _ in range(4):
        made = {way: sampled(kind, engine, task, cfg, params) for way, kind in kinds.items()}
        rounds.append(made)
        seconds = {way: [round(x.processor_s, 1) for x in phases] for way, phases in made.items()}
        print(name, seconds, file=sys.stderr, flush=True)
    lines = []
    for n, phase in enumerate(("solutions", "values")):
        for way in kinds:
            of_way, kept = ([made[x][n] for made in rounds[1:]] for x in (way, "kept"))
            pairs = list(zip(of_way, kept, strict=True))
            ratio = statistics.median(a.processor_s / b.processor_s for a, b in pairs)
            alike = np.mean([a.tokens == b.tokens for a, b in pairs])
            one = of_way[0]
            lines.append(
                f"| {name}, {phase} | {way} | {one.prefilled:.1f} | {one.decoded:.1f} | "
                f"{one.prefilled / one.decoded:.2f} | {ratio:.2f} | {alike:.1%} |"
            )
    return lines


def config_of(fields: dict[str, Any]) -> Config:
    cfg = load(str(CONFIG))
    override(cfg, fields)
    return find_method("vineppo").applied_to(from_dict(cfg))


def keys(out: Path) -> None:
    """Prints the table of `--keys`."""
    print("| episodes | keys | prefilled | decoded | ratio | CPU time | equal |")
    print("|---|---|---|---|---|---|---|")
    model, params, _ = vinejax.load_pretrained(start_of(out))
    cfg = config_of({"rollout.prompts": 4, "values.k": 3})
    print("\n".join(compare_keys("doors", model, params, DoorsTask(), cfg)), flush=True)
    fields = {"sample.max_tokens": 256, "env.turn_tokens": 16, "env.observed": 448}
    fields |= {"rollout.prompts": 2, "values.k": 2, "values.max_states": 4}
    task = SixteenTurns()
    lengths = Lengths(trajectory=16 + 256, cap=448)
    model, params = make_model("1m", len(task.tokenizer()), lengths, "float32")
    print("\n".join(compare_keys("16 turns", model, params, task, config_of(fields))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/doors"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", default="vineppo,grpo,gigpo")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--keys", action="store_true", help="prefilled tokens of episodes")
    given = parser.parse_args()
    if given.keys:
        keys(given.out)
        return
    methods = given.methods.split(",")
    fields = {"model.path": str(start_of(given.out)), "iterations": given.iterations}
    fields |= {"eval.every": 0, "eval.samples": 8, "eval.problems": 200}
    ends: dict[str, list[tuple[float, float]]] = {method: [] for method in methods}
    for seed in range(given.seeds):
        for method in methods:
            workdir = given.out / f"{method}_{seed}"
            if not (workdir / "report.html").is_file():
                vinejax.train(f"{CONFIG}:{method}", fields | {"seed": seed}, workdir=workdir)
            ends[method].append(end_of(workdir))
    table = [HEAD]
    scores = {method: np.array(rows)[:, 0] for method, rows in ends.items()}
    for method, rows in ends.items():
        less = interval(scores[method] - scores["grpo"]) if "grpo" in scores else ""
        tokens = np.mean([tokens for _, tokens in rows])
        table.append(f"| `{method}` | {interval(scores[method])} | {less} | {tokens:,.0f} |")
    text = "\n".join(table)
    print(text)
    (given.out / "doors.md").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
