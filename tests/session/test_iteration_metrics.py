"""An iteration's metrics of solutions, updates and sampling, against figures worked out by hand."""

from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as cases

from vinejax.core.types import Batch, Continuation, Turn
from vinejax.engine.stats import EngineStats
from vinejax.learner.policy import PolicySums, SumsByEighth
from vinejax.learner.update import Update
from vinejax.session import metrics
from vinejax.tasks.graded import GradingStats


def test_rewards_lengths_and_steps_are_those_of_solutions_from_their_prompts():
    """The reset counts nowhere, and the solution in turns is shorter by its observation."""
    turn = Turn(drawn=1, end=3, action="", observation="", reward=0.0, key=None)
    episodes = [
        cases.episode([1], [2] * 5, reward=1.0, turns=(turn,), step_ends=[3, 5]),
        cases.episode([1], [2] * 4, reward=0.5, finished=False, step_rewards=[0.25]),
        cases.episode([1], [2] * 3, reward=0.75, step_rewards=[0.75]),
        cases.episode([1], [2] * 9, reward=9.0, given=4),
    ]
    found = metrics.episode_metrics(episodes)
    assert found == {
        "reward/mean": 0.75,
        "reward/std": pytest.approx(np.sqrt(2 / 3) / 4),
        "frac_reward_zero_std": 0.0,
        "response_length/mean": 10 / 3,
        "response_length/max": 4,
        "response_length/clip_ratio": 1 / 3,
        "steps/mean": 4 / 3,
        "turns/mean": 1 / 3,
        "reward/steps": 0.5,
    }


def test_resets_count_if_there_is_nothing_else():
    episodes = [cases.episode([1], [2] * 9, reward=1.0, given=4)]
    assert metrics.episode_metrics(episodes)["response_length/mean"] == 9


def test_leaves_are_no_resets_and_their_path_is_their_steps():
    leaf = cases.episode([1], [2] * 9, reward=1.0, given=4, nodes=[0, 3, 5])
    found = metrics.episode_metrics([leaf, cases.episode([1], [2])])
    assert found["reward/mean"] == 0.5 and found["steps/mean"] == 2


def batch_of(rows: list[list[float | None]]) -> Batch:
    """A batch whose rows have these log-probabilities, None where a token is not trained on."""
    mask = np.array([[x is not None for x in row] for row in rows])
    logprobs = np.array([[9.0 if x is None else x for x in row] for row in rows], np.float32)
    fields: dict[str, Any] = dict.fromkeys(Batch._fields)
    return Batch(**fields | {"old_logprobs": logprobs, "mask": mask})


def test_the_difference_of_the_log_probabilities_is_that_of_drawn_tokens():
    """Of ten drawn tokens the first two are in the first eighth, and the last in the last."""
    long = cases.episode([1], [2] * 11, given=1, logprobs=[0.0] + [-1.0] * 10)
    short = cases.episode([1], [2], logprobs=[-2.0])
    moved = [0.25, -0.5, *[0.0] * 7, 1.0]
    batch = batch_of([[None, None, *(x - 1.0 for x in moved)], [None, -2.5, *[None] * 10]])
    found = metrics.logprob_diff([long, short], batch)
    moved.append(-0.5)  # of the short solution
    assert found["rollout/logprob_diff/mean"] == pytest.approx(2.25 / 11)
    assert found["rollout/logprob_diff/max"] == 1.0
    k3 = np.mean([np.exp(x) - 1 - x for x in moved])
    assert found["rollout/kl"] == pytest.approx(k3, rel=1e-5)
    by_eighth = [found[f"by_eighth/logprob_diff/{n}"] for n in range(1, 9)]
    assert by_eighth == pytest.approx([1.25 / 3, 0, 0, 0, 0, 0, 0, 1.0])


def test_without_drawn_tokens_there_is_no_difference():
    found = metrics.logprob_diff([cases.episode([1], [2], given=1)], batch_of([[None, None]]))
    assert found == {
        "rollout/kl": 0.0,
        "rollout/logprob_diff/mean": 0.0,
        "rollout/logprob_diff/max": 0.0,
    }


def update(
    scale: float, tokens: float, norm: float, clipped: float | None, accepted: bool = True
) -> Update:
    """An update whose sums are multiples of `scale`, with tokens in two eighths of responses."""
    eighths = np.zeros(8, np.float32)
    eighths[[0, 7]] = 1, 3
    names = ("loss", "kl", "old_kl", "ratio", "entropy")
    sums: dict[str, Any] = {name: np.float32(n * scale) for n, name in enumerate(names, start=1)}
    by_eighth: dict[str, Any] = {name: sums[name] * eighths for name in ("ratio", "entropy")}
    sums["tokens"], by_eighth["tokens"] = np.float32(tokens), tokens * eighths / 4
    sums["clipped"] = by_eighth["clipped"] = None
    if clipped is not None:
        sums["clipped"], by_eighth["clipped"] = np.float32(clipped), clipped * eighths
    report: tuple[Any, ...] = (
        PolicySums(**sums, by_eighth=SumsByEighth(**by_eighth)), np.float32(norm), accepted
    )  # fmt: skip
    return Update(*report)


def test_an_iterations_updates_have_means_over_tokens():
    """Sums of 4 times a unit over 8 tokens; the norm is that of the updates that were made."""
    updates = [
        update(1.0, 2.0, 4.0, 1.0),
        update(2.0, 4.0, 0.0, 1.0, accepted=False),
        update(1.0, 2.0, 6.0, 1.0),
    ]
    found = metrics.update_metrics(updates)
    assert found == {
        "actor/loss": 0.5,
        "actor/kl": 1.0,
        "actor/old_kl": 1.5,
        "actor/ratio": 2.0,
        "actor/entropy": 2.5,
        "actor/clip_frac": 3 / 8,
        "actor/grad_norm": 5.0,
        "actor/skipped_updates": 1.0,
        "by_eighth/entropy/1": 10.0,
        "by_eighth/entropy/8": 10.0,
        "by_eighth/ratio/1": 8.0,
        "by_eighth/ratio/8": 8.0,
        "by_eighth/clip_frac/1": 1.5,
        "by_eighth/clip_frac/8": 1.5,
    }


def test_what_was_not_measured_is_left_out():
    found = metrics.update_metrics([update(1.0, 2.0, 5.0, clipped=None)], has_kl=False)
    assert not [name for name in found if "clip" in name] and "actor/kl" not in found
    assert found["actor/old_kl"] == 1.5


def test_continuations_of_a_state_that_solutions_share_count_once():
    continuation = Continuation("", 1.0, "eos", 1.0)
    shared, own, equal = ((continuation,) * count for count in (3, 2, 2))
    episodes = [
        cases.episode([1], [2], continuations=(shared, own)),
        cases.episode([1], [3], continuations=(shared, equal)),
    ]
    stats = EngineStats(
        prefill_tokens=3,
        decoded_tokens=80,
        restarted_tokens=1,
        repeated_tokens=2,
        useful_tokens=60,
        decode_steps=7,
        slot_steps=100,
        queued_tokens=9,
        queued_slot_steps=10,
        compiles=4,
        prefill_s=0.5,
        wait_s=0.25,
        host_s=0.125,
        cache_bytes=2**29,
    )
    seconds = {"timing_s/rollout": 2.0, "timing_s/value": 3.0, "timing_s/train": 7.0}
    found = metrics.engine_metrics(stats, episodes, seconds)
    assert found == {
        "values/rollouts": 7,
        "rollout/decoded_tokens": 80,
        "rollout/restarted_tokens": 1,
        "rollout/repeated_tokens": 2,
        "rollout/useful_tokens": 60,
        "rollout/prefill_tokens": 3,
        "rollout/decode_steps": 7,
        "rollout/slot_utilisation": 0.8,
        "rollout/queued_utilisation": 0.9,
        "rollout/cache_gib": 0.5,
        "rollout/compiles": 4,
        "timing_s/prefill": 0.5,
        "timing_s/device_wait": 0.25,
        "timing_s/host": 0.125,
        "perf/tokens_per_s": 12.0,
    }


def test_grading_takes_as_long_as_on_the_slowest_host(monkeypatch: pytest.MonkeyPatch):
    """Two hosts, the second of which graded more in less time."""
    others = [20, 3, 4, 0.5]
    monkeypatch.setattr(metrics, "exchange", lambda own: [own, others])
    assert metrics.grading_metrics(GradingStats(10, 1, 2, 1.5)) == {
        "grader/pairs": 30,
        "grader/timeouts": 4,
        "grader/errors": 6,
        "timing_s/grade": 1.5,
    }
