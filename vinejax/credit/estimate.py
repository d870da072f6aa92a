"""From the returns at the states of solutions to their values, for all steps, with their errors."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vinejax.core.shapes import doubled
from vinejax.rl.values import mc_values

Returns = Sequence[float]


class StateEstimate(NamedTuple):
    """V(s_0) .. V(s_{C-1}) of one solution."""

    values: np.ndarray  # f32[C]
    is_state: np.ndarray  # bool[C] the step begins at one of the S states
    counts: np.ndarray  # i32[C] returns behind each value; 0: not sampled
    errors: np.ndarray  # f32[C] standard error of each value; 0 where not sampled


def estimates(
    returns: Sequence[Sequence[Returns]],
    first: Sequence[int],
    rewards: Sequence[Sequence[float]],
    gamma: float,
    backed_up: Sequence[Sequence[float]] | None = None,
) -> list[StateEstimate]:
    """The values of every solution's states, sampled or not.

    Args:
      returns: [solutions][S] the returns at each of the S states that may be sampled: steps
        `first` .. `first` + S - 1. Empty: the state was not sampled.
      first: [solutions] the step that begins at the first of these states: 0, or 1 where the
        prompt's end is no state.
      rewards: [solutions][C] of each step, the outcome's with the last.
      gamma: discount a step.
      backed_up: [solutions][S] values of the sampled states; None: the means of their returns.

    A state between two that were sampled, or before the end, lies on the line between them:
    `between`. States before the first and after the last of the S are set such that the advantages
    there are 0: `back_filled`.
    """
    flat = [of_state for of_one in returns for of_state in of_one]
    means, errors = mean_values(flat), standard_errors(flat)
    if backed_up is not None:
        means = np.array([value for of_one in backed_up for value in of_one], np.float32)
    made, start = [], 0
    for of_one, offset, rewards_of in zip(returns, first, rewards, strict=True):
        of = slice(start, start + len(of_one))
        start = of.stop
        counts = np.array([len(of_state) for of_state in of_one], np.int32)
        num_steps, states = len(rewards_of), slice(offset, offset + len(of_one))
        earned = np.cumsum([0.0, *rewards_of])
        drawn = between(means[of], counts > 0, earned[states], float(earned[-1]))
        values = back_filled(drawn, offset, np.asarray(rewards_of, np.float32), gamma)
        all_counts, all_errors = np.zeros(num_steps, np.int32), np.zeros(num_steps, np.float32)
        all_counts[states], all_errors[states] = counts, errors[of]
        is_state = np.zeros(num_steps, bool)
        is_state[states] = True
        made.append(StateEstimate(values, is_state, all_counts, all_errors))
    return made


def mean_values(returns: Sequence[Returns]) -> np.ndarray:
    """f32[S] the mean of each state's returns, 0 where there are none: `rl.mc_values`."""
    counts = [len(of_state) for of_state in returns]
    most = max(counts, default=0)
    # Buckets, so that numbers of states and returns that change compile few programs.
    width = most if len(set(counts)) == 1 else doubled(most)
    shape = (1, doubled(len(returns), least=256))
    padded, used = np.zeros((*shape, width), np.float32), np.zeros(shape, np.int32)
    used[0, : len(counts)] = counts
    for i, of_state in enumerate(returns):
        padded[0, i, : len(of_state)] = of_state
    return np.asarray(mc_values(padded, used))[0, : len(returns)]


def standard_errors(returns: Sequence[Returns]) -> np.ndarray:
    """f32[S] the standard error of each state's mean, 0 where it has no returns.

        SE = √((Σᵢ (Rᵢ - R̄)² + v) / (m + 1) / m)    v = mean within-state variance of all states

    v counts as one more return: few returns that are all equal do not look certain.
    """
    sums = np.array([len(x) * np.var(x) if x else 0.0 for x in returns])
    counts = np.array([len(x) for x in returns])
    typical = sums.sum() / max(counts.sum(), 1)
    variances = (sums + typical) / (counts + 1) / np.maximum(counts, 1)
    return np.where(counts > 0, np.sqrt(variances), 0.0).astype(np.float32)


def between(
    means: np.ndarray, is_sampled: np.ndarray, earned: np.ndarray, total: float
) -> np.ndarray:
    """f32[S] `means`, and where none was sampled the line between sampled states and the end.

    The line is that of U = rewards before the state + V, so each step of the span has the same
    advantage (for γ = 1), and all of them together what the span gained.
    """
    known = np.append(np.flatnonzero(is_sampled), len(means))
    u = np.append((earned + means)[is_sampled], total)
    line = np.interp(np.arange(len(means)), known, u) - earned
    return np.where(is_sampled, means, line.astype(np.float32))


def back_filled(values: np.ndarray, first: int, rewards: np.ndarray, gamma: float) -> np.ndarray:
    """f32[C] `values` for the steps from `first` on, the rest such that r + γ·V' - V = 0.

    Source: VinePPO's `math_episode_generator_with_mc_advantages.py:667-732`, past `max_states`.
    """
    filled, after = np.zeros(len(rewards), np.float32), np.float32(0)
    # In the advantages' own precision and order, or rounding would leave something of them.
    for c in reversed(range(len(rewards))):
        if first <= c < first + len(values):
            after = filled[c] = values[c - first]
        else:
            after = filled[c] = rewards[c] + np.float32(gamma) * after
    return filled
