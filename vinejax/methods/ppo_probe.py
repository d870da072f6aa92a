"""PPO with the probe as critic: step advantages without a second model and without continuations.

    A_c = Q_c - v(s_c)    Q_c = r_c + γ·((1 - λ)·v(s_{c+1}) + λ·Q_{c+1})

v(s_n) is 0. v is a ridge regression on the hidden states of the scoring pass, cross-fitted by
problem (`credit/probe.py`). λ is `probe.lam`. With λ = 1 the advantage is the return less v, and
the policy gradient is unbiased. Below 1 the gradient has less variance, and as in PPO it is biased
as far as v is wrong. On `bifurcation` (24 free lines, rate 4e-4, 60 iterations of 16 solutions,
2026-11-25) two runs with λ = 0.8 ended at 42%, where GRPO ended at 95% and 90%. One run with λ = 1
ended at 95%, and whitened RLOO at 94%.

Source: ours; the λ-return is that of https://arxiv.org/abs/1506.02438.
"""

import dataclasses
from typing import Any

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import PromptedProblem, Rollout, RunState
from vinejax.credit.assign import Credit, before_steps
from vinejax.methods.base import Method
from vinejax.methods.learned_value import LearnedValue
from vinejax.methods.settings import ProbeConfig
from vinejax.methods.stages import solutions
from vinejax.rl.advantages import token_advantages
from vinejax.rl.by_role import role_advantages
from vinejax.rollout.vine import divide_at_states
from vinejax.session.iteration import Iteration, Solutions


class ProbeState(LearnedValue):
    """The state of the method: a `LearnedValue` that always keeps the probe."""

    def keeps(self, cfg: Config) -> bool:
        return True

    def learned(self, kept: Any, rollout: Rollout, cfg: Config) -> tuple[Any, dict[str, float]]:
        """See `LearnedValue.learned`. No μ is logged, because v alone is the baseline."""
        kept, metrics = super().learned(kept, rollout, cfg)
        del metrics["value/weight"]
        return kept, metrics


def with_states(
    iteration: Iteration, state: RunState, problems: list[PromptedProblem]
) -> Solutions:
    """Solutions with states at `values.positions`. No state has continuations."""
    sampled = solutions(iteration, state, problems)
    episodes, _ = divide_at_states(sampled.episodes, iteration.cfg, iteration.session.tokenizer)
    placed = []
    for episode in episodes:
        steps = len(episode.step_ends)
        is_state, counts = np.ones(steps, bool), np.zeros(steps, np.int32)
        placed.append(dataclasses.replace(episode, is_state=is_state, value_counts=counts))
    return sampled._replace(episodes=placed)


def probed(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring."""
    assert rollout.values is not None, "the credit needs the probe's values"
    steps, lam = rollout.steps, ProbeConfig.of(cfg).lam
    v = before_steps(rollout.values, steps)
    by_step = role_advantages(v, steps.rewards, steps.num_steps, lam, 0.0, cfg.ppo.gamma)
    advantages = token_advantages(by_step, steps.step_ids)
    return Credit(advantages, by_step=np.asarray(by_step), values=v)


METHOD = Method(
    probed,
    sample=with_states,
    state=ProbeState(),
    settings=ProbeConfig,
    defaults={"ppo.whiten": "iteration", "values.positions": "after"},
)
