"""The coefficients of labels: which token, after one state, earns how much credit.

At position t of a solution let y_t be its token and s_t the tokens before. M_t are the m samples of
the policy that pass through s_t token by token; sample k draws the next token b_k, and has the
return R_k from s_t. The update of the solution computes π(·|s_t), so all m + 1 tokens can be
trained on at the cost of one. Estimators of the position's part of the policy gradient are

    group:  1/(m+1)·Σ_i (X_i - mean of the other X)·∇log π(token_i | s_t)
            i: the solution and M_t    X: Q_t for the solution, R_k for sample k
    mixed:  w·A_t·∇log π(y_t | s_t) + (1 - w)/m·Σ_k (R_k - B_k)·∇log π(b_k | s_t)
            B_k: mean of the other returns of M_t; Q_t for m = 1
    blend:  1/(ρ + m)·(ρ·A_t·∇log π(y_t | s_t) + Σ_k (R_k - B_k)·∇log π(b_k | s_t))
            ρ = w/(1 - w)    B_k = (n·v + Q_t + the sum of the other returns of M_t) / (n + m)
            v: a learned value of the last state before t, counted as n returns; n = 0 for a
            sample that is another solution, because the probe's v contains their mean reward

and A_t·∇log π(y_t | s_t) where m = 0. Q_t and A_t are the outcome and the advantage of the step
that contains t (`by_role.role_advantages`).

Whether a sample passes through s_t is decided before t, and given s_t and M_t the m + 1 tokens are
independent draws of π(·|s_t). Q_t may contain the return of a sample k that has followed the
solution to a later state. There the sample is a new draw, so the mean of Q_t does not depend on
b_k. So all three are unbiased under the conditions of `credit/samples.py`: positions do not look
ahead, and all samples have the same horizon. They are biased with `values.max_states`, after whose
states A_t is 0 where no sample passes. If the solution and all samples draw the same token, the
terms of 'group' cancel.

Source: ours. TRPO's vine procedure, https://arxiv.org/abs/1502.05477, section 5.2, trains on all
actions that it draws at a state.

In shapes, P is the number of positions and N the number of samples at all of them together. The
functions run on the host, in float64.
"""

import numpy as np

LEARNED_RETURNS = 2  # n of 'blend'


def group_coefficients(
    outcomes: np.ndarray, returns: np.ndarray, position: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(f64[P], f64[N]): the coefficients of the own tokens and of the samples' tokens, by 'group'.

    Args:
      outcomes: f64[P] Q_t of each position.
      returns: f64[N] R_k of each sample.
      position: i64[N] the index of each sample's position, 0 to P - 1. Every position must have a
        sample.

    Example: two samples, with returns 0 and 1, at one position of a solution with outcome 1.
      >>> group_coefficients(np.array([1.0]), np.array([0.0, 1.0]), position=np.array([0, 0]))
      (array([0.16666667]), array([-0.33333333,  0.16666667]))
    """
    m = np.bincount(position, minlength=len(outcomes))
    total = outcomes + np.bincount(position, returns, len(outcomes))
    own = (outcomes - (total - outcomes) / m) / (m + 1)
    of_others = (total[position] - returns) / m[position]
    return own, (returns - of_others) / (m[position] + 1)


def mixed_coefficients(
    advantages: np.ndarray,
    outcomes: np.ndarray,
    returns: np.ndarray,
    position: np.ndarray,
    weight: float,
) -> tuple[np.ndarray, np.ndarray]:
    """(f64[P], f64[N]): the coefficients by 'mixed'; further arguments as for `group_coefficients`.

    `advantages`, f64[P], are A_t, and `weight` is w, from 0 to 1.
    """
    m = np.bincount(position, minlength=len(outcomes))[position]
    total = np.bincount(position, returns, len(outcomes))[position]
    of_others = (total - returns) / np.maximum(m - 1, 1)
    baselines = np.where(m > 1, of_others, outcomes[position])
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
    """(f64[P], f64[N]): the coefficients by 'blend'; further arguments as for `mixed_coefficients`.

    `learned`, f64[P], are the learned values v. `is_solution`, bool[N], tells whether a sample is
    another solution. `weight` must be below 1.
    """
    count = np.bincount(position, minlength=len(outcomes))
    total = (outcomes + np.bincount(position, returns, len(outcomes)))[position]
    m, odds = count[position], weight / (1 - weight)
    n = np.where(is_solution, 0, LEARNED_RETURNS)
    baselines = (total - returns + n * learned[position]) / (m + n)
    return odds / (odds + count) * advantages, (returns - baselines) / (odds + m)
