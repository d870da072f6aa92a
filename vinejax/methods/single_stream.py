"""Single-stream policy optimization: the value tracker, from the run's start to the next draw.

The tracker has every train problem's α and β, and its last response with the log-probabilities
that it was sampled with, so that the drift of the policy on a problem is known when it is drawn
again. That takes 12 + 8·`sample.max_tokens` bytes per problem, on every host and in a checkpoint.

Source: https://arxiv.org/abs/2509.13232; `rl/value_tracker.py` has the equations and says where
they depart. `iterations.py` has the iteration, that of the policy gradients.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config
from vinejax.core.types import Batch, Episode, PromptedProblem, ValueTracker
from vinejax.credit.advantages import solution_rewards
from vinejax.engine.engine import Engine
from vinejax.learner.batch import Rollout, collate
from vinejax.learner.packing import passes_for
from vinejax.learner.score import scores_of
from vinejax.model.decoder import Decoder, Params
from vinejax.rl.value_tracker import (
    counted,
    draw_weights,
    first_counts,
    mean_drift,
    retention,
    tracked_values,
)
from vinejax.rollout.problems import chunks
from vinejax.rollout.trajectories import sample_episodes
from vinejax.tasks.graded import GradedTask

# The iteration that solutions for the first values are seeded with. No iteration of the loop has
# this number: a solution that is trained on must not be part of the value it is compared with.
BEFORE_THE_FIRST = -1


def fresh_tracker(cfg: Config, problems: int) -> ValueTracker:
    """The tracker of a run without samples at its start: every value is ½."""
    return first_tracker(cfg, np.zeros((problems, 0), np.float32))


def first_tracker(cfg: Config, rewards: np.ndarray) -> ValueTracker:
    """The tracker before the first draw, with values by `rewards`, f32[problems, samples]."""
    problems, samples = rewards.shape
    totals, count = rewards.sum(axis=1), cfg.single_stream.start_count
    alpha, beta = map(np.asarray, first_counts(totals, samples, count))
    shape = (problems, cfg.sample.max_tokens)
    lengths, tokens = np.zeros(problems, np.int32), np.zeros(shape, np.int32)
    return ValueTracker(alpha, beta, lengths, tokens, np.zeros(shape, np.float32))


def sampled_tracker(
    engine: Engine,
    params: Params,
    graded: GradedTask,
    problems: list[PromptedProblem],
    cfg: Config,
    progress: Callable[[int, int], None],
) -> ValueTracker:
    """The tracker before the first draw: `single_stream.start_samples` solutions per problem.

    They are sampled `rollout.prompts` problems at a time; `progress` is told solutions done and
    solutions in all.
    """
    samples = cfg.single_stream.start_samples
    if samples == 0:
        return fresh_tracker(cfg, len(problems))
    grouped = dataclasses.replace(cfg.rollout, per_prompt=samples)
    sampling = dataclasses.replace(cfg, rollout=grouped)
    rewards: list[np.ndarray] = []
    for part in chunks(problems, cfg.rollout.prompts):
        episodes = sample_episodes(engine, params, graded, part, sampling, BEFORE_THE_FIRST)
        rewards.append(_countable_rewards(episodes, cfg))
        progress(sum(x.size for x in rewards), samples * len(problems))
    return first_tracker(cfg, np.concatenate(rewards).reshape(len(problems), samples))


def problem_weights(tracker: ValueTracker | None, cfg: Config) -> np.ndarray | None:
    """f32[problems] what the chance of drawing each is proportional to; None without a tracker."""
    if tracker is None:
        return None
    values = tracked_values(tracker.alpha, tracker.beta)
    return np.asarray(draw_weights(values, cfg.single_stream.explore))


def values_before(
    tracker: ValueTracker, problems: list[PromptedProblem], episodes: list[Episode], batch: Batch
) -> np.ndarray:
    """f32[B, T] the tracked value of each row's problem, at every token; 0 in empty rows.

    `problems` is the train split, in the tracker's order; row b of `batch` is episode b.
    """
    places = _places(problems, episodes)
    values = np.zeros(batch.tokens.shape, np.float32)
    by_row = np.asarray(tracked_values(tracker.alpha[places], tracker.beta[places]))
    values[: len(places)] = by_row[:, None]
    return values


def count_rollout(
    tracker: ValueTracker,
    problems: list[PromptedProblem],
    rollout: Rollout,
    model: Decoder,
    params: Params,
    cfg: Config,
) -> tuple[ValueTracker, dict[str, float]]:
    """(the tracker with the rollout's rewards, responses and log-probabilities, metrics).

    `params` are the weights that sampled the rollout, one solution of each of its problems;
    `problems` is the train split, in the tracker's order. Raises ConfigError for a reward outside
    [0, 1].
    """
    places = _places(problems, rollout.episodes)
    rewards = _countable_rewards(rollout.episodes, cfg)
    drift = drift_since(tracker, places, rollout, model, params, cfg)
    alpha, beta, *last = (x.copy() for x in tracker)
    old = alpha[places], beta[places]
    alpha[places], beta[places] = counted(*old, rewards, drift)
    after = _remember(ValueTracker(alpha, beta, *last), places, rollout)
    is_known = tracker.lengths[places] > 0
    metrics = {
        "tracker/value": float(np.mean(tracked_values(*old))),
        "tracker/count": float(np.mean(old[0] + old[1])),
        "tracker/new": float(np.mean(~is_known)),
        "tracker/drift": float(drift[is_known].mean()) if is_known.any() else 0.0,
        "tracker/retention": float(np.mean(retention(drift))),
    }
    return after, metrics


def drift_since(
    tracker: ValueTracker,
    places: np.ndarray,
    rollout: Rollout,
    model: Decoder,
    params: Params,
    cfg: Config,
) -> np.ndarray:
    """f32[episodes] how far the policy moved on each problem since its last response, in nats.

    0 for a problem that was not drawn before. Scores the last responses with `params`, in the
    shapes of the rollout's rows where these are long enough, so that few programs are compiled.
    """
    drift = np.zeros(len(places), np.float32)
    known = np.flatnonzero(tracker.lengths[places])
    if not known.size:
        return drift
    last = [_last_response(tracker, int(places[i]), rollout.episodes[i]) for i in known]
    batch = collate(last, cfg.ppo.minibatch, rollout.batch.tokens.shape[1])
    passes = passes_for(cfg, cfg.ppo.minibatch, model.mesh)
    now = scores_of(model, params, batch, cfg.sample.temperature, passes)
    then = np.zeros_like(now)
    for row, episode in enumerate(last):
        then[row, len(episode.prompt) : len(episode.tokens)] = episode.logprobs
    drift[known] = mean_drift(now, then, batch.mask)[: len(last)]
    return drift


def _last_response(tracker: ValueTracker, place: int, episode: Episode) -> Episode:
    """The response that the problem of `episode` had when it was last drawn, for scoring alone."""
    n = tracker.lengths[place]
    return dataclasses.replace(
        episode,
        response=tracker.tokens[place, :n].tolist(),
        logprobs=tracker.logprobs[place, :n].tolist(),
        scored=None,
    )


def _remember(tracker: ValueTracker, places: np.ndarray, rollout: Rollout) -> ValueTracker:
    """Writes the rollout's responses into `tracker`, whose arrays nothing else holds."""
    for row, (place, episode) in enumerate(zip(places, rollout.episodes, strict=True)):
        start, n = len(episode.prompt), len(episode.response)
        tracker.lengths[place] = n
        tracker.tokens[place] = tracker.logprobs[place] = 0
        tracker.tokens[place, :n] = episode.response
        tracker.logprobs[place, :n] = rollout.batch.old_logprobs[row, start : start + n]
    return tracker


def _places(problems: list[PromptedProblem], episodes: list[Episode]) -> np.ndarray:
    """i64[episodes] the place of each episode's problem in `problems`."""
    places = {problem.id: i for i, (problem, _) in enumerate(problems)}
    return np.array([places[episode.problem_id] for episode in episodes])


def _countable_rewards(episodes: list[Episode], cfg: Config) -> np.ndarray:
    """f32[episodes] the solutions' rewards; raises ConfigError for one outside [0, 1]."""
    rewards = solution_rewards(episodes)
    for episode, reward in zip(episodes, rewards, strict=True):
        if not 0 <= reward <= 1:
            rule = (
                f"counts rewards from 0 to 1 as successes, and a solution of problem "
                f"{episode.problem_id} has {reward:g}; scale the task's rewards, or choose another"
            )
            raise ConfigError("method", rule, repr(cfg.method))
    return rewards
