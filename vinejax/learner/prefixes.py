"""Lays out rows so that a pass computes their common first tokens only once.

All solutions of a problem begin with its prompt. Leaves of a tree, and groups of a reset, also have
the first tokens of a solution in common. When such rows are in one packed row, only the first of
them has the common tokens. The others *share* these tokens: they keep only the tokens that follow,
and attend to the common tokens of the first row.

A row may share the tokens before its first trained token, except the last of them. The hidden state
of that last token predicts the first trained token, so the row keeps it, and each trained token
still comes directly after the token that predicts it. Another row may train on shared tokens.

In a packed row, each row is followed by the rows that share tokens with it, in decreasing order of
the number of shared tokens. This holds recursively. So the positions that see a token are
contiguous and begin at the token. The number `seen_until` of a token is the end of this range. For
a token that no other row shares, the range ends with the token's segment.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from vinejax.core.types import Batch

# Each row is compared with this number of rows before it, and after it, in lexicographic order. The
# limit bounds the time of comparisons, which is 2 s for 14,000 rows.
REACH = 512

# row -> (i64[N] nearby rows, i64[N] length of the common prefix of the row and each nearby row)
CommonPrefixes = Callable[[int], tuple[np.ndarray, np.ndarray]]


class Forest(NamedTuple):
    """The places of rows in bins. A bin is a packed row that is not assigned to a pass yet.

    A row's own tokens are the tokens that it does not share.
    """

    bins: np.ndarray  # i64[B] the bin of each row
    starts: np.ndarray  # i64[B] index, in its bin, of the row's first own token
    shared: np.ndarray  # i64[B] number of leading tokens that the row shares
    seen_until: np.ndarray  # i32[B, T] end of the range that sees an own token; 0 for other tokens


def share_prefixes(batch: Batch) -> Forest:
    """Places the rows of a batch in bins of T tokens. A row must be one right-padded segment.

    The function places rows in groups with a common prefix, the group with the most tokens first.
    Each row goes into the bin where it can share the most tokens or, if it can share none, into the
    first bin with enough room. Empty rows are in bin 0.
    """
    lengths = np.count_nonzero(batch.segment_ids, axis=1)
    is_trained = np.asarray(batch.mask)
    first = np.where(is_trained.any(axis=1), is_trained.argmax(axis=1), lengths)
    may_share = np.maximum(first - 1, 0)
    rows = np.flatnonzero(lengths)
    tokens = np.asarray(batch.tokens)[rows]
    common = common_prefixes(tokens, lengths[rows])
    places = _place(common, lengths[rows], may_share[rows], tokens.shape[1])
    bins, starts, shared = (np.zeros(lengths.size, np.int64) for _ in range(3))
    seen_until = np.zeros(batch.tokens.shape, np.int32)
    bins[rows], shared[rows] = places.bins, places.shared
    starts[rows], seen_until[rows] = _lay_out(places, lengths[rows], tokens.shape[1])
    return Forest(bins, starts, shared, seen_until)


def common_prefixes(tokens: np.ndarray, lengths: np.ndarray, reach: int = REACH) -> CommonPrefixes:
    """A function: row -> (nearby rows, lengths of their common prefixes with the row).

    `tokens` are ids, i32[B, T]. Nearby rows are the row and up to `reach` rows on either side in
    lexicographic order. In this order, the length of the common prefix of two rows is the minimum
    over all adjacent pairs of rows between them.
    """
    real = np.where(np.arange(tokens.shape[1]) < lengths[:, None], tokens, -1)
    keys = [row.tobytes() for row in real.astype(">i4")]
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    differs = real[order[1:]] != real[order[:-1]]
    equal = np.where(differs.any(axis=1), differs.argmax(axis=1), tokens.shape[1])
    # Equal rows also have equal padding, which does not count.
    by_neighbour = np.minimum(equal, np.minimum(lengths[order[1:]], lengths[order[:-1]]))
    place = np.empty_like(order)
    place[order] = np.arange(order.size)

    def common(row: int) -> tuple[np.ndarray, np.ndarray]:
        position = place[row]
        first = max(position - reach, 0)
        before = np.minimum.accumulate(by_neighbour[first:position][::-1])[::-1]
        after = np.minimum.accumulate(by_neighbour[position : position + reach])
        equal = np.concatenate([before, lengths[[row]], after])
        return order[first : first + equal.size], equal

    return common


class _RowPlaces(NamedTuple):
    """The bin of each row, and what the row shares in this bin. All arrays are i64[rows]."""

    bins: np.ndarray  # the bin of each row
    shared: np.ndarray  # number of leading tokens that the row shares
    parents: np.ndarray  # the row that the last shared token belongs to; -1: the row shares none


def _place(
    common: CommonPrefixes, lengths: np.ndarray, may_share: np.ndarray, room: int
) -> _RowPlaces:
    """Chooses a bin of `room` tokens for each row.

    `may_share` is the number of first tokens that each row may share at most.
    """
    count = lengths.size
    bins, parents = (np.full(count, -1) for _ in range(2))
    shared, used = (np.zeros(count, np.int64) for _ in range(2))
    opened = 0
    for row in _groups(common, lengths, may_share):
        near, equal = common(row)
        is_placed = bins[near] >= 0
        near, equal = near[is_placed], np.minimum(equal[is_placed], may_share[row])
        saved = np.zeros(opened + 1, np.int64)  # in each bin, and in an empty one
        np.maximum.at(saved, bins[near], equal)
        has_room = used[: opened + 1] + lengths[row] - saved <= room
        chosen = int(np.argmax(np.where(has_room, saved, -1)))
        if saved[chosen]:
            parent = near[np.argmax(np.where(bins[near] == chosen, equal, -1))]
            while shared[parent] >= saved[chosen]:  # the parent shares that token too
                parent = parents[parent]
            parents[row] = parent
        bins[row], shared[row] = chosen, saved[chosen]
        used[chosen] += lengths[row] - shared[row]
        opened = max(opened, chosen + 1)
    return _RowPlaces(bins, shared, parents)


def _groups(common: CommonPrefixes, lengths: np.ndarray, may_share: np.ndarray) -> list[int]:
    """All rows in the order to place them: group by group, the group with the most tokens first.

    A group has a root row. The group's rows begin with all tokens that the root may share. Only
    tokens of placed rows can be shared, so within a group the rows that may share the fewest tokens
    come first. Among rows that may share equally many tokens, the longest comes first.
    """
    count = lengths.size
    rank = may_share * count + np.arange(count)
    roots = np.empty(count, np.int64)
    for row in range(count):
        near, equal = common(row)
        containing = near[equal > may_share[near]]
        roots[row] = containing[np.argmin(rank[containing])]
    tokens = np.bincount(roots, weights=lengths, minlength=count)
    return np.lexsort((-lengths, may_share, roots, -tokens[roots])).tolist()


def _lay_out(places: _RowPlaces, lengths: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """(`starts`, i64[rows], `seen_until`, i32[rows, T]) of the `Forest` for rows in bins."""
    count = lengths.size
    starts, seen_until = np.zeros(count, np.int64), np.zeros((count, room), np.int32)
    children: list[list[int]] = [[] for _ in range(count)]
    for row in np.argsort(-places.shared, kind="stable").tolist():
        if places.parents[row] >= 0:
            children[places.parents[row]].append(row)

    def lay(row: int, start: int) -> int:
        """Places, from `start` on, a row and the rows that share its tokens; returns the end."""
        first = places.shared[row]
        end = int(start + lengths[row] - first)
        starts[row] = start
        seen_until[row, first : lengths[row]] = end
        for child in children[row]:
            end = lay(child, end)
            seen_until[row, first : places.shared[child]] = end
        return end

    ends = np.zeros(count, np.int64)
    for row in np.flatnonzero(places.parents < 0).tolist():
        ends[places.bins[row]] = lay(row, int(ends[places.bins[row]]))
    return starts, seen_until
