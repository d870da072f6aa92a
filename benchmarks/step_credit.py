"""Mean squared error of step advantages, per setting of `values.*`, on the embedded task.

    python benchmarks/step_credit.py [--quick] [--long] [--output=FILE.jsonl]

The policy is fixed: configs/tiny_start. A repetition draws problems of the train split and eight
solutions of each; every setting then estimates the values of the same solutions, with the same
seeds. The truth is the mean of 256 other continuations of each state of the task's own steps. Its
own error, known from those returns, is subtracted from every mean squared error.

Errors are means over response tokens, each of which has its step's advantage, so that settings with
fewer states than steps compare with the others. Where the steps are the task's own, the mean over
steps is given as well. Tokens are those of continuations, relative to K = 9 at every state.

A ratio at equal tokens compares a setting with uniform K at as many tokens, for which the measured
K are interpolated in logarithms. Whether a setting is better at what K = 9 costs is measured
directly: its K is scaled until its tokens are those of K = 9.

With `--long` chains have 6 to 8 operations instead of 2 to 4, and the policy is trained on them
first (some minutes), unless `--policy` names its folder.
"""

import argparse
import dataclasses
import datetime
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from vinejax.config.load import from_dict, from_file
from vinejax.core.settings import Config
from vinejax.core.types import Episode, PromptedProblem
from vinejax.credit.rules import check_rules
from vinejax.rollout.draw import draw
from vinejax.rollout.sampler import Sampler
from vinejax.rollout.vine import fill_values
from vinejax.runtime.workdir import git_revision
from vinejax.tasks import arithmetic
from vinejax.training.startup import Session, open_session
from vinejax.training.warmup import warm_up

CONFIG = Path(__file__).parents[1] / "configs" / "tiny.py"
TRUTH_SEED = 1_000_003  # added to the run's seed: the truth shares no sample with the estimates
BASE = 9  # K of the baseline: uniform allocation at every state
LONG_OPERATIONS, LONG_HASTE = (6, 7, 8), 0.1
LONG_TOKENS, LONG_STEPS = 72, 160


class Sizes(NamedTuple):
    repetitions: int
    problems: int
    truth: int  # continuations per state
    uniform: tuple[int, ...]  # K of the curve that settings are compared with


FULL = Sizes(4, 28, 256, (1, 2, 3, 4, 5, 7, 9, 12, 16))
LONG = Sizes(2, 12, 128, (1, 3, 5, 9, 16))  # five times the states and the tokens of FULL
QUICK = Sizes(2, 12, 64, (1, 3, 9))

REUSE = {"reuse": True}
BACKUP = REUSE | {"backup": True}
SETTINGS: dict[str, dict[str, Any]] = {
    "uniform K = 9": {},
    "uniform K = 3": {"k": 3},
    "uniform K = 5": {"k": 5},
    "K = 9, reuse": REUSE,
    "K = 5, reuse": REUSE | {"k": 5},
    "K = 3, reuse": REUSE | {"k": 3},
    "K = 2, reuse": REUSE | {"k": 2},
    "bisection K = 9": {"allocation": "bisection"},
    "bisection K = 5": {"allocation": "bisection", "k": 5},
    "bisection K = 9, threshold 0.5": {"allocation": "bisection", "threshold": 0.5},
    "bisection K = 9, threshold 2": {"allocation": "bisection", "threshold": 2.0},
    "bisection K = 9, reuse": REUSE | {"allocation": "bisection"},
    "spread 2, K = 9, reuse": REUSE | {"num_states": 2},
    "merge 2, K = 9, reuse": REUSE | {"merge": 2},
    "K = 9, reuse, backup": BACKUP,
    "K = 5, reuse, backup": BACKUP | {"k": 5},
    "K = 3, reuse, backup": BACKUP | {"k": 3},
    "K = 2, reuse, backup": BACKUP | {"k": 2},
    "bisection K = 9, reuse, backup": BACKUP | {"allocation": "bisection"},
    "K = 1, reuse, no dedup": REUSE | {"k": 1, "dedup": False},
    "K = 2, reuse, no dedup": REUSE | {"k": 2, "dedup": False},
    "K = 2, reuse, backup, no dedup": BACKUP | {"k": 2, "dedup": False},
}


class Drawing(NamedTuple):
    """The solutions of one repetition, and their true step advantages."""

    iteration: int
    problems: list[PromptedProblem]
    episodes: list[Episode]
    truth: list[np.ndarray]  # [episodes] f64[C]
    truth_errors: list[np.ndarray]  # [episodes] f64[C] variance of each


class Measured(NamedTuple):
    """A setting on one repetition."""

    error: float  # mean squared, over response tokens
    step_error: float  # over the task's own steps; nan where the setting has others
    tokens: int  # of continuations
    continuations: int
    waves: int
    samples: float  # behind a value, mean over the states of all solutions
    reused: float  # those of them that were drawn elsewhere


def with_values(cfg: Config, fields: dict[str, Any]) -> Config:
    """The configuration with these fields of `values.*`; the rules are checked."""
    changed = dataclasses.replace(cfg, values=dataclasses.replace(cfg.values, **fields))
    check_rules(changed, has_continuations=True)
    return changed


def advantages_of(episode: Episode) -> np.ndarray:
    """f64[C] A_c = r_c + V(s_{c+1}) - V(s_c)."""
    assert episode.values is not None
    values = np.append(np.asarray(episode.values, float), 0.0)
    return np.array(episode.rewards) + np.diff(values)


def draw_truth(session: Session, iteration: int, problems: int, truth: int) -> Drawing:
    """Solutions of `problems` problems, with advantages from `truth` continuations per state.

    Returns are 0 or 1, so that a value V of n returns has the variance V·(1 - V) / (n - 1).
    """
    cfg = session.cfg
    chosen = draw(session.problems["train"], problems, cfg.seed, iteration)
    sampler = Sampler(session.engine, session.graded, cfg, iteration)
    episodes = sampler.solutions(session.start, chosen, len(chosen))
    other = dataclasses.replace(with_values(cfg, {"k": truth}), seed=cfg.seed + TRUTH_SEED)
    sampler = Sampler(session.engine, session.graded, other, iteration)
    valued = fill_values(sampler, session.start, chosen, episodes)
    errors = []
    for episode in valued:
        values = np.asarray(episode.values, float)
        variances = values * (1 - values) / (truth - 1)
        errors.append(variances + np.append(variances[1:], 0.0))
    return Drawing(iteration, chosen, episodes, list(map(advantages_of, valued)), errors)


def measure(session: Session, drawing: Drawing, fields: dict[str, Any]) -> Measured:
    """The error of a setting on the solutions of a repetition, and what it took."""
    cfg, stats = with_values(session.cfg, fields), session.engine.stats
    before = stats.mark()
    sampler = Sampler(session.engine, session.graded, cfg, drawing.iteration)
    valued = fill_values(sampler, session.start, drawing.problems, drawing.episodes)
    made = stats.minus(before)
    drawn = {id(group): len(group) for episode in valued for group in episode.continuations}
    by_token, by_step, has_own_steps = [], [], True
    for i, episode in enumerate(valued):
        own = drawing.episodes[i].step_ends
        lengths = np.diff([0, *own])
        truth = np.repeat(drawing.truth[i], lengths)
        noise = np.repeat(drawing.truth_errors[i], lengths)
        estimate = np.repeat(advantages_of(episode), np.diff([0, *episode.step_ends]))
        of_tokens = (estimate - truth) ** 2 - noise
        by_token.append(of_tokens)
        by_step.append(of_tokens[np.array(own) - 1])
        has_own_steps &= episode.step_ends == own
    counts = np.concatenate([np.asarray(episode.value_counts) for episode in valued])
    reused = np.concatenate([np.asarray(episode.reused) for episode in valued])
    return Measured(
        error=float(np.mean(np.concatenate(by_token))),
        step_error=float(np.mean(np.concatenate(by_step))) if has_own_steps else math.nan,
        tokens=made.decoded_tokens,
        continuations=sum(drawn.values()),
        waves=made.calls,
        samples=float(counts.mean()),
        reused=float(reused.mean()),
    )


class Row(NamedTuple):
    """A setting over all repetitions; errors and tokens are relative to uniform K = 9."""

    name: str
    fields: dict[str, Any]  # of `values.*`
    tokens: float
    error: float
    spread: float  # standard error of `error` over repetitions
    step_error: float
    equal: float  # error / that of uniform K at as many tokens
    waves: float
    continuations: float  # per repetition
    samples: float
    reused: float

    def cells(self) -> list[str]:
        """The setting's part of the table."""
        by_step = "-" if math.isnan(self.step_error) else f"{self.step_error:.2f}"
        error = f"{self.error:.2f} ± {self.spread:.2f}"
        counts = [f"{self.waves:.1f}", f"{self.samples:.1f}", f"{self.reused:.1f}"]
        own = [f"{self.tokens:.2f}", error, by_step, f"{self.equal:.2f}"]
        return [self.name, *own, *counts, f"{self.continuations:.0f}"]


class Bench:
    """Rows of settings on the same drawings, each setting measured once."""

    def __init__(self, session: Session, drawings: Sequence[Drawing], uniform: Sequence[int]):
        """`uniform` are the K that uniform allocation is measured at, `BASE` among them."""
        self._session, self._drawings = session, drawings
        self._known: dict[str, list[Measured]] = {}
        self.base = self._measured({"k": BASE})
        runs = [self._measured({"k": k}) for k in uniform]
        self.tokens = _mean(self.base, "tokens")
        self.error = _mean(self.base, "error")
        tokens = [_mean(run, "tokens") / self.tokens for run in runs]
        errors = [_mean(run, "error") / self.error for run in runs]
        self._curve = np.log(tokens), np.log(errors)

    def row(self, name: str, fields: dict[str, Any]) -> Row:
        """A setting, with its error over that of uniform K at equal tokens."""
        run = self._measured(fields)
        tokens, error = _mean(run, "tokens") / self.tokens, _mean(run, "error") / self.error
        pairs = zip(run, self.base, strict=True)
        # Paired: the repetitions' solutions differ more than the settings do on them.
        residuals = [(one.error - error * base.error) / self.error for one, base in pairs]
        spread = np.std(residuals, ddof=1) / math.sqrt(len(run)) if len(run) > 1 else math.nan
        return Row(
            name=name,
            fields=fields,
            tokens=tokens,
            error=error,
            spread=float(spread),
            step_error=_mean(run, "step_error") / _mean(self.base, "step_error"),
            equal=error / self.uniform_error(tokens),
            **{x: _mean(run, x) for x in ("waves", "continuations", "samples", "reused")},
        )

    def uniform_error(self, tokens: float) -> float:
        """The error of uniform K at `tokens`: log-log between measured K, a / tokens outside."""
        x, y = self._curve
        at = np.clip(np.log(tokens), x[0], x[-1])
        return float(np.exp(np.interp(at, x, y) + at - np.log(tokens)))

    def scaled(self, name: str, fields: dict[str, Any]) -> Row:
        """The setting with the K, of those tried, whose tokens come nearest to those of K = 9."""
        tried: dict[int, Row] = {}
        k = fields.get("k", BASE)
        for _ in range(4):
            if k in tried:
                break
            tried[k] = self.row(name, fields | {"k": k})
            k = max(1, round(k / tried[k].tokens))
        return min(tried.values(), key=lambda row: abs(math.log(row.tokens)))

    def _measured(self, fields: dict[str, Any]) -> list[Measured]:
        key = json.dumps({"k": BASE} | fields, sort_keys=True)
        if key not in self._known:
            self._known[key] = [measure(self._session, one, fields) for one in self._drawings]
        return self._known[key]


def _mean(run: Sequence[Measured], field: str) -> float:
    return float(np.mean([getattr(one, field) for one in run]))


TITLES = ("setting", "tokens", "MSE", "MSE, steps", "MSE at equal tokens", "waves", "samples")
TITLES += ("reused", "continuations", "K'", "tokens at K'", "MSE at equal tokens at K'")


def table(rows: Sequence[tuple[Row, Row | None]]) -> list[str]:
    """Lines of the table; the last columns are of the setting at scaled K, if it was measured."""
    lines = ["| " + " | ".join(TITLES) + " |", "|---" * len(TITLES) + "|"]
    for row, scaled in rows:
        cells = ["-", "-", "-"]
        if scaled is not None:
            k = scaled.fields.get("k", BASE)
            cells = [str(k), f"{scaled.tokens:.2f}", f"{scaled.equal:.2f}"]
        lines.append("| " + " | ".join([*row.cells(), *cells]) + " |")
    return lines


def fewest_tokens(rows: Sequence[Row]) -> Row | None:
    """The cheapest of the measured settings whose error is at most that of uniform K = 9."""
    return min((row for row in rows if row.error <= 1), key=lambda row: row.tokens, default=None)


def steps_per_solution(drawings: Sequence[Drawing]) -> dict[int, float]:
    """{number of steps: share of the solutions}."""
    counts = [len(episode.step_ends) for one in drawings for episode in one.episodes]
    return {int(n): counts.count(n) / len(counts) for n in sorted(set(counts))}


def long_chains(cfg: Config, folder: Path, policy: str) -> Config:
    """The task with 6 to 8 operations; `policy`, or one fine-tuned on its demonstrations first.

    The shipped start has seen 2 to 4 operations, and guesses at longer chains.
    """
    arithmetic.OPERATIONS, arithmetic.HASTE = LONG_OPERATIONS, LONG_HASTE
    sample = dataclasses.replace(cfg.sample, max_tokens=LONG_TOKENS)
    sft = dataclasses.replace(cfg.sft, steps=LONG_STEPS)
    cfg = dataclasses.replace(cfg, sample=sample, sft=sft)
    path = policy or os.fspath(warm_up(cfg, folder / "long"))
    return dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, path=path))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small numbers: about a minute")
    parser.add_argument("--long", action="store_true", help="chains of 6 to 8 operations")
    parser.add_argument("--policy", default="", help="weights to sample from: a folder")
    parser.add_argument("--output", type=Path, help="file for JSON lines")
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--problems", type=int)
    parser.add_argument("--truth", type=int, help="continuations per state")
    parser.add_argument("--settings", default="", help="only those with this in their name")
    parser.add_argument("--no-scaled", action="store_true", help="skip the scaled K")
    given = parser.parse_args(arguments)
    sizes = QUICK if given.quick else LONG if given.long else FULL
    chosen = {name: getattr(given, name) for name in ("repetitions", "problems", "truth")}
    sizes = sizes._replace(**{name: n for name, n in chosen.items() if n is not None})
    cfg = from_dict(from_file(str(CONFIG), CONFIG.name))
    if given.policy and not given.long:
        cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, path=given.policy))
    with tempfile.TemporaryDirectory() as folder:
        if given.long:
            cfg = long_chains(cfg, Path(folder), given.policy)
        with open_session(cfg, Path(folder) / "run", ("train",)) as session:
            is_scaled = not (given.quick or given.no_scaled)
            run(session, sizes, given.settings, is_scaled, given.output)


def run(
    session: Session, sizes: Sizes, only: str, is_scaled: bool, output: Path | None
) -> list[tuple[Row, Row | None]]:
    """Measures the settings with `only` in their names; prints the table and writes `output`."""
    started, revision = time.monotonic(), git_revision()
    numbers = range(sizes.repetitions)
    drawings = [draw_truth(session, i, sizes.problems, sizes.truth) for i in numbers]
    lengths = steps_per_solution(drawings)
    bench = Bench(session, drawings, sizes.uniform)
    rows: list[tuple[Row, Row | None]] = []
    for name, fields in SETTINGS.items():
        if only in name:
            scaled = bench.scaled(name, fields) if is_scaled else None
            rows.append((bench.row(name, fields), scaled))
            print(f"{name}: {rows[-1][0].error:.3f}", file=sys.stderr, flush=True)
    head = {
        "commit": revision,
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, jax {jax.__version__}",
        "command": " ".join(["python", *sys.argv]),
        "sizes": sizes._asdict(),
        "uniform K = 9": {"error": bench.error, "tokens": bench.tokens},
        "steps_per_solution": lengths,
        "seconds": round(time.monotonic() - started, 1),
    }
    print(f"{head['commit']}, {head['date']}, {head['machine']}: {head['command']}")
    shares = ", ".join(f"{n}: {share:.0%}" for n, share in lengths.items())
    print(f"steps per solution: {shares}")
    print(f"uniform K = 9: MSE {bench.error:.4f} per token, {bench.tokens:,.0f} tokens")
    print("\n".join(table(rows)))
    if best := fewest_tokens([row for pair in rows for row in pair if row is not None]):
        times = f"{1 / best.tokens:.1f} times fewer tokens"
        print(f"no more error than uniform K = 9: {times} with {best.name} ({best.fields})")
    if output:
        records = [{"name": row.name, "measured": row, "scaled": scaled} for row, scaled in rows]
        for record in records:
            for key in ("measured", "scaled"):
                record[key] = record[key]._asdict() if record[key] else None
        lines = [json.dumps(record) for record in [head, *records]]
        output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return rows


if __name__ == "__main__":
    main()
