"""Labels: a continuation is trained on where it passes along a solution, and where it leaves it.

A continuation of a state that repeats the solution up to position t draws one more next token from
π(·|s_t), whose logits the update of the solution computes anyway. Let y_t be the solution's token,
let M_t be the m samples that pass through s_t token by token, and let sample k draw the next token
b_k and have the return R_k from s_t. Estimators of position t's part of the policy gradient are

    group:  1/(m+1)·Σ_i (X_i - mean of the other X)·∇log π(token_i | s_t)
            i: the solution and M_t    X: Q_t for the solution, R_k for sample k
    mixed:  w·A_t·∇log π(y_t | s_t) + (1 - w)/m·Σ_k (R_k - B_k)·∇log π(b_k | s_t)
            B_k: mean of the other returns of M_t; Q_t for m = 1
    blend:  1/(ρ + m)·(ρ·A_t·∇log π(y_t | s_t) + Σ_k (R_k - B_k)·∇log π(b_k | s_t))
            ρ = w/(1 - w)    B_k = (n·v + Q_t + the sum of the other returns of M_t) / (n + m)
            v: a learned value of the last state before t, counted as n returns; n = 0 for a
            sample that is another solution, because the probe's v contains their mean reward

and A_t·∇log π(y_t | s_t) where m = 0. Q_t and A_t are the outcome and the advantage of the step
that contains t (`rl.by_role.role_advantages`). Whether a sample passes through s_t is decided
before t, and given s_t and M_t the m + 1 tokens are independent draws of π(·|s_t). Q_t may contain
returns of sample k, but only of states that k has passed, where what follows is a new draw: given
b_k its mean is that of Q_t. So they are unbiased under the conditions of `credit/samples.py`:
positions do not look ahead, and all samples have the same horizon. Where all samples draw the same
token, the terms of 'group' cancel.

Source: ours. TRPO's vine procedure, https://arxiv.org/abs/1502.05477, section 5.2, trains on all
actions that it draws at a state.

In shapes, P is the number of positions, N the number of samples at all of them, and L the number of
labels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Batch, Episode, Rollout
from vinejax.credit.assign import before_steps
from vinejax.credit.samples import Sample, num_shared
from vinejax.rl.advantages import token_advantages
from vinejax.rl.by_role import role_outcomes
from vinejax.rollout.vine import ProblemStates
from vinejax.tools.bench.settings import BenchConfig

LEARNED_RETURNS = 2  # n of 'blend'


class Labels(NamedTuple):
    """Further tokens to train on at positions of a batch, each with its coefficient.

    A position has at most one label for each token, and none for its own token.
    """

    place: np.ndarray  # i64[L] index of the position in the flattened batch [B, T]
    token: np.ndarray  # i64[L]
    coefficient: np.ndarray  # f64[L] what an advantage is for the position's own token


NO_LABELS = Labels(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


class PassingTokens(NamedTuple):
    """The samples M_t at positions of a batch, as flat arrays."""

    place: np.ndarray  # i64[N] index of the position in the flattened batch [B, T]
    token: np.ndarray  # i64[N] b_k
    returns: np.ndarray  # f64[N] R_k
    is_solution: np.ndarray  # bool[N] whether sample k is another solution of the problem


def with_labels(
    rollout: Rollout,
    mask: np.ndarray,
    advantages: np.ndarray,
    states: Sequence[ProblemStates],
    cfg: Config,
) -> tuple[np.ndarray, Labels]:
    """(f32[B, T] the coefficients of the solutions' own tokens, the labels beside them)."""
    steps, bench = rollout.steps, BenchConfig.of(cfg)
    by_step = role_outcomes(
        steps.values,
        steps.rewards,
        steps.is_step,
        steps.counts > 0,
        cfg.credit.lambda_,
        cfg.ppo.gamma,
    )
    samples: dict[int, tuple[list[Sample], list[Sample]]] = {}
    for problem_states in states:
        samples |= zip(problem_states.numbers, problem_states.samples(), strict=True)
    in_order = [samples[i] for i in range(len(rollout.episodes))]
    return labelled(
        rollout.batch,
        mask,
        advantages,
        outcomes=np.asarray(token_advantages(by_step, steps.step_ids)),
        passing=passing_tokens(rollout.batch, rollout.episodes, in_order, cfg.ppo.gamma),
        kind=bench.labels,
        weight=bench.label_weight,
        learned=_learned(rollout) if bench.labels == "blend" else None,
    )


def _learned(rollout: Rollout) -> np.ndarray:
    """f32[B, T]: the learned value of the state with which the step of each token begins."""
    assert rollout.values is not None
    by_step = before_steps(rollout.values, rollout.steps)
    return np.asarray(token_advantages(by_step, rollout.steps.step_ids))


def group_coefficients(
    outcomes: np.ndarray, returns: np.ndarray, position: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(f64[P], f64[N]): the coefficients of the own tokens and of the samples, by 'group'.

    Args:
      outcomes: f64[P] Q_t of each position.
      returns: f64[N] R_k of each sample.
      position: i64[N] the index of each sample's position. The own coefficient of a position
        without samples has no meaning.
    """
    count = np.bincount(position, minlength=len(outcomes))
    total = outcomes + np.bincount(position, returns, len(outcomes))
    m = np.maximum(count, 1)
    own = (outcomes - (total - outcomes) / m) / (count + 1)
    others = (total[position] - returns) / m[position]
    return own, (returns - others) / (count[position] + 1)


def mixed_coefficients(
    advantages: np.ndarray,
    outcomes: np.ndarray,
    returns: np.ndarray,
    position: np.ndarray,
    weight: float,
) -> tuple[np.ndarray, np.ndarray]:
    """(f64[P], f64[N]): the coefficients by 'mixed'; arguments as for `group_coefficients`.

    `advantages`, f64[P], are A_t, and `weight` is w.
    """
    count = np.bincount(position, minlength=len(outcomes))
    total = np.bincount(position, returns, len(outcomes))
    m = count[position]
    mean_of_others = (total[position] - returns) / np.maximum(m - 1, 1)
    baselines = np.where(m > 1, mean_of_others, outcomes[position])
    return weight * advantages, (1 - weight) / m * (returns - baselines)


def blended_coefficients(
    advantages: np.ndarray,
    outcomes: np.ndarray,
    returns: np.ndarray,
    position: np.ndarray,
    weight: float,
    learned: np.ndarray,
    is_solution: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """(f64[P], f64[N]): the coefficients by 'blend'; arguments as for `mixed_coefficients`.

    `learned`, f64[P], are the learned values v, and `is_solution`, bool[N], tells whether a sample
    is another solution.
    """
    count = np.bincount(position, minlength=len(outcomes))
    total = outcomes + np.bincount(position, returns, len(outcomes))
    m, odds = count[position], weight / (1 - weight)
    n = np.where(is_solution, 0, LEARNED_RETURNS)
    baselines = (total[position] - returns + n * learned[position]) / (m + n)
    return odds / (odds + count) * advantages, (returns - baselines) / (odds + m)


def passing_tokens(
    batch: Batch,
    episodes: Sequence[Episode],
    samples: Sequence[tuple[Sequence[Sample], Sequence[Sample]]],
    gamma: float,
) -> PassingTokens:
    """The tokens that the samples draw at the positions of the solutions.

    `samples[i]` are the continuations and the other solutions that count for solution i, whose row
    in the batch is i. A sample counts at the positions from its first own token on, as far as it
    repeats the solution, and at the position where it leaves the solution.
    """
    length = batch.tokens.shape[1]
    places, tokens, returns, is_solution = [], [], [], []
    for row, (episode, passing) in enumerate(zip(episodes, samples, strict=True)):
        response, first = np.array(episode.response), row * length + len(episode.prompt)
        continuations, solutions = passing
        for number, sample in enumerate([*continuations, *solutions]):
            end = num_shared(sample.tokens, response) + 1
            end = min(end, len(sample.tokens), len(response))
            used = np.arange(sample.start, end)
            places.append(first + used)
            tokens.append(sample.tokens[sample.start : end])
            returns.append(_returns_from(sample, used, gamma))
            is_solution.append(np.full(len(used), number >= len(continuations)))
    if not places:
        nothing = np.zeros(0, np.int64)
        return PassingTokens(nothing, nothing, np.zeros(0), np.zeros(0, bool))
    return PassingTokens(*map(np.concatenate, (places, tokens, returns, is_solution)))


def _returns_from(sample: Sample, used: np.ndarray, gamma: float) -> np.ndarray:
    """f64: the return of the sample from the state after each number of tokens in `used`."""
    if not sample.ends:
        return np.full(len(used), sample.outcome, np.float64)
    return np.array([sample.return_from(int(n), gamma) for n in used], np.float64)


def labelled(
    batch: Batch,
    mask: np.ndarray,
    advantages: np.ndarray,
    outcomes: np.ndarray,
    passing: PassingTokens,
    kind: str,
    weight: float,
    learned: np.ndarray | None = None,
) -> tuple[np.ndarray, Labels]:
    """(f32[B, T] coefficients of the own tokens, labels) of a batch.

    Args:
      batch: the solutions.
      mask: bool[B, T] the tokens that are trained on; at other positions there are no labels.
      advantages: f32[B, T] A_t, which remains the coefficient where no sample passes.
      outcomes: f32[B, T] Q_t.
      passing: the samples at the positions of the batch.
      kind: 'group', 'mixed' or 'blend'.
      weight: w of 'mixed' and 'blend'.
      learned: f32[B, T] v of 'blend'.
    """
    own_tokens = np.asarray(batch.tokens).reshape(-1)
    is_trained = mask.reshape(-1)[passing.place]
    places, tokens, returns, is_solution = (x[is_trained] for x in passing)
    covered, position = np.unique(places, return_inverse=True)
    plain, q = (x.reshape(-1)[covered].astype(np.float64) for x in (advantages, outcomes))
    if kind == "group":
        own, coefficients = group_coefficients(q, returns, position)
    elif kind == "mixed":
        own, coefficients = mixed_coefficients(plain, q, returns, position, weight)
    else:
        assert learned is not None
        v = learned.reshape(-1)[covered].astype(np.float64)
        own, coefficients = blended_coefficients(
            plain, q, returns, position, weight=weight, learned=v, is_solution=is_solution
        )
    keys, label = np.unique(np.stack([places, tokens]), axis=1, return_inverse=True)
    sums = np.bincount(label.reshape(-1), coefficients, keys.shape[1])
    is_own = keys[1] == own_tokens[keys[0]]
    result = np.float64(advantages).reshape(-1).copy()
    result[covered] = own
    result[keys[0][is_own]] += sums[is_own]
    is_label = ~is_own & (sums != 0)
    labels = Labels(keys[0][is_label], keys[1][is_label], sums[is_label])
    return result.reshape(advantages.shape).astype(np.float32), labels
