"""Time of an iteration of VinePPO relative to GRPO's, stage by stage, at equal episodes.

    python benchmarks/iteration_time.py [--model=tiny|10m] [--rounds=8] [--output=FILE.json]

All settings run in one process, from the same weights, on the same problems in every round; the
learning rate is too small to change a token, so that the work stays what it is. A round runs one
iteration of each setting. Rounds in which any of them compiled a program are left out, and the
rest are compared: ratios are medians over rounds of (time of the setting / GRPO's time in the same
round), seconds are medians as well.

`tiny` is configs/tiny_start, 150,000 parameters. `10m` has 6 layers of width 384 and is trained on
worked solutions first (`--steps`, some minutes): responses then have their usual length.
"""

import argparse
import copy
import json
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vinejax.config.checks import check_config
from vinejax.config.load import from_dict, from_file, override
from vinejax.core.settings import Config
from vinejax.core.types import RunState
from vinejax.learner.optimizer import make_optimizer
from vinejax.learner.update import fresh_state
from vinejax.methods.known import find_method
from vinejax.runtime.compiles import num_compiles
from vinejax.runtime.log import RunLog
from vinejax.session.budget import RunTotals
from vinejax.session.iteration import Iteration
from vinejax.training.startup import Session, open_session
from vinejax.training.warmup import warm_up

CONFIGS = Path(__file__).parents[1] / "configs"
STAGES = ("rollout", "value", "score", "train")
SETTINGS: dict[str, dict[str, Any]] = {
    "GRPO": {"method": "grpo"},
    "VinePPO, K = 9": {"values.k": 9},
    "VinePPO, K = 3": {"values.k": 3},
    "backup": {
        "values.k": 3,
        "values.num_states": 8,
        "values.reuse": True,
        "values.backup": True,
    },
}
SIZES_10M: dict[str, Any] = {"num_layers": 6, "width": 384, "num_heads": 6, "num_kv_heads": 2}


class Contender(NamedTuple):
    """A setting with its run."""

    session: Session
    log: RunLog
    state: RunState


class Timed(NamedTuple):
    """One iteration of one setting."""

    seconds: float
    stages: dict[str, float]
    tokens: int  # decoded
    compiled: int  # programs


def base_fields(model: str, steps: int, folder: Path) -> Any:
    """The configuration that the settings change, for a model that is trained if it has to be."""
    fields: Any = from_file(str(CONFIGS / "tiny.py"), "tiny.py")
    fields.optimizer.learning_rate = 1e-12
    if model == "10m":
        for name, value in SIZES_10M.items():
            fields.model[name] = value
        fields.model.ffn = 1536
        fields.model.path = ""
        fields.sft.steps, fields.sft.learning_rate = steps, 1e-3
        fields.model.path = str(warm_up(from_dict(fields), folder / "start"))
    return fields


def config_of(base: Any, changes: dict[str, Any]) -> Config:
    """The base configuration with the changes of one setting."""
    fields = copy.deepcopy(base)
    override(fields, changes)
    cfg = from_dict(fields)
    check_config(cfg)
    return cfg


def open_contender(cfg: Config, workdir: Path) -> Contender:
    session = open_session(cfg, workdir)
    optimizer = make_optimizer(cfg.optimizer, 1)
    policy = fresh_state(session.load_reference(), optimizer, session.mesh)
    return Contender(session, RunLog(session.workdir, cfg.log, 1, True), RunState(policy))


def timed_iteration(contender: Contender, number: int) -> tuple[Contender, Timed]:
    session, log, state = contender
    before, compiles = time.monotonic(), num_compiles()
    iteration = Iteration(session, log, number, RunTotals())
    method = find_method(session.cfg.method)
    state = method.iteration(method, iteration, state)
    seconds = time.monotonic() - before
    stages = {stage: log.timings.get(f"timing_s/{stage}", 0.0) for stage in STAGES}
    iteration.record(int(state.policy.step))
    timed = Timed(seconds, stages, iteration.spent.tokens, num_compiles() - compiles)
    return contender._replace(state=state), timed


def measure(contenders: dict[str, Contender], rounds: int) -> list[dict[str, Timed]]:
    """`rounds` rounds in which nothing was compiled, of at most four times as many."""
    measured: list[dict[str, Timed]] = []
    for number in range(4 * rounds):
        times: dict[str, Timed] = {}
        for name in contenders:
            contenders[name], times[name] = timed_iteration(contenders[name], number)
        is_clean = not any(timed.compiled for timed in times.values())
        print(f"round {number}: {'measured' if is_clean else 'compiled a program, left out'}")
        measured += [times] if is_clean else []
        if len(measured) == rounds:
            break
    return measured


def table(measured: list[dict[str, Timed]]) -> list[dict[str, Any]]:
    """A row per setting."""
    rows = []
    for name in measured[0]:
        own = [times[name] for times in measured]
        ratios = [times[name].seconds / times["GRPO"].seconds for times in measured]
        rows.append(
            {
                "setting": name,
                "over GRPO": round(float(np.median(ratios)), 2),
                "range": [round(min(ratios), 2), round(max(ratios), 2)],
                "seconds": round(float(np.median([t.seconds for t in own])), 2),
                "tokens": int(np.median([t.tokens for t in own])),
                **{s: round(float(np.median([t.stages[s] for t in own])), 2) for s in STAGES},
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of an iteration over GRPO's.")
    parser.add_argument("--model", choices=("tiny", "10m"), default="tiny")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300, help="of the warm-up of the 10m model")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fields = base_fields(options.model, options.steps, Path(folder))
        fields.rollout.prompts = options.prompts
        contenders = {
            name: open_contender(config_of(fields, changes), Path(folder) / str(i))
            for i, (name, changes) in enumerate(SETTINGS.items())
        }
        rows = table(measure(contenders, options.rounds))
    for row in rows:
        print(json.dumps(row))
    if options.output:
        options.output.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
