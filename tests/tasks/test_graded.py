"""A task with its grader: batches, counters, steps, and closing."""

import dataclasses
import os
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.paths import CONFIGS
from helpers.refusals import refuses

from vinejax.core.settings import DataConfig, GraderConfig, RewardConfig
from vinejax.core.types import Problem
from vinejax.engine.branches import Grown
from vinejax.grading import Grader, Verdict
from vinejax.rollout.sampler import Solution, split_solution
from vinejax.session.evaluation import SolvedProblems, metrics_of
from vinejax.session.session import Session
from vinejax.tasks import graded as module
from vinejax.tasks.graded import BackgroundGrading, GradedTask, GradingStats
from vinejax.tasks.gsm8k import GSM8K
from vinejax.tasks.math import MATH
from vinejax.tasks.steps import every_n_tokens
from vinejax.training.loop import train

PROBLEMS = [Problem(f"train/{i}", "", f"\n#### {i}") for i in range(6)]
ITEMS = [(problem, f"\nIt is.\n#### {i % 3}") for i, problem in enumerate(PROBLEMS)]
HARD = (Problem("test/0", "", r"$\boxed{(x+1)^2}$"), r"$\boxed{x^2+2x+1}$")


class Plain(cases.FewProblems):
    def reward(self, problem: Problem, response: str) -> float:
        return len(response) / 4


def test_a_plain_task_is_asked_for_each_and_has_no_grader(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(module, "Grader")
    with GradedTask(Plain(), GraderConfig()) as rewards:
        assert rewards([(PROBLEMS[0], "abc"), (PROBLEMS[1], "")]) == [0.75, 0.0]
        assert rewards.unreadable(PROBLEMS) == {} and not rewards.has_steps
        assert (rewards.stats.pairs, rewards.stats.timeouts, rewards.stats.errors) == (0, 0, 0)


class Recorder(Grader):
    """A grader that records its settings and batches, and cannot read a backslash."""

    made: list["Recorder"] = []

    def __init__(self, *settings: Any, **named: Any):
        super().__init__(*settings, **named)
        self.settings, self.named, self.batches = settings, named, []
        Recorder.made.append(self)

    def grade_many(self, pairs: Iterable[tuple[str | None, str]]) -> list[Verdict]:
        self.batches.append(list(pairs))
        return super().grade_many(self.batches[-1])

    def readable_many(self, golds: Iterable[str]) -> list[Verdict]:
        return [Verdict(bool(gold) and "\\" not in gold) for gold in golds]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    monkeypatch.setattr(module, "Grader", Recorder)
    monkeypatch.setattr(Recorder, "made", [])
    return Recorder.made


def test_the_grader_has_the_configured_settings_and_the_style_of_the_task(recorded: list):
    cfg = GraderConfig(mode="reference", workers=3, timeout_s=2.5, memory_mb=700)
    for task, style in ((GSM8K("x"), "gsm8k"), (MATH("x"), "math")):
        GradedTask(task, cfg).close()
        grader = recorded[-1]
        assert (grader.mode, grader.style, grader.workers, grader.timeout_s) == (
            *("reference", style),
            *(3, 2.5),
        )
        assert grader.named["memory_mb"] == 700


@pytest.mark.parametrize("task", [MATH("nowhere"), GSM8K("nowhere")])
def test_thinking_that_the_prompt_opens_and_nothing_closes_has_no_answer(task: Any):
    said = "6" if task.name == "math" else "#### 6"
    gold = r"\boxed{6}" if task.name == "math" else said
    open_problem = Problem("0", "", gold, opening="<think>")
    plain = Problem("1", "", gold)
    unfinished, finished = f"It is {said}", f"Maybe 5.</think>\nIt is {said}"
    items = [(open_problem, unfinished), (open_problem, finished), (plain, unfinished)]
    with GradedTask(task, GraderConfig(workers=1)) as rewards:
        assert rewards(items) == [0.0, 1.0, 1.0]
        assert [answer is None for answer in rewards.answers(items)] == [True, False, False]


def read(response: str) -> float:
    return float(len(response))


def test_reward_functions_read_what_was_sampled():
    problem = Problem("0", "", "6", opening="<think>")
    reward = RewardConfig(functions=("task", f"{__name__}.read"))
    with GradedTask(Plain(), GraderConfig(), reward) as rewards:
        assert rewards([(problem, "abc")]) == [(len("<think>") + 3) / 4 + 3]


def first_id(completion_ids: list[list[int]]) -> list[float]:
    return [float(ids[0]) for ids in completion_ids]


def test_grading_in_the_background_keeps_numbers_and_ids_of_responses():
    reward = RewardConfig(functions=(f"{__name__}.first_id",))
    count = BackgroundGrading.BATCH + 6
    with GradedTask(Plain(), GraderConfig(), reward) as rewards, rewards.background() as background:
        for i in reversed(range(count)):
            background.add(i, PROBLEMS[0], "abc", [i, 7])
        found = background.rewards()
    assert {i: reward.total for i, reward in found.items()} == {i: i for i in range(count)}


def test_votes_read_what_the_prompt_opens():
    problems = [(Problem("0", "", "6", opening="<think>"), [1]), (Problem("1", "", "6"), [1])]
    grown = Grown([2], [0.0], r"\boxed{6}", "eos")
    rewards = np.zeros((2, 1), np.float32)
    with GradedTask(MATH("x"), GraderConfig()) as graded:
        cfg = SimpleNamespace(seed=0)
        session = mock.Mock(spec=Session, graded=graded, cfg=cfg, task=graded.task)
        solved = SolvedProblems(problems, [[grown], [grown]], rewards, [[None], [None]])
        metrics_of(session, solved)
        assert graded.answers([(problem, grown.text) for problem, _ in problems]) == [None, "6"]


@pytest.mark.parametrize(("cores", "workers"), [(1, 2), (4, 2), (7, 3), (12, 6), (224, 16)])
def test_the_cores_choose_the_number_of_workers(
    recorded: list, monkeypatch: pytest.MonkeyPatch, cores: int, workers: int
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    GradedTask(MATH("x"), GraderConfig()).close()
    assert recorded[-1].workers == workers
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    GradedTask(MATH("x"), GraderConfig()).close()
    assert recorded[-1].workers == workers


def test_a_batch_goes_to_the_grader_whole(recorded: list):
    with GradedTask(GSM8K("x"), GraderConfig()) as rewards:
        assert rewards(ITEMS) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
        assert rewards([]) == []
        (grader,) = recorded
        assert grader.batches == [[(str(i % 3), str(i)) for i in range(6)]]
        assert grader.stats.started == 0  # plain numbers need no worker
        assert rewards.stats == GradingStats(6, 0, 0, rewards.stats.seconds)
        assert rewards.stats.seconds > 0


def test_counters_are_the_graders_and_of_the_time_between():
    with GradedTask(MATH("x"), GraderConfig(workers=1)) as rewards:
        before = rewards.stats
        assert rewards([HARD, (HARD[0], "Hm")]) == [1.0, 0.0]
        assert rewards._grader and rewards._grader.stats.started == 1
        rewards._grader.stats.timeouts += 2
        rewards._grader.stats.errors += 1
        since = rewards.stats.minus(before)
        assert dataclasses.replace(since, seconds=0.0) == GradingStats(2, 2, 1)
        assert 0 < since.seconds < 60


def test_closed_means_that_the_workers_are_gone():
    with GradedTask(MATH("x"), GraderConfig(workers=1)) as rewards:
        rewards([HARD])
        assert rewards._grader
        (worker,) = rewards._grader._live
    assert worker.process.poll() is not None
    with pytest.raises(ValueError, match="closed"):
        rewards([HARD])
    rewards.close()


def test_unreadable_golds_are_named_with_what_they_are(recorded: list):
    problems = [*PROBLEMS, Problem("train/6", "", r"#### \foo"), Problem("train/7", "", "none")]
    with GradedTask(GSM8K("x"), GraderConfig()) as rewards:
        assert rewards.unreadable(problems) == {"train/6": r"\foo", "train/7": None}


def test_threads_take_turns():
    """A user's task need not be thread-safe."""

    class Slow(Plain):
        inside = 0

        def reward(self, problem: Problem, response: str) -> float:
            self.inside += 1
            time.sleep(0.002)
            assert self.inside == 1
            self.inside -= 1
            return float(response)

    rewards, found = GradedTask(Slow(), GraderConfig()), {}

    def work(i: int) -> None:
        found[i] = rewards([(problem, str(i)) for problem in PROBLEMS])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: [float(i)] * 6 for i in range(5)}


class InTokens(cases.FewProblems):
    """A task with steps of five tokens, whatever the text."""

    def step_ends(self, num_tokens: int) -> list[int]:
        return every_n_tokens(num_tokens, 5)

    def split(self, text: str) -> list[int]:
        raise AssertionError("not to be called")


def make(data: DataConfig) -> InTokens:
    return InTokens()


def test_steps_may_be_counted_in_tokens():
    tokenizer = cases.tokenizer()
    prompt, response = cases.encode("7+8="), cases.encode("\n7+8=15\n#### 15")
    rewards = GradedTask(InTokens(), GraderConfig())
    for tokens, ends in ((response, [5, 10, 15]), (response[:10], [5, 10]), ([], [])):
        text = tokenizer.decode(tokens)
        assert rewards.step_ends(tokenizer, prompt, tokens, text) == ends
        solution = Solution(PROBLEMS[0], prompt, tokens, text)
        assert split_solution(rewards, tokenizer, solution) == (ends, None)


def test_steps_in_tokens_cannot_be_rewarded_by_their_texts():
    class Both(InTokens):
        def step_rewards(self, problem: Problem, steps: Sequence[str]) -> list[float]:
            return [0.0] * len(steps)

    with refuses("data.task"):
        GradedTask(Both(), GraderConfig())


@pytest.mark.slow
def test_a_run_with_steps_in_tokens(tmp_path: Path):
    model = {"path": str(CONFIGS / "tiny_start")}
    data, values = {"task": __name__}, {"k": 3, "max_states": None}
    # The temperature is that of training, so that decoding is compiled once.
    evaluated = {"every": 0, "temperature": 0.8}
    cfg = cases.config(iterations=1, data=data, model=model, values=values, eval=evaluated)
    train(cfg, str(tmp_path))
    rows = cases.read_lines(tmp_path / "episodes" / "0.jsonl")
    steps = [step for row in rows for step in row["steps"]]
    assert len(steps) > 2 * len(rows) and all(0 <= step["value"] <= 1 for step in steps)
    lengths = {len(step["text"]) for row in rows for step in row["steps"][:-1]}
    assert max(lengths) == 5  # a token is one character, or none if it is special
