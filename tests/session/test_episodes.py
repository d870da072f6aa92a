"""Rows of episodes/<iteration>.jsonl: the fields of a step that each method and task fills."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.vine_cases import PROBLEM, RIGHT, WRONG, alternate, episode, fill

from vinejax.core.types import Batch, Episode, Problem, Turn
from vinejax.methods import ppo
from vinejax.records.episode_rows import episode_rows
from vinejax.training import loop


def rows_of(episodes: list[Episode], **more: Any) -> list[dict[str, Any]]:
    """Rows of episodes of the only problem, as read back from the file."""
    given = {"step_advantages": None, "iteration": 0, "vines": 1} | more
    rows = episode_rows(cases.tokenizer(), [PROBLEM], episodes, **given)
    return [json.loads(json.dumps(row, allow_nan=False)) for row in rows]


def column(row: dict[str, Any], name: str) -> list[Any]:
    return [step[name] for step in row["steps"]]


def test_a_critics_values_stand_before_and_after_the_steps():
    critic = np.array([[0.5, -0.25, 9.0, 9.0], [0.125, 0.75, 2.0, 9.0]], np.float32)
    right, wrong = rows_of([episode(RIGHT), episode(WRONG)], critic_values=critic)
    assert right["values_by"] == wrong["values_by"] == "critic"
    assert column(right, "value") == [0.5, -0.25] and column(right, "value_after") == [-0.25, 0.0]
    assert column(wrong, "value")[:3] == [0.125, 0.75, 2.0]
    assert column(right, "count") == [0, 0] and column(right, "continuations") == [[], []]


def test_values_by_continuations_come_with_their_counts():
    filled, _ = fill([episode(RIGHT)], cases.config(values={"k": 4}), alternate)
    (row,) = rows_of(filled)
    assert row["values_by"] == "continuations" and column(row, "count") == [4, 4]
    means = [np.mean([c["reward"] for c in grown]) for grown in column(row, "continuations")]
    assert column(row, "value") == pytest.approx(means) and means[0] != means[1]


def test_what_is_not_known_is_none():
    (row,) = rows_of([episode(RIGHT)])
    assert row["values_by"] is None
    for name in ("value", "advantage", "reward"):
        assert column(row, name) == [None, None]


def test_steps_have_their_own_rewards_without_the_outcome():
    paid = episode(RIGHT, reward=1.0)
    paid = dataclasses.replace(paid, step_rewards=[0.25, -0.5])
    (row,) = rows_of([paid])
    assert column(row, "reward") == [0.25, -0.5] and row["reward"] == 1.0


def test_credit_has_the_critics_values_of_each_steps_first_token():
    batch, values = methods.batch(), np.asarray(methods.values())
    credit = methods.credit(methods.config("ppo"), values, batch)
    assert credit.values is not None
    for b, one in enumerate(methods.episodes()):
        starts = len(one.prompt) + np.array([0, *one.step_ends[:-1]])
        np.testing.assert_array_equal(credit.values[b, : len(starts)], values[b, starts])
        assert not credit.values[b, len(starts) :].any()
    assert methods.credit(methods.config("grpo"), rows=batch).values is None


@pytest.mark.slow
def test_ppo_writes_the_values_that_its_advantages_came_from(
    tmp_path: Path, monkeypatch: Any, finished_run: cases.Run
):
    lengths: list[list[tuple[int, int]]] = []

    def by_place(model: Any, critic: Any, batch: Batch, size: int) -> np.ndarray:
        """V before token t is t / 64, which no float rounds."""
        mask = np.asarray(batch.mask)
        lengths.append([(int(row.argmax()), int(row.sum())) for row in mask])
        return np.where(mask, np.arange(mask.shape[1]) / 64, 0).astype(np.float32)

    monkeypatch.setattr(ppo, "critic_values", by_place)
    model = {"path": str(finished_run.workdir / "warmup")}
    cfg = methods.config("ppo", iterations=1, model=model, eval={"every": 0})
    loop.train(cfg, tmp_path)
    rows = cases.read_lines(tmp_path / "episodes" / "0.jsonl")
    assert max(len(row["steps"]) for row in rows) > 1
    (found,) = lengths
    for row, (prompt, response) in zip(rows, found, strict=False):
        assert row["values_by"] == "critic"
        starts = [round(value * 64) for value in column(row, "value")]
        assert starts[0] == prompt and starts == sorted(set(starts))
        assert column(row, "value_after") == [*column(row, "value")[1:], 0.0]
        for a, b, step in zip(starts, [*starts[1:], prompt + response], row["steps"], strict=True):
            # At λ = γ = 1 a token's is the reward less V; the step's is their mean.
            expected = row["reward"] - np.arange(a, b).mean() / 64
            assert step["advantage"] == pytest.approx(expected, abs=1e-5)


def test_the_failed_test_of_a_program_is_kept_with_its_continuations():
    failed = {"input": "1", "expected": "2", "got": "3"}
    right, wrong = episode(RIGHT), episode(WRONG)
    asked = []

    def failure(problem: Problem, response: str) -> dict[str, str] | None:
        asked.append((problem, response))
        return failed if response == wrong.text else None

    rows = rows_of([right, wrong, wrong], vines=2, failure=failure)
    assert [row.get("failed_test") for row in rows] == [None, failed, None]
    assert asked == [(PROBLEM[0], right.text), (PROBLEM[0], wrong.text)]


def test_what_the_environment_said_in_the_end_is_kept():
    """The last answer is no token of the response; the policy reads an answer in the middle."""
    one = episode(RIGHT)
    n = len(one.response)
    turns = [Turn(1, 2, "a", "read", 0.0, None), Turn(n, n, "b", "y" * 9000, 0.0, None)]
    both = dataclasses.replace(one, turns=tuple(turns), step_ends=[2, n])
    cut = dataclasses.replace(one, turns=(turns[0],), step_ends=[2, n])
    rows = rows_of([both, cut])
    assert [[step.get("unread") for step in row["steps"]] for row in rows] == [
        [None, "y" * 4000],
        [None, None],
    ]
