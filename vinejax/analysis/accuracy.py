"""Accuracy over several samples a problem: pass@k, maj@k and their bootstrap interval.

Letters: P problems, n samples a problem. A sample is correct when its reward is at least 1.0,
whatever else a task gives for partial credit.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

CORRECT = 1.0


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Chance that k of the samples, drawn without replacement, hold a correct one.

        pass@k = 1 - C(n - c, k) / C(n, k)

    The unbiased estimator of Chen et al. 2021 (arXiv 2107.03374, equation 1); with k = n it is
    the reference's `once_hit`.
    """
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"{num_correct} correct of {num_samples} samples")
    if not 1 <= k <= num_samples:
        raise ValueError(f"k = {k} is not in 1..{num_samples}, the samples")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def pass_at_1(rewards: ArrayLike) -> float:
    """Mean over problems of the fraction of correct samples; the reference's `correct_frac`.

    Args:
        rewards: [P, n].
    """
    return float(correct_samples(rewards).mean())


def maj_at_k(rewards: ArrayLike, answers: Sequence[str | None]) -> float:
    """1.0 if the most frequent of one problem's answers is correct, else 0.0.

    Answers are compared as strings; of equally frequent ones the first seen wins, and its first
    occurrence is the one graded. Samples without an answer (None) do not vote, unless no sample
    has one; in the reference's `majority_vote_acc` None votes like any answer.

    Args:
        rewards, answers: [n].
    """
    scores = np.asarray(rewards, np.float64)
    if scores.shape != (len(answers),) or not answers:
        raise ValueError(f"rewards of shape {scores.shape}, {len(answers)} answers")
    votes = Counter(answer for answer in answers if answer is not None)
    winner = votes.most_common(1)[0][0] if votes else None
    return float(scores[answers.index(winner)] >= CORRECT)


def bootstrap_interval(
    per_problem: ArrayLike, seed: int, samples: int = 1000, level: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean over problems, which are drawn with replacement.

    Samples of one problem are not independent, so problems are what is drawn.

    Args:
        per_problem: [P].
    """
    scores = np.asarray(per_problem, np.float64)
    if scores.ndim != 1 or scores.size == 0:
        raise ValueError(f"expected [P] scores, at least one; found shape {scores.shape}")
    rng = np.random.default_rng(seed)
    means = [scores[rng.integers(0, scores.size, scores.size)].mean() for _ in range(samples)]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def accuracy_metrics(
    rewards: ArrayLike, answers: Sequence[Sequence[str | None]], seed: int = 0
) -> dict[str, float]:
    """pass_at_1 with its 95% interval, pass_at_k for every power of two below n and n, maj_at_n.

    Args:
        rewards: [P, n].
        answers: [P][n] extracted answers, None where a response gives none.
        seed: of the bootstrap.
    """
    correct = correct_samples(rewards)
    num_problems, n = correct.shape
    if len(answers) != num_problems:
        raise ValueError(f"rewards of {num_problems} problems, answers of {len(answers)}")
    counts = correct.sum(axis=1)
    low, high = bootstrap_interval(correct.mean(axis=1), seed)
    metrics = {"pass_at_1": pass_at_1(rewards), "pass_at_1_low": low, "pass_at_1_high": high}
    for k in [2**i for i in range(1, n.bit_length()) if 2**i < n] + [n] * (n > 1):
        metrics[f"pass_at_{k}"] = float(np.mean([pass_at_k(n, int(c), k) for c in counts]))
    votes = [maj_at_k(row, list(given)) for row, given in zip(correct, answers, strict=True)]
    metrics[f"maj_at_{n}"] = float(np.mean(votes))
    return metrics


def correct_samples(rewards: ArrayLike) -> np.ndarray:
    """bool[P, n] samples whose reward is at least 1.0; both P and n at least 1."""
    array = np.asarray(rewards, np.float64)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"expected [P, n] rewards, at least one; found shape {array.shape}")
    return array >= CORRECT
