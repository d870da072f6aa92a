"""One iteration of each kind of method, side by side. `methods.py` says which method has which.

Policy gradients sample, assign credit and update. RestEM and DPO-Positive sample first and then
learn from a fixed set of solutions; supervised fine-tuning learns from the data set's solutions.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax

from vinejax.config.sizes import longest_sequence
from vinejax.core.shapes import part
from vinejax.core.types import Batch, Episode, PromptedProblem, RunState, TrainState
from vinejax.credit.advantages import Credit, assign_credit
from vinejax.learner.batch import (
    Rollout,
    collate,
    epochs_of,
    minibatches,
    shuffled,
    step_layout,
)
from vinejax.learner.optimizer import learning_rate, make_optimizer
from vinejax.learner.packing import passes_for
from vinejax.learner.policy import PolicyObjective, policy_objective
from vinejax.learner.score import scores_of, with_logprobs
from vinejax.learner.update import Objective, Update, fresh_state, update_step
from vinejax.methods import find_method, single_stream
from vinejax.methods.critic import (
    Targets,
    critic_metrics,
    critic_objective,
    critic_values,
    make_critic_optimizer,
)
from vinejax.methods.dpo_positive import (
    Pair,
    PairObjective,
    collate_pairs,
    longest_pair,
    make_pairs,
    pair_metrics,
)
from vinejax.methods.restem import climb, keep_correct
from vinejax.model.fingerprint import fingerprint
from vinejax.rollout.problems import sample_with_spread
from vinejax.rollout.vine import fill_values
from vinejax.runtime.distributed import barrier
from vinejax.runtime.offload import to_device
from vinejax.runtime.stopping import Watch
from vinejax.training import metrics
from vinejax.training.budget import num_critic_updates, num_updates
from vinejax.training.evaluate import accuracy_of
from vinejax.training.iteration import Iteration
from vinejax.training.warmup import list_left_out, sft_objective, sft_optimizer, worked_examples

# --- policy gradients


def policy_gradient(it: Iteration, state: RunState) -> RunState:
    """Sample solutions, estimate values, assign credit, update."""
    cfg, session = it.cfg, it.session
    params = session.weights(state.policy.params)
    method = find_method(cfg.method)
    objective = policy_objective(session.model, cfg)
    with it.log.stage("rollout"):
        state = with_first_values(it, state)
        problems, episodes, sampled = sample_solutions(it, state, method.needs_spread)
    with it.log.stage("value"):
        if method.values == "monte_carlo":
            calls = session.sampler.stats.calls
            episodes = fill_values(
                session.sampler, params, session.graded, problems, episodes, cfg, it.number
            )
            it.metrics["values/waves"] = session.sampler.stats.calls - calls
        session.sampler.release()
    with it.log.stage("score"):
        rollout = scored_rollout(it, state, episodes)
        credit = assign_credit(rollout, cfg, objective.whiten)
        state = with_rewards_counted(it, state, rollout)
    with it.log.stage("train"):
        barrier("train", [(episode.tokens, episode.rewards) for episode in episodes])
        state = update_on(it, state, objective, rollout, credit)
    it.metrics |= metrics.logprob_diff(episodes, rollout.batch)
    it.metrics["actor/rows"] = len(episodes)
    it.record_sampling(problems, episodes, sampled, credit)
    return state


def with_first_values(it: Iteration, state: RunState) -> RunState:
    """The state, with the first values of a tracker, if there is one, at the start of the run."""
    if state.tracker is None or it.number > 0:
        return state
    session, params = it.session, it.session.weights(state.policy.params)
    tracker = single_stream.sampled_tracker(
        session.sampler, params, session.graded, session.problems["train"], it.cfg, it.log.progress
    )
    return state._replace(tracker=tracker)


def sample_solutions(
    it: Iteration, state: RunState, needs_spread: bool
) -> tuple[list[PromptedProblem], list[Episode], list[Episode]]:
    """(problems that were drawn, episodes to learn from, all episodes that were sampled)."""
    params = it.session.weights(state.policy.params)
    count = min(it.cfg.rollout.prompts, it.left.prompts)
    if not needs_spread:
        problems = it.draw(count, single_stream.problem_weights(state.tracker, it.cfg))
        episodes = it.sample(params, problems)
        return problems, episodes, episodes
    rounds = it.cfg.dapo.rounds
    problems = it.draw(rounds * count)
    episodes, sampled = sample_with_spread(
        lambda part: it.sample(params, part), problems, count, rounds
    )
    it.metrics["rollout/discarded"] = len(sampled) - len(episodes)
    return problems, episodes, sampled


def scored_rollout(it: Iteration, state: RunState, episodes: list[Episode]) -> Rollout:
    """The episodes as a batch, with log-probabilities and the values of a critic or tracker."""
    session = it.session
    passes = passes_for(it.cfg, it.cfg.ppo.minibatch, session.mesh)
    longest = 0
    if passes.packed:  # rows are filled: longer ones cost little, and few lengths few programs
        most = longest_sequence(it.cfg, session.model.cfg.context)
        longest = part([most], max(len(episode.tokens) for episode in episodes))
    rows = it.num_minibatches(episodes) * it.minibatch_rows(episodes)
    batch = collate(episodes, rows, longest)
    key, critic = str(batch.tokens.shape), None
    is_start = int(state.policy.step) == 0  # the reference model's weights, to the bit
    if state.critic is not None:
        critic = to_device(state.critic.params)
        if session.journal:
            key += f" {fingerprint(critic, session.mesh)}"

    def scores() -> dict[str, np.ndarray]:
        scored = with_logprobs(
            session.model,
            session.weights(state.policy.params),
            None if is_start else session.load_reference(),
            batch,
            episodes,
            it.cfg.sample.temperature,
            passes,
        )
        found = {"old_logprobs": scored.old_logprobs, "ref_logprobs": scored.ref_logprobs}
        if critic is not None:
            found["values"] = critic_values(session.model, critic, batch, passes)
        return found

    found = session.journal.once("scores", key, scores)
    values = found.pop("values", None)
    batch = batch._replace(**found)
    if state.tracker is not None:
        problems = session.problems["train"]
        values = single_stream.values_before(state.tracker, problems, episodes, batch)
    return Rollout(episodes, batch, step_layout(batch, episodes), values)


def with_rewards_counted(it: Iteration, state: RunState, rollout: Rollout) -> RunState:
    """The state, whose tracker, if there is one, has counted the rewards of the rollout."""
    if state.tracker is None:
        return state
    problems, model = it.session.problems["train"], it.session.model
    params = it.session.weights(state.policy.params)
    tracker, of_tracker = single_stream.count_rollout(
        state.tracker, problems, rollout, model, params, it.cfg
    )
    it.metrics |= of_tracker
    return state._replace(tracker=tracker)


Rows = tuple[Batch, Targets | None]


def update_on(
    it: Iteration, state: RunState, objective: PolicyObjective, rollout: Rollout, credit: Credit
) -> RunState:
    """The state after `ppo.epochs` over the rollout; a critic learns from the same minibatches.

    In the first `critic.warmup_iterations` the critic alone is updated.
    """
    cfg, session = it.cfg, it.session
    policy, critic = to_device((state.policy, state.critic))
    optimizer = make_optimizer(cfg.optimizer, num_updates(cfg))
    value_objective = critic_objective(session.model, cfg)
    value_optimizer = make_critic_optimizer(cfg, num_critic_updates(cfg))
    batch = rollout.batch._replace(advantages=credit.advantages, mask=credit.mask)
    targets = None
    if rollout.values is not None and credit.returns is not None:
        targets = Targets(rollout.values, np.asarray(credit.returns))
    updates: list[Update] = []
    value_updates: list[Update] = []
    size = it.minibatch_rows(rollout.episodes)
    stream = _minibatches(it, (batch, targets), size)
    watch = Watch()
    for minibatch, goal in itertools.islice(stream, it.left.updates):
        if critic is not None:
            packed = value_objective.pack((minibatch, goal))
            critic, update = update_step(value_objective, value_optimizer, critic, packed)
            value_updates.append(update)
        if critic is None or it.number >= cfg.critic.warmup_iterations:
            packed = objective.pack(minibatch)
            policy, update = update_step(objective, optimizer, policy, packed, session.base)
            updates.append(update)
        watch.look([made[-1].accepted for made in (updates, value_updates) if made])
    updates, value_updates = jax.device_get((updates, value_updates))
    it.count_made(updates or value_updates, batch)
    it.metrics["actor/lr"] = 0.0
    if updates:
        rate = learning_rate(cfg.optimizer, num_updates(cfg))
        it.metrics |= metrics.update_metrics(updates)
        it.metrics["actor/lr"] = float(rate(policy.step - 1))
    if value_updates:
        it.metrics |= critic_metrics(value_updates)
    it.spent = it.spent.plus(updates=len(updates))
    return state._replace(policy=policy, critic=critic)


def _minibatches(it: Iteration, rows: Rows, size: int) -> Iterator[Rows]:
    ppo = it.cfg.ppo
    for epoch in range(ppo.epochs):
        yield from minibatches(rows, size, it.cfg.seed, it.number, epoch)


# --- methods that learn from a fixed set of solutions


def restem(it: Iteration, state: RunState) -> RunState:
    """RestEM: sample with the policy, keep right solutions, train the start's weights on them."""
    cfg, session = it.cfg, it.session
    params = session.weights(state.policy.params)
    problems, episodes = it.sample_train(params, cfg.restem.problems)
    it.record_sampling(problems, _shown(it, episodes), episodes)
    examples = keep_correct(episodes, cfg.restem.keep)
    it.metrics["restem/kept"] = len(examples)
    if not examples:
        return state
    size = cfg.ppo.minibatch
    optimizer = make_optimizer(cfg.optimizer, cfg.restem.epochs * math.ceil(len(examples) / size))
    fresh = fresh_state(session.fresh_params(), optimizer, session.mesh)
    batches = epochs_of(examples, cfg.restem.epochs, size, cfg.seed, it.number)
    with it.log.stage("train"):
        best, losses, accuracies = climb(
            session.model,
            optimizer,
            fresh,
            itertools.islice(batches, it.left.updates),
            cfg,
            lambda trained: accuracy_of(session, session.weights(trained), "validation"),
            session.base,
        )
    it.spent = it.spent.plus(updates=len(losses))
    it.metrics["restem/loss"] = np.mean(losses)
    it.metrics["restem/accuracy"] = max(accuracies)
    it.metrics["restem/evaluations"] = len(accuracies)
    return RunState(_continued(state, best))


def dpo_positive(it: Iteration, state: RunState) -> RunState:
    """DPO-Positive: sample, pair right with wrong solutions, learn to prefer the right."""
    cfg, session = it.cfg, it.session
    params = session.weights(state.policy.params)
    problems, episodes = it.sample_train(params, cfg.dpo.problems)
    it.record_sampling(problems, _shown(it, episodes), episodes)
    pairs = make_pairs(episodes, cfg.dpo.pairs, cfg.seed)
    it.metrics["dpo/pairs"] = len(pairs)
    if not pairs:
        return state
    size, packed, _ = passes_for(cfg, cfg.ppo.minibatch, session.mesh)  # pairs share no tokens
    objective = PairObjective(
        model=session.model,
        microbatch=size,
        packed=packed,
        temperature=cfg.sample.temperature,
        beta=cfg.dpo.beta,
        penalty=cfg.dpo.penalty,
    )
    total = cfg.dpo.epochs * math.ceil(len(pairs) / cfg.ppo.minibatch)
    optimizer = make_optimizer(cfg.optimizer, total)
    policy = fresh_state(state.policy.params, optimizer, session.mesh)
    with it.log.stage("score"):
        reference = _reference_scores(it, pairs)
    batches = _pair_batches(it, pairs, reference)
    policy, updates = _train(it, objective, optimizer, policy, batches, total)
    it.metrics |= pair_metrics(updates)
    return RunState(_continued(state, policy))


def _reference_scores(it: Iteration, pairs: list[Pair]) -> list[np.ndarray]:
    """f32[T] of each pair, the reference model's log-probabilities as `collate_pairs` lays it out.

    Before all updates: between two of them the host would wait for both.
    """
    cfg, session, found = it.cfg, it.session, []
    reference = session.load_reference()
    size, longest = cfg.ppo.minibatch, longest_pair(pairs)
    passes = passes_for(cfg, size, session.mesh)._replace(shared=False)
    for start in range(0, len(pairs), size):
        chosen = pairs[start : start + size]
        batch = collate_pairs(chosen, size, longest)
        scores = scores_of(session.model, reference, batch, cfg.sample.temperature, passes)
        found += list(scores[: len(chosen)])
    return found


def _pair_batches(it: Iteration, pairs: list[Pair], reference: list[np.ndarray]) -> Iterator[Batch]:
    """The minibatches of all epochs, with the reference model's log-probabilities."""
    cfg, size, longest = it.cfg, it.cfg.ppo.minibatch, longest_pair(pairs)
    for epoch in range(cfg.dpo.epochs):
        for chosen in shuffled([*range(len(pairs))], size, cfg.seed, it.number, epoch):
            batch = collate_pairs([pairs[i] for i in chosen], size, longest)
            batch.ref_logprobs[: len(chosen)] = [reference[i] for i in chosen]
            yield batch


def supervised(it: Iteration, state: RunState) -> RunState:
    """Supervised fine-tuning: one epoch over the data set's own solutions."""
    cfg, session = it.cfg, it.session
    context = session.model.cfg.context
    examples, left_out = worked_examples(session.task, session.tokenizer, cfg, context)
    list_left_out(left_out, len(examples), session.workdir)
    total = math.ceil(len(examples) / cfg.sft.batch)
    objective = sft_objective(session.model, cfg)
    optimizer = sft_optimizer(cfg, cfg.iterations * total)
    batches = epochs_of(examples, 1, cfg.sft.batch, cfg.seed, it.number)
    policy = to_device(state.policy)
    policy, updates = _train(it, objective, optimizer, policy, batches, total)
    it.metrics["sft/loss"] = np.mean([update.sums for update in updates])
    return RunState(policy)


def _train(
    it: Iteration,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    policy: TrainState,
    batches: Iterator[Any],
    total: int,
) -> tuple[TrainState, list[Update]]:
    """Updates on the `total` batches, or on as many as the budget allows; counts them."""
    updates: list[Update] = []
    batch, watch = None, Watch()
    with it.log.stage("train"):
        for batch in itertools.islice(batches, it.left.updates):
            packed = objective.pack(batch)
            policy, update = update_step(objective, optimizer, policy, packed, it.session.base)
            updates.append(update)
            it.log.progress(len(updates), total)
            watch.look(update.accepted)
        updates = jax.device_get(updates)
    it.count_made(updates, batch)
    it.spent = it.spent.plus(updates=len(updates))
    return policy, updates


def _shown(it: Iteration, episodes: list[Episode]) -> list[Episode]:
    """The episodes that are written to a file: those of the first `rollout.prompts` problems."""
    return episodes[: it.cfg.rollout.prompts * it.cfg.rollout.per_prompt]


def _continued(state: RunState, policy: TrainState) -> TrainState:
    """`policy`, whose optimizer began anew in this iteration, with the step count of the run."""
    return policy._replace(step=state.policy.step + policy.step)
