"""Accuracy over several samples per problem: pass@k, maj@k, and their bootstrap intervals.

Letters: P problems, n samples per problem. A sample is correct if its reward is at least
`types.CORRECT_REWARD`. Lower rewards are partial credit and count as wrong.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from vinejax.core.types import CORRECT_REWARD
from vinejax.statistics.bootstrap import LEVEL, percentile_interval, resampled


class PairedDifference(NamedTuple):
    """The difference of pass@1 between two runs on the same problems, and its interval."""

    difference: float
    low: float
    high: float


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Probability that k of n samples, drawn without replacement, include one of c correct ones.

        pass@k = 1 - C(n - c, k) / C(n, k)

    The unbiased estimator of Chen et al. 2021 (arXiv 2107.03374, equation 1); with k = n it is
    `once_hit` of VinePPO's code. Raises ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"{num_correct} correct of {num_samples} samples")
    if not 1 <= k <= num_samples:
        raise ValueError(f"k = {k} is not in 1..{num_samples}, the samples")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def pass_at_1(rewards: ArrayLike) -> float:
    """Mean share of correct samples, from rewards [P, n]; `correct_frac` of VinePPO's code."""
    return float(correct_samples(rewards).mean())


def maj_at_k(rewards: ArrayLike, answers: Sequence[str | None]) -> float:
    """1.0 if the most frequent answer to one problem is correct, else 0.0.

    Answers are compared as strings. Among equally frequent answers the first seen wins. An answer
    is correct if the first sample with this answer is correct. Samples without an answer (None) do
    not vote, unless no sample has an answer. In `majority_vote_acc` of VinePPO's code None votes
    like any answer. Rewards and answers are [n], with n at least 1. Raises ValueError for other
    shapes.
    """
    scores = np.asarray(rewards, np.float64)
    if scores.shape != (len(answers),) or not answers:
        raise ValueError(f"rewards of shape {scores.shape}, {len(answers)} answers")
    votes = Counter(answer for answer in answers if answer is not None)
    winner = votes.most_common(1)[0][0] if votes else None
    return float(scores[answers.index(winner)] >= CORRECT_REWARD)


def bootstrap_interval(
    per_problem: ArrayLike, seed: int, samples: int = 1000, level: float = LEVEL
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean over problems, which are drawn with replacement.

    `per_problem` is [P], with P at least 1. The bootstrap draws problems and not samples, because
    the samples of one problem are not independent. The draws depend on `seed` and P alone, so that
    they are the same for all measures of one evaluation. Raises ValueError for other shapes.
    """
    scores = np.asarray(per_problem, np.float64)
    if scores.ndim != 1 or scores.size == 0:
        raise ValueError(f"expected [P] scores, at least one; found shape {scores.shape}")
    rows = resampled(np.random.default_rng(seed), scores.size, samples)
    return percentile_interval([scores[row].mean() for row in rows], level)


def paired_interval(
    rewards_a: Mapping[str, Sequence[float]],
    rewards_b: Mapping[str, Sequence[float]],
    seed: int = 0,
    samples: int = 1000,
) -> PairedDifference:
    """pass@1 of run a minus pass@1 of run b on the same problems, with its bootstrap interval.

    Each draw takes the same problems of both runs, so that the difficulty of a problem cancels out.
    The interval is therefore narrower than the intervals of the two runs suggest. Both arguments
    map a problem's id to the rewards of its samples. Runs may differ in numbers of samples.

    Raises ValueError if the runs have different problems or none, or a problem lacks samples.
    """
    if unpaired := sorted(rewards_a.keys() ^ rewards_b.keys()):
        message = f"only one of the runs has {len(unpaired)} problems, such as {unpaired[0]}"
        raise ValueError(message)
    differences = [
        pass_at_1([rewards_a[problem]]) - pass_at_1([rewards_b[problem]]) for problem in rewards_a
    ]
    low, high = bootstrap_interval(differences, seed, samples)
    return PairedDifference(float(np.mean(differences)), low, high)


def accuracy_metrics(
    rewards: ArrayLike, answers: Sequence[Sequence[str | None]], seed: int = 0
) -> dict[str, float]:
    """pass_at_k for every power of two below n and for n, and maj_at_n if any sample has an answer.

    Each metric comes with the ends of its 95% bootstrap interval, as `<name>_low` and
    `<name>_high`; `seed` is that of the bootstrap. Rewards are [P, n], extracted answers [P][n],
    with None for a response without an answer. Raises ValueError if the shapes do not fit, or P or
    n is 0.
    """
    correct = correct_samples(rewards)
    num_problems, n = correct.shape
    if len(answers) != num_problems:
        raise ValueError(f"rewards of {num_problems} problems, answers of {len(answers)}")
    counts = correct.sum(axis=1)
    per_problem: dict[str, np.ndarray | list[float]] = {"pass_at_1": correct.mean(axis=1)}
    for k in [2**i for i in range(1, n.bit_length()) if 2**i < n] + [n] * (n > 1):
        per_problem[f"pass_at_{k}"] = [pass_at_k(n, int(count), k) for count in counts]
    if any(answer is not None for texts in answers for answer in texts):
        votes = [maj_at_k(row, list(texts)) for row, texts in zip(correct, answers, strict=True)]
        per_problem[f"maj_at_{n}"] = votes
    metrics = {}
    for name, scores in per_problem.items():
        low, high = bootstrap_interval(scores, seed)
        metrics |= {name: float(np.mean(scores)), f"{name}_low": low, f"{name}_high": high}
    return metrics | {"pass_at_1": pass_at_1(rewards)}


def correct_samples(rewards: ArrayLike) -> np.ndarray:
    """bool[P, n] whether each sample is correct; ValueError unless P and n are at least 1."""
    array = np.asarray(rewards, np.float64)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"expected [P, n] rewards, at least one; found shape {array.shape}")
    return array >= CORRECT_REWARD
