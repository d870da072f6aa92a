"""Process rewards: rewards of steps, the values and advantages that follow, and merged steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.applied import sample_episodes
from helpers.tokenizer_cases import load
from helpers.vine_cases import (
    PROBLEM,
    PROMPT,
    RIGHT,
    WRONG,
    FakeEngine,
    Task,
    boundaries,
    credit_by_step,
    episode,
    fill,
    rewards_of,
    values_of,
)

from vinejax.core.settings import Config, DataConfig
from vinejax.core.types import Episode, Problem
from vinejax.engine.branches import Branch
from vinejax.rollout.sampler import Solution, split_solution
from vinejax.tasks.steps import step_ends
from vinejax.training.loop import train


def worth(step: str) -> float:
    """The reward of a step; it differs between all steps of these tests, and no float is exact."""
    return 0.1 * len(step) - 0.3 * step.count("=")


class Stepped(Task):
    def step_rewards(self, problem: Problem, steps: Sequence[str]) -> list[float]:
        return [worth(step) for step in steps]


class AnyProblem(cases.FewProblems):
    """The task of the whole run below."""

    def step_rewards(self, problem: Problem, steps: Sequence[str]) -> list[float]:
        return [worth(step) for step in steps]


def make(data: DataConfig) -> AnyProblem:
    return AnyProblem()


SCRIPT = ["".join(RIGHT[1:]), "\n6-1=5\n#### 5", "\n1", "", "\n\n5-1=4\n5\n#### 4"]
FINISHES = ["eos", "stop", "length", "eos", "eos"]


def script(branch: Branch, k: int) -> tuple[str, str]:
    return SCRIPT[k], FINISHES[k]


def gamma_config(gamma: float, max_states: int | None = None) -> Config:
    values = {"k": 5, "max_states": max_states}
    return cases.config(values=values, ppo={"gamma": gamma, "whiten": "none"})


def rewarded(steps: tuple[str, ...], reward: float = 1.0) -> Episode:
    plain = episode(steps, reward=reward)
    engine = FakeEngine(lambda branch, k: (plain.text, "eos"))
    task = Stepped(lambda text: reward)
    return sample_episodes(engine, {}, rewards_of(task), [PROBLEM], cases.config(), 0)[0]


def own_return(so_far: str, text: str, outcome: float, gamma: float) -> float:
    """The return of the solution so_far + text, over the steps that end after so_far."""
    total, discount, position = 0.0, 1.0, 0
    ends = Stepped().split(so_far + text)[1:]
    for end in ends:
        is_last = end == ends[-1]  # the last step has the EOS, which comes after so_far
        if end > len(so_far) or is_last:
            total += discount * worth((so_far + text)[position:end])
            total += discount * outcome if is_last else 0.0
            discount *= gamma
        position = end
    return total


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_returns_and_values_equal_the_loop(gamma: float):
    episodes = [rewarded(RIGHT), rewarded(WRONG, reward=0.0)]
    task = Stepped()
    filled, _ = fill(episodes, gamma_config(gamma), script, task)
    for e in filled:
        assert e.continuations
        for state, group in zip(boundaries(e), e.continuations, strict=True):
            so_far = e.text[: state - len(PROMPT)]
            outcomes = [
                0.0 if finish == "length" else task.rule(so_far + text)
                for text, finish in zip(SCRIPT, FINISHES, strict=True)
            ]
            expected = [
                own_return(so_far, text, outcome, gamma)
                for text, outcome in zip(SCRIPT, outcomes, strict=True)
            ]
            np.testing.assert_allclose([c.reward for c in group], expected, atol=1e-12)
        means = [np.mean([c.reward for c in group]) for group in e.continuations]
        np.testing.assert_allclose(values_of(e), means, rtol=1e-6)
    assert np.unique(np.concatenate([values_of(e) for e in filled])).size > 1


def test_a_continuation_that_is_the_rest_of_its_episode_returns_the_same():
    one = rewarded(RIGHT)
    (filled,), _ = fill([one], gamma_config(0.9), script, Stepped())
    first, last = one.rewards
    assert one.step_rewards == [worth(step) for step in RIGHT] and one.reward == 1.0
    assert last == pytest.approx(worth(RIGHT[1]) + 1.0)
    assert filled.continuations[1][0].reward == pytest.approx(last)
    (filled,), _ = fill([one], gamma_config(0.9), lambda *_: ("".join(RIGHT), "eos"), Stepped())
    assert filled.continuations[0][0].reward == pytest.approx(first + 0.9 * last)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("max_states", [0, 1, None])
def test_advantages_telescope_and_back_filled_ones_are_zero(gamma: float, max_states: int | None):
    cfg = gamma_config(gamma, max_states)
    episodes = [rewarded(RIGHT), rewarded(WRONG, reward=0.0), rewarded((*RIGHT[:1], *WRONG))]
    filled, _ = fill(episodes, cfg, script, Stepped())
    advantages = credit_by_step(filled, cfg)
    for row, e in zip(advantages, filled, strict=False):
        steps = len(e.step_ends)
        discounts = gamma ** np.arange(steps)
        bound = sum(discounts * e.rewards) - values_of(e)[0]
        np.testing.assert_allclose(sum(discounts * row[:steps]), bound, atol=1e-5)
        by_hand = [
            reward + gamma * after - value
            for reward, value, after in zip(
                e.rewards, values_of(e), [*values_of(e)[1:], 0.0], strict=True
            )
        ]
        np.testing.assert_allclose(row[:steps], by_hand, atol=1e-6)
        sampled = steps if max_states is None else min(steps, max_states + 1)
        assert np.abs(row[:sampled]).min() > 1e-3
        np.testing.assert_allclose(row[sampled:], 0.0, atol=0.0 if gamma == 1.0 else 1e-7)


@pytest.mark.parametrize(
    "text, cuts, own",
    [
        ("ab.\nc", [2, 4], [1.0, 2.0, 4.0]),
        ("ab.\nc", [3, 4], [3.0, 4.0]),  # inside the token '.\n' and at its end
        ("ab.\nc", [1, 3, 4], [1.0, 6.0, 8.0]),
        ("ab.\n", [2, 3], [1.0, 6.0]),  # inside the last token
        ("ab.\n", [3], [3.0]),
        ("ab.\nc", [0, 2, 4], [3.0, 4.0, 8.0]),  # a step without text at the start
    ],
)
def test_rewards_of_steps_that_end_in_one_token_add_up(text: str, cuts: list[int], own: list):
    class Cut(Task):
        def split(self, text: str) -> list[int]:
            return [0, *cuts, len(text)]

        def step_rewards(self, problem: Problem, steps: Sequence[str]) -> list[int]:
            assert "".join(steps) == text
            return [2**i for i in range(len(steps))]

    tokenizer = load("byte_level")
    prompt, response = tokenizer.encode("Q:"), tokenizer.encode(text)
    assert len(response) == len(text) - 1
    solution = Solution(PROBLEM[0], prompt, response, text)
    found = split_solution(rewards_of(Cut()), tokenizer, solution)
    assert found == (step_ends(tokenizer, prompt, response, Cut().split(text), text), own)


def test_a_response_without_tokens_has_no_steps():
    empty = Solution(PROBLEM[0], PROMPT, [], "")
    found = split_solution(rewards_of(Stepped()), cases.tokenizer(), empty)
    assert found == ([], [])


def test_a_task_without_them_has_none():
    engine = FakeEngine(lambda branch, k: ("".join(RIGHT), "eos"))
    (one, *_) = sample_episodes(engine, {}, rewards_of(Task()), [PROBLEM], cases.config(), 0)
    assert one.step_rewards is None and one.rewards == [0.0, 1.0]


@pytest.mark.slow
def test_a_whole_run(tmp_path: Any, finished_run: cases.Run):
    model = {"path": str(finished_run.workdir / "warmup")}
    data = {"task": "test_step_rewards"}
    train(cases.config(iterations=1, data=data, model=model, eval={"every": 0}), tmp_path)
    (line,) = [x for x in cases.read_lines(tmp_path / "metrics.jsonl") if x["stage"] == "train"]
    rows = cases.read_lines(tmp_path / "episodes" / "0.jsonl")
    sums = []
    for row in rows:
        rewards = [step["reward"] for step in row["steps"]]
        assert rewards == pytest.approx([worth(step["text"]) for step in row["steps"]])
        own = sum(rewards)
        total = sum(step["advantage"] for step in row["steps"])
        bound = own + row["reward"] - row["steps"][0]["value"]
        assert total == pytest.approx(bound, abs=1e-5)
        sums.append(own)
    assert line["reward/steps"] == pytest.approx(np.mean(sums)) and len(set(sums)) > 3
    assert line["reward/mean"] == pytest.approx(np.mean([row["reward"] for row in rows]))
