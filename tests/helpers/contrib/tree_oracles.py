"""Trees of solutions as linked objects, as oracles of contributed equations.

These are `tree_values.py` and `shared_starts.py` in `contrib/methods/equations/`.

Slow and plain: every oracle walks the objects, or compares all pairs of leaves.
"""

import dataclasses
import functools
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

REWARDS = [(0.0, 1.0), (0.1, -0.5, 0.25, 1.7), (0.1,)]  # right or wrong, any, all equal


@dataclasses.dataclass(eq=False)
class Node:
    """A node that knows its parent (None at the root); only leaves have a reward."""

    number: int
    parent: "Node | None"
    children: list["Node"] = dataclasses.field(default_factory=list)
    reward: float = np.nan

    def lineage(self) -> list["Node"]:
        """The nodes from the root to this one, both included."""
        return [*(self.parent.lineage() if self.parent else []), self]

    def leaves(self) -> Iterator["Node"]:
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()


class Tree:
    """A tree with the lists that the package wants of it: `paths` and `rewards` of its leaves."""

    def __init__(self, root: Node):
        self.root, self.leaves = root, list(root.leaves())
        self.paths = [[node.number for node in leaf.lineage()[1:]] for leaf in self.leaves]
        self.rewards = [leaf.reward for leaf in self.leaves]


def random_tree(seed: int) -> Tree:
    """Of depth 1 to 5 and up to a few dozen leaves at any depth, some at the end of chains."""
    rng = np.random.default_rng(seed)
    numbers = iter(rng.permutation(10_000).tolist())
    depth = int(rng.integers(1, 6))
    rewards = REWARDS[seed % len(REWARDS)]

    def grow(node: Node, left: int) -> None:
        smallest = 0 if node.parent else 1
        count = int(rng.choice([smallest, 1, 2, 3])) if left else 0
        node.children = [Node(next(numbers), node) for _ in range(count)]
        for child in node.children:
            grow(child, left - 1)
        if not count:
            node.reward = float(rng.choice(rewards))

    root = Node(next(numbers), None)
    grow(root, depth)
    return Tree(root)


@functools.cache
def value(node: Node) -> Fraction:
    """V, without rounding."""
    if not node.children:
        return Fraction(node.reward)
    return sum(map(value, node.children), Fraction()) / len(node.children)


def edge_advantage(node: Node, kind: str) -> float:
    assert node.parent
    difference = float(value(node) - value(node.parent))
    siblings = np.array([float(value(sibling)) for sibling in node.parent.children])
    return difference / {"rloo": 1.0, "grpo": siblings.std() + 1e-8}[kind]


def is_dropped(node: Node, k: int) -> bool:
    """A + BoK(child) - BoK(parent) == 0, the published condition, without rounding."""
    assert node.parent
    child, parent = value(node), value(node.parent)
    best = [1 - (1 - min(max(v, Fraction(0)), Fraction(1))) ** k for v in (child, parent)]
    return child - parent + best[0] - best[1] == 0


def ancestor_advantages(tree: Tree, weighting: str) -> list[float]:
    advantages = []
    rewards = np.array(tree.rewards)
    for path, reward in zip(tree.paths, tree.rewards, strict=True):
        terms, sizes = [], []
        for d in range(max(map(len, tree.paths))):
            shares = np.array([len(p) >= d and p[:d] == path[:d] for p in tree.paths])
            if d > len(path):  # it has no d nodes to share
                shares = np.array([p is path for p in tree.paths])
            if d == 0 or shares.sum() > 1:
                terms.append(reward - (rewards[shares].mean() if shares.sum() > 1 else 0.0))
                sizes.append(shares.sum())
        weights = sizes if weighting == "group_size" else None
        advantages.append(float(np.average(terms, weights=weights)))
    return advantages


def treerl_rewards(tree: Tree) -> list[list[float]]:
    everyone = sum(tree.rewards)
    over_others: dict[Node, float] = {}
    for leaf in tree.leaves:
        num_others = len(tree.leaves) - 1
        mean = (everyone - leaf.reward) / num_others if num_others else leaf.reward
        over_others[leaf] = leaf.reward - mean

    @functools.cache
    def of_node(node: Node) -> float:
        under = list(node.leaves())
        return sum(over_others[leaf] for leaf in under) / len(under) ** 1.5

    def local(node: Node) -> float:
        if node.parent is None:
            return 0.0
        difference = of_node(node) - of_node(node.parent)
        return difference if abs(difference) >= 1e-8 else local(node.parent)

    return [[local(node) + of_node(node) for node in leaf.lineage()[1:]] for leaf in tree.leaves]


def two_level_advantage(rewards: list[float], trees: list[int], i: int) -> float:
    total = 0.0
    in_tree = [r for r, tree in zip(rewards, trees, strict=True) if tree == trees[i]]
    for group in (in_tree, rewards):
        alone = len(group) == 1
        mean, std = (0.0, 1.0) if alone else (np.mean(group), np.std(group, ddof=1))
        total += (rewards[i] - mean) / (std + 1e-6)
    return float(total)


def fork_differences(responses: list[list[int]], rewards: list[float], i: int) -> list[float]:
    def of_prefix(prefix: list[int]) -> float:
        shares = [s[: len(prefix)] == prefix for s in responses]
        return float(np.mean(np.array(rewards)[shares]))

    whole = responses[i]
    return [of_prefix(whole[: t + 1]) - of_prefix(whole[:t]) for t in range(len(whole))]
