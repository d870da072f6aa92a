"""Credit on trees of solutions: the values of nodes, and the differences along edges.

All solutions of a problem are in one tree, whose root is the prompt. `sampling/tree_paths.py` calls
the subtrees below this root the trees of the problem. Two letters have the same meaning here and in
`shared_starts.py`:

    L  leaves: whole solutions, each with one reward
    D  greatest depth of a leaf, in nodes below the root

A tree is described by its leaves. `paths[i]` lists the numbers of the nodes from the child of the
root to the node of leaf i; the root has no number. Numbers are unique within the problem, and
leaves list the same number for a node that they share. An edge goes from a node to its child and
has the child's number, so that `paths[i]` lists the edges to leaf i as well.

The functions take plain numbers on the host and compile nothing. Results do not depend on the
order of the leaves, and equal rewards give differences of exactly 0.
"""

import math
from collections.abc import Sequence

Node = int | None  # a node's number; None is the root
ROUNDING = 1e-8  # largest difference between values that counts as 0


def node_values(paths: Sequence[Sequence[int]], rewards: Sequence[float]) -> dict[Node, float]:
    """The value of every node, computed from the rewards of the leaves.

        V(leaf) = its reward    V(node) = 1/n · Σ_c V(c)    c = 1..n the children of the node

    Every child has the same weight, however many leaves are under it.

    Args:
      paths: [L] node numbers of each leaf, from below the root.
      rewards: [L], one per leaf.

    Returns:
      {node number: V}, with the key None for the root; empty if there are no leaves.

    Raises:
      ValueError: if `paths` is not a tree whose leaves have no children, or if there are not L
        rewards.

    Source: SPO-tree, https://arxiv.org/abs/2505.23564; AIFrameResearch/SPO at b9fc6a2,
    `hybrid_inference_strategy.py`.
    """
    values: dict[Node, float] = {}
    for path, reward in zip(paths, rewards, strict=True):
        values[path[-1] if path else None] = float(reward)
    children = _children(paths)
    # `children` lists a node before its descendants. In reverse, children get their values first.
    for node in reversed(children):
        values[node] = exact_mean([values[child] for child in children[node]])
    return values


def edge_advantages(
    paths: Sequence[Sequence[int]], rewards: Sequence[float], kind: str = "rloo"
) -> list[list[float]]:
    """Advantage of every edge, the value of the child minus the value of its parent.

        rloo:  A = V(child) - V(parent)
        grpo:  A = (V(child) - V(parent)) / (std + 1e-8)    std of V over the parent's children

    The std is that of the population. With 'rloo' the advantages on a leaf's path add up to
    r - V(root).

    Args:
      paths: [L] node numbers of each leaf, from below the root.
      rewards: [L], one per leaf.
      kind: 'rloo' or 'grpo', the names of SPO's code.

    Returns:
      [L] lists, each with one number per node of the leaf's path.

    Raises:
      ValueError: for any other `kind`, and where `node_values` raises it.

    Source: SPO-tree, https://arxiv.org/abs/2505.23564; AIFrameResearch/SPO at b9fc6a2,
    `tree_episode_generator.py`. Despite its name, 'rloo' leaves no child out: V(parent) is the
    mean over all children, including the child at the edge's end.
    """
    if kind not in ("rloo", "grpo"):
        raise ValueError(f"unknown kind {kind!r}: use 'rloo' or 'grpo'")
    values = node_values(paths, rewards)
    scales = dict.fromkeys(values, 1.0)
    if kind == "grpo":
        for node, nodes in _children(paths).items():
            scales[node] = exact_std([values[child] for child in nodes]) + 1e-8
    return [
        [(values[child] - values[parent]) / scales[parent] for parent, child in _edges(path)]
        for path in paths
    ]


def is_informative_edge(
    paths: Sequence[Sequence[int]], rewards: Sequence[float]
) -> list[list[bool]]:
    """Whether each edge changes the value. SPO-tree trains only on edges that change the value.

        A + BoK(V(child)) - BoK(V(parent)) ≠ 0    BoK(v) = 1 - (1 - v)^k,  k = 4

    BoK rises with v, so the left side is 0 exactly where A is 0, for either kind of
    `edge_advantages` and any k. The function therefore computes |V(child) - V(parent)| > 1e-8.

    Args:
      paths: [L] node numbers of each leaf, from below the root.
      rewards: [L], one per leaf.

    Returns:
      [L] lists of bool, each with one entry per node of the leaf's path.

    Raises:
      ValueError: where `node_values` raises it.

    Source: AIFrameResearch/SPO at b9fc6a2, `tree_episode_generator.py`, which by default leaves out
    edges that do not change the value. Its comparison has no tolerance for rounding.
    """
    return [[abs(edge) > ROUNDING for edge in row] for row in edge_advantages(paths, rewards)]


def treerl_rewards(paths: Sequence[Sequence[int]], rewards: Sequence[float]) -> list[list[float]]:
    """The reward of each node's tokens, the node's value plus its gain over the parent's value.

        R_i = r_i - mean_{j≠i} r_j
        V(n) = Σ_i R_i / (N·√N)    i = 1..N the leaves under n
        local(n) = V(n) - V(parent)
        reward(n) = local(n) + V(n)

    If |local(n)| < 1e-8, local(parent) takes its place. The parent's term may have been replaced in
    the same way. The local term of the root is 0.

    Args:
      paths: [L] node numbers of each leaf, from below the root.
      rewards: [L], one per leaf, r.

    Returns:
      [L] lists with one number per node of the leaf's path. If there is only one leaf, its numbers
      are 0.

    Raises:
      ValueError: where `node_values` raises it.

    Source: TreeRL, https://arxiv.org/abs/2506.11902; THUDM/TreeRL at f0edbea, with the setting
    'sqrt' of `scripts/treerl-qw14b.sh`. The code of TreeRL raises an error for a single leaf, and
    its √N counts only the leaves under n that are trained on.
    """
    num_leaves = len(rewards)
    mean = exact_mean(rewards) if num_leaves else 0.0
    # R_i = (r_i - mean r)·L / (L - 1), which is exactly 0 if all rewards are equal.
    scale = num_leaves / max(num_leaves - 1, 1)
    over_others = numbers_under(paths, [(reward - mean) * scale for reward in rewards])
    values = {node: math.fsum(x) / (len(x) * math.sqrt(len(x))) for node, x in over_others.items()}
    return [_local_plus_value(path, values) for path in paths]


def _local_plus_value(path: Sequence[int], values: dict[Node, float]) -> list[float]:
    """The sum local(n) + V(n) for each node of a path; `treerl_rewards` defines both terms."""
    rewards: list[float] = []
    local = 0.0
    for parent, node in _edges(path):
        difference = values[node] - values[parent]
        if abs(difference) >= ROUNDING:
            local = difference
        rewards.append(local + values[node])
    return rewards


def numbers_under(
    paths: Sequence[Sequence[int]], numbers: Sequence[float]
) -> dict[Node, list[float]]:
    """For every node, the list of the numbers that the leaves under this node have in `numbers`.

    A leaf is under its own node. Raises ValueError if `node_values` would for these arguments.
    """
    _children(paths)  # raises ValueError for paths that are not a tree
    under: dict[Node, list[float]] = {}
    for path, number in zip(paths, numbers, strict=True):
        for node in (None, *path):
            under.setdefault(node, []).append(number)
    return under


def exact_mean(numbers: Sequence[float]) -> float:
    """The mean, the same for every order of `numbers`, and exact if all numbers are equal."""
    if all(number == numbers[0] for number in numbers):
        return float(numbers[0])
    return math.fsum(numbers) / len(numbers)


def exact_std(numbers: Sequence[float], ddof: int = 0) -> float:
    """The standard deviation with denominator n - `ddof`, the same for every order of `numbers`."""
    mean = exact_mean(numbers)
    squares = math.fsum((number - mean) ** 2 for number in numbers)
    return math.sqrt(squares / (len(numbers) - ddof))


def _edges(path: Sequence[int]) -> list[tuple[Node, int]]:
    """The edges (parent, child) from the root along a path."""
    return list(zip([None, *path[:-1]], path, strict=True)) if path else []


def _children(paths: Sequence[Sequence[int]]) -> dict[Node, list[int]]:
    """The children of every inner node. The entry of a node comes before those of its descendants.

    Raises ValueError if the paths are not a tree whose leaves have no children.
    """
    parents: dict[int, Node] = {}
    children: dict[Node, list[int]] = {}
    for path in paths:
        for parent, node in _edges(path):
            if node not in parents:
                parents[node] = parent
                children.setdefault(parent, []).append(node)
            elif parents[node] != parent:
                raise ValueError(f"node {node} has two parents: give every node its own number")
    ends: set[Node] = {None}
    for i, path in enumerate(paths):
        end = path[-1] if path else None
        if end in ends or end in children:
            where = "the root" if end is None else f"node {end}, which another leaf passes"
            raise ValueError(f"paths[{i}] ends at {where}: give every leaf a node of its own")
        ends.add(end)
    return children
