"""Credit assignment: the advantage of every token, one function per kind of advantage.

Each function takes a `Rollout` and the configuration and gives a `Credit`; `methods.py` says which
method has which. The mathematics is in `rl/advantages.py`.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Array, Episode
from vinejax.credit.rules import find_rule
from vinejax.learner.batch import Rollout, StepLayout
from vinejax.methods import find_method, function_of
from vinejax.rl.advantages import (
    gae,
    group_advantages,
    overlong_penalty,
    step_advantages,
    step_progress,
    token_advantages,
)
from vinejax.rl.losses import kl
from vinejax.rl.masked import whiten
from vinejax.rl.value_tracker import batch_advantages


class Credit(NamedTuple):
    """The advantages of a rollout, with values for the report and returns for a critic."""

    advantages: Array  # f32[B, T], read on response tokens alone
    mask: Array | None = None  # bool[B, T] tokens that are trained on; None: all, but see below
    by_step: Array | None = None  # f32[B, C] for the report; None: a step's mean over its tokens
    returns: Array | None = None  # f32[B, T] a critic's targets
    values: Array | None = None  # f32[B, C] a critic's, before each step: for the report


def assign_credit(rollout: Rollout, cfg: Config, whitening: str) -> Credit:
    """The configured method's credit; `whitening` 'iteration' whitens its advantages here.

    `by_step` is not whitened. Tokens must be in the configured mask as well as in the credit's.
    Arrays are on the host.
    """
    assign = find_method(cfg.method).credit
    assert assign is not None, f"{cfg.method} has no advantages"
    credit = function_of(assign)(rollout, cfg)
    advantages, by_step = credit.advantages, credit.by_step
    mask = trained_tokens(rollout, cfg)
    if credit.mask is not None:
        mask &= credit.mask
    if by_step is None:
        by_step = _means_of_steps(np.asarray(advantages), rollout.steps)
    if whitening == "iteration":
        advantages = whiten(advantages, mask, shift_mean=cfg.ppo.shift_mean)
    advantages, by_step = np.asarray(advantages), np.asarray(by_step)
    return credit._replace(advantages=advantages, mask=mask, by_step=by_step)


def trained_tokens(rollout: Rollout, cfg: Config) -> np.ndarray:
    """bool[B, T] the response tokens that the configured mask rule leaves in."""
    mask = np.array(rollout.batch.mask)
    rule = find_rule("credit.mask", cfg)
    for row, episode in enumerate(rollout.episodes):
        mask[row, mask[row]] = rule(episode, cfg.credit)[episode.given :]
    return mask


def vine(rollout: Rollout, cfg: Config) -> Credit:
    """VinePPO: A_c = r_c + γ·V(s_{c+1}) - V(s_c) for each token of step c, V by Monte Carlo.

    With `credit.progress` the progress of a prover is added: see `rl.advantages.step_progress`.
    """
    steps = rollout.steps
    by_step = step_advantages(steps.values, steps.rewards, steps.num_steps, cfg.ppo.gamma)
    if cfg.credit.progress:
        prover = cfg.credit.prover
        progress = step_progress(steps.values, steps.rewards, steps.num_steps, prover)
        by_step += cfg.credit.progress * progress
    return Credit(token_advantages(by_step, steps.step_ids), by_step=by_step)


def critic(rollout: Rollout, cfg: Config) -> Credit:
    """PPO: generalised advantage estimates on a critic's values, and the returns it learns."""
    assert rollout.values is not None, "PPO's credit needs the critic's values"
    rewards = _token_rewards(rollout.steps)
    mask = rollout.batch.mask
    advantages, returns = gae(rewards, rollout.values, mask, cfg.ppo.gamma, cfg.critic.lam)
    values = _before_steps(rollout.values, rollout.steps)
    return Credit(advantages, returns=np.asarray(returns), values=values)


def return_to_go(rollout: Rollout, cfg: Config) -> Credit:
    """REINFORCE++: the discounted reward still to come, less the KL to the reference model."""
    batch = rollout.batch
    rewards = jnp.asarray(_token_rewards(rollout.steps))
    rewards -= cfg.kl.coef * kl(batch.old_logprobs, batch.ref_logprobs, kind="k1")
    advantages, _ = gae(rewards, jnp.zeros_like(rewards), batch.mask, cfg.ppo.gamma, 1.0)
    return Credit(advantages)


def grpo(rollout: Rollout, cfg: Config) -> Credit:
    """GRPO: (r - mean) / standard deviation of the problem's solutions."""
    return _against_group(rollout, solution_rewards(rollout.episodes), "grpo")


def rloo(rollout: Rollout, cfg: Config) -> Credit:
    """RLOO: r - mean of the problem's other solutions."""
    return _against_group(rollout, solution_rewards(rollout.episodes), "rloo")


def group_mean(rollout: Rollout, cfg: Config) -> Credit:
    """Dr. GRPO and OPMD: r - mean of the problem's solutions."""
    return _against_group(rollout, solution_rewards(rollout.episodes), "mean")


def shifted_mean(rollout: Rollout, cfg: Config) -> Credit:
    """AsymRE: r - (mean of the problem's solutions + `asymre.shift`)."""
    rewards = solution_rewards(rollout.episodes)
    return _against_group(rollout, rewards, "mean", shift=-cfg.asymre.shift)


def against_tracker(rollout: Rollout, cfg: Config) -> Credit:
    """Single-stream: r - v of the problem's tracker, normalised over the iteration's solutions."""
    assert rollout.values is not None, "single-stream credit needs the tracker's values"
    rewards = solution_rewards(rollout.episodes)
    return per_solution(rollout, batch_advantages(rewards, rollout.values[: len(rewards), 0]))


def dapo(rollout: Rollout, cfg: Config) -> Credit:
    """DAPO: GRPO's advantages of rewards less a penalty for coming near the token budget.

    The published penalty goes from 0 to -1, with rewards of -1 and 1 for wrong and right solutions.
    Rewards here are 0 and 1, half as far apart, so the penalty is halved. A group whose rewards are
    all equal before the penalty has advantage 0: the published method excludes such groups.
    """
    episodes = rollout.episodes
    rewards = solution_rewards(episodes)
    lengths = np.array([len(episode.response) for episode in episodes], np.int32)
    budget = cfg.sample.max_tokens
    penalty = np.asarray(overlong_penalty(lengths, budget, cfg.dapo.overlong * budget))
    groups = group_numbers(episodes)
    spread = {g for g in groups if np.ptp(rewards[groups == g]) > 0}
    penalised = np.where([g in spread for g in groups], rewards + 0.5 * penalty, 0.0)
    return _against_group(rollout, penalised.astype(np.float32), "grpo")


def solution_rewards(episodes: list[Episode]) -> np.ndarray:
    """f32[episodes] the reward of each whole solution, the rewards of its steps included."""
    return np.array([sum(e.rewards) if e.rewards else e.reward for e in episodes], np.float32)


def group_numbers(episodes: list[Episode]) -> np.ndarray:
    """i32[episodes] the number of each episode's group, in the order in which they first come.

    A group is the solutions of one problem that began with the same given tokens.
    """
    starts = [(e.problem_id, *e.response[: e.given]) for e in episodes]
    numbers = {start: i for i, start in enumerate(dict.fromkeys(starts))}
    return np.array([numbers[start] for start in starts], np.int32)


def _against_group(rollout: Rollout, rewards: np.ndarray, kind: str, shift: float = 0.0) -> Credit:
    """Each solution compared with the others of its problem; its tokens have one advantage."""
    advantages = np.asarray(group_advantages(rewards, group_numbers(rollout.episodes), kind))
    return per_solution(rollout, advantages + np.float32(shift))


def per_solution(rollout: Rollout, advantages: Array) -> Credit:
    """The credit of f32[episodes] advantages, each that of all tokens of its solution."""
    mask = rollout.batch.mask
    by_row = np.zeros(mask.shape[0], np.float32)
    by_row[: len(rollout.episodes)] = advantages
    return Credit(np.where(mask, by_row[:, None], np.float32(0)))


def _token_rewards(steps: StepLayout) -> np.ndarray:
    """f32[B, T] the reward of a step at its last token, 0 at all other tokens."""
    rewards = np.zeros(steps.step_ids.shape, np.float32)
    after = np.pad(steps.step_ids, ((0, 0), (0, 1)), constant_values=-1)[:, 1:]
    row, token = np.nonzero((steps.step_ids >= 0) & (steps.step_ids != after))
    rewards[row, token] = steps.rewards[row, steps.step_ids[row, token]]
    return rewards


def _before_steps(values: np.ndarray, steps: StepLayout) -> np.ndarray:
    """f32[B, C] the value before the first token of each step, from values [B, T] before tokens."""
    by_step = np.zeros(steps.rewards.shape, np.float32)
    before = np.pad(steps.step_ids, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    row, token = np.nonzero((steps.step_ids >= 0) & (steps.step_ids != before))
    by_step[row, steps.step_ids[row, token]] = values[row, token]
    return by_step


def _means_of_steps(advantages: np.ndarray, steps: StepLayout) -> np.ndarray:
    """f32[B, C] the mean advantage of each step's tokens, 0 past the last step."""
    totals = np.zeros(steps.rewards.shape)
    counts = np.zeros(steps.rewards.shape)
    row, token = np.nonzero(steps.step_ids >= 0)
    place = (row, steps.step_ids[row, token])
    np.add.at(totals, place, advantages[row, token])
    np.add.at(counts, place, 1)
    return (totals / np.maximum(counts, 1)).astype(np.float32)
