"""Trees of solutions: sampled paths, and the nodes between the places where paths fork.

A path has the tokens that one branch of the engine drew, and all tokens before them. A node is the
piece of a path between two forks. The prompt is the root and not a node. A leaf is a path that no
other path continues at its end. Each leaf is a solution, which may be truncated.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class TreePath:
    """The response tokens of a path. One branch of the engine drew `tokens[start:]`."""

    tokens: list[int]
    logprobs: list[float]  # the sampler's log-probability of every token
    parent: int | None  # number of the path from which this one branches off; None: the prompt
    start: int  # number of tokens shared with the parent; more than the parent's own `start`
    wave: int  # number of the wave that drew the path
    is_over: bool  # whether EOS, a stop string or `sample.max_tokens` ended it
    text: str = ""
    finished: bool = False  # whether EOS or a stop string ended it
    # Ends of the task's steps, once the path is over, and their rewards if the task gives any.
    step_ends: list[int] = dataclasses.field(default_factory=list)
    step_rewards: list[float] | None = None


class Shoot(NamedTuple):
    """A plan to draw branches at one place of a tree in the next wave."""

    parent: int | None  # number of the path from which the branches leave; None: the prompt
    position: int  # number of the parent's tokens before the branches
    count: int  # number of branches
    budget: int | None = None  # token limit of each branch; None: only that of the response


class TreeLeaf(NamedTuple):
    """A leaf with the nodes from the root to it."""

    number: int  # number of the leaf's path
    nodes: list[int]
    ends: list[int]  # number of response tokens up to the end of each node


def open_ends(paths: Sequence[TreePath]) -> list[int]:
    """The numbers of the leaves that can go on, for which `TreePath.is_over` is False."""
    return [leaf for leaf in _leaves(paths) if not paths[leaf].is_over]


def trees(paths: Sequence[TreePath]) -> list[list[int]]:
    """For each tree, the numbers of its paths.

    A tree has one path that begins at the prompt, and all paths that descend from this path.
    """
    of_tree: dict[int, list[int]] = {}
    root_of: list[int] = []
    for i, path in enumerate(paths):
        root_of.append(i if path.parent is None else root_of[path.parent])
        of_tree.setdefault(root_of[i], []).append(i)
    return list(of_tree.values())


def attached_shoot(paths: Sequence[TreePath], shoot: Shoot) -> Shoot:
    """`shoot`, with the path that drew the token before `shoot.position` as its parent."""
    parent, position = shoot.parent, shoot.position
    while parent is not None and position <= paths[parent].start:
        parent = paths[parent].parent
    return shoot._replace(parent=parent)


def leaves(paths: Sequence[TreePath]) -> list[TreeLeaf]:
    """The leaves of all trees of a problem, in the order of drawing.

    Nodes are numbered in the order in which the leaves reach them.
    """
    forks: dict[int | None, set[int]] = {}
    for path in paths:
        forks.setdefault(path.parent, set()).add(path.start)
    numbers: dict[tuple[int, int], int] = {}
    in_order = []
    for number in _leaves(paths):
        pieces: list[tuple[int, int, int]] = []  # (path, first token, end), from the leaf up
        i, end = number, len(paths[number].tokens)
        while i is not None:
            cuts = sorted({c for c in forks.get(i, ()) if paths[i].start < c < end} | {end})
            begins = [paths[i].start, *cuts[:-1]]
            pieces += reversed([(i, *span) for span in zip(begins, cuts, strict=True)])
            i, end = paths[i].parent, paths[i].start
        pieces.reverse()
        nodes = [numbers.setdefault(piece[:2], len(numbers)) for piece in pieces]
        in_order.append(TreeLeaf(number, nodes, [end for _, _, end in pieces]))
    return in_order


def _leaves(paths: Sequence[TreePath]) -> list[int]:
    continued = {(path.parent, path.start) for path in paths}
    return [i for i, path in enumerate(paths) if (i, len(path.tokens)) not in continued]
