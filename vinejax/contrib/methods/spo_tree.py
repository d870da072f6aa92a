"""SPO-tree: solutions are leaves of a tree of segments; a segment is worth what it adds to V.

    A(node) = V(node) - V(parent)    V: mean of the children's, of a leaf its r

Source: https://arxiv.org/abs/2505.23564; equations in `contrib/methods/equations/tree_values.py`.

Departs: no replay of earlier nodes; KL, epochs and whitening as `spo_chain` says.
"""

from collections.abc import Sequence

import numpy as np

from vinejax.contrib.methods.equations.tree_values import (
    edge_advantages,
    is_informative_edge,
)
from vinejax.contrib.methods.sampling.tree_paths import Path, Shoot, open_ends
from vinejax.contrib.methods.settings import SPOTreeConfig
from vinejax.contrib.methods.trees import by_problem, per_node, tree_solutions
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit
from vinejax.methods.base import Method


def levels(wave: int, paths: Sequence[Path], cfg: Config, rng: np.random.Generator) -> list[Shoot]:
    """b_0 branches at the prompt, b_l at the end of every segment of level l - 1.

    Segments have `spo_tree.segment` tokens, those of the last level go on to the end. b is
    `spo_tree.branching`.
    """
    own = SPOTreeConfig.of(cfg)
    branching = own.branching
    if wave >= len(branching):
        return []
    budget = own.segment if wave + 1 < len(branching) else None
    if wave == 0:
        return [Shoot(None, 0, branching[0], budget)]
    return [Shoot(i, len(paths[i].tokens), branching[wave], budget) for i in open_ends(paths)]


def node_differences(rollout: Rollout, cfg: Config) -> Credit:
    """V(node) - V(its parent).

    With `spo_tree.drop` nodes that do not change the value are not trained on.
    """
    own = SPOTreeConfig.of(cfg)
    by_node, is_kept = [], []
    for paths, rewards in by_problem(rollout.episodes):
        by_node += edge_advantages(paths, rewards, own.normalise)
        is_kept += is_informative_edge(paths, rewards)
    credit = per_node(rollout, by_node)
    if not own.drop:
        return credit
    kept = per_node(rollout, is_kept)
    return credit._replace(mask=np.asarray(kept.advantages) > 0)


METHOD = Method(
    node_differences,
    sample=tree_solutions(levels, once=True),
    settings=SPOTreeConfig,
    reads=("credit",),
    ignores=("credit.lambda_", "credit.baseline_lambda"),
    defaults={"ppo.whiten": "iteration", "credit.mask": "low_probability"},
    flags={"trees"},
)
