"""Advantages of solutions over other solutions that begin with the same tokens.

The letters L and D, and the way in which leaves describe a tree, are those of `tree_values.py`. Two
solutions with a long common beginning are good baselines for each other, because the difference of
their rewards is due to the text after the fork.
"""

import math
from collections.abc import Sequence

import numpy as np

from vinejax.contrib.methods.equations.tree_values import Node, exact_mean, exact_std, numbers_under


def ancestor_advantages(
    paths: Sequence[Sequence[int]], rewards: Sequence[float], weighting: str = "average"
) -> np.ndarray:
    """Advantage of every leaf over the leaves that share its ancestors, as a mean over depths d.

        G_d = {j : leaves i and j share their first d nodes}    d = 0 .. D - 1
        a_d = r_i - mean of r over G_d    (0 instead of the mean if |G_d| = 1)
        average:     A_i = mean of a_d over the d that count
        group_size:  A_i = Σ_d |G_d|·a_d / Σ_d |G_d| over the d that count

    A depth d counts if d = 0 or |G_d| > 1. For a leaf at depth n no d >= n counts, because a
    leaf shares its last node with no other leaf. If there is only one leaf, A = r.

    Args:
      paths: [L] node numbers of each leaf, from below the root.
      rewards: [L], one per leaf.
      weighting: 'average', as in TreePO's released script, or 'group_size', its code's default.

    Returns:
      float32 [L], not whitened.

    Raises:
      ValueError: for any other `weighting`, and where `tree_values.node_values` raises it.

    Source: TreePO, https://arxiv.org/abs/2508.17445; multimodal-art-projection/TreePO at f055523.
    """
    if weighting not in ("average", "group_size"):
        raise ValueError(f"unknown weighting {weighting!r}: use 'average' or 'group_size'")
    groups = numbers_under(paths, rewards)
    means = {node: exact_mean(group) if len(group) > 1 else 0.0 for node, group in groups.items()}
    advantages = np.zeros(len(paths), np.float32)
    for i, (path, reward) in enumerate(zip(paths, rewards, strict=True)):
        ancestors: list[Node] = [None, *(node for node in path if len(groups[node]) > 1)]
        weights = [1 if weighting == "average" else len(groups[node]) for node in ancestors]
        terms = [
            weight * (reward - means[node]) for weight, node in zip(weights, ancestors, strict=True)
        ]
        advantages[i] = math.fsum(terms) / sum(weights)
    return advantages


def two_level_advantages(rewards: Sequence[float], trees: Sequence[int]) -> np.ndarray:
    """The sum of each leaf's advantage within its tree and among all leaves of the prompt.

        A_i = z(r_i in its tree) + z(r_i in the prompt)    z = (r - mean) / (std + 1e-6)

    The std is that of the sample, which a group of one leaf does not have. In such a group, 0 takes
    the place of the mean and 1 that of the std, so that z = r / (1 + 1e-6).

    Args:
      rewards: [L], one per leaf.
      trees: int [L], the number of each leaf's tree.

    Returns:
      float32 [L]. z is exactly 0 in groups of two or more whose rewards are all equal.

    Raises:
      ValueError: if there are not L entries in `trees`.

    Source: Tree-GRPO, https://arxiv.org/abs/2509.21240; AMAP-ML/Tree-GRPO at 90b1709.
    """
    in_tree = _standardised(rewards, trees)
    in_prompt = _standardised(rewards, [0] * len(rewards))
    return np.asarray(in_tree + in_prompt, np.float32)


def _standardised(rewards: Sequence[float], groups: Sequence[int]) -> np.ndarray:
    """The standardised reward z, f64[L]; `two_level_advantages` defines it for each group."""
    members: dict[int, list[float]] = {}
    for reward, group in zip(rewards, groups, strict=True):
        members.setdefault(group, []).append(reward)
    moments = {
        group: (exact_mean(of_group), exact_std(of_group, ddof=1))
        if len(of_group) > 1
        else (0.0, 1.0)
        for group, of_group in members.items()
    }
    z = np.zeros(len(rewards))
    for i, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        mean, std = moments[group]
        z[i] = (reward - mean) / (std + 1e-6)
    return z


def fork_differences(
    responses: Sequence[Sequence[int]], rewards: Sequence[float]
) -> list[list[float]]:
    """Temporal difference of the value at every token, in the prefix tree of a problem's solutions.

        δ_t = V(s_{t+1}) - V(s_t)    V(s) = mean reward of the solutions that begin with s

    s_t is the first t tokens of a solution, and s_0 the prompt alone. δ_t is exactly 0 where all
    solutions that begin with s_t have the same next token. Over the n tokens of a solution, δ adds
    up to V(s_n) - V(s_0). V(s_n) is a mean over the solution itself, equal solutions, and longer
    solutions that begin with it.

    Args:
      responses: [L] token ids of each solution.
      rewards: [L], one per solution.

    Returns:
      [L] lists, each with one number per token.

    Raises:
      ValueError: if there are not L rewards.

    Source: TEMPO, https://arxiv.org/abs/2509.18314, and fatebreaker/tempo at 0a1c273, whose
    advantage adds δ to a term that compares whole solutions. V(s_t) includes the solution's own
    reward.
    """
    if len(rewards) != len(responses):
        raise ValueError(f"{len(responses)} responses have {len(rewards)} rewards: give one each")
    differences: list[list[float]] = [[] for _ in responses]
    # Pairs (solutions with the same first t tokens, V(s_t)); empty once all solutions have ended.
    groups = [(list(range(len(responses))), exact_mean(rewards))] if responses else []
    t = 0
    while groups:
        longer: list[tuple[list[int], float]] = []
        for members, value in groups:
            by_token: dict[int, list[int]] = {}
            for i in members:
                if t < len(responses[i]):
                    by_token.setdefault(responses[i][t], []).append(i)
            for followers in by_token.values():
                value_after = exact_mean([rewards[i] for i in followers])
                for i in followers:
                    differences[i].append(value_after - value)
                longer.append((followers, value_after))
        groups = longer
        t += 1
    return differences
