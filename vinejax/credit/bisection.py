"""Bisection: look for the steps that changed the value, and sample nowhere else.

Values are drawn at the first state; the solution's end has its reward. A span between two states
with values is halved, at the state in its middle, as long as the values at its ends differ by more
than `values.threshold` standard errors: at most log2 of the states, rounded up, and one waves.
States that were never sampled lie on the straight line between their neighbours (see
`estimate.py`): each step of a span that was not halved gets an equal part of what the span gained.

Biased: a difference within the error is spread over the span instead of being found, and whether a
span is halved depends on the returns that its advantages come from. OmegaPRM
(https://arxiv.org/abs/2406.06592) searches the first error of a solution so; no paper describes
it as an estimator of advantages.
"""

import math

from vinejax.core.settings import ValuesConfig
from vinejax.credit.allocation import Seen


def bisection(wave: int, seen: Seen, values: ValuesConfig) -> list[int] | None:
    """Up to K = `values.k` returns at the first state and in the middle of spans to be halved."""
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
    """Whether state c has its returns; else those that it lacks are requested."""
    requests[c] = max(0, values.k - len(seen.returns[c]))
    return not requests[c]


def _differ(low: int, high: int, seen: Seen, values: ValuesConfig) -> bool:
    """Whether two states differ by more than the threshold, in standard errors.

    d = U_high - U_low with U the rewards before a state plus its value; its error has the variance
    of both states' returns together, in which one return of 0 and one of 1 count as well: so few
    returns that are all equal do not look certain. The solution's end has no error of its own.
    """
    at_low, at_high = seen.totals(low), seen.totals(high)
    is_end = high == len(seen.returns)
    difference = sum(at_high) / len(at_high) - sum(at_low) / len(at_low)
    pooled = [0.0, 1.0, *at_low, *([] if is_end else at_high)]
    mean = sum(pooled) / len(pooled)
    variance = sum((x - mean) ** 2 for x in pooled) / len(pooled)
    draws = 1 / len(at_low) + (0 if is_end else 1 / len(at_high))
    return abs(difference) > values.threshold * math.sqrt(variance * draws)
