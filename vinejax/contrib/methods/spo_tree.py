"""SPO-tree: solutions are leaves of a tree of segments, and a segment earns what it adds to V.

    A(node) = V(node) - V(parent)    V: mean over the children, for a leaf its r

Source: https://arxiv.org/abs/2505.23564; equations in `contrib/methods/equations/tree_values.py`.

Departs: earlier nodes are not replayed; for KL, epochs and whitening see `spo_chain`.
"""

from collections.abc import Sequence

import numpy as np

from vinejax.contrib.methods.equations.tree_values import (
    edge_advantages,
    is_informative_edge,
)
from vinejax.contrib.methods.sampling.tree_paths import Shoot, TreePath, open_ends
from vinejax.contrib.methods.settings import SPOTreeConfig
from vinejax.contrib.methods.trees import by_problem, per_node, tree_solutions
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit
from vinejax.methods.base import OF_RETURNS, Method


def levels(
    wave: int, paths: Sequence[TreePath], cfg: Config, rng: np.random.Generator
) -> list[Shoot]:
    """Plans level l = `wave`: b_l branches at the end of each segment of level l - 1.

    Level 0 begins at the prompt, and b is `spo_tree.branching`. A segment has `spo_tree.segment`
    tokens, except for segments of the last level, which go on to the end of the solution. A segment
    in which the solution ends gets no branches.
    """
    settings = SPOTreeConfig.of(cfg)
    branching = settings.branching
    if wave >= len(branching):
        return []
    budget = settings.segment if wave + 1 < len(branching) else None
    if wave == 0:
        return [Shoot(None, 0, branching[0], budget)]
    return [Shoot(i, len(paths[i].tokens), branching[wave], budget) for i in open_ends(paths)]


def node_differences(rollout: Rollout, cfg: Config) -> Credit:
    """The advantage V(node) - V(parent) of each node, normalised as `spo_tree.normalise` says.

    With `spo_tree.drop` the mask leaves out nodes that do not change the value.
    """
    settings = SPOTreeConfig.of(cfg)
    by_node, is_kept = [], []
    for paths, rewards in by_problem(rollout.episodes):
        by_node += edge_advantages(paths, rewards, settings.normalise)
        is_kept += is_informative_edge(paths, rewards)
    credit = per_node(rollout, by_node)
    if not settings.drop:
        return credit
    kept = per_node(rollout, is_kept)
    return credit._replace(mask=np.asarray(kept.advantages) > 0)


METHOD = Method(
    node_differences,
    sample=tree_solutions(levels, once=True),
    settings=SPOTreeConfig,
    ignores=OF_RETURNS,
    defaults={"ppo.whiten": "iteration", "credit.mask": "low_probability"},
    flags={"trees"},
)
