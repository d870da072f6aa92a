"""Credit on trees: the advantage of every node, from the rewards of the leaves.

One function per method that samples trees, and TEMPO's, whose tree is the one that the tokens of a
problem's solutions make. The mathematics is in `rl/tree_values.py` and `rl/shared_starts.py`.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Episode
from vinejax.credit.advantages import Credit, group_numbers, per_solution, solution_rewards
from vinejax.learner.batch import Rollout
from vinejax.rl.advantages import group_advantages, token_advantages
from vinejax.rl.shared_starts import ancestor_advantages, fork_differences, two_level_advantages
from vinejax.rl.tree_values import (
    edge_advantages,
    edge_progress,
    is_informative_edge,
    treerl_rewards,
)


def spo_tree(rollout: Rollout, cfg: Config) -> Credit:
    """SPO-tree: V(node) - V(its parent), and with `credit.progress` a prover's progress.

    With `spo_tree.drop` nodes that do not change the value are not trained on.
    """
    by_node, is_kept = [], []
    for paths, rewards in _trees(rollout.episodes):
        advantages = edge_advantages(paths, rewards, cfg.spo_tree.normalise)
        progress = edge_progress(paths, rewards, cfg.credit.prover)
        is_kept += is_informative_edge(paths, rewards)
        by_node += [
            [a + cfg.credit.progress * b for a, b in zip(*pair, strict=True)]
            for pair in zip(advantages, progress, strict=True)
        ]
    credit = _by_node(rollout, by_node)
    if not cfg.spo_tree.drop:
        return credit
    kept = _by_node(rollout, is_kept)
    return credit._replace(mask=np.asarray(kept.advantages) > 0)


def treepo(rollout: Rollout, cfg: Config) -> Credit:
    """TreePO: a leaf against those that share its first nodes, averaged over all depths."""
    by_leaf = [
        ancestor_advantages(paths, rewards, cfg.treepo.weighting)
        for paths, rewards in _trees(rollout.episodes)
    ]
    return per_solution(rollout, np.concatenate(by_leaf))


def treerl(rollout: Rollout, cfg: Config) -> Credit:
    """TreeRL: the value of every node, and what it gained over its parent's."""
    by_node = []
    for paths, rewards in _trees(rollout.episodes):
        by_node += treerl_rewards(paths, rewards)
    return _by_node(rollout, by_node)


def tree_grpo(rollout: Rollout, cfg: Config) -> Credit:
    """Tree-GRPO: a leaf's reward, standardised in its tree and among all leaves of the problem."""
    by_leaf = [
        two_level_advantages(rewards, [path[0] for path in paths])
        for paths, rewards in _trees(rollout.episodes)
    ]
    return per_solution(rollout, np.concatenate(by_leaf))


def tempo(rollout: Rollout, cfg: Config) -> Credit:
    """TEMPO: (r - mean r + V(s_{t+1}) - V(s_t)) / (std r + 1e-8) of token t, by token prefixes."""
    episodes, mask = rollout.episodes, rollout.batch.mask
    rewards, groups = solution_rewards(episodes), group_numbers(episodes)
    outcomes = np.asarray(group_advantages(rewards, groups, "grpo"))
    advantages = np.zeros(mask.shape, np.float32)
    for group in range(groups.max() + 1):
        rows = np.flatnonzero(groups == group)
        scale = rewards[rows].std() + 1e-8
        responses = [episodes[row].response for row in rows]
        differences = fork_differences(responses, rewards[rows].tolist())
        for row, of_tokens in zip(rows, differences, strict=True):
            drawn = np.array(of_tokens[episodes[row].given :], np.float32)
            advantages[row, mask[row]] = outcomes[row] + drawn / scale
    return Credit(advantages)


def _trees(episodes: Sequence[Episode]) -> Iterator[tuple[list[list[int]], list[float]]]:
    """(the nodes of every leaf, their rewards) of one problem after another, in order."""
    by_problem: dict[str, list[int]] = {}
    for i, episode in enumerate(episodes):
        by_problem.setdefault(episode.problem_id, []).append(i)
    rewards = solution_rewards(list(episodes)).tolist()
    for leaves in by_problem.values():
        yield [episodes[i].nodes or [] for i in leaves], [rewards[i] for i in leaves]


def _by_node(rollout: Rollout, by_node: Sequence[Sequence[float]]) -> Credit:
    """The credit of advantages for the nodes of every leaf, of which the last are its steps."""
    by_step = np.zeros(rollout.steps.rewards.shape, np.float32)
    for row, (episode, of_leaf) in enumerate(zip(rollout.episodes, by_node, strict=True)):
        steps = len(episode.step_ends)
        by_step[row, :steps] = of_leaf[len(of_leaf) - steps :]
    return Credit(token_advantages(by_step, rollout.steps.step_ids), by_step=by_step)
