"""Rows of episodes/<iteration>.jsonl: the fields of a step that each method and task fills."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.vine_cases import PROBLEM, QUESTION, RIGHT, WRONG, alternate, config, episode, fill

from vinejax.core.types import Batch, Continuation, Episode, Labels, Problem, Turn
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


def test_each_step_and_each_row_has_its_own_numbers():
    grown = Continuation("4", 1.0, "eos", 1.0)
    first = dataclasses.replace(
        episode(RIGHT, "length"),
        reward_parts={"correct": 1.0},
        values=np.array([0.5, 0.25], np.float32),
        value_counts=np.array([1, 4]),
        value_errors=np.array([np.nan, 0.125], np.float32),
        reused=np.array([1, 3]),
        continuations=((grown,), (grown,) * 4),
    )
    advantages = np.array([[0.5, -0.5, 9, 9], [1, 2, 3, 4]])
    one, other = rows_of([first, episode(WRONG)], step_advantages=advantages, vines=0)
    found = {name: column(one, name) for name in ("value", "value_after", "advantage", "count")}
    assert list(found.values()) == [[0.5, 0.25], [0.25, 0.0], [0.5, -0.5], [1, 4]]
    assert column(one, "error") == [None, 0.125] and column(one, "reused") == [1, 3]
    assert column(one, "continuations") == [[], []], "texts are kept of the first `vines` rows"
    assert one["rewards"] == {"correct": 1.0} and "rewards" not in other
    assert (one["finished"], other["finished"]) == (False, True)
    assert column(other, "advantage") == [1, 2, 3, 4] and column(other, "count") == [0] * 4
    assert one["prompt"] == f"{QUESTION}=" and one["question"] == QUESTION


def test_what_the_policy_did_not_write_has_its_place():
    """Given text comes before the steps; observations count from the start of their step."""
    texts = ("\n2+3=5", "\n5-1=4", "\n#### 4")
    whole = episode(texts, "length")
    given, first, second = whole.step_ends
    turns = (
        Turn(first - 2, first, "a", "=4", 0.0, None),
        Turn(second - 1, second, "b", "4", 0, None),
    )
    one = dataclasses.replace(whole, given=given, step_ends=[first, second], turns=turns)
    (row,) = rows_of([one])
    assert row["given"] == texts[0] and column(row, "text") == [*texts[1:]]
    assert row["response"] == "".join(texts)
    assert column(row, "observed") == [[[4, 6]], [[6, 7]]]


def test_a_penalty_for_the_length_stands_beside_the_reward():
    long, short = (dataclasses.replace(episode(RIGHT), penalty=x) for x in (0.25, 0.0))
    rows = rows_of([long, short, episode(RIGHT)])
    assert [row.get("penalty") for row in rows] == [0.25, None, None]
    assert rows[0]["reward"] == 1.0 and long.rewards[-1] == 0.75


def test_a_discounted_return_stands_beside_the_reward_of_the_answer():
    cfg = cases.config(values={"k": 2, "max_states": 0}, ppo={"gamma": 0.5, "whiten": "none"})
    texts = ("\n#### 4", "".join(RIGHT))  # one step, and two
    filled, _ = fill([episode(RIGHT)], cfg, lambda branch, k: (texts[k], "eos"))
    (row,) = rows_of(filled)
    grown = row["steps"][0]["continuations"]
    assert [(c["reward"], c.get("outcome")) for c in grown] == [(1.0, None), (0.5, 1.0)]


def test_credit_has_the_critics_values_of_each_steps_first_token():
    batch, values = methods.batch(), np.asarray(methods.values())
    credit = methods.credit(methods.config("ppo"), values, batch)
    assert credit.values is not None
    for b, one in enumerate(methods.episodes()):
        starts = len(one.prompt) + np.array([0, *one.step_ends[:-1]])
        np.testing.assert_array_equal(credit.values[b, : len(starts)], values[b, starts])
        assert not credit.values[b, len(starts) :].any()
    assert methods.credit(methods.config("grpo"), rows=batch).values is None


def test_a_continuation_says_where_it_left_and_what_its_label_weighs():
    """Equal tokens of a position share a label; position and token tell the coefficient."""
    grown = ["\n2+3=6\n#### 6", "\n2+3=6\n#### 4", "\n2+3", "".join(RIGHT)]
    cfg = config(credit={"labels": "group"}, max_states=1)
    filled, _ = fill([episode(RIGHT)], cfg, lambda branch, k: (grown[k], "eos"))
    at, six = len(cases.encode("\n2+3=")), cases.encode("6")[-1]
    labels = Labels(
        position=np.array([[len(filled[0].prompt) + at, 0]]),
        token=np.array([[six, 0]]),
        coefficients=np.array([[-0.375, 0.0]], np.float32),
        old_logprobs=np.zeros((1, 2), np.float32),
    )
    (row,) = rows_of(filled, labels=labels)
    first, second, third, fourth = (c["departure"] for c in row["steps"][0]["continuations"])
    shared = {"position": at, "character": len("\n2+3="), "token": "6", "coefficient": -0.375}
    assert first == shared | {"return": 0.0} and second == shared | {"return": 1.0}
    ended = {"position": at - 1, "character": len("\n2+3"), "return": 0.0, "coefficient": 0.0}
    assert third == ended | {"token": cases.tokenizer().eos_token}  # its text is ''
    assert fourth is None, "it repeats the solution"
    (plain,) = rows_of(filled)
    assert all("departure" not in c for c in plain["steps"][0]["continuations"])


def test_where_a_continuation_left_counts_from_its_own_state():
    cfg = config(credit={"labels": "group"}, k=1)
    filled, _ = fill([episode(RIGHT)], cfg, lambda branch, k: ("\n5-2=3\n#### 3", "eos"))
    nothing = np.zeros((1, 1), np.int32), np.zeros((1, 1), np.float32)
    labels = Labels(nothing[0], nothing[0], nothing[1], nothing[1])
    (row,) = rows_of(filled, labels=labels)
    assert column(row, "error") == [None, None], "one return per state tells no error"
    (at_start,), (later,) = column(row, "continuations")
    assert at_start["departure"]["character"] == 1 and at_start["departure"]["token"] == "5"
    assert later["text"][later["departure"]["character"] :].startswith("2=3")
    assert later["departure"]["position"] == len(cases.encode(RIGHT[0] + "\n5-"))


@pytest.mark.slow
def test_a_run_with_labels_writes_their_coefficients(tmp_path: Path, finished_run: cases.Run):
    model = {"path": str(finished_run.workdir / "warmup")}
    values = {"k": 2, "positions": "tokens", "every": 3, "max_states": None}
    cfg = cases.config(
        iterations=1, model=model, eval={"every": 0}, values=values, credit={"labels": "group"}
    )
    loop.train(cfg, tmp_path)
    coefficients = []
    for row in cases.read_lines(tmp_path / "episodes" / "0.jsonl"):
        grown = [c["departure"] for step in row["steps"] for c in step["continuations"]]
        left = [(x["position"], x["token"], x["coefficient"]) for x in grown if x]
        assert len({x[:2] for x in left}) == len(set(left)), "one coefficient for each label"
        coefficients += [x[2] for x in left]
    assert np.count_nonzero(coefficients) > 10
    (line,) = (x for x in cases.read_lines(tmp_path / "metrics.jsonl") if "credit/labels" in x)
    assert line["credit/labels"] > 0


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


def test_solutions_of_one_state_share_its_continuations_also_with_labels():
    """Metrics count them once. Each solution has its own places at which they leave it."""
    both, whole = [episode(RIGHT), episode(WRONG)], "".join(RIGHT)
    for kind in ("off", "group"):
        cfg = config(credit={"labels": kind})
        one, other = fill(both, cfg, lambda branch, k: (whole, "eos"))[0]
        assert one.continuations[0] is other.continuations[0] and len(one.continuations[0]) == 4
    assert one.departures[0] == (None,) * 4 and None not in other.departures[0]
