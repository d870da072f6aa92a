"""Prefilled tokens and processor time of episodes in turns, whose rows keep earlier turns' keys.

    python benchmarks/turn_keys.py [--out=runs/doors]

Compares what sampling an iteration takes where rows keep the keys of earlier turns, over whole
trunks for every turn, and over those in waves: episodes of the start of configs/doors.py, which
`doors.py` trains in `--out` if it is not there, and of 16 turns of a random model. One process, by
turns, three rounds after a first one. Tokens are per episode or continuation.
"""

import argparse
import dataclasses
import hashlib
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from doors import CONFIG, start_of
from workload import Lengths, make_model

import vinejax
from vinejax.config.load import from_dict, load, override
from vinejax.core.settings import Config, GraderConfig
from vinejax.core.types import Problem
from vinejax.engine.branches import Feeder
from vinejax.engine.keeping import KeepingPhase
from vinejax.engine.memory import SLOTS
from vinejax.methods.known import find_method
from vinejax.rollout.turns import TurnSampler
from vinejax.rollout.vine import fill_values
from vinejax.tasks.doors import DoorsTask
from vinejax.tasks.environment import Observation
from vinejax.tasks.graded import GradedTask
from vinejax.tasks.prompts import encode_prompt

SIXTEEN = 16


@dataclasses.dataclass
class Digits:
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

    def fork(self) -> "Digits":
        return dataclasses.replace(self)


class SixteenTurns(DoorsTask):
    """Episodes of 16 turns, whatever is said."""

    max_turns = SIXTEEN

    def env(self) -> Any:
        return Digits()


class Whole(TurnSampler):
    """Every turn computes its whole trunk: rows are said to have nothing of it."""

    def _play(self, *given: Any, **named: Any) -> Any:
        def nothing(phase: KeepingPhase, shard: int, ids: list[int]) -> np.ndarray:
            return np.zeros(phase._row_tokens.shape[1], np.int64)

        with mock.patch.object(KeepingPhase, "_common", nothing):
            return super()._play(*given, **named)


class Waves(TurnSampler):
    """As on several hosts: the next turns begin when all have ended."""

    def _feed(self, turns: Any) -> Feeder | None:
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
    engine = vinejax.Engine(*given, slots=cfg.rollout.slots or SLOTS, limits=limits)
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
    return find_method("vineppo").resolve(from_dict(cfg))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/doors"))
    out = parser.parse_args().out
    print("| episodes | keys | prefilled | decoded | ratio | CPU time | equal |")
    print("|---|---|---|---|---|---|---|")
    model, params, _ = vinejax.load_pretrained(start_of(out))
    cfg = config_of({"rollout.prompts": 4, "values.k": 3})
    print("\n".join(compare_keys("doors", model, params, DoorsTask(), cfg)), flush=True)
    fields = {"sample.max_tokens": 256, "env.turn_tokens": 16, "env.observed": 448}
    fields |= {"rollout.prompts": 2, "rollout.per_prompt": 4, "values.k": 1}
    fields |= {"values.max_states": 2}
    task = SixteenTurns()
    lengths = Lengths(trajectory=16 + 256, cap=448)
    model, params = make_model("1m", len(task.tokenizer()), lengths, "float32")
    print("\n".join(compare_keys("16 turns", model, params, task, config_of(fields))))


if __name__ == "__main__":
    main()
