"""Decides whether the items of two lists can be paired off, in order or in any order."""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

from vinejax.grading.strict import numbers
from vinejax.grading.strict.answers import nodes
from vinejax.grading.strict.answers.nodes import Collection, Node

Items = Sequence[Node]
Same = Callable[[Node, Node], bool]

# Characters in all pairs of items of two lists; longer lists must match in order. A character costs
# up to 0.1 ms, and no comparison may take a second.
MAX_PAIRED = 10_000


def pair_in_order(a: Items, b: Items, same: Same) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def pair_in_any_order(a: Items, b: Items, same: Same) -> bool:
    """Whether every item of `a` has a partner of its own in `b`.

    Partners are found by augmenting paths: equality is not transitive (5% is 5 and 0.05), so that
    the first match may have to give way.
    """
    if len(a) != len(b):
        return False
    a, b = _unpaired(a, b), _unpaired(b, a)
    if not _is_affordable(a, b):
        return pair_in_order(a, b, same)
    equal = functools.cache(lambda i, j: same(a[i], b[j]))
    partners: dict[int, int] = {}  # index in b -> index in a

    def place(i: int, tried: set[int]) -> bool:
        for j in sorted(range(len(b)), key=lambda j: j != i):
            if j not in tried and equal(i, j):
                tried.add(j)
                if j not in partners or place(partners[j], tried):
                    partners[j] = i
                    return True
        return False

    return all(place(i, set()) for i in range(len(a)))


def same_members(a: Items, b: Items, same: Same) -> bool:
    """Whether every item of each list equals an item of the other list."""
    if not _is_affordable(a, b):
        return False
    return all(any(same(x, y) for y in b) for x in a) and all(any(same(y, x) for x in a) for y in b)


def _unpaired(a: Items, b: Items) -> list[Node]:
    """The items of `a` that remain when equal texts and plain numbers of both are paired off."""
    partners = Counter(map(_identity, b))
    left = []
    for item in a:
        identity = _identity(item)
        if item.source and partners[identity] > 0:
            partners[identity] -= 1
        else:
            left.append(item)
    return left


def _identity(node: Node) -> Fraction | str:
    value = numbers.read_rational(node.source)
    return nodes.source_key(node.source) if value is None else value


def _is_affordable(a: Items, b: Items) -> bool:
    size_a, size_b = (sum(map(_size, items)) for items in (a, b))
    return len(a) * size_b + len(b) * size_a <= MAX_PAIRED


def _size(node: Node) -> int:
    """The number of characters to compare; for a collection, in all pairs of its items."""
    if isinstance(node, Collection):
        return len(node.items) * sum(map(_size, node.items))
    if isinstance(node, nodes.Sequence):
        return sum(map(_size, node.items))
    return len(node.source)
