"""A learned value that is mixed into the baselines of VinePPO: `values.prior`.

The state of `vineppo` and `spo_chain`. Without a prior it keeps nothing and adds nothing.
"""

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Rollout, RunState
from vinejax.credit import probe
from vinejax.credit.assign import Credit, group_numbers, solution_rewards, state_numbers
from vinejax.credit.probe import Prediction, Probe, States
from vinejax.learner.packing import Passes
from vinejax.learner.score import MOST_HIDDEN
from vinejax.methods.stages import State
from vinejax.model.decoder import Decoder
from vinejax.rl.by_role import role_advantages, role_baselines
from vinejax.runtime.distributed import is_writer, shared_work
from vinejax.session.iteration import Iteration
from vinejax.session.session import Session


class Prior(State):
    """The probe of a run with `values.prior` = 'probe': credit/probe.py."""

    def keeps(self, cfg: Config) -> bool:
        return cfg.values.prior == "probe"

    def reads_hidden(self, cfg: Config) -> bool:
        return self.keeps(cfg)

    def fresh(self, session: Session) -> Probe | None:
        return fresh_probe(session.model) if self.keeps(session.cfg) else None

    def valued(
        self, it: Iteration, kept: Probe | None, rollout: Rollout, passes: Passes
    ) -> Rollout:
        return rollout if kept is None else with_prior(rollout, kept, it.cfg)

    def learn(self, it: Iteration, state: RunState, rollout: Rollout, credit: Credit) -> RunState:
        if state.kept is None:
            return state
        kept, metrics = learned(state.kept, rollout, it.cfg)
        it.metrics |= metrics
        return state._replace(kept=kept)


def fresh_probe(model: Decoder) -> Probe:
    """The probe of a model before the first iteration."""
    return probe.fresh_probe(min(model.cfg.width, MOST_HIDDEN))


def with_prior(rollout: Rollout, kept: Probe, cfg: Config) -> Rollout:
    """The rollout with v before the first token of each step that begins at a state."""
    states = states_of(rollout, cfg, kept)
    prediction = Prediction(states, probe.predictions(kept, states))
    found = probe.chosen(kept, prediction.by_strength)
    # One host's, as others may round in another way.
    v = shared_work({0: found.tolist()} if is_writer() else {})[0]
    values = np.zeros(rollout.batch.tokens.shape, np.float32)
    row, last = np.nonzero(state_numbers(rollout.steps))
    values[row, last + 1] = v
    weight = probe.weight_of(kept) if cfg.credit.prior is None else cfg.credit.prior
    return rollout._replace(values=values, weight=weight, hidden=None, prediction=prediction)


def learned(kept: Probe, rollout: Rollout, cfg: Config) -> tuple[Probe, dict[str, float]]:
    """The probe after the labels of a rollout `with_prior`, and metrics of its values."""
    (states, found), steps = rollout.prediction, rollout.steps
    of_values = steps.values, steps.rewards, steps.counts > 0, cfg.credit.filter, cfg.ppo.gamma
    baseline, is_known = (np.asarray(x)[steps.counts >= 0] for x in role_baselines(*of_values))
    metrics = probe.metrics(states, probe.chosen(kept, found), rollout.weight)
    return probe.updated(kept, states, found, baseline, is_known), metrics


def states_of(rollout: Rollout, cfg: Config, kept: Probe) -> States:
    """The states of a rollout with `hidden`, in the order of `state_numbers`."""
    assert rollout.hidden is not None, "the probe reads the policy's hidden states"
    episodes, steps = rollout.episodes, rollout.steps
    row, step = np.nonzero(steps.counts >= 0)
    # With λ = 1 and values of 0 an advantage is the solution's return from the step on.
    zeros = np.zeros_like(steps.rewards)
    returns = role_advantages(zeros, steps.rewards, steps.num_steps, 1.0, gamma=cfg.ppo.gamma)
    rewards, groups = solution_rewards(episodes), group_numbers(episodes)
    others = np.bincount(groups)[groups] - 1
    mean = probe.mean_label(kept)
    siblings = (np.bincount(groups, rewards)[groups] - rewards) / np.maximum(others, 1)
    siblings = np.where(others > 0, siblings, mean)
    starts = [np.array([e.given, *e.step_ends][:-1]) for e in episodes]
    used = np.array([starts[i][c] for i, c in zip(row, step, strict=True)])
    problems = np.unique([e.problem_id for e in episodes], return_inverse=True)[1]
    return States(
        features=probe.features_of(rollout.hidden, siblings[row], used / cfg.sample.max_tokens),
        problem=problems[row],
        own=np.asarray(returns)[row, step].astype(np.float64),
        value=steps.values[row, step].astype(np.float64),
        count=steps.counts[row, step],
    )
