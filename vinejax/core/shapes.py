"""Lengths that arrays are padded to, chosen so that few programs are compiled."""

from collections.abc import Sequence

import numpy as np

FINE = 1024  # tokens of a row beyond which padding costs more than another program


def bucket(length: int, least: int = 16) -> int:
    """The first of 16, 24, 32, 48, 64, 96, ... that is at least `length` and at least `least`."""
    size = least
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def row_length(length: int) -> int:
    """The length to which a row of `length` tokens is padded.

    Up to FINE tokens, it is a `bucket`. Beyond FINE, it is one of 1280, 1536, 1792, 2048, 2560,
    ..., which are four lengths for each doubling.
    """
    if length <= FINE:
        return bucket(length, least=32)
    step = 1 << ((length - 1).bit_length() - 3)
    return -(-length // step) * step


def packed_length(limit: int, longest: int) -> int:
    """The length of packed rows. A sequence may have `limit` tokens; the longest has `longest`.

    Let W be the `row_length` of the larger of the two. The result is about W/2 if `longest` fits
    there. Otherwise it is the `row_length` of `longest` or FINE, whichever is larger, but at most
    W. So there are few lengths and few programs; full rows cost the same per token at any length.
    """
    whole = row_length(max(limit, longest))
    half = row_length(whole // 2)
    return half if longest <= half else min(whole, row_length(max(longest, FINE)))


def doubled(length: int, least: int = 16) -> int:
    """The next length of `least`, 2 · `least`, 4 · `least`, ..., for arrays whose padding is cheap.

    There are few such lengths, so few programs are compiled.
    """
    size = least
    while size < length:
        size *= 2
    return size


def label_width(most: int, length: int) -> int:
    """The number of labels to which rows of `length` tokens are padded, if a row has up to `most`.

    It is a quarter of `length`, doubled as often as needed, so there are few widths.
    """
    return doubled(most, least=max(length // 4, 1))


def label_columns(row: np.ndarray, rows: int, length: int) -> tuple[np.ndarray, int]:
    """(i64[L] the column of each label in its row, the `label_width` of all rows).

    `row`, i64[L], is the row of each label, below `rows`. A row's labels keep their order.
    """
    order, count = np.argsort(row, kind="stable"), np.bincount(row, minlength=rows)
    column = np.empty_like(order)
    column[order] = np.arange(order.size) - np.repeat(np.cumsum(count) - count, count)
    return column, label_width(int(count.max(initial=0)), length)


def padded_length(limits: Sequence[int], length: int, least: int = 32, halvings: int = 1) -> int:
    """The length to pad to: the shortest of L, L/2, ..., L/2^halvings that holds `length`.

    L is the shortest `bucket` of one of `limits` that holds `length`; if none does, L is the bucket
    of `length`. No result is below `least`. `limits` has the maximum length of each kind of
    sequence. So a length near a limit gets no more padding than its own bucket would give it, and
    lengths that vary need few programs, most of which are compiled early in a run.
    """
    sizes = [bucket(limit, least) for limit in limits]
    size = min((x for x in sizes if x >= length), default=bucket(length, least))
    for _ in range(halvings):
        if size % 2 == 0 and size // 2 >= max(length, least):
            size //= 2
    return size
