"""Tree-GRPO: a leaf's reward, standardised in its tree and among all leaves of the problem.

    A = z(r in its tree) + z(r in the problem)    z = (r - mean) / (std + 1e-6)

Source: https://arxiv.org/abs/2509.21240, whose steps are the turns of an agent; AMAP-ML/Tree-GRPO
at 90b1709; `equations.shared_starts.two_level_advantages`.

Departs: there is no dual clip of 3; the KL's weight is `kl.coef`; in the code it is 0.001.
"""

from collections.abc import Sequence

import numpy as np

from vinejax.contrib.methods.equations.shared_starts import two_level_advantages
from vinejax.contrib.methods.sampling.tree_paths import Shoot, TreePath, trees
from vinejax.contrib.methods.settings import TreeGRPOConfig
from vinejax.contrib.methods.trees import by_problem, tree_solutions
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, per_solution
from vinejax.methods.base import OF_RETURNS, Method


def random_steps(
    wave: int, paths: Sequence[TreePath], cfg: Config, rng: np.random.Generator
) -> list[Shoot]:
    """In waves 1 to L, plans k branches at each of N random step ends of each tree.

    Wave 0 begins each of the `rollout.per_prompt` trees with one solution. N, k and L are
    `tree_grpo.forks`, `branches` and `rounds`.
    """
    settings = TreeGRPOConfig.of(cfg)
    if wave == 0:
        return [Shoot(None, 0, cfg.rollout.per_prompt)]
    if wave > settings.rounds:
        return []
    shoots = []
    for tree in trees(paths):
        places = [
            (i, end)
            for i in tree
            for end in paths[i].step_ends
            if paths[i].start < end < len(paths[i].tokens)
        ]
        for n in rng.permutation(len(places))[: settings.forks]:
            i, end = places[n]
            shoots.append(Shoot(i, end, settings.branches))
    return shoots


def two_level_credit(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring."""
    by_leaf = [
        two_level_advantages(rewards, [path[0] for path in paths])
        for paths, rewards in by_problem(rollout.episodes)
    ]
    return per_solution(rollout, np.concatenate(by_leaf))


METHOD = Method(
    two_level_credit,
    sample=tree_solutions(random_steps),
    settings=TreeGRPOConfig,
    ignores=OF_RETURNS,
    flags={"trees"},
)
