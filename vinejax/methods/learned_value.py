"""A learned value that is mixed into the baselines of VinePPO: `values.prior`.

`LearnedValue` is the state of methods with VinePPO's credit. Without a prior it keeps nothing and
changes no credit. In either case it logs the metrics of `credit/gain.py`. The learned value is that
of the probe (`credit/probe.py`). A subclass may have another `rule` with the same functions.
"""

import dataclasses
from collections.abc import Callable, Set
from types import ModuleType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Rollout, RunState
from vinejax.credit import probe
from vinejax.credit.assign import (
    Credit,
    group_numbers,
    solution_rewards,
    state_numbers,
    state_places,
)
from vinejax.credit.gain import gain_metrics
from vinejax.credit.probe import Prediction, Probe, ProbeStates
from vinejax.learner.score import MAX_STATE_WIDTH, num_tapped, projection
from vinejax.methods.stages import HIDDEN, MethodState
from vinejax.model.decoder import Decoder, Params
from vinejax.model.hf.weights import RewardModel
from vinejax.rl.by_role import role_advantages, role_baselines
from vinejax.runtime.distributed import is_writer, shared_work
from vinejax.session.iteration import Iteration
from vinejax.session.session import Session


class LearnedValue(MethodState):
    """A `MethodState` that keeps the probe if `values.prior` is 'probe'."""

    rule: ClassVar[ModuleType] = probe  # the module that fits the value and predicts with it

    def keeps(self, cfg: Config) -> bool:
        return bool(cfg.values.prior)

    def reads(self, cfg: Config) -> Set[str]:
        return {HIDDEN} if self.keeps(cfg) else frozenset()

    def fresh(self, session: Session) -> Any:
        return self.fresh_prior(session.model, session.cfg) if self.keeps(session.cfg) else None

    def fresh_prior(self, model: Decoder, cfg: Config) -> Any:
        """The fitted value (`kept`) before the first iteration."""
        return probe.fresh_probe(min(model.cfg.width, MAX_STATE_WIDTH))

    def features(self, session: Session, rollout: Rollout, kept: Any, cfg: Config) -> np.ndarray:
        """The P features from which the value of each of the S states is computed, f64[S, P]."""
        return probe_features(rollout, kept, cfg)

    def valued(self, iteration: Iteration, kept: Any, rollout: Rollout) -> Rollout:
        if kept is None:
            return rollout
        return self.with_prior(iteration.session, rollout, kept, iteration.cfg)

    def learn(
        self, iteration: Iteration, state: RunState, rollout: Rollout, credit: Credit
    ) -> RunState:
        iteration.metrics |= gain_metrics(rollout, credit, iteration.cfg)
        if state.kept is None:
            return state
        kept, metrics = self.learned(state.kept, rollout, iteration.cfg)
        iteration.metrics |= metrics
        return state._replace(kept=kept)

    def with_prior(self, session: Session, rollout: Rollout, kept: Any, cfg: Config) -> Rollout:
        """The rollout with the learned value v at the first token of each step that has a state."""
        states = states_of(rollout, cfg, self.features(session, rollout, kept, cfg))
        prediction = Prediction(states, self.rule.predictions(kept, states))
        v_here, weight_here = self.rule.chosen(kept, prediction.by_strength), cfg.credit.prior
        if weight_here is None:
            weight_here = self.rule.weight_of(kept)
        # All hosts take the numbers of one host, because hosts may round differently.
        v, weight = shared_work({0: (v_here.tolist(), weight_here)} if is_writer() else {})[0]
        values = np.zeros(rollout.batch.tokens.shape, np.float32)
        row, last = np.nonzero(state_numbers(rollout.steps))
        values[row, last + 1] = v
        return rollout._replace(values=values, weight=weight, hidden=None, prediction=prediction)

    def learned(self, kept: Any, rollout: Rollout, cfg: Config) -> tuple[Any, dict[str, float]]:
        """(the fitted value for the next iteration, metrics of this iteration's values).

        The new value is fitted on `rollout` and what `kept` holds. The metrics are those of the
        values that `with_prior` put into `rollout`.
        """
        (states, by_strength), steps = rollout.prediction, rollout.steps
        baselines = role_baselines(
            steps.values,
            steps.rewards,
            steps.counts > 0,
            cfg.credit.baseline_lambda,
            cfg.ppo.gamma,
        )
        baseline, is_known = (np.asarray(x)[steps.counts >= 0] for x in baselines)
        v, drawn = self.rule.chosen(kept, by_strength), continuation_means(rollout)
        metrics = probe.metrics(states, v, rollout.weight, drawn)
        return self.rule.updated(kept, states, by_strength, baseline, is_known), metrics

    def reward_model(
        self, cfg: Config, model: Decoder, params: Params, restore: Callable[[Any], Any]
    ) -> RewardModel | None:
        """The probe as a linear head on the policy's first layers; None if the run has no probe.

        The layers end with the one whose hidden states the probe reads.
        """
        if HIDDEN not in self.reads(cfg):
            return None
        kept = Probe(**restore(self.fresh_prior(model, cfg)._asdict()))
        kernel, bias, of_share = probe.read_out(kept)
        if len(kernel) < model.cfg.width:
            kernel = np.asarray(projection(model.cfg.width), np.float64) @ kernel
        count = num_tapped(model)
        layers = jax.tree.map(lambda x: x[:count], params["layers"])
        # The probe's states have mean square 1 and no scale.
        scale = jnp.full_like(params["norm"]["scale"], 1.0 - model.cfg.norm_offset)
        unturned = tuple(i for i in model.cfg.unturned if i < count)
        shape = {"num_layers": count, "windows": model.cfg.windows[:count], "unturned": unturned}
        return RewardModel(
            dataclasses.replace(model, cfg=dataclasses.replace(model.cfg, **shape)),
            {"embed": params["embed"], "layers": layers, "norm": {"scale": scale}},
            kernel,
            bias,
            of_share / cfg.sample.max_tokens,
        )


def probe_features(rollout: Rollout, kept: Probe, cfg: Config) -> np.ndarray:
    """The probe's features of a rollout's states, f64[S, P]; the rollout must have `hidden`."""
    assert rollout.hidden is not None, "the probe reads the policy's hidden states"
    row, _, used = state_places(rollout).T
    rewards, groups = solution_rewards(rollout.episodes), group_numbers(rollout.episodes)
    others = np.bincount(groups)[groups] - 1
    siblings = (np.bincount(groups, rewards)[groups] - rewards) / np.maximum(others, 1)
    siblings = np.where(others > 0, siblings, probe.mean_target(kept))
    return probe.features_of(rollout.hidden, siblings[row], used / cfg.sample.max_tokens)


def states_of(rollout: Rollout, cfg: Config, features: np.ndarray) -> ProbeStates:
    """The states of a rollout, in the order of `state_numbers`, with these features."""
    episodes, steps = rollout.episodes, rollout.steps
    row, step, _ = state_places(rollout).T
    # With λ = 1 and values of 0 an advantage is the solution's return from the step on.
    zeros = np.zeros_like(steps.rewards)
    returns = role_advantages(zeros, steps.rewards, steps.num_steps, 1.0, gamma=cfg.ppo.gamma)
    problems = np.unique([e.problem_id for e in episodes], return_inverse=True)[1]
    return ProbeStates(
        features=features,
        problem=problems[row],
        solution_return=np.asarray(returns)[row, step].astype(np.float64),
        value=steps.values[row, step].astype(np.float64),
        count=steps.counts[row, step],
    )


def continuation_means(rollout: Rollout) -> np.ndarray:
    """f64[S] the mean return of the continuations of each state; NaN for a state without any.

    The states are in the order of `state_numbers`.
    """
    row, step, _ = state_places(rollout).T
    groups = [rollout.episodes[i].continuations[c : c + 1] for i, c in zip(row, step, strict=True)]
    returns = [[leaf.reward for group in of_state for leaf in group] for of_state in groups]
    return np.array([np.mean(x) if x else np.nan for x in returns], np.float64)
