"""The stages of a policy-gradient iteration as functions, and what a method keeps between two.

`base.policy_gradient` calls them in order; a method replaces those in which it differs.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from vinejax.core.settings import Config
from vinejax.core.types import Episode, Problem, Rollout, RunState
from vinejax.credit.assign import Credit, state_numbers
from vinejax.learner.batch import collate, minibatches, step_layout
from vinejax.learner.optimizer import make_optimizer, rate_of_last
from vinejax.learner.packing import Passes, passes_for
from vinejax.learner.policy import PolicyObjective
from vinejax.learner.sampler_correction import with_corrections
from vinejax.learner.score import (
    hidden_of,
    prefill_scores,
    scores_and_entropy,
    scores_and_hidden,
    with_logprobs,
)
from vinejax.learner.update import train_on
from vinejax.model.decoder import Decoder, Params
from vinejax.model.hf.weights import RewardModel
from vinejax.options.adaptive_kl import with_coefficient
from vinejax.rollout.vine import fill_values
from vinejax.runtime.offload import to_device
from vinejax.session import metrics
from vinejax.session.budget import num_updates, packed_tokens
from vinejax.session.iteration import Iteration, Solutions
from vinejax.session.session import Session
from vinejax.tasks.base import Task


class State:
    """What a method keeps between iterations, in `RunState.kept`; by default nothing.

    Checkpoints hold it, so it is None or a NamedTuple of pytrees of arrays, replaced and never
    changed in place. With `offload.optimizer` its arrays are in the hosts' memory between updates:
    `to_device` brings them.
    """

    has_critic: ClassVar[bool] = False  # it is PPO's critic, a second model that is trained
    scores: ClassVar[bool] = False  # it takes a forward pass of its own per iteration

    def keeps(self, cfg: Config) -> bool:
        """Whether anything is kept."""
        return False

    def fresh(self, session: Session) -> Any:
        """What is kept before the first iteration."""
        return None

    def check_problem(self, cfg: Config, task: Task, problem: Problem) -> None:
        """Raises UserError if what values a problem's states cannot be had for this one."""

    def begin(self, it: Iteration, state: RunState) -> RunState:
        """The state at the start of an iteration, before anything is sampled."""
        return state

    def reads_hidden(self, cfg: Config) -> bool:
        """Whether `valued` and `learn` read `Rollout.hidden`."""
        return False

    def reads_entropy(self, cfg: Config) -> bool:
        """Whether the method's credit reads `Rollout.entropy`; the mask 'top_entropy' does."""
        return False

    def valued(self, it: Iteration, kept: Any, rollout: Rollout, passes: Passes) -> Rollout:
        """The scored rollout, with values that the method's credit reads."""
        return rollout

    def learn(self, it: Iteration, state: RunState, rollout: Rollout, credit: Credit) -> RunState:
        """The state after the rollout, before the policy's updates."""
        return state

    def reward_model(
        self, cfg: Config, model: Decoder, params: Params, restore: Callable[[Any], Any]
    ) -> RewardModel | None:
        """What is kept as a reward model, beside the policy's `params`; None if it is none.

        For a critic with adapters, `params` are the weights below them.
        `restore` gives the parts of what a checkpoint keeps that a dict, of the names of the
        NamedTuple's fields, has arrays or shapes for.
        """
        return None


def solutions(it: Iteration, state: RunState) -> Solutions:
    """Stage 1, sample: `rollout.per_prompt` solutions of `rollout.prompts` problems."""
    problems = it.draw(it.cfg.rollout.prompts)
    episodes = it.sample(it.session.weights(state.policy.params), problems)
    return Solutions(problems, episodes, episodes)


def no_values(it: Iteration, state: RunState, sampled: Solutions) -> list[Episode]:
    """Stage 2, value, of methods without values of states: the episodes as they are."""
    return sampled.episodes


def monte_carlo(it: Iteration, state: RunState, sampled: Solutions) -> list[Episode]:
    """Stage 2, value: the episodes with V(s) by fresh continuations of every state."""
    stats = it.session.engine.stats
    calls = stats.calls
    params = it.session.weights(state.policy.params)
    episodes = fill_values(it.sampler, params, sampled.problems, sampled.episodes)
    it.metrics["values/waves"] = stats.calls - calls
    return episodes


def scored(
    it: Iteration, state: RunState, episodes: list[Episode], keeper: State, needs_reference: bool
) -> Rollout:
    """Stage 3, before credit: the episodes as a batch, with log-probabilities in nats by the policy
    and, if they are needed, the reference model, and the values of `keeper`."""
    session = it.session
    passes = passes_for(it.cfg, it.cfg.ppo.minibatch, session.mesh)
    longest = packed_tokens(it.cfg, session.model.cfg.context, episodes) if passes.packed else 0
    rows = it.num_minibatches(episodes) * it.minibatch_rows(episodes)
    batch = collate(episodes, rows, longest)
    cfg, steps, temperature = it.cfg, step_layout(batch, episodes), it.cfg.sample.temperature
    reads_entropy = cfg.credit.mask == "top_entropy" or keeper.reads_entropy(cfg)
    model, params = session.model, session.weights(state.policy.params)
    old, hidden, entropy = prefill_scores(batch, episodes), None, None
    if keeper.reads_hidden(cfg):
        number = state_numbers(steps)
        if old is None:
            old, hidden = scores_and_hidden(model, params, batch, number, temperature, passes)
        else:
            hidden = hidden_of(model, params, batch, number, passes)
    if reads_entropy:
        scores, entropy = scores_and_entropy(model, params, batch, temperature, passes)
        old = scores if old is None else old
    # None: the policy's weights, to the bit, or nothing reads the reference model's.
    reference = reference_of(session, state) if needs_reference else None
    rest = episodes, temperature, passes, old
    batch = with_logprobs(model, params, reference, batch, *rest)
    rollout = Rollout(episodes, batch, steps, hidden=hidden, entropy=entropy, number=it.number)
    it.metrics |= metrics.logprob_diff(episodes, rollout.batch)
    it.metrics["actor/rows"] = len(episodes)
    return keeper.valued(it, state.kept, rollout, passes)


def reference_of(session: Session, state: RunState) -> Params | None:
    """The reference model's weights, on the devices while the caller holds them.

    None before the first update, when they are the policy's own.
    """
    return None if int(state.policy.step) == 0 else session.load_reference()


def update(
    it: Iteration,
    state: RunState,
    objective: PolicyObjective,
    rollout: Rollout,
    credit: Credit,
) -> RunState:
    """Stage 4, update: the state after `ppo.epochs` over the rollout."""
    cfg, session = it.cfg, it.session
    total = num_updates(cfg)
    it.metrics["actor/lr"] = 0.0
    policy = to_device(state.policy)
    optimizer = make_optimizer(cfg.optimizer, total)
    given = {"advantages": credit.advantages, "mask": credit.mask, "own": credit.own}
    batch = rollout.batch._replace(**given)
    batch, found = with_corrections(batch, rollout.batch.mask, rollout.episodes, cfg)
    it.metrics |= found
    objective, rows = with_coefficient(objective, batch, rollout.kl_coef)
    stream = minibatches_of(it, rollout, rows)
    policy, updates = train_on(objective, optimizer, policy, stream, session.base)
    it.count_made(updates, batch)
    if updates:
        it.metrics |= metrics.update_metrics(updates, has_kl=cfg.kl.coef > 0)
        it.metrics["actor/lr"] = float(rate_of_last(cfg.optimizer, total, policy.step))
    it.spent = it.spent.plus(updates=len(updates))
    return state._replace(policy=policy)


def minibatches_of(it: Iteration, rollout: Rollout, rows: Any) -> Iterator[Any]:
    """The minibatches of all epochs, of arrays [B, ...]."""
    ppo, size = it.cfg.ppo, it.minibatch_rows(rollout.episodes)
    epochs = (minibatches(rows, size, it.cfg.seed, it.number, epoch) for epoch in range(ppo.epochs))
    return itertools.chain.from_iterable(epochs)
