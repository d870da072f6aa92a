"""Whose doing was the reward: the advantage of every token, by every policy-gradient method."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from vinejax.learner.batch import StepLayout, step_layout, with_advantages
from vinejax.learner.objective import METHODS, objective_of
from vinejax.rl.advantages import gae, group_advantages, overlong_penalty
from vinejax.rl.losses import kl
from vinejax.rl.masked import whiten
from vinejax.settings import Config
from vinejax.types import Batch, Episode


class Credit(NamedTuple):
    batch: Batch  # with its advantages, whitened over the iteration where that is configured
    by_step: np.ndarray  # f32[B, C] before whitening, a step's mean over its tokens: for the report
    returns: np.ndarray | None = None  # f32[B, T] what a critic learns
    values: np.ndarray | None = None  # f32[B, C] a critic's, before each step: for the report


def with_credit(
    batch: Batch, episodes: list[Episode], cfg: Config, values: np.ndarray | None = None
) -> Credit:
    """The advantages of the configured method.

    VinePPO takes the values that `fill_values` left in the episodes. PPO takes `values`, f32[B, T],
    the critic's before each token. REINFORCE++ takes the batch's log-probabilities, for its KL.
    """
    kind, ppo = METHODS[cfg.method].advantage, objective_of(cfg).ppo
    if kind == "vine":
        return Credit(*with_advantages(batch, episodes, ppo))
    layout, returns, before_steps = step_layout(batch, episodes), None, None
    rewards = jnp.asarray(_token_rewards(layout))
    if kind == "critic":
        assert values is not None
        advantages, returns = gae(rewards, values, batch.mask, ppo.gamma, cfg.critic.lam)
        returns, before_steps = np.asarray(returns), _before_steps(values, layout)
    elif kind == "return":
        rewards -= cfg.kl.coef * kl(batch.old_logprobs, batch.ref_logprobs, kind="k1")
        advantages, _ = gae(rewards, jnp.zeros_like(rewards), batch.mask, ppo.gamma, 1.0)
    else:
        by_row = np.zeros(batch.mask.shape[0], np.float32)
        by_row[: len(episodes)] = _against_group(episodes, kind, cfg)
        advantages = jnp.where(batch.mask, by_row[:, None], 0.0)
    by_step = _means(np.asarray(advantages), layout)
    if ppo.whiten == "iteration":
        advantages = whiten(advantages, batch.mask, shift_mean=ppo.shift_mean)
    batch = batch._replace(advantages=np.asarray(advantages))
    return Credit(batch, by_step, returns, before_steps)


def _token_rewards(layout: StepLayout) -> np.ndarray:
    """f32[B, T]: a step's reward comes with its last token."""
    rewards = np.zeros(layout.step_ids.shape, np.float32)
    after = np.pad(layout.step_ids, ((0, 0), (0, 1)), constant_values=-1)[:, 1:]
    row, token = np.nonzero((layout.step_ids >= 0) & (layout.step_ids != after))
    rewards[row, token] = layout.rewards[row, layout.step_ids[row, token]]
    return rewards


def _against_group(episodes: list[Episode], kind: str, cfg: Config) -> np.ndarray:
    """f32[episodes], each against the other solutions of its problem."""
    rewards = np.array([sum(e.rewards) if e.rewards else e.reward for e in episodes], np.float32)
    numbers = {name: i for i, name in enumerate(dict.fromkeys(e.problem_id for e in episodes))}
    groups = np.array([numbers[e.problem_id] for e in episodes], np.int32)
    if cfg.method == "dapo":
        lengths = np.array([len(e.response) for e in episodes], np.int32)
        budget = cfg.sample.max_tokens
        rewards += np.asarray(overlong_penalty(lengths, budget, cfg.dapo.overlong * budget))
    advantages = np.asarray(group_advantages(rewards, groups, kind))
    return advantages - cfg.asymre.shift if cfg.method == "asymre" else advantages


def _before_steps(values: np.ndarray, layout: StepLayout) -> np.ndarray:
    """f32[B, C] of values before tokens, f32[B, T], those of each step's first; 0 past the last."""
    found = np.zeros(layout.rewards.shape, np.float32)
    before = np.pad(layout.step_ids, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    row, token = np.nonzero((layout.step_ids >= 0) & (layout.step_ids != before))
    found[row, layout.step_ids[row, token]] = values[row, token]
    return found


def _means(advantages: np.ndarray, layout: StepLayout) -> np.ndarray:
    """f32[B, C] mean over each step's tokens, 0 past the last step."""
    totals, counts = np.zeros(layout.rewards.shape), np.zeros(layout.rewards.shape)
    row, token = np.nonzero(layout.step_ids >= 0)
    at = (row, layout.step_ids[row, token])
    np.add.at(totals, at, advantages[row, token])
    np.add.at(counts, at, 1)
    return (totals / np.maximum(counts, 1)).astype(np.float32)
