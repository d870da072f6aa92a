"""Bisection: search for the steps that changed the value, and sample only there.

The value of the first state is sampled; the solution's end has the solution's reward. A span
between two states with values is halved at its middle state while the values at its ends differ by
more than `values.threshold` standard errors. For S states that takes at most ⌈log2 S⌉ + 1 waves.
A state that is never sampled lies on the straight line between its sampled neighbours (see
`estimate.py`), so each step of a span that is not halved gets an equal part of the span's gain.

The rule is biased. A difference within the standard error is spread over the span instead of being
located, and the returns decide both whether a span is halved and what its advantages are. OmegaPRM
(https://arxiv.org/abs/2406.06592) searches for the first error of a solution in this way. No paper
describes bisection as an estimator of advantages.
"""

import math

from vinejax.core.settings import ValuesConfig
from vinejax.credit.allocation import Seen


def bisection(wave: int, seen: Seen, values: ValuesConfig) -> list[int] | None:
    """[S] the number of continuations to draw at each state in the next wave; None to stop.

    This number is K minus the number of the state's returns, or 0 if the search does not need the
    state's value yet.
    """
    num_states = len(seen.returns)
    requests = [0] * num_states
    spans = [(0, num_states)] if num_states and _is_known(0, requests, seen, values) else []
    while spans:
        low, high = spans.pop()
        middle = (low + high) // 2
        if middle > low and _differ(low, high, seen, values):
            if _is_known(middle, requests, seen, values):
                spans += [(low, middle), (middle, high)]
    return requests if any(requests) else None


def _is_known(c: int, requests: list[int], seen: Seen, values: ValuesConfig) -> bool:
    """Whether state c has K returns. Also sets `requests[c]` to the number of missing returns."""
    requests[c] = max(0, values.k - len(seen.returns[c]))
    return not requests[c]


def _differ(low: int, high: int, seen: Seen, values: ValuesConfig) -> bool:
    """Whether the values of two states differ by more than the threshold, in standard errors.

    The difference is U_high - U_low, where U is a state's value plus the rewards before the
    state. The standard error comes from the pooled variance of both states' returns, to which one
    return of 0 and one of 1 are added, so that a few equal returns do not count as certain. The
    solution's end has no error.
    """
    at_low, at_high = seen.totals(low), seen.totals(high)
    is_end = high == len(seen.returns)
    difference = sum(at_high) / len(at_high) - sum(at_low) / len(at_low)
    pooled = [0.0, 1.0, *at_low, *([] if is_end else at_high)]
    mean = sum(pooled) / len(pooled)
    variance = sum((x - mean) ** 2 for x in pooled) / len(pooled)
    draws = 1 / len(at_low) + (0 if is_end else 1 / len(at_high))
    return abs(difference) > values.threshold * math.sqrt(variance * draws)
