"""Rows of a batch that begin alike, laid out so that a pass computes their common tokens once.

Solutions of a problem begin with its prompt; leaves of a tree, and groups of a reset, also with
the same first tokens of a solution. Of such rows in one packed row only the first has the common
tokens. The others *share* them: they keep only what comes after, and attend to those of the first.

A row may share the tokens before its first trained one, but not the last of them: at its hidden
state the first trained token is predicted, so it stays the row's own, and each trained token still
comes directly after the token that predicts it. Another row may train on what is shared.

A row is followed by those that share a part of it, the longest part first, each with its own such
followers. So the positions that see a token are a run that begins with it, and one number per
token, `seen_until`, gives the end of the run. Where nothing is shared, it is the segment's end.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from vinejax.core.types import Batch

# Each row is compared with this many rows on either side of it in lexicographic order, which bounds
# the time: 2 s for 14,000 rows.
REACH = 512

# row -> (i64[N] rows that it is compared with, i64[N] leading tokens in common with each)
CommonPrefixes = Callable[[int], tuple[np.ndarray, np.ndarray]]


class Forest(NamedTuple):
    """The places of rows in bins: packed rows that are not yet dealt to the passes."""

    bins: np.ndarray  # i64[B] the bin of each row
    starts: np.ndarray  # i64[B] the place in it of the row's first own token
    shared: np.ndarray  # i64[B] leading tokens that are not the row's own
    seen_until: np.ndarray  # i32[B, T] of own tokens: one past the last place that sees it; else 0


def share_prefixes(batch: Batch) -> Forest:
    """Bins of T tokens for the rows of a batch, each of one segment and padded on the right.

    Rows are placed in groups that begin alike, the group with the most tokens first. Each row goes
    into the bin where it shares most, or else the first that has room. Empty rows are in bin 0.
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
    """A function from a row to nearby rows and the lengths of their common prefixes with it.

    `tokens` are ids, i32[B, T]. With rows sorted lexicographically, the common prefix of two rows
    is the shortest of those of the adjacent pairs between them.
    """
    real = np.where(np.arange(tokens.shape[1]) < lengths[:, None], tokens, -1)
    keys = [row.tobytes() for row in real.astype(">i4")]
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    differs = real[order[1:]] != real[order[:-1]]
    equal = np.where(differs.any(axis=1), differs.argmax(axis=1), tokens.shape[1])
    # Equal rows are equal in their padding too.
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
    """The bin of each row, and what it shares with which row; all are i64[rows]."""

    bins: np.ndarray
    shared: np.ndarray
    parents: np.ndarray  # the row that has the last shared token as its own; -1: none is shared


def _place(
    common: CommonPrefixes, lengths: np.ndarray, may_share: np.ndarray, room: int
) -> _RowPlaces:
    """The bin of each row, and what it shares there; `may_share` tokens at most."""
    count = lengths.size
    bins, parents = (np.full(count, -1) for _ in range(2))
    shared, used = (np.zeros(count, np.int64) for _ in range(2))
    opened = 0
    for row in _groups(common, lengths, may_share):
        near, equal = common(row)
        is_placed = bins[near] >= 0
        near, equal = near[is_placed], np.minimum(equal[is_placed], may_share[row])
        saved = np.zeros(opened + 1, np.int64)  # in each bin, and in one that is empty
        np.maximum.at(saved, bins[near], equal)
        has_room = used[: opened + 1] + lengths[row] - saved <= room
        chosen = int(np.argmax(np.where(has_room, saved, -1)))
        if saved[chosen]:
            parent = near[np.argmax(np.where(bins[near] == chosen, equal, -1))]
            while shared[parent] >= saved[chosen]:  # it shares that token itself
                parent = parents[parent]
            parents[row] = parent
        bins[row], shared[row] = chosen, saved[chosen]
        used[chosen] += lengths[row] - shared[row]
        opened = max(opened, chosen + 1)
    return _RowPlaces(bins, shared, parents)


def _groups(common: CommonPrefixes, lengths: np.ndarray, may_share: np.ndarray) -> list[int]:
    """The order in which rows are placed: group by group, the one with the most tokens first.

    A group is the rows that begin with all tokens that one of them may share. Within it the rows
    that may share least come first, since only placed tokens can be shared; of these the longest.
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
    """(i64[rows] the place of each row's own tokens in its bin, i32[rows, T] `seen_until`)."""
    count = lengths.size
    starts, seen_until = np.zeros(count, np.int64), np.zeros((count, room), np.int32)
    children: list[list[int]] = [[] for _ in range(count)]
    for row in np.argsort(-places.shared, kind="stable").tolist():
        if places.parents[row] >= 0:
            children[places.parents[row]].append(row)

    def lay(row: int, start: int) -> int:
        """Lays a row and all that share a part of it from `start` on; returns their end."""
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
