"""Seeds: every random number of a run is derived from its purpose, never from earlier numbers.

The numbers are thus the same after a restart, in another order or batch, and on more hosts.
"""

import hashlib

import numpy as np


def row_seed(
    seed: int, iteration: int, problem: str, rollout: int = 0, state: int = 0, k: int = 0
) -> int:
    """The 64-bit seed of one sampled row, the same on every host, in every process and order.

    `state` is 0 for solution `rollout` of the problem, c + 1 for continuation `k` of its state s_c.
    """
    text = f"{seed}/{iteration}/{problem}/{rollout}/{state}/{k}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def host_rng(seed: int, iteration: int, purpose: str, epoch: int = 0) -> np.random.Generator:
    """Random numbers on the host for one purpose, such as the order of minibatches.

    Their seed is the result of `row_seed` with problem=purpose and rollout=epoch.
    """
    return np.random.default_rng(row_seed(seed, iteration, purpose, rollout=epoch))
