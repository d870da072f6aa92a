"""Single-stream policy optimization: one solution per problem, compared with a tracked value.

    A_i = (a_i - mean a) / (std a + 1e-8) over the iteration    a_i = r_i - v
    v = α / (α + β), then α ← ρ·α + r, β ← ρ·β + 1 - r

Problems are drawn with weights √(v·(1 - v)) + `single_stream.explore`. ρ is
clip(2^(-D / 0.06), 0.875, 0.96), where D is the mean of |log π_now - log π_then| over the tokens of
the problem's last response.

At the start α + β is `start_count` and v is ½. With `start_samples` = n, v is (S + ½) / (n + 1),
where S is the sum of the rewards of n solutions. These solutions count as tokens and not as
episodes.

For every train problem the tracker has α, β, and the last response with the log-probabilities from
when it was sampled. These take 12 + 8·`sample.max_tokens` bytes per problem, on every host and in
every checkpoint.

Source: https://arxiv.org/abs/2509.13232; `equations/value_tracker.py` has the equations.

Departs: D compares the policies that sampled; the code compares the policies after updates. α and β
begin at 4; the code begins at ½. `ppo.max_ratio` replaces a clip at ratio 10.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from vinejax.contrib.methods.equations.value_tracker import (
    batch_advantages,
    draw_weights,
    first_counts,
    mean_drift,
    retention,
    tracked_values,
    updated_counts,
)
from vinejax.contrib.methods.settings import SingleStreamConfig
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config
from vinejax.core.types import Batch, Episode, PromptedProblem, Rollout, RunState
from vinejax.credit.assign import Credit, per_solution, solution_rewards
from vinejax.learner.batch import collate
from vinejax.learner.packing import passes_for
from vinejax.learner.score import scores_of
from vinejax.methods.base import OF_RETURNS, Method, policy_gradient
from vinejax.methods.stages import MethodState
from vinejax.model.decoder import Decoder, Params
from vinejax.rollout.draw import chunks
from vinejax.rollout.sampler import Sampler
from vinejax.session.iteration import Iteration
from vinejax.session.session import Session

# The iteration number in the seeds of the solutions for the tracker's initial values. The loop has
# no iteration of this number, so these solutions differ from all solutions that are trained on.
BEFORE_THE_FIRST = -1


class ValueTracker(NamedTuple):
    """A running estimate of the value of every train problem, in the train split's order.

    The arrays are NumPy's, and equal on every host. Nothing changes them in place, because a
    checkpoint may still be reading them.
    """

    alpha: np.ndarray  # f32[P] weighted sum of rewards, with pseudo-counts
    beta: np.ndarray  # f32[P] weighted sum of 1 - reward, with pseudo-counts
    lengths: np.ndarray  # i32[P] number of tokens of the last response; 0: not drawn yet
    tokens: np.ndarray  # i32[P, N] last responses, padded to N = `sample.max_tokens`
    logprobs: np.ndarray  # f32[P, N] log-probabilities of `tokens`, from when they were sampled


def fresh_tracker(cfg: Config, problems: int) -> ValueTracker:
    """The tracker of a run without start samples. In this tracker every value is ½."""
    return first_tracker(cfg, np.zeros((problems, 0), np.float32))


def first_tracker(cfg: Config, rewards: np.ndarray) -> ValueTracker:
    """The tracker before the first draw; its values come from `rewards`, f32[problems, samples]."""
    problems, samples = rewards.shape
    totals, count = rewards.sum(axis=1), SingleStreamConfig.of(cfg).start_count
    alpha, beta = map(np.asarray, first_counts(totals, samples, count))
    shape = (problems, cfg.sample.max_tokens)
    lengths, tokens = np.zeros(problems, np.int32), np.zeros(shape, np.int32)
    return ValueTracker(alpha, beta, lengths, tokens, np.zeros(shape, np.float32))


def sampled_tracker(
    session: Session, params: Params, progress: Callable[[int, int], None]
) -> ValueTracker:
    """The tracker before the first draw, from `single_stream.start_samples` solutions per problem.

    A call of the sampler gets `rollout.prompts` problems. `progress` is called with the number of
    finished solutions and the number of all solutions.
    """
    cfg, problems = session.cfg, session.problems["train"]
    samples = SingleStreamConfig.of(cfg).start_samples
    if samples == 0:
        return fresh_tracker(cfg, len(problems))
    grouped = dataclasses.replace(cfg.rollout, per_prompt=samples)
    sampling = dataclasses.replace(cfg, rollout=grouped)
    sampler = Sampler(session.engine, session.graded, sampling, BEFORE_THE_FIRST)
    rewards: list[np.ndarray] = []
    for part in chunks(problems, cfg.rollout.prompts):
        episodes = sampler.solutions(params, part, len(part))
        rewards.append(_countable_rewards(episodes, cfg))
        progress(sum(x.size for x in rewards), samples * len(problems))
    return first_tracker(cfg, np.concatenate(rewards).reshape(len(problems), samples))


def problem_weights(tracker: ValueTracker, cfg: Config) -> np.ndarray:
    """The weights with which problems are drawn, f32[problems]."""
    values = tracked_values(tracker.alpha, tracker.beta)
    return np.asarray(draw_weights(values, SingleStreamConfig.of(cfg).explore))


def weighted_draw(iteration: Iteration, state: RunState) -> list[PromptedProblem]:
    """Draws problems, more often those whose values are uncertain (near ½)."""
    weights = problem_weights(state.kept, iteration.cfg)
    return iteration.draw(iteration.cfg.rollout.prompts, weights)


def iteration_with_first_values(method: Method, iteration: Iteration, state: RunState) -> RunState:
    """A policy-gradient iteration. The first one also samples the tracker's initial values."""
    if iteration.number == 0:
        with iteration.log.stage("rollout"):
            params = iteration.session.weights(state.policy.params)
            kept = sampled_tracker(iteration.session, params, iteration.log.progress)
            state = state._replace(kept=kept)
    return policy_gradient(method, iteration, state)


def tracker_credit(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring."""
    assert rollout.values is not None, "single-stream credit needs the tracker's values"
    rewards = solution_rewards(rollout.episodes)
    return per_solution(rollout, batch_advantages(rewards, rollout.values[: len(rewards), 0]))


class Tracker(MethodState):
    """The `MethodState` that keeps a `ValueTracker` of all train problems."""

    scores = True

    def keeps(self, cfg: Config) -> bool:
        return True

    def fresh(self, session: Session) -> ValueTracker:
        return fresh_tracker(session.cfg, len(session.problems["train"]))

    def valued(self, iteration: Iteration, kept: ValueTracker, rollout: Rollout) -> Rollout:
        """The rollout, in which all tokens of a row have the tracked value of the row's problem."""
        problems = iteration.session.problems["train"]
        values = values_before(kept, problems, rollout.episodes, rollout.batch)
        return rollout._replace(values=values)

    def learn(
        self, iteration: Iteration, state: RunState, rollout: Rollout, credit: Credit
    ) -> RunState:
        """The state, with a tracker that has counted the rewards of the rollout."""
        problems, model = iteration.session.problems["train"], iteration.session.model
        params = iteration.session.weights(state.policy.params)
        tracker, found = count_rollout(state.kept, problems, rollout, model, params, iteration.cfg)
        iteration.metrics |= found
        return state._replace(kept=tracker)


def values_before(
    tracker: ValueTracker, problems: list[PromptedProblem], episodes: list[Episode], batch: Batch
) -> np.ndarray:
    """The tracked value of each row's problem at every token, f32[B, T]; 0 in empty rows.

    `problems` is the train split, in the tracker's order, and row b of `batch` is episode b.
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
    """(the updated tracker, metrics of the rollout's problems).

    The new tracker has counted the rewards of the rollout, and has its responses with their
    log-probabilities.

    `params` are the weights that sampled the rollout, which has one solution per problem.
    `problems` is the train split, in the tracker's order. Raises ConfigError for a reward outside
    [0, 1].
    """
    places = _places(problems, rollout.episodes)
    rewards = _countable_rewards(rollout.episodes, cfg)
    drift = drift_since(tracker, places, rollout, model, params, cfg)
    after = ValueTracker._make(array.copy() for array in tracker)
    alpha, beta = tracker.alpha[places], tracker.beta[places]
    after.alpha[places], after.beta[places] = updated_counts(
        alpha, beta, rewards=rewards, drift=drift
    )
    _remember(after, places, rollout)
    is_known = tracker.lengths[places] > 0
    metrics = {
        "tracker/value": float(np.mean(tracked_values(alpha, beta))),
        "tracker/count": float(np.mean(alpha + beta)),
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
    """The drift of the policy on each problem since its last response, f32[episodes], in nats.

    The drift is 0 for a problem that was not drawn before. The last responses are scored with
    `params`, if possible in the shape of the rollout's rows, so that few programs are compiled.
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
    # A slice of jax's array would compile a program for each length.
    drift[known] = np.asarray(mean_drift(now, then, batch.mask))[: len(last)]
    return drift


def _last_response(tracker: ValueTracker, place: int, episode: Episode) -> Episode:
    """The tracker's last response to the problem of `episode`, as an episode that can be scored."""
    n = tracker.lengths[place]
    return dataclasses.replace(
        episode,
        response=tracker.tokens[place, :n].tolist(),
        logprobs=tracker.logprobs[place, :n].tolist(),
        scored=None,
    )


def _remember(tracker: ValueTracker, places: np.ndarray, rollout: Rollout) -> None:
    """Writes the rollout's responses into the arrays of `tracker`, which must be fresh copies."""
    for row, (place, episode) in enumerate(zip(places, rollout.episodes, strict=True)):
        start, n = len(episode.prompt), len(episode.response)
        tracker.lengths[place] = n
        tracker.tokens[place] = tracker.logprobs[place] = 0
        tracker.tokens[place, :n] = episode.response
        tracker.logprobs[place, :n] = rollout.batch.old_logprobs[row, start : start + n]


def _places(problems: list[PromptedProblem], episodes: list[Episode]) -> np.ndarray:
    """The index of each episode's problem in `problems`, i64[episodes]."""
    places = {problem.id: i for i, (problem, _) in enumerate(problems)}
    return np.array([places[episode.problem_id] for episode in episodes])


def _countable_rewards(episodes: list[Episode], cfg: Config) -> np.ndarray:
    """The rewards of solutions, f32[episodes]. Raises ConfigError if one is outside [0, 1]."""
    rewards = solution_rewards(episodes)
    for episode, reward in zip(episodes, rewards, strict=True):
        if not 0 <= reward <= 1:
            message = (
                f"counts rewards from 0 to 1 as successes, and a solution of problem "
                f"{episode.problem_id} has {reward:g}; scale the task's rewards, or choose another"
            )
            raise ConfigError("method", message, repr(cfg.method))
    return rewards


METHOD = Method(
    tracker_credit,
    draw=weighted_draw,
    iteration=iteration_with_first_values,
    state=Tracker(),
    settings=SingleStreamConfig,
    ignores=("rollout.zero_variance", "reward.overlong", *OF_RETURNS),
    defaults={"ppo.clip_high": 0.28},
)
