"""Runs that die after a stage and are started again."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import loop_cases as cases
from vinejax.model.hf.weights import load_pretrained
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.log import RunLog
from vinejax.training import loop

MOST_STARTS = 60


class Died(BaseException):
    """What ends a start; no code of the run catches it."""


def train_dying(cfg: Any, workdir: Path) -> int:
    """Trains, where the nth start dies after its nth stage; the number of starts."""
    stage = RunLog.stage
    for starts in range(1, MOST_STARTS):
        ended = itertools.count(1)

        @contextlib.contextmanager
        def dying(self: RunLog, name: str, last: int = starts, ended: Iterator[int] = ended):
            with stage(self, name):
                yield
            if next(ended) == last:
                raise Died

        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(RunLog, "stage", dying)
                loop.train(cfg, workdir)
            return starts
        except Died:
            pass
    raise AssertionError(f"not finished after {MOST_STARTS} starts")


def compare(found: Path, expected: Path, start: str, iteration: int) -> None:
    lines = [cases.read_lines(path / "metrics.jsonl") for path in (found, expected)]
    assert cases.without_clock(lines[0]) == cases.without_clock(lines[1])
    for file in sorted((expected / "episodes").iterdir()):
        assert (found / "episodes" / file.name).read_bytes() == file.read_bytes()
    like = load_pretrained(start)[1]
    params = []
    for path in (found, expected):
        with Checkpoints(path / "checkpoints", keep=2) as checkpoints:
            params.append(checkpoints.restore_params(iteration, like)[0])
    cases.assert_equal(*params)


def check_run_that_dies_after_every_stage(cfg: Any, folder: Path, start: str) -> None:
    """A run of two iterations whose nth start dies after its nth stage ends as one that was not."""
    loop.train(cfg, folder / "whole")
    assert train_dying(cfg, folder / "dying") > 4
    compare(folder / "dying", folder / "whole", start, 2)
