"""Seeds: every random number of a run is derived from what it is for, never from what came before.

So that a restart, another order, another batch or another number of hosts draws the same numbers.
"""

import hashlib

import numpy as np


def row_seed(
    seed: int, iteration: int, problem: str, rollout: int = 0, state: int = 0, k: int = 0
) -> int:
    """Stable 64-bit seed of one sampled row, the same on every host, in every process and order.

    `state` 0 is a solution of the problem, c + 1 the continuations of its state s_c.
    """
    text = f"{seed}/{iteration}/{problem}/{rollout}/{state}/{k}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def host_rng(seed: int, iteration: int, purpose: str, epoch: int = 0) -> np.random.Generator:
    """The host's own random numbers for one purpose, such as the order of minibatches.

    A purpose takes the place that a problem's id has in `row_seed`.
    """
    return np.random.default_rng(row_seed(seed, iteration, purpose, rollout=epoch))
