"""Names and numbers of an iteration, as TRL and verl name them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from vinejax.budget import Spent
from vinejax.learner.step import UpdateStats
from vinejax.rollout.stats import EngineStats
from vinejax.runtime.distributed import exchange
from vinejax.runtime.log import RunLog
from vinejax.tasks.graded import GradingStats
from vinejax.types import Batch, Episode


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Rewards, lengths and step values of the iteration's episodes."""
    rewards = np.array([episode.reward for episode in episodes])
    lengths = np.array([len(episode.response) for episode in episodes])
    by_problem: dict[str, set[float]] = {}
    for episode in episodes:
        by_problem.setdefault(episode.problem_id, set()).add(episode.reward)
    values = [v[n > 0] for e in episodes if (v := e.values) is not None
              and (n := e.value_counts) is not None]  # fmt: skip
    own = [sum(e.step_rewards) for e in episodes if e.step_rewards is not None]
    found = {
        "reward/mean": rewards.mean(),
        "reward/std": rewards.std(),
        "frac_reward_zero_std": np.mean([len(group) == 1 for group in by_problem.values()]),
        "response_length/mean": lengths.mean(),
        "response_length/max": lengths.max(),
        "response_length/clip_ratio": np.mean([not e.finished for e in episodes]),
        "steps/mean": np.mean([len(e.step_ends) for e in episodes]),
    }
    if values:
        sampled = np.concatenate(values)
        found["values/mean"] = sampled.mean() if sampled.size else 0.0
    if own:
        found["reward/steps"] = np.mean(own)
    return found


def logprob_diff(episodes: Sequence[Episode], batch: Batch) -> dict[str, Any]:
    """|sampler - scorer| over response tokens: 0 but for rounding, or something is wrong."""
    sampled = np.concatenate([np.asarray(e.logprobs, np.float32) for e in episodes])
    scored = np.asarray(batch.old_logprobs)[np.asarray(batch.mask)]
    difference = np.abs(sampled - scored) if sampled.size else np.zeros(1)
    return {
        "rollout/logprob_diff/mean": difference.mean(),
        "rollout/logprob_diff/max": difference.max(),
    }


def update_metrics(updates: Sequence[UpdateStats]) -> dict[str, Any]:
    """Means over the tokens of all updates; norms over the updates that were applied."""
    total = jax.tree.map(lambda *x: np.sum(x), *jax.device_get(list(updates)))
    tokens, applied = max(total.tokens, 1.0), max(total.updates, 1.0)
    return {
        "actor/loss": total.loss / tokens,
        "actor/kl": total.kl / tokens,
        "actor/old_kl": total.old_kl / tokens,
        "actor/ratio": total.ratio / tokens,
        "actor/clip_frac": total.clipped / tokens,
        "actor/entropy": total.entropy / tokens,
        "actor/grad_norm": total.grad_norm / applied,
        "actor/skipped_updates": total.skipped,
    }


def engine_metrics(
    stats: EngineStats, episodes: Sequence[Episode], timings: Mapping[str, float]
) -> dict[str, Any]:
    """What the iteration's two phases of sampling generated, and how fast."""
    # Episodes that share a state share its continuations.
    drawn = {id(group): len(group) for e in episodes for group in e.continuations}
    seconds = timings["timing_s/rollout"] + timings.get("timing_s/value", 0.0)
    return {
        "values/rollouts": sum(drawn.values()),
        "rollout/decoded_tokens": stats.decoded_tokens,
        "rollout/useful_tokens": stats.useful_tokens,
        "rollout/prefill_tokens": stats.prefill_tokens,
        "rollout/decode_steps": stats.decode_steps,
        "rollout/slot_utilisation": stats.slot_utilisation,
        "rollout/queued_utilisation": stats.queued_utilisation,
        "rollout/cache_gib": stats.cache_bytes / 2**30,
        "rollout/compiles": stats.compiles,
        "timing_s/prefill": stats.prefill_s,
        "timing_s/device_wait": stats.wait_s,
        "timing_s/host": stats.host_s,
        "perf/tokens_per_s": stats.useful_tokens / max(seconds, 1e-9),
    }


def grading_metrics(stats: GradingStats) -> dict[str, Any]:
    """What the iteration's grading did, of all hosts together.

    Its seconds, the slowest host's, are part of the sampling stages'.
    """
    pairs, timeouts, errors, seconds = zip(*exchange(list(dataclasses.astuple(stats))), strict=True)
    return {
        "grader/pairs": sum(pairs),
        "grader/timeouts": sum(timeouts),
        "grader/errors": sum(errors),
        "timing_s/grade": max(seconds),
    }


def record(
    log: RunLog, iteration: int, step: int, values: Mapping[str, Any], spent: Spent
) -> Spent:
    """The iteration's line, with the totals of the run; returns these, this iteration timed."""
    spent = spent.timed(log.timings)
    log.metrics(iteration, step, "train", {**values, **log.timings, **spent.metrics()})
    return spent
