"""The credit of a rollout: mask and whitening for every method, and functions that methods share.

The credit function of a method, in its module in `methods/`, takes a `Rollout` and the
configuration and returns a `Credit`. The mathematics is in `rl/`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Array, Episode, Labels, Rollout, StepLayout
from vinejax.credit.mask import top_entropy
from vinejax.credit.rules import find_rule
from vinejax.credit.trained_labels import scaled, trained_labels
from vinejax.rl.advantages import gae, group_advantages
from vinejax.rl.losses import kl
from vinejax.rl.masked import whiten


class Credit(NamedTuple):
    """The advantages of a rollout, with values for the report and returns for a critic."""

    advantages: Array  # f32[B, T], read only on response tokens
    mask: Array | None = None  # bool[B, T] tokens to train on; None: all tokens of `credit.mask`
    by_step: Array | None = None  # f32[B, C] step advantages for the report; None: token means
    returns: Array | None = None  # f32[B, T] targets of a critic
    values: Array | None = None  # f32[B, C] a critic's values before each step, for the report
    loss_extra: Array | None = None  # [B, T] numbers for the method's own loss, in the batch
    labels: Labels | None = None  # further tokens to train on, with their coefficients


def assigned(credit: Credit, rollout: Rollout, cfg: Config) -> Credit:
    """The credit, completed by its mask and its advantages by step, and perhaps whitened.

    The function whitens `advantages`, but not `by_step`, if `ppo.whiten` is 'iteration'. If the
    setting is 'minibatch', the loss whitens later. If `credit` has labels, the function scales
    advantages and labels instead of whitening (`trained_labels.scaled`). A token is trained on if
    the configured mask rule and the mask in `credit` both select the token. All arrays are on the
    host.
    """
    advantages, by_step, labels = credit.advantages, credit.by_step, credit.labels
    mask = trained_tokens(rollout, cfg)
    if credit.mask is not None:
        mask &= credit.mask
    if by_step is None:
        by_step = means_of_steps(np.asarray(advantages), rollout.steps)
    if labels is not None:
        labels = trained_labels(labels, mask)
    if cfg.ppo.whiten == "iteration":
        if labels is not None:
            advantages, labels = scaled(np.asarray(advantages), mask, labels)
        else:
            advantages = whiten(advantages, mask, shift_mean=cfg.ppo.shift_mean)
    advantages, by_step = np.asarray(advantages), np.asarray(by_step)
    return credit._replace(advantages=advantages, mask=mask, by_step=by_step, labels=labels)


def trained_tokens(rollout: Rollout, cfg: Config) -> np.ndarray:
    """bool[B, T] the response tokens that the configured mask rule selects.

    With `ppo.mask_truncated`, no token of a response that ran out of tokens is selected.
    """
    mask = np.array(rollout.batch.mask)
    rule = find_rule("credit.mask", cfg)
    for row, episode in enumerate(rollout.episodes):
        mask[row, mask[row]] = rule(episode, cfg.credit)[episode.is_drawn]
        if cfg.ppo.mask_truncated and not episode.finished:
            mask[row] = False
    if cfg.credit.mask == "top_entropy":
        assert rollout.entropy is not None, "the scoring pass keeps entropies for this mask"
        mask = top_entropy(rollout.entropy, mask, cfg.credit)
    return mask


def solution_rewards(episodes: Sequence[Episode]) -> np.ndarray:
    """f32[episodes] the reward of each whole solution, including the rewards of its steps."""
    return np.array([sum(e.rewards) if e.rewards else e.outcome for e in episodes], np.float32)


def rewards_with_kl(rollout: Rollout, cfg: Config) -> np.ndarray:
    """f32[episodes] `solution_rewards`, less the row sums of `kl_in_reward` unless it is None."""
    rewards, penalty = solution_rewards(rollout.episodes), kl_in_reward(rollout, cfg)
    return rewards if penalty is None else rewards - penalty.sum(axis=1)[: len(rewards)]


def kl_in_reward(rollout: Rollout, cfg: Config) -> np.ndarray | None:
    """f32[B, T] the KL penalty to subtract from each token's reward, or None.

    There is a penalty if `kl.place` is 'reward'. The penalty is coef·log(π_old / π_ref) on response
    tokens, and 0 elsewhere.
    """
    if cfg.kl.place != "reward":
        return None
    batch, coef = rollout.batch, rollout.kl_coef
    estimate = np.asarray(kl(batch.old_logprobs, batch.ref_logprobs, kind="k1"))
    coef = np.float32(cfg.kl.coef if coef is None else coef)
    return np.where(batch.mask, coef * estimate, np.float32(0))


def has_spread(episodes: list[Episode]) -> np.ndarray:
    """bool[episodes] whether the episode's group has unequal rewards."""
    rewards, groups = solution_rewards(episodes), group_numbers(episodes)
    spread = np.array([np.ptp(rewards[groups == g]) > 0 for g in range(groups.max() + 1)])
    return spread[groups]


def group_numbers(episodes: list[Episode]) -> np.ndarray:
    """i32[episodes] the number of each episode's group, in the order of first occurrence.

    A group has the solutions of one problem that began with the same given tokens, or the leaves of
    the problem's trees.
    """
    starts = [(e.problem_id, *(e.response[: e.given] if e.nodes is None else ())) for e in episodes]
    numbers = {start: i for i, start in enumerate(dict.fromkeys(starts))}
    return np.array([numbers[start] for start in starts], np.int32)


def against_group(rollout: Rollout, kind: str, cfg: Config) -> Credit:
    """The credit in which all tokens of a solution have its advantage over its group.

    `kind` is a kind of `rl.advantages.group_advantages`. `reward.scale` chooses what the
    advantages are divided by.
    """
    rewards, groups = rewards_with_kl(rollout, cfg), group_numbers(rollout.episodes)
    advantages = group_advantages(rewards, groups, kind, scale=scale_of(cfg))
    return per_solution(rollout, np.asarray(advantages))


def scale_of(cfg: Config) -> str | None:
    """`reward.scale` as the argument `scale` of `group_advantages`, where None means 'method'."""
    return None if cfg.reward.scale == "method" else cfg.reward.scale


def per_solution(rollout: Rollout, advantages: Array) -> Credit:
    """The credit in which every token of solution i has the advantage `advantages[i]`."""
    mask = rollout.batch.mask
    by_row = np.zeros(mask.shape[0], np.float32)
    by_row[: len(rollout.episodes)] = advantages
    return Credit(np.where(mask, by_row[:, None], np.float32(0)))


def token_rewards(rollout: Rollout, cfg: Config) -> np.ndarray:
    """f32[B, T] each step's reward at its last token, less the KL if `kl.place` is 'reward'."""
    steps, penalty = rollout.steps, kl_in_reward(rollout, cfg)
    rewards = np.zeros(steps.step_ids.shape, np.float32)
    row, token = _last_tokens(steps)
    rewards[row, token] = steps.rewards[row, steps.step_ids[row, token]]
    return rewards if penalty is None else rewards - penalty


def token_estimates(
    rollout: Rollout, cfg: Config, values: np.ndarray, lam: float
) -> tuple[Array, Array]:
    """(advantages, returns), both f32[B, T], that `rl.advantages.gae` gives for `token_rewards`.

    A time step goes from one token that the policy drew to the next token that it drew, and skips
    the observations between them.
    """
    rewards, mask = token_rewards(rollout, cfg), np.asarray(rollout.batch.mask)
    if not any(episode.turns for episode in rollout.episodes):
        return gae(rewards, values, mask, cfg.ppo.gamma, lam)
    drawn_first = np.argsort(~mask, axis=1, kind="stable")
    rewards, values, mask = (
        np.take_along_axis(np.asarray(x), drawn_first, axis=1) for x in (rewards, values, mask)
    )
    advantages, returns = gae(rewards, values, mask, cfg.ppo.gamma, lam)
    original_order = np.argsort(drawn_first, axis=1)
    return (
        np.take_along_axis(np.asarray(advantages), original_order, axis=1),
        np.take_along_axis(np.asarray(returns), original_order, axis=1),
    )


def state_numbers(steps: StepLayout) -> np.ndarray:
    """i32[B, T] the number of each state, counted from 1, at the state's last token; 0 elsewhere.

    States are numbered row by row, in the order of the steps. If a method has no states, all
    entries are 0.
    """
    numbers = np.zeros(steps.step_ids.shape, np.int32)
    row, token = _first_tokens(steps)
    is_state = steps.counts[row, steps.step_ids[row, token]] >= 0
    numbers[row[is_state], token[is_state] - 1] = 1 + np.arange(np.count_nonzero(is_state))
    return numbers


def state_places(rollout: Rollout) -> np.ndarray:
    """i64[S, 3] for each state its row, its step and the number of response tokens before it.

    States are ordered as in `state_numbers`.
    """
    starts = [[e.given, *e.step_ends] for e in rollout.episodes]
    row, step = np.nonzero(rollout.steps.counts >= 0)
    used = [starts[i][c] for i, c in zip(row, step, strict=True)]
    return np.stack([row, step, np.array(used, np.int64)], axis=1)


def before_steps(values: np.ndarray, steps: StepLayout) -> np.ndarray:
    """f32[B, C] the value of the state before each step's first token.

    `values`, f[B, T], are the values of the states before all tokens.
    """
    by_step = np.zeros(steps.rewards.shape, np.float32)
    row, token = _first_tokens(steps)
    by_step[row, steps.step_ids[row, token]] = values[row, token]
    return by_step


def _first_tokens(steps: StepLayout) -> tuple[np.ndarray, np.ndarray]:
    """(i64[steps] row, i64[steps] index in the row) of the first token of every step."""
    # Observations may lie between tokens of a step.
    newest = np.maximum.accumulate(steps.step_ids, axis=1)
    before = np.pad(newest, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    row, token = np.nonzero((steps.step_ids >= 0) & (steps.step_ids != before))
    return row, token


def _last_tokens(steps: StepLayout) -> tuple[np.ndarray, np.ndarray]:
    """(i64[steps] row, i64[steps] index in the row) of the last token of every step."""
    no_step = steps.rewards.shape[1]
    ids = np.where(steps.step_ids < 0, no_step, steps.step_ids)
    following = np.minimum.accumulate(ids[:, ::-1], axis=1)[:, ::-1]
    after = np.pad(following, ((0, 0), (0, 1)), constant_values=no_step)[:, 1:]
    row, token = np.nonzero((steps.step_ids >= 0) & (ids != after))
    return row, token


def means_of_steps(advantages: np.ndarray, steps: StepLayout) -> np.ndarray:
    """f32[B, C] the mean advantage of each step's tokens, 0 past the last step."""
    counts = sums_of_steps(np.ones(advantages.shape), steps)
    return (sums_of_steps(advantages, steps) / np.maximum(counts, 1)).astype(np.float32)


def sums_of_steps(x: np.ndarray, steps: StepLayout) -> np.ndarray:
    """f64[B, C] the sum of `x`, f[B, T], over the tokens of each step."""
    totals = np.zeros(steps.rewards.shape)
    row, token = np.nonzero(steps.step_ids >= 0)
    np.add.at(totals, (row, steps.step_ids[row, token]), x[row, token])
    return totals
