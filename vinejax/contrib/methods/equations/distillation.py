"""Distillation of a teacher into the policy, on tokens that the policy drew."""

from typing import NamedTuple

import numpy as np

from vinejax.core.types import Array


class Taught(NamedTuple):
    """What a teacher says of a batch of solutions."""

    logprobs: np.ndarray  # f32[B, T] the teacher's log-probability of each token, in nats
    rows: np.ndarray  # bool[B] solutions that have a teacher


def log_ratios(taught: Taught, logprobs: Array, mask: Array) -> np.ndarray:
    """f32[B, T] the advantages log π_T(y_t) - log π(y_t); 0 outside `mask` and without a teacher.

    `logprobs`, f32[B, T], are those of π, the policy that drew the tokens of `mask`, bool[B, T].

    Let A_t be the result. The mean of A_t·∇log π(y_t) over y_t ~ π is -∇KL(π || π_T) of the two
    distributions of the token after the same text, so a policy gradient with A_t and discount 0
    descends the reverse KL, token by token. In TRL (commit f2cd577) this is
    `MiniLLMTrainer._compute_advantage` with `gamma=0`, in trl/experimental/minillm, and the
    gradient of `compute_sampled_token_self_distillation_loss` in trl/experimental/sdpo. In
    expectation it is that of `GKDTrainer.generalized_jsd_loss` with `beta=1` in
    trl/experimental/gkd, on solutions that the policy drew (`lmbda=1`).
    """
    has_advantage = np.asarray(mask) & taught.rows[:, None]
    return np.where(has_advantage, taught.logprobs - np.asarray(logprobs), np.float32(0))


def mean_reverse_kl(ratios: np.ndarray, mask: Array, rows: np.ndarray) -> float:
    """An unbiased estimate of KL(π || π_T) in nats per token, for the solutions with a teacher.

    `ratios`, f32[B, T], are the result of `log_ratios`. Without any token the result is 0.
    """
    tokens = int((np.asarray(mask) & rows[:, None]).sum())
    return (0.0 - float(ratios.sum(dtype=np.float64))) / max(tokens, 1)
