"""The stages of a policy-gradient iteration, and what a method keeps between two iterations.

`base.policy_gradient` calls the stages in order. A method replaces those stages in which it differs
from VinePPO. `compose.py` wraps the stages with the options of a run.
"""

import itertools
from collections.abc import Callable, Iterator, Set
from typing import Any, ClassVar

from jax.sharding import AbstractMesh, Mesh

from vinejax.core.settings import Config
from vinejax.core.text import Tokenizer
from vinejax.core.types import (
    Batch,
    Episode,
    Problem,
    PromptedProblem,
    Rollout,
    RunState,
    StepLayout,
)
from vinejax.credit.assign import Credit, state_numbers
from vinejax.credit.labels import label_metrics, with_batch_labels
from vinejax.learner.batch import collate, minibatches, step_layout
from vinejax.learner.optimizer import make_optimizer, rate_of_last
from vinejax.learner.packing import Passes, passes_for
from vinejax.learner.policy import PolicyObjective
from vinejax.learner.sampler_correction import with_corrections
from vinejax.learner.score import policy_outputs, with_logprobs
from vinejax.learner.update import train_on
from vinejax.model.decoder import Decoder, Params
from vinejax.model.hf.weights import RewardModel
from vinejax.rollout.vine import fill_values
from vinejax.runtime.offload import to_device
from vinejax.session import metrics
from vinejax.session.budget import num_updates, packed_tokens
from vinejax.session.iteration import Iteration, Solutions
from vinejax.session.session import Session
from vinejax.tasks.base import Task

HIDDEN, ENTROPY = "hidden", "entropy"  # what a scoring pass may keep beside log-probabilities


def draw(iteration: Iteration, state: RunState) -> list[PromptedProblem]:
    """Up to `rollout.prompts` train problems that no earlier call in the iteration returned."""
    return iteration.draw(iteration.cfg.rollout.prompts)


def solutions(iteration: Iteration, state: RunState, problems: list[PromptedProblem]) -> Solutions:
    """`rollout.per_prompt` graded solutions of each problem."""
    episodes = iteration.sample(iteration.session.weights(state.policy.params), problems)
    return Solutions(problems, episodes, episodes)


def no_values(iteration: Iteration, state: RunState, sampled: Solutions) -> list[Episode]:
    """The sampled episodes unchanged, for methods without values of states."""
    return sampled.episodes


def monte_carlo(iteration: Iteration, state: RunState, sampled: Solutions) -> list[Episode]:
    """The episodes with V(s) of every state s, estimated from continuations that start at s."""
    stats = iteration.session.engine.stats
    calls = stats.calls
    params = iteration.session.weights(state.policy.params)
    episodes = fill_values(iteration.sampler, params, sampled.problems, sampled.episodes)
    iteration.metrics["values/waves"] = stats.calls - calls
    return episodes


def scored(
    iteration: Iteration,
    state: RunState,
    episodes: list[Episode],
    keep: Set[str] = frozenset(),
    has_reference: bool = False,
) -> Rollout:
    """The episodes as a batch with log-probabilities of the policy and the reference, in nats.

    `keep` names further outputs of the scoring pass, `HIDDEN` or `ENTROPY`, which the rollout then
    has, too. Without `has_reference`, and before the first update, the log-probabilities of the
    policy stand for those of the reference model.
    """
    session, temperature = iteration.session, iteration.cfg.sample.temperature
    batch, steps, passes = laid_out(iteration, episodes)
    outputs = policy_outputs(
        session.model,
        session.weights(state.policy.params),
        batch,
        episodes,
        temperature,
        passes,
        number=state_numbers(steps) if HIDDEN in keep else None,
        with_entropy=ENTROPY in keep,
    )
    reference = reference_of(session, state) if has_reference else None
    batch = with_logprobs(session.model, reference, batch, outputs, temperature, passes)
    iteration.metrics |= metrics.logprob_diff(episodes, batch)
    iteration.metrics |= {"actor/rows": len(episodes), "actor/tokens": int(batch.mask.sum())}
    return Rollout(episodes, batch, steps, hidden=outputs.hidden, entropy=outputs.entropy)


def laid_out(iteration: Iteration, episodes: list[Episode]) -> tuple[Batch, StepLayout, Passes]:
    """(batch of whole minibatches, layout of the episodes' steps, how passes divide the batch)."""
    cfg, session = iteration.cfg, iteration.session
    passes = passes_for(cfg, cfg.ppo.minibatch, session.mesh)
    longest = packed_tokens(cfg, session.model.cfg.context, episodes) if passes.packed else 0
    rows = iteration.num_minibatches(episodes) * iteration.minibatch_rows(episodes)
    batch = with_batch_labels(collate(episodes, rows, longest), episodes, cfg)
    return batch, step_layout(batch, episodes), passes


def reference_of(session: Session, state: RunState) -> Params | None:
    """The reference model's weights, which stay on the devices while the caller holds them.

    Returns None before the first update, when the policy still has the same weights.
    """
    return None if int(state.policy.step) == 0 else session.load_reference()


def updated(
    iteration: Iteration,
    state: RunState,
    rollout: Rollout,
    credit: Credit,
    objective: PolicyObjective,
) -> RunState:
    """The state after the policy's updates in `ppo.epochs` epochs over the rollout."""
    cfg, session = iteration.cfg, iteration.session
    total = num_updates(cfg)
    optimizer = make_optimizer(cfg.optimizer, total)
    batch = rollout.batch._replace(
        advantages=credit.advantages,
        mask=credit.mask,
        loss_extra=credit.loss_extra,
        labels=credit.labels,
    )
    batch, weight_metrics = with_corrections(batch, rollout.batch.mask, rollout.episodes, cfg)
    stream = minibatches_of(iteration, rollout, objective.rows_of(batch, rollout))
    policy, updates = train_on(objective, optimizer, to_device(state.policy), stream, session.base)
    iteration.note_updates(updates, batch)
    iteration.metrics |= weight_metrics | {"actor/lr": 0.0}
    if credit.labels is not None:
        iteration.metrics |= label_metrics(credit, rollout)
    if updates:
        iteration.metrics |= metrics.update_metrics(updates, has_kl=cfg.kl.coef > 0)
        iteration.metrics["actor/lr"] = float(rate_of_last(cfg.optimizer, total, policy.step))
    iteration.spent = iteration.spent.plus(updates=len(updates))
    return state._replace(policy=policy)


def minibatches_of(iteration: Iteration, rollout: Rollout, rows: Any) -> Iterator[Any]:
    """The minibatches of all `ppo.epochs` epochs; `rows` is a pytree of arrays [B, ...]."""
    ppo, size = iteration.cfg.ppo, iteration.minibatch_rows(rollout.episodes)
    epochs = (
        minibatches(rows, size, iteration.cfg.seed, iteration.number, epoch)
        for epoch in range(ppo.epochs)
    )
    return itertools.chain.from_iterable(epochs)


class MethodState:
    """The data that a method keeps between iterations in `RunState.kept`; by default none.

    `RunState.kept` is None or a NamedTuple of pytrees of arrays, because checkpoints hold it. It is
    replaced and never changed in place. With `offload.optimizer` its arrays are in host memory
    between updates, and `to_device` brings them back.
    """

    has_critic: ClassVar[bool] = False  # `RunState.kept` is a second model, which is trained
    scores: ClassVar[bool] = False  # `valued` or `learn` runs a further forward pass

    def keeps(self, cfg: Config) -> bool:
        """Whether `RunState.kept` holds anything."""
        return False

    def fresh(self, session: Session) -> Any:
        """The value of `RunState.kept` before the first iteration."""
        return None

    def reads(self, cfg: Config) -> Set[str]:
        """Which of the scoring pass's outputs `HIDDEN` and `ENTROPY` the method reads.

        The rollout has these outputs as `Rollout.hidden` and `Rollout.entropy`.
        """
        return frozenset()

    def check_loading(self, cfg: Config) -> None:
        """Raises UserError if `load` would fail, before anything is on the devices."""

    def load(self, cfg: Config, task: Task, model: Decoder, tokenizer: Tokenizer) -> Any:
        """What the method reads from files, such as a second model; by default None.

        `Session.loaded` is the result. `model` and `tokenizer` are the policy's. No checkpoint
        holds the result, so every start of a training run calls this function.
        """
        return None

    def loaded_shapes(self, cfg: Config, model: Decoder, mesh: Mesh | AbstractMesh) -> Any:
        """The shapes and shardings of the arrays that `load` loads, as a pytree."""
        return ()

    def check_problem(self, cfg: Config, task: Task, problem: Problem) -> None:
        """Raises UserError if the values of this problem's states cannot be computed."""

    def valued(self, iteration: Iteration, kept: Any, rollout: Rollout) -> Rollout:
        """The scored rollout, to which a subclass adds values of states that it computes."""
        return rollout

    def learn(
        self, iteration: Iteration, state: RunState, rollout: Rollout, credit: Credit
    ) -> RunState:
        """The state with an updated `RunState.kept`; called before the policy is updated."""
        return state

    def reward_model(
        self, cfg: Config, model: Decoder, params: Params, restore: Callable[[Any], Any]
    ) -> RewardModel | None:
        """`RunState.kept` as a reward model for `--mode=export`; None if it is no reward model.

        `params` are the policy's weights or, for a critic with adapters, its frozen weights.
        `restore` takes a dict from fields of `RunState.kept` to arrays or shapes, and returns the
        same dict with the checkpoint's arrays.
        """
        return None
