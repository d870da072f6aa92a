"""The worth of a credit: a squared correlation of estimated and true advantages of steps.

    worth = E[Â·A]² / (E[Â²]·E[A²])    where E is the mean over all steps of the solutions

A is the true advantage of a step, and Â is the mean of the credit over the step's tokens. The worth
is the square of their uncentred correlation. If the gradients of steps are independent, one batch
with a credit of worth x has the same signal-to-noise ratio as x batches with exact credit.
"""

from typing import NamedTuple

import numpy as np

from vinejax.core.types import Episode, StepLayout
from vinejax.credit.assign import means_of_steps
from vinejax.rl.advantages import step_advantages
from vinejax.tools.bench.intervals import Bootstrap, Measure


class TrueSteps(NamedTuple):
    """True advantages of S steps of solutions, estimated by many continuations of each state."""

    advantages: np.ndarray  # f64[S]
    variances: np.ndarray  # f64[S] variances of the errors of `advantages`
    problems: list[str]  # [S] ids of the steps' problems


def true_steps(steps: StepLayout, episodes: list[Episode], gamma: float) -> TrueSteps:
    """The true advantages of all steps of `episodes`, from values by many continuations."""
    advantages = step_advantages(steps.values, steps.rewards, steps.num_steps, gamma)
    is_step = steps.is_step
    errors = np.zeros((*is_step.shape[:1], is_step.shape[1] + 1))
    for row, episode in enumerate(episodes):
        errors[row, : len(episode.step_ends)] = episode.value_errors
    variances = errors[:, :-1] ** 2 + gamma**2 * errors[:, 1:] ** 2
    names = [episode.problem_id for episode in episodes for _ in episode.step_ends]
    return TrueSteps(np.asarray(advantages, np.float64)[is_step], variances[is_step], names)


def joined(parts: list[TrueSteps]) -> TrueSteps | None:
    """The steps of all `parts` together; None if `parts` is empty."""
    if not parts:
        return None
    advantages, variances, problems = zip(*parts, strict=True)
    flat = [name for names in problems for name in names]
    return TrueSteps(np.concatenate(advantages), np.concatenate(variances), flat)


def credit_of_steps(advantages: np.ndarray, steps: StepLayout) -> np.ndarray:
    """f64[S]: the mean of the advantages f32[B, T] over the tokens of each step."""
    return means_of_steps(advantages, steps)[steps.is_step].astype(np.float64)


def worth_of(credit: np.ndarray, truth: TrueSteps) -> Measure:
    """The worth of credit f64[S], with an interval over problems.

    The mean of A² is corrected for the variance of the errors of the estimated A.
    """
    product, square = credit * truth.advantages, credit**2
    signal = truth.advantages**2 - truth.variances

    def statistic(count: np.ndarray) -> float | None:
        below = np.dot(count, square) * np.dot(count, signal)
        return float(np.dot(count, product) ** 2 / below) if below > 0 else None

    return Bootstrap(truth.problems).measure(statistic)
