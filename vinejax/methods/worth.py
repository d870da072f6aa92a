"""The allocation 'worth': K and the states chosen each iteration by what step credit is worth.

The state of `vineppo` and `spo_chain`: `credit/worth.py` has the rule. With another allocation it
is that of a learned value alone.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Rollout, RunState, StepLayout
from vinejax.credit import worth
from vinejax.credit.assign import (
    Credit,
    against_group,
    before_steps,
    means_of_steps,
    sums_of_steps,
)
from vinejax.credit.worth import Choice, Explored, Worth
from vinejax.learner.packing import Passes
from vinejax.methods.prior import Prior
from vinejax.model.decoder import Decoder, Params
from vinejax.model.hf.weights import RewardModel
from vinejax.rl.by_role import role_advantages
from vinejax.runtime.distributed import is_writer, shared_work
from vinejax.session.iteration import Iteration
from vinejax.session.session import Session


class Kept(NamedTuple):
    """What is kept between iterations."""

    prior: Any  # the learned value's
    worth: Worth


class Priced(Prior):
    """A learned value, and with the allocation 'worth' what step credit is worth."""

    def fresh(self, session: Session) -> Any:
        prior = super().fresh(session)
        return Kept(prior, worth.fresh_worth()) if chooses(session.cfg) else prior

    def begin(self, it: Iteration, state: RunState) -> RunState:
        if chooses(it.cfg):
            kept, values, rollout = state.kept.worth, it.cfg.values, it.cfg.rollout
            chosen = worth.choice(kept, values.price)
            solutions = rollout.prompts * rollout.per_prompt
            share = worth.chance(kept, chosen, it.number, solutions, values)
            usual = worth.at_every(chosen.count, chosen.stride)

            def allocation(i: int) -> worth.AllocationRule:
                explored = worth.is_explored(it.cfg.seed, it.number, i, share)
                return worth.everywhere if explored else usual

            it.allocation = allocation
            it.metrics |= worth.metrics(kept, chosen, values.price)
            it.metrics["credit/explored"] = share
        return state

    def valued(self, it: Iteration, kept: Any, rollout: Rollout, passes: Passes) -> Rollout:
        if not chooses(it.cfg):
            return super().valued(it, kept, rollout, passes)
        rollout = super().valued(it, kept.prior, rollout, passes)
        chosen: Choice = worth.choice(kept.worth, it.cfg.values.price)
        return rollout._replace(roles=(chosen.lam, chosen.filter), weight=chosen.weight)

    def learn(self, it: Iteration, state: RunState, rollout: Rollout, credit: Credit) -> RunState:
        it.metrics |= measured(rollout, credit, it.cfg)
        if not chooses(it.cfg):
            return super().learn(it, state, rollout, credit)
        of_prior = super().learn(it, state._replace(kept=state.kept.prior), rollout, credit)
        kept, seen = state.kept.worth, explored(rollout)
        if seen.weight.any():
            found = []
            if is_writer():  # one host's, as others may round in another way
                found = [x.tolist() for x in worth.updated(kept, seen)]
            kept = Worth(*map(np.array, shared_work({0: found} if found else {})[0]))
        return of_prior._replace(kept=Kept(of_prior.kept, kept))

    def reward_model(
        self, cfg: Config, model: Decoder, params: Params, restore: Callable[[Any], Any]
    ) -> RewardModel | None:
        if chooses(cfg):
            return super().reward_model(
                cfg, model, params, lambda like: restore({"prior": like})["prior"]
            )
        return super().reward_model(cfg, model, params, restore)


def chooses(cfg: Config) -> bool:
    """Whether K is chosen by worth and price."""
    return cfg.values.allocation == "worth"


def measured(rollout: Rollout, credit: Credit, cfg: Config) -> dict[str, float]:
    """The price of a rollout's credit, and its gain over the credit of outcomes.

        gain = Σ n·(return - b)² / (Σ n·Â² · price)

    b is a learned value, or without one the mean reward of the problem's other solutions. Above 1
    step credit brings more per token. See `credit/worth.py`.
    """
    steps = rollout.steps
    if rollout.values is None:
        outcome = means_of_steps(against_group(rollout, "rloo", cfg).advantages, steps)
    else:
        of_outcome = before_steps(rollout.values, steps), steps.rewards, steps.num_steps, 1.0
        outcome = np.asarray(role_advantages(*of_outcome))
    drawn = np.zeros(steps.rewards.shape)
    for i, episode in enumerate(rollout.episodes):
        drawn[i, : len(episode.continuations)] = [len(x) for x in episode.continuations]
    tokens = tokens_left(steps)
    sampled = np.sum(drawn * state_shares(rollout) * tokens)
    paid = worth.price_of(cfg.values.price, sampled / np.sum(tokens[:, 0]))
    n = surprise(rollout)
    square = np.sum(n * np.asarray(credit.by_step) ** 2) * paid
    gain = {"credit/gain": np.sum(n * outcome**2) / square} if square > 0 else {}
    return {"credit/price": paid, **gain}


def explored(rollout: Rollout) -> Explored:
    """The steps of a rollout, with weights where a solution has two continuations everywhere."""
    assert rollout.values is not None, "worth is measured beside a learned value"
    steps = rollout.steps
    is_state = steps.counts >= 0
    returns, is_row = worth.two_returns(rollout.episodes, is_state)
    return Explored(
        returns=returns,
        rewards=steps.rewards,
        num_steps=steps.num_steps,
        is_state=is_state,
        v=before_steps(rollout.values, steps),
        weight=(surprise(rollout) * is_row[:, None]).astype(np.float32),
        left=tokens_left(steps),
        share=state_shares(rollout),
    )


def surprise(rollout: Rollout) -> np.ndarray:
    """f64[B, C] n of `credit/worth.py`; 0 for steps without a state, which have no credit."""
    doubt = -np.expm1(np.asarray(rollout.batch.old_logprobs, np.float64))
    return sums_of_steps(doubt, rollout.steps) * (rollout.steps.counts >= 0)


def tokens_left(steps: StepLayout) -> np.ndarray:
    """f64[B, C] tokens of the solution after the state before each step."""
    tokens = sums_of_steps(np.ones(steps.step_ids.shape), steps)
    return np.cumsum(tokens[:, ::-1], axis=1)[:, ::-1]


def state_shares(rollout: Rollout) -> np.ndarray:
    """f64[B, C] 1 / n for a state whose continuations n solutions share (`values.dedup`)."""
    groups = [list(map(id, episode.continuations)) for episode in rollout.episodes]
    holders = Counter(group for of_episode in groups for group in of_episode)
    share = np.ones(rollout.steps.rewards.shape)
    for i, of_episode in enumerate(groups):
        share[i, : len(of_episode)] = [1 / holders[group] for group in of_episode]
    return share
