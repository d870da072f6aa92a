"""A run that dies in the middle of an iteration, and is started again: the result is the same."""

from pathlib import Path
from typing import Any

import pytest
from helpers import method_cases as methods
from helpers.dying_runs import Died, check_run_that_dies_after_every_stage, compare

from vinejax.methods import stages
from vinejax.training import loop

CASES: dict[str, dict[str, Any]] = {
    "vineppo": {"values": {"k": 3, "allocation": "bisection", "reuse": True, "max_states": None}},
    "ppo": {},
    "dapo": {"rollout": {"rounds": 2}},
    "restem": {"restem": {"problems": 8, "epochs": 2, "eval_every": 2}},
}


def config(method: str, start: str, **fields: Any) -> Any:
    fields |= {"model": {"path": start}, "eval": {"every": 2, "samples": 2}}
    return methods.config(method, **fields | CASES[method])


@pytest.mark.slow
@pytest.mark.parametrize("method", CASES)
def test_a_run_that_dies_after_every_stage(method: str, start: str, tmp_path: Path):
    cfg = config(method, start, iterations=2, checkpoint={"every": 1})
    check_run_that_dies_after_every_stage(cfg, tmp_path, start)


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
