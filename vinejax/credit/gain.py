"""The gain of step credit over the credit of outcomes, for the tokens that it costs.

Unbiased credits Â of one policy have the same expected gradient, Σ_c Â_c·∇log π(step c). They
differ in the second moment of the gradient, which is about Σ_c n_c·Â_c². Here n_c is the sum of
1 - p_t over the tokens t of step c, and p_t is the policy's probability of token t. The number
1 - p_t estimates the expected squared norm of the gradient of log p_t with respect to the logits.
That norm is 1 - Σ_v p(v)², where p(v) are the probabilities of all tokens v. So

    price = (1 + q·(1 + L)) / (1 + q)
    gain = Σ n·(return - b)² / (Σ n·Â²·price)

q = `SAMPLED_PRICE` is the price of a sampled token in trained tokens. L is the number of
continuation tokens per token of the solutions, assuming that a continuation is as long as the rest
of its solution. The baseline b is a learned value or, without one, the mean reward of the problem's
other solutions. If there are no others, b and the gain are unknown. A gain above 1 means that step
credit brings more per token than the credit of outcomes.

Source: ours.
"""

from collections import Counter

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Rollout, StepLayout
from vinejax.credit.assign import (
    Credit,
    against_group,
    before_steps,
    group_numbers,
    means_of_steps,
    sums_of_steps,
)
from vinejax.rl.by_role import role_advantages

SAMPLED_PRICE = 0.125  # price of a sampled token, in trained tokens


def gain_metrics(rollout: Rollout, credit: Credit, cfg: Config) -> dict[str, float]:
    """`credit/price` and `credit/gain` of sampled credit.

    There is no `credit/gain` if all credit is 0, or if no baseline is known.
    """
    if any(episode.values is None for episode in rollout.episodes):
        return {}
    steps = rollout.steps
    if rollout.values is None:
        outcome = means_of_steps(against_group(rollout, "rloo", cfg).advantages, steps)
    else:
        prior = before_steps(rollout.values, steps)
        # With λ = 1 the advantage is the return less the baseline.
        by_role = role_advantages(prior, steps.rewards, steps.num_steps, 1.0, gamma=cfg.ppo.gamma)
        outcome = np.asarray(by_role)
    drawn = np.zeros(steps.rewards.shape)
    for i, episode in enumerate(rollout.episodes):
        drawn[i, : len(episode.continuations)] = [len(x) for x in episode.continuations]
    tokens = tokens_left(steps)
    sampled = np.sum(drawn * state_shares(rollout) * tokens)
    price = price_of(sampled / np.sum(tokens[:, 0]))
    n = surprise(rollout)
    square = np.sum(n * np.asarray(credit.by_step) ** 2) * price
    has_baseline = (
        rollout.values is not None or np.bincount(group_numbers(rollout.episodes)).max() > 1
    )
    gain = {"credit/gain": np.sum(n * outcome**2) / square} if has_baseline and square > 0 else {}
    return {"credit/price": price, **gain}


def price_of(tokens: float) -> float:
    """The cost of step credit divided by that of outcome credit: `price` in the module's text.

    `tokens` is L, the number of continuation tokens per token of the solutions.
    """
    return (1 + SAMPLED_PRICE * (1 + tokens)) / (1 + SAMPLED_PRICE)


def surprise(rollout: Rollout) -> np.ndarray:
    """f64[B, C] n_c, the sum of 1 - p_t over the tokens of each step (see the module's text).

    It is 0 for steps that do not begin at a state.
    """
    doubt = -np.expm1(np.asarray(rollout.batch.old_logprobs, np.float64))
    return sums_of_steps(doubt, rollout.steps) * (rollout.steps.counts >= 0)


def tokens_left(steps: StepLayout) -> np.ndarray:
    """f64[B, C] the number of tokens from the start of each step to the end of its solution."""
    tokens = sums_of_steps(np.ones(steps.step_ids.shape), steps)
    return np.cumsum(tokens[:, ::-1], axis=1)[:, ::-1]


def state_shares(rollout: Rollout) -> np.ndarray:
    """f64[B, C] 1/n for a state whose continuations are shared by n solutions (`values.dedup`)."""
    groups = [list(map(id, episode.continuations)) for episode in rollout.episodes]
    holders = Counter(group for of_episode in groups for group in of_episode)
    share = np.ones(rollout.steps.rewards.shape)
    for i, of_episode in enumerate(groups):
        share[i, : len(of_episode)] = [1 / holders[group] for group in of_episode]
    return share
