"""RestEM: fine-tuning, each time from the supervised start, on the policy's own correct solutions.

    loss of a solution: -logπ, mean over its tokens

An iteration samples `rollout.per_prompt` solutions of every problem, or of `restem.problems`, and
keeps the first `restem.keep` right ones of each. It trains on these for up to `restem.epochs`, with
a validation every `restem.eval_every` updates. The first validation that is no better than the one
before it ends the iteration, whose result is the policy of the better validation.

Source: https://arxiv.org/abs/2312.06585, and VinePPO's code, `trainers/restem_trainer.py` and
`episode_generators/math_restem_episode_generator.py`.

Departs: training stops early; VinePPO's code trains to the end and picks the same policy.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vinejax.core.settings import Config
from vinejax.core.shapes import packed_length
from vinejax.core.types import Batch, Episode, RunState, TrainState, is_correct
from vinejax.learner.batch import epochs_of
from vinejax.learner.likelihood import Likelihood
from vinejax.learner.optimizer import Duration, duration_of, lasting_optimizer
from vinejax.learner.packing import passes_for
from vinejax.learner.update import Update, fresh_state, update_step, with_total_steps
from vinejax.methods.base import OF_POLICY_GRADIENTS, Method
from vinejax.methods.settings import RestEMConfig
from vinejax.model.decoder import Decoder, Params
from vinejax.runtime.stopping import Watch
from vinejax.session.budget import longest_sequence
from vinejax.session.evaluation import solve
from vinejax.session.iteration import Iteration
from vinejax.session.metrics import skipped_updates
from vinejax.statistics.accuracy import pass_at_1


def restem(method: Method, iteration: Iteration, state: RunState) -> RunState:
    """The state after one iteration, which trains the start on right solutions of the policy."""
    cfg, session, own = iteration.cfg, iteration.session, RestEMConfig.of(iteration.cfg)
    params = session.weights(state.policy.params)
    episodes = iteration.sample_train(params, own.problems)
    iteration.record_sampling(episodes)
    iteration.record_episodes(iteration.shown(episodes))
    examples = keep_correct(episodes, own.keep)
    iteration.metrics["restem/kept"] = len(examples)
    if not examples:
        return state
    size = cfg.ppo.minibatch
    optimizer = lasting_optimizer(cfg.optimizer)
    duration = duration_of(cfg.optimizer, own.epochs * math.ceil(len(examples) / size))
    fresh = fresh_state(session.fresh_params(), optimizer, session.mesh)
    longest = 0
    if passes_for(cfg, size, session.mesh).packed:
        tokens = max(len(example.tokens) for example in examples)
        longest = packed_length(longest_sequence(cfg, session.model.cfg.context), tokens)
    batches = epochs_of(examples, own.epochs, size, cfg.seed, iteration.number, longest)

    def accuracy(trained: Params) -> float:
        return pass_at_1(solve(session, session.weights(trained), "validation").rewards)

    with iteration.log.stage("train"):
        best, updates, accuracies, rows = climb(
            session.model, optimizer, fresh, batches, cfg, accuracy, session.base, duration
        )
    iteration.note_updates(updates, rows)
    iteration.metrics |= skipped_updates(updates)
    iteration.spent = iteration.spent.plus(updates=len(updates))
    iteration.metrics["restem/loss"] = np.mean([update.sums for update in updates])
    iteration.metrics["restem/accuracy"] = max(accuracies)
    iteration.metrics["restem/evaluations"] = len(accuracies)
    return RunState(with_total_steps(state.policy, best))


def keep_correct(episodes: list[Episode], per_problem: int) -> list[Episode]:
    """The first `per_problem` correct episodes of each problem; empty responses do not count."""
    counts: dict[str, int] = {}
    kept = []
    for episode in episodes:
        seen = counts.get(episode.problem_id, 0)
        if is_correct(episode.reward) and episode.response and seen < per_problem:
            counts[episode.problem_id] = seen + 1
            kept.append(episode)
    return kept


class Climb(NamedTuple):
    """The result of `climb`."""

    best: TrainState  # the best evaluated state
    updates: list[Update]  # the report of each update, on the host
    accuracies: list[float]  # at each evaluation
    rows: Any  # of the last update


def climb(
    model: Decoder,
    optimizer: optax.GradientTransformation,
    state: TrainState,
    batches: Iterator[Batch],
    cfg: Config,
    accuracy: Callable[[Params], float],
    base: Params | None = None,
    duration: Duration | None = None,
) -> Climb:
    """Trains until the accuracy on validation is no better than at the previous evaluation.

    `accuracy` takes the trained weights or adapters. `base` and `duration` are passed on to
    `update_step`.

    `batches` has at least one. The policy is evaluated before the first update, after every
    `restem.eval_every` updates and after the last update. Reports of updates are fetched at the
    end, so that the host makes a batch while the devices compute. Source: restem_trainer.py:353-433
    of VinePPO's code, which trains to the end and evaluates the checkpoints afterwards, with the
    same result.
    """
    size, packed, shared = passes_for(cfg, cfg.ppo.minibatch, model.mesh)
    objective = Likelihood(
        model=model,
        microbatch=size,
        packed=packed,
        shared=shared,
        reduction="sequence",
        temperature=cfg.sample.temperature,
    )
    best = jax.tree.map(jnp.copy, state)
    accuracies = [accuracy(state.params)]
    updates: list[Update] = []
    rows: Any = None
    is_over = False
    watch = Watch()
    following = next(batches, None)
    while following is not None and not is_over:
        rows = objective.pack(following)
        state, update = update_step(objective, optimizer, state, rows, base, duration)
        updates.append(update)
        watch.look(update.accepted)
        following = next(batches, None)
        if following is None or len(updates) % RestEMConfig.of(cfg).eval_every == 0:
            accuracies.append(accuracy(state.params))
            is_over = accuracies[-1] <= accuracies[-2]
            if not is_over:
                best = jax.tree.map(jnp.copy, state)  # the next update donates `state`
    return Climb(best, jax.device_get(updates), accuracies, rows)


METHOD = Method(None, iteration=restem, settings=RestEMConfig, ignores=OF_POLICY_GRADIENTS)
