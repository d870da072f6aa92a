"""A run that dies in the middle of an iteration, and is started again: the result is the same."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods

from vinejax.methods import stages
from vinejax.model.hf.weights import load_pretrained
from vinejax.runtime.checkpoint import Checkpoints
from vinejax.runtime.log import RunLog
from vinejax.training import loop

MOST_STARTS = 60
CASES: dict[str, dict[str, Any]] = {
    "vineppo": {"values": {"k": 3, "allocation": "bisection", "reuse": True, "max_states": None}},
    "ppo": {},
    "dapo": {"rollout": {"rounds": 2}},
    "single_stream": {"rollout": {"prompts": 12, "per_prompt": 1}},
    "spo_tree": {"spo_tree": {"branching": (3, 2), "segment": 4}},
    "restem": {"restem": {"problems": 8, "epochs": 2, "eval_every": 2}},
}


class Died(BaseException):
    """What ends a start; no code of the run catches it."""


def config(method: str, start: str, **fields: Any) -> Any:
    fields |= {"model": {"path": start}, "eval": {"every": 2, "samples": 2}}
    return methods.config(method, **fields | CASES[method])


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


@pytest.mark.slow
@pytest.mark.parametrize("method", CASES)
def test_a_run_that_dies_after_every_stage(method: str, start: str, tmp_path: Path):
    cfg = config(method, start, iterations=2, checkpoint={"every": 1})
    loop.train(cfg, tmp_path / "whole")
    assert train_dying(cfg, tmp_path / "dying") > 4
    compare(tmp_path / "dying", tmp_path / "whole", start, 2)


@pytest.mark.slow
def test_iterations_since_the_checkpoint_are_done_again(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The process dies in the updates of the fourth iteration, one after a save was due."""
    cfg = config("vineppo", start, iterations=4, checkpoint={"every": 2})
    loop.train(cfg, tmp_path / "whole")
    update, begun = stages.updated, []

    def dying(iteration: Any, *args: Any):
        begun.append(iteration.number)
        if len(begun) == 4:
            raise Died
        return update(iteration, *args)

    monkeypatch.setattr(stages, "updated", dying)
    with pytest.raises(Died):
        loop.train(cfg, tmp_path / "dying")
    loop.train(cfg, tmp_path / "dying")
    assert begun == [0, 1, 2, 3, 2, 3]
    compare(tmp_path / "dying", tmp_path / "whole", start, 4)
