"""The values of all steps of solutions, with standard errors, from the returns at their states."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vinejax.core.shapes import doubled
from vinejax.rl.values import mc_values

Returns = Sequence[float]


class StateEstimate(NamedTuple):
    """The values V(s_0) .. V(s_{C-1}) of one solution."""

    values: np.ndarray  # f32[C]
    is_state: np.ndarray  # bool[C] whether the step begins at one of the S states
    counts: np.ndarray  # i32[C] number of returns in each value; 0: not sampled
    errors: np.ndarray  # f32[C] standard error of each value; 0 where not sampled, NaN if unknown


def estimates(
    returns: Sequence[Sequence[Returns]],
    first: Sequence[int],
    rewards: Sequence[Sequence[float]],
    gamma: float,
    backed_up: Sequence[Sequence[float]] | None = None,
) -> list[StateEstimate]:
    """The values of every solution's states, sampled or not.

    Args:
      returns: [solutions][S] the returns at each of the S states, which begin the steps `first`
        .. `first` + S - 1. A state without returns was not sampled.
      first: [solutions] the step that begins at the first of these states: it is 0, or 1 if the
        prompt's end is no state.
      rewards: [solutions][C] the rewards of steps, of which the last includes the outcome's reward.
      gamma: discount per step.
      backed_up: [solutions][S] values of the sampled states; None: the means of their returns.

    A state that was not sampled lies on the line between its sampled neighbours, or between the
    last sampled state and the end (`interpolated`). Before the first and after the last of the S
    states, values are such that the advantages are 0 (`back_filled`).
    """
    all_returns = [state_returns for solution in returns for state_returns in solution]
    means, errors = mean_values(all_returns), standard_errors(all_returns)
    if backed_up is not None:
        means = np.array([value for solution in backed_up for value in solution], np.float32)
    estimated, start = [], 0
    for solution, offset, step_rewards in zip(returns, first, rewards, strict=True):
        rows = slice(start, start + len(solution))
        start = rows.stop
        counts = np.array([len(state_returns) for state_returns in solution], np.int32)
        num_steps, states = len(step_rewards), slice(offset, offset + len(solution))
        earned = np.cumsum([0.0, *step_rewards])
        at_states = interpolated(means[rows], counts > 0, earned[states], float(earned[-1]))
        values = back_filled(at_states, offset, np.asarray(step_rewards, np.float32), gamma)
        all_counts, all_errors = np.zeros(num_steps, np.int32), np.zeros(num_steps, np.float32)
        all_counts[states], all_errors[states] = counts, errors[rows]
        is_state = np.zeros(num_steps, bool)
        is_state[states] = True
        estimated.append(StateEstimate(values, is_state, all_counts, all_errors))
    return estimated


def mean_values(returns: Sequence[Returns]) -> np.ndarray:
    """f32[S] the mean of each state's returns by `rl.mc_values`, 0 without returns."""
    counts = [len(state_returns) for state_returns in returns]
    largest = max(counts, default=0)
    # Sizes are rounded up, so that changing numbers of states and returns compile few programs.
    width = largest if len(set(counts)) == 1 else doubled(largest)
    shape = (1, doubled(len(returns), least=256))
    padded, used = np.zeros((*shape, width), np.float32), np.zeros(shape, np.int32)
    used[0, : len(counts)] = counts
    for i, state_returns in enumerate(returns):
        padded[0, i, : len(state_returns)] = state_returns
    return np.asarray(mc_values(padded, used))[0, : len(returns)]


def standard_errors(returns: Sequence[Returns]) -> np.ndarray:
    """f32[S] the standard error of each state's mean return, 0 without returns.

        SE = √((Σᵢ (Rᵢ - R̄)² + v) / (m + 1) / m)    v = mean within-state variance of all states

    The m returns of a state are Rᵢ, and R̄ is their mean. v counts as the squared deviation of one
    more return, so that a few equal returns do not count as certain. If no state has two returns,
    nothing tells v, and the errors of sampled states are NaN.
    """
    sums = np.array([len(x) * np.var(x) if x else 0.0 for x in returns])
    counts = np.array([len(x) for x in returns])
    if counts.max(initial=0) == 1:
        return np.where(counts > 0, np.nan, 0.0).astype(np.float32)
    typical = sums.sum() / max(counts.sum(), 1)
    variances = (sums + typical) / (counts + 1) / np.maximum(counts, 1)
    return np.where(counts > 0, np.sqrt(variances), 0.0).astype(np.float32)


def interpolated(
    means: np.ndarray, is_sampled: np.ndarray, earned: np.ndarray, total: float
) -> np.ndarray:
    """f32[S] the `means` of sampled states, and values on straight lines for all other states.

    A line runs between two neighbouring sampled states, or from the last sampled state to the
    solution's end. It is straight in U, which is V plus the rewards before the state. For γ = 1
    each step of a span therefore has the same advantage, and the sum of these advantages is the
    gain of the span.
    """
    anchors = np.append(np.flatnonzero(is_sampled), len(means))
    u = np.append((earned + means)[is_sampled], total)
    line = np.interp(np.arange(len(means)), anchors, u) - earned
    return np.where(is_sampled, means, line.astype(np.float32))


def back_filled(values: np.ndarray, first: int, rewards: np.ndarray, gamma: float) -> np.ndarray:
    """f32[C] `values` at the S steps from `first` on, and computed values at all other steps.

    A computed value V is such that the step's advantage r + γ·V' - V is 0.

    Source: VinePPO's `math_episode_generator_with_mc_advantages.py:667-732`, which does this for
    the steps past its limit `max_states`.
    """
    filled, after = np.zeros(len(rewards), np.float32), np.float32(0)
    # The advantages' own precision and order, so that no rounding error remains in them.
    for c in reversed(range(len(rewards))):
        if first <= c < first + len(values):
            after = filled[c] = values[c - first]
        else:
            after = filled[c] = rewards[c] + np.float32(gamma) * after
    return filled
