"""Tests what `Health` reports of several iterations in a row; test_train.py has whole runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from etils import epath
from helpers.applied import stand_in

from vinejax.core.errors import DivergedError
from vinejax.learner.update import Update
from vinejax.runtime.log import RunLog
from vinejax.session.iteration import Iteration
from vinejax.training.health import Health


def log() -> Any:
    return Mock(spec=RunLog)


def iteration(
    number: int, rewards: Sequence[float] | None = (0.0, 1.0), fruitless: bool = False
) -> Any:
    """A finished iteration; without metrics of rewards if there are none."""
    batch = {"loss": np.array([np.nan], np.float32)} if fruitless else None
    made = Mock(spec=Iteration, number=number, failed_batch=batch, metrics={})
    if rewards is not None:
        made.metrics |= {"reward/mean": np.mean(rewards), "reward/std": np.std(rewards)}
    return made


def test_one_line_after_five_iterations_of_one_reward(tmp_path: Path):
    said = log()
    health = Health(epath.Path(tmp_path), said)
    kinds = [[0.5], [0.0], [0.0], [0.0], [0.0], [0.0, 1.0], *[[0.0]] * 5, [0.0], *[[1.0]] * 4]
    for number, rewards in enumerate(kinds):
        health.look(iteration(number, rewards=rewards))
        assert said.message.call_count == (number >= 10)
    said.message.assert_called_once_with(
        "warning: all solutions of 5 iterations had the reward 0: nothing can be learned from them;"
        " look at some in the folder episodes/"
    )


@pytest.mark.parametrize(("of_steps", "warnings"), [(0.0, 1), (0.25, 0)])
def test_equal_outcomes_of_steps_with_rewards_are_no_fault(
    tmp_path: Path, of_steps: float, warnings: int
):
    said = log()
    health = Health(epath.Path(tmp_path), said)
    for number in range(5):
        made = iteration(number, rewards=[0.0])
        made.metrics["reward/steps"] = np.float64(of_steps)
        health.look(made)
    assert said.message.call_count == warnings


def test_a_method_without_rewards_is_left_alone(tmp_path: Path):
    said = log()
    health = Health(epath.Path(tmp_path), said)
    for number in range(9):
        health.look(iteration(number, rewards=None))
    said.message.assert_not_called()


def test_skipped_updates_end_the_run_only_in_a_row(tmp_path: Path):
    health = Health(epath.Path(tmp_path), log())
    for number, fruitless in enumerate([True, True, False, True, True]):
        health.look(iteration(number, fruitless=fruitless))
    assert not list(tmp_path.iterdir())
    with pytest.raises(DivergedError, match="^iteration 6: all updates of 3 iterations in a row"):
        health.look(iteration(5, fruitless=True))
    with np.load(tmp_path / "not_finite.npz") as batch:
        assert np.isnan(batch["loss"]).all()


def test_updates_of_a_critic_that_were_all_skipped_are_noted():
    """The critic is updated before the policy, whose updates may be made all the same."""
    made = stand_in(Iteration, failed_batch=None)
    zero: Any = np.float32(0)
    skipped, accepted = Update(None, zero, zero > 0), Update(None, zero, zero == 0)
    Iteration.note_updates(made, [skipped, accepted], "some were made")
    assert made.failed_batch is None
    Iteration.note_updates(made, [skipped, skipped], "of the critic")
    Iteration.note_updates(made, [accepted], "of the policy")
    assert made.failed_batch == "of the critic"


def test_one_line_for_numbers_that_are_not_finite(tmp_path: Path):
    said = log()
    health = Health(epath.Path(tmp_path), said)
    for number, kl in enumerate([0.1, np.nan, np.inf]):
        made = iteration(number)
        made.metrics |= {"actor/kl": kl, "actor/rows": 4}
        health.look(made)
        assert said.message.call_count == (number > 0)
    said.message.assert_called_once_with(
        "warning: iteration 2: actor/kl not finite: the weights diverge, or will;"
        " lower optimizer.learning_rate"
    )
