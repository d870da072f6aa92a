"""TreeRL: trees fork at surprising tokens, and a node earns its value plus its gain.

    A = V(node) + δ    δ = V(node) - V(parent), or the parent's δ where that is 0
    V = Σ (r - mean of the others' r) / (N·√N) over the node's N solutions

Source: https://arxiv.org/abs/2506.11902; THUDM/TreeRL at f0edbea;
`equations.tree_values.treerl_rewards`.

Departs: all leaves are trained on; the code trains on 16 of 30. The loss is a mean over tokens; the
code's is one per response. The code's ε_high is 0.26, and its over-long or repeating text earns -1.
"""

from collections.abc import Sequence

import numpy as np

from vinejax.contrib.methods.equations.tree_values import treerl_rewards
from vinejax.contrib.methods.sampling.tree_paths import Shoot, TreePath, trees
from vinejax.contrib.methods.settings import TreeRLConfig
from vinejax.contrib.methods.trees import by_problem, per_node, tree_solutions
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit
from vinejax.methods.base import OF_RETURNS, Method


def surprising_tokens(
    wave: int, paths: Sequence[TreePath], cfg: Config, rng: np.random.Generator
) -> list[Shoot]:
    """In waves 1 to L, plans T branches at each of a tree's N least likely tokens (EPTree).

    A branch draws a new token in place of the unlikely one, and goes on from there. A token
    is replaced in one wave only. Wave 0 begins each of the `rollout.per_prompt` trees with one
    solution. N, T and L are `treerl.forks`, `branches` and `rounds`.

    Here the first token of a path is never replaced; the authors' code may replace it. The authors'
    code replaces no token near the length limit or after words that announce a conclusion.
    """
    settings = TreeRLConfig.of(cfg)
    if wave == 0:
        return [Shoot(None, 0, cfg.rollout.per_prompt)]
    if wave > settings.rounds:
        return []
    shoots, branched = [], {(path.parent, path.start) for path in paths}
    for tree in trees(paths):
        places = [
            (paths[i].logprobs[t], i, t)
            for i in tree
            for t in range(paths[i].start + 1, len(paths[i].tokens))
            if (i, t) not in branched
        ]
        for _, i, t in sorted(places)[: settings.forks]:
            shoots.append(Shoot(i, t, settings.branches))
    return shoots


def value_and_gain(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring."""
    by_node = []
    for paths, rewards in by_problem(rollout.episodes):
        by_node += treerl_rewards(paths, rewards)
    return per_node(rollout, by_node)


METHOD = Method(
    value_and_gain,
    sample=tree_solutions(surprising_tokens),
    settings=TreeRLConfig,
    ignores=OF_RETURNS,
    flags={"trees"},
)
