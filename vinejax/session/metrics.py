"""The metrics of an iteration, with the names that TRL and verl use."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vinejax.core.types import Batch, Episode
from vinejax.credit.assign import solution_rewards
from vinejax.engine.stats import EngineStats
from vinejax.learner.policy import EIGHTHS
from vinejax.learner.update import Update, mean_norm, num_accepted, total_sums
from vinejax.rl.values import explained_variance, returns_to_go
from vinejax.runtime.distributed import exchange
from vinejax.tasks.graded import GradingStats


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Rewards, lengths and steps of `episodes`. Resets are left out unless all are resets.

    A reset is an episode that begins after the first tokens of a known solution. Leaves of a tree
    are not resets, although their rows may have given tokens.
    """
    from_prompt = [e for e in episodes if not e.given or e.nodes is not None]
    episodes = from_prompt or episodes
    rewards = np.array([episode.reward for episode in episodes])
    lengths = np.array([episode.length for episode in episodes])
    by_problem: dict[str, set[float]] = {}
    for episode, reward in zip(episodes, solution_rewards(episodes), strict=True):
        by_problem.setdefault(episode.problem_id, set()).add(float(reward))
    metrics = {
        "reward/mean": rewards.mean(),
        "reward/std": rewards.std(),
        "frac_reward_zero_std": np.mean([len(group) == 1 for group in by_problem.values()]),
        "response_length/mean": lengths.mean(),
        "response_length/max": lengths.max(),
        "response_length/clip_ratio": np.mean([not e.finished for e in episodes]),
        "steps/mean": np.mean([len(e.nodes or e.step_ends) for e in episodes]),
    }
    if any(episode.turns for episode in episodes):
        metrics["turns/mean"] = np.mean([len(episode.turns) for episode in episodes])
    step_totals = [sum(e.step_rewards) for e in episodes if e.step_rewards is not None]
    if step_totals:
        metrics["reward/steps"] = np.mean(step_totals)
    metrics |= part_means(episode.reward_parts for episode in episodes)
    return metrics | flat_shares(episodes)


def part_means(parts: Iterable[Mapping[str, float] | None]) -> dict[str, float]:
    """'reward/<name>' -> mean reward by the function `name`, over the responses that it judged."""
    by_name: dict[str, list[float]] = {}
    for rewards in parts:
        for name, value in (rewards or {}).items():
            by_name.setdefault(f"reward/{name}", []).append(value)
    return {name: float(np.mean(values)) for name, values in by_name.items()}


def flat_shares(episodes: Sequence[Episode]) -> dict[str, float]:
    """'frac_reward_zero_std/<name>' -> share of problems for which function `name` gave one value.

    A problem counts if the function judged a solution of it.
    """
    by_problem: dict[str, dict[str, set[float]]] = {}
    for episode in episodes:
        for name, value in (episode.reward_parts or {}).items():
            if "/" not in name:  # else a metric that the function logged
                problems = by_problem.setdefault(f"frac_reward_zero_std/{name}", {})
                problems.setdefault(episode.problem_id, set()).add(value)
    return {
        name: float(np.mean([len(values) == 1 for values in problems.values()]))
        for name, problems in by_problem.items()
    }


def value_metrics(
    episodes: Sequence[Episode], by_step: np.ndarray | None, gamma: float = 1.0
) -> dict[str, Any]:
    """Mean, standard error and reuse of the sampled values, and the error of their advantages.

    The values' explained variance is that of the solutions' returns from the states on, with the
    discount `gamma` per step. `by_step` has the advantages, f32[episodes, C]. Without advantages or
    sampled values the result is {}. If an error in `advantage_errors` is unknown, the metrics of
    errors are left out.
    """
    if by_step is None or any(episode.values is None for episode in episodes):
        return {}

    def joined(field: str) -> np.ndarray:
        """The field's numbers for all steps, one episode after the other."""
        return np.concatenate([getattr(episode, field) for episode in episodes])

    is_sampled = joined("value_counts") > 0
    if not is_sampled.any():
        return {}
    values = joined("values")[is_sampled]
    returns = np.concatenate([returns_to_go(episode.rewards, gamma) for episode in episodes])
    explained = explained_variance(values, returns[is_sampled])
    metrics: dict[str, Any] = {} if explained is None else {"values/explained_variance": explained}
    metrics |= {"values/mean": values.mean(), "values/reused": joined("reused")[is_sampled].mean()}
    errors = np.concatenate([advantage_errors(episode, gamma) for episode in episodes])
    if not np.isfinite(errors).all():
        return metrics
    advantages = np.concatenate(
        [x[: len(e.step_ends)] for e, x in zip(episodes, by_step, strict=False)]
    )
    return metrics | {
        "values/error": joined("value_errors")[is_sampled].mean(),
        "values/advantage_error": errors.mean(),
        "values/sign_certain": np.mean(np.abs(advantages) > 2 * errors),
    }


def advantage_errors(episode: Episode, gamma: float) -> np.ndarray:
    """f64[C] the standard error of each step's advantage r + γ·V' - V.

    The variance of an advantage is the sum of those of γ·V' and V, which is too large if the two
    values share samples (`values.reuse`). The steps between two sampled states have equal parts of
    the difference of their values (`credit/estimate.py`), so their errors are equal parts, too. The
    value of the end is known. All other advantages are 0 whatever is sampled. An error is NaN if
    that of a value is.
    """
    assert episode.value_counts is not None and episode.value_errors is not None
    errors, sampled = np.zeros(len(episode.step_ends)), np.flatnonzero(episode.value_counts)
    if sampled.size:
        states = sampled if episode.is_state is None else np.flatnonzero(episode.is_state)
        end = 1 + states[-1]  # later values are back-filled
        before = episode.value_errors[sampled]
        after = gamma * np.append(before[1:], 0.0)
        lengths = np.diff([*sampled, end])
        errors[sampled[0] : end] = np.repeat(np.hypot(before, after) / lengths, lengths)
    return errors


def logprob_diff(episodes: Sequence[Episode], batch: Batch) -> dict[str, Any]:
    """Metrics of how much the log-probabilities of the sampler and of the learner differ.

    The metrics are the mean and the maximum difference, and the KL. Rounding is the only reason for
    a difference.
    """
    sampled = np.concatenate([np.asarray(e.logprobs, np.float32)[e.is_drawn] for e in episodes])
    scored = np.asarray(batch.old_logprobs)[np.asarray(batch.mask)]
    moved = scored - sampled if sampled.size else np.zeros(1)
    difference = np.abs(moved)
    metrics = {
        "rollout/kl": np.mean(np.expm1(moved) - moved),  # k3
        "rollout/logprob_diff/mean": difference.mean(),
        "rollout/logprob_diff/max": difference.max(),
    }
    lengths = [int(episode.is_drawn.sum()) for episode in episodes]
    eighth = np.concatenate([np.arange(n) * EIGHTHS // max(n, 1) for n in lengths])
    tokens = np.bincount(eighth, minlength=EIGHTHS)
    total = np.bincount(eighth, weights=difference[: eighth.size], minlength=EIGHTHS)
    return metrics | by_eighth("logprob_diff", total, tokens)


def by_eighth(name: str, total: np.ndarray, tokens: np.ndarray) -> dict[str, Any]:
    """The metric `name`, a mean over tokens, for each eighth of the responses that has tokens.

    For each eighth, `total` has the metric's sum over its tokens, and `tokens` their number.
    """
    return {f"by_eighth/{name}/{n + 1}": total[n] / tokens[n] for n in np.flatnonzero(tokens)}


def skipped_updates(updates: Sequence[Update]) -> dict[str, float]:
    """The number of the policy's updates that were not made."""
    return {"actor/skipped_updates": float(len(updates) - num_accepted(updates))}


def update_metrics(updates: Sequence[Update], has_kl: bool = True) -> dict[str, Any]:
    """Means over the tokens of all updates; the mean gradient norm leaves out skipped updates.

    If `has_kl` is False, the KL to the reference model was not measured, and is left out.
    """
    total = total_sums(updates)
    tokens = max(total.tokens, 1.0)
    summed = ("loss", *(["kl"] if has_kl else []), "old_kl", "ratio", "entropy")
    metrics = {
        **{f"actor/{name}": getattr(total, name) / tokens for name in summed},
        "actor/grad_norm": mean_norm(updates),
        **skipped_updates(updates),
    }
    if total.clipped is not None:
        metrics["actor/clip_frac"] = total.clipped / tokens
    eighths = total.by_eighth
    metrics |= by_eighth("entropy", eighths.entropy, eighths.tokens)
    metrics |= by_eighth("ratio", eighths.ratio, eighths.tokens)
    if eighths.clipped is not None:
        metrics |= by_eighth("clip_frac", eighths.clipped, eighths.tokens)
    return metrics


def engine_metrics(
    stats: EngineStats, episodes: Sequence[Episode], timings: Mapping[str, float]
) -> dict[str, Any]:
    """Tokens, steps and memory for the iteration's sampling of solutions and continuations."""
    # Episodes that share a state share its continuations.
    group_sizes = {id(group): len(group) for e in episodes for group in e.continuations}
    seconds = timings["timing_s/rollout"] + timings.get("timing_s/value", 0.0)
    tokens = (
        f"{kind}_tokens" for kind in ("decoded", "restarted", "repeated", "useful", "prefill")
    )
    counted = [*tokens, "decode_steps", "slot_utilisation", "queued_utilisation"]
    return {
        "values/rollouts": sum(group_sizes.values()),
        **{f"rollout/{name}": getattr(stats, name) for name in counted},
        "rollout/cache_gib": stats.cache_bytes / 2**30,
        "rollout/compiles": stats.compiles,
        "timing_s/prefill": stats.prefill_s,
        "timing_s/device_wait": stats.wait_s,
        "timing_s/host": stats.host_s,
        "perf/tokens_per_s": stats.useful_tokens / max(seconds, 1e-9),
    }


def grading_metrics(stats: GradingStats) -> dict[str, Any]:
    """Counts of the iteration's grading over all hosts, and the seconds of the slowest host.

    The stages that sample include these seconds in their own seconds.
    """
    pairs, timeouts, errors, seconds = zip(*exchange(list(dataclasses.astuple(stats))), strict=True)
    return {
        "grader/pairs": sum(pairs),
        "grader/timeouts": sum(timeouts),
        "grader/errors": sum(errors),
        "timing_s/grade": max(seconds),
    }
