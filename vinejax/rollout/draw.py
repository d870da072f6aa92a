"""Which problems an iteration samples."""

from collections.abc import Iterator

import numpy as np

from vinejax.core.seeds import host_rng
from vinejax.core.types import PromptedProblem


def draw(
    problems: list[PromptedProblem],
    count: int | None,
    seed: int,
    iteration: int,
    weights: np.ndarray | None = None,
) -> list[PromptedProblem]:
    """`count` distinct problems (None: all of them), in random order.

    The draw depends only on (seed, iteration) and the weights. Problems are distinct as in
    VinePPO's code (on_policy_episode_generator.py:261-270).

    With `weights`, f[problems] and all above 0, the next problem is i with chance w_i / Σ w, the
    sum being over the problems not drawn yet. Each problem gets an exponential time of rate w_i,
    and the earliest times come first (Efraimidis and Spirakis,
    https://doi.org/10.1016/j.ipl.2005.11.003). The time of a problem depends on its own weight
    alone, so rounding errors of the weights hardly ever change the draw.
    """
    rng = host_rng(seed, iteration, "problems")
    if weights is None:
        order = rng.permutation(len(problems))
    else:
        order = np.argsort(rng.exponential(size=len(problems)) / weights, kind="stable")
    return [problems[i] for i in order[:count]]


def chunks(problems: list[PromptedProblem], size: int) -> Iterator[list[PromptedProblem]]:
    """Consecutive parts of `size` problems, so that a split is sampled in batches of one shape."""
    for start in range(0, len(problems), size):
        yield problems[start : start + size]
