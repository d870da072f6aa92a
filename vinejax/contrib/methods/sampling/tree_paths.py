"""Trees of solutions: the paths that were drawn, and the nodes between the places where they fork.

A path is what one branch drew, with all tokens before it. A node is the piece of a path between two
forks; the prompt is the root, and is no node. A leaf is a path that nothing continues at its end:
a solution, whole or cut short.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class TreePath:
    """Tokens of a response from the prompt's end on, the last of them drawn by one branch."""

    tokens: list[int]
    logprobs: list[float]  # the sampler's, of every token
    parent: int | None  # number of the path that it branched off from; None: from the prompt
    start: int  # tokens that it shares with its parent; more than the parent's own `start`
    wave: int  # in which it was drawn
    is_over: bool  # ended by EOS, by a stop string or by `sample.max_tokens`
    text: str = ""
    finished: bool = False  # not by `sample.max_tokens`
    # Of a path that is over: the task's steps, and their own rewards if the task gives any.
    step_ends: list[int] = dataclasses.field(default_factory=list)
    step_rewards: list[float] | None = None


class Shoot(NamedTuple):
    """Branches to be drawn at one place of a tree."""

    parent: int | None  # number of a path; None: the prompt
    position: int  # tokens of that path before the branches
    count: int
    budget: int | None = None  # tokens of each branch; None: all that the response may still have


class TreeLeaf(NamedTuple):
    """A leaf with the nodes from the root to it."""

    number: int  # of its path
    nodes: list[int]
    ends: list[int]  # response tokens as far as the end of each node


def open_ends(paths: Sequence[TreePath]) -> list[int]:
    """The numbers of the paths that are not over and that no other path continues."""
    return [leaf for leaf in _leaves(paths) if not paths[leaf].is_over]


def trees(paths: Sequence[TreePath]) -> list[list[int]]:
    """The numbers of the paths of each tree: one from the prompt, and all that branched off it."""
    of_tree: dict[int, list[int]] = {}
    root_of: list[int] = []
    for i, path in enumerate(paths):
        root_of.append(i if path.parent is None else root_of[path.parent])
        of_tree.setdefault(root_of[i], []).append(i)
    return list(of_tree.values())


def attached_shoot(paths: Sequence[TreePath], shoot: Shoot) -> Shoot:
    """The same place, named by the path that drew the token before it."""
    parent, position = shoot.parent, shoot.position
    while parent is not None and position <= paths[parent].start:
        parent = paths[parent].parent
    return shoot._replace(parent=parent)


def leaves(paths: Sequence[TreePath]) -> list[TreeLeaf]:
    """The leaves of all trees of a problem, in the order in which they were drawn.

    Nodes are numbered in the order in which the leaves reach them.
    """
    forks: dict[int | None, set[int]] = {}
    for path in paths:
        forks.setdefault(path.parent, set()).add(path.start)
    numbers: dict[tuple[int, int], int] = {}
    in_order = []
    for number in _leaves(paths):
        pieces: list[tuple[int, int, int]] = []  # (path, first token, end), from the leaf upwards
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
