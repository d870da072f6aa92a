"""Packing: several episodes share a row, so that a pass computes few tokens of padding.

In a batch, a row is one episode or one pair of episodes. Credit, minibatches and metrics use these
rows. The learner packs a batch just before a compiled program takes it, and moves results per token
back to the rows of the batch. Segment ids and positions keep the episodes of a packed row apart.
Packing depends only on the batch, so a resumed run packs in the same way.

Packed rows are as long as the rows of the batch. If `ppo.microbatch` is set, a pass has as many
rows as without packing, so programs have the same shapes (`passes_for` has the other case). Scoring
needs fewer passes with packing. In an update, the last passes are empty, and `update.gradients`
skips them.
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from vinejax.core.settings import Config
from vinejax.core.shapes import label_columns
from vinejax.core.types import Array, Batch, Labels
from vinejax.learner.prefixes import Forest, share_prefixes
from vinejax.model.attention import KERNELS
from vinejax.model.decoder import Decoder
from vinejax.model.sharding import num_shards

# Maximum number of passes over a batch without `ppo.microbatch`. With more passes the last one has
# fewer empty rows, but each pass must be large enough to keep the device busy.
MAX_PASSES = 16


class Passes(NamedTuple):
    """How a batch is divided into passes through a model."""

    rows: int  # number of rows in one pass, over all devices
    packed: bool = False  # whether rows are packed
    shared: bool = False  # whether packed episodes share common first tokens: see `prefixes.py`


def passes_for(cfg: Config, rows: int, mesh: Mesh | AbstractMesh | None) -> Passes:
    """The passes over a batch of `rows` rows, a multiple of data x fsdp.

    A pass has `ppo.microbatch` rows. If this field is not set, packing decides: without packing, a
    pass has all rows; with packing, a pass has the smallest number of rows that gives at most
    `MAX_PASSES` equal passes and is a multiple of data x fsdp.
    """
    ppo = cfg.ppo
    shares = ppo.packing and ppo.share_prefixes
    if ppo.microbatch is not None or not ppo.packing:
        return Passes(ppo.microbatch or rows, ppo.packing, shares)
    shards = 1 if mesh is None else num_shards(mesh)
    sizes = (n for n in range(shards, rows, shards) if rows % n == 0 and rows <= MAX_PASSES * n)
    return Passes(next(sizes, rows), True, shares)


def with_sharing(cfg: Config, model: Decoder, platform: str) -> Config:
    """The configuration with `ppo.share_prefixes` on only if the model can share prefixes.

    Sharing needs packed rows. In the splash kernel a sequence cannot see another sequence, so a
    model that uses this kernel on the platform cannot share prefixes.
    """
    ppo, name = cfg.ppo, model.compute.attention
    kernel = KERNELS.get(platform) if name == "auto" else name
    can_share = ppo.packing and (kernel != "splash" or model.cfg.is_mixed)
    shares = ppo.share_prefixes and can_share
    return dataclasses.replace(cfg, ppo=dataclasses.replace(ppo, share_prefixes=shares))


def with_single_rows(model: Decoder, cfg: Config) -> Decoder:
    """The model with `Compute.single_rows` set to whether each row holds only one sequence.

    The function assumes that each row holds one sequence if `ppo.packing` is off. So it must not be
    used for DPO, whose rows are pairs of sequences.
    """
    compute = dataclasses.replace(model.compute, single_rows=not cfg.ppo.packing)
    return dataclasses.replace(model, compute=compute)


class Packing(NamedTuple):
    """The places that the tokens of a batch have in packed rows.

    The j-th of n passes has the packed rows j, j + n, j + 2n, ..., as in `update.gradients`. If
    several rows of the batch share a token, only the first of these rows has a place for it here.
    """

    batch_places: np.ndarray  # i64[tokens] index of each token in the batch's flattened rows
    packed_places: np.ndarray  # i64[tokens] index of each token in the flattened packed rows
    segment_ids: np.ndarray  # i32[packed rows, T] segment ids of the packed rows
    num_passes: int  # number of passes with tokens
    seen_until: np.ndarray | None = None  # i32[packed rows, T] as in `Batch`; None: nothing shared

    def pack(self, rows: Batch) -> Batch:
        """The batch `rows` as a batch of packed rows."""
        packed = jax.tree.map(self.move, rows._replace(labels=None))
        labels = None if rows.labels is None else self.label_places(rows).pack(rows.labels)
        return packed._replace(
            segment_ids=self.segment_ids, seen_until=self.seen_until, labels=labels
        )

    def move(self, x: Array) -> np.ndarray:
        """The numbers of an array [B, T] at their places in packed rows; 0 at other places."""
        packed = np.zeros(self.segment_ids.size, x.dtype)
        packed[self.packed_places] = np.asarray(x).reshape(-1)[self.batch_places]
        return packed.reshape(self.segment_ids.shape)

    def label_places(self, rows: Batch) -> "LabelPlaces":
        """The places of the labels of `rows`. Every label must be at a token of the mask."""
        assert rows.labels is not None
        length = self.segment_ids.shape[1]
        packed_place = np.zeros(rows.tokens.size, np.int64)
        packed_place[self.batch_places] = self.packed_places
        row, column = np.nonzero(rows.labels.position)
        place = packed_place[row * length + rows.labels.position[row, column]]
        packed_row = place // length
        packed_column, width = label_columns(packed_row, len(self.segment_ids), length)
        shape = (len(self.segment_ids), width)
        return LabelPlaces(
            (row, column),
            (packed_row, packed_column),
            place % length,
            rows.labels.token.shape,
            shape,
        )

    def put_back(self, x: np.ndarray, rows: int) -> np.ndarray:
        """Moves `x` from packed rows to the `rows` rows of a batch, which have 0 elsewhere."""
        length = self.segment_ids.shape[1]
        batch_rows = np.zeros(rows * length, x.dtype)
        batch_rows[self.batch_places] = x.reshape(-1)[self.packed_places]
        return batch_rows.reshape(rows, length)


class LabelPlaces(NamedTuple):
    """The places of the L labels of a batch, in the batch and in packed rows.

    A place is a row and a column of `Labels`: (i64[L], i64[L]).
    """

    batch_places: tuple[np.ndarray, np.ndarray]
    packed_places: tuple[np.ndarray, np.ndarray]
    position: np.ndarray  # i64[L] index of the label's token in its packed row
    batch_shape: tuple[int, ...]
    packed_shape: tuple[int, ...]

    def pack(self, labels: Labels) -> Labels:
        """The labels of a batch as labels of packed rows."""
        packed = jax.tree.map(self.move, labels)
        packed.position[self.packed_places] = self.position
        return packed

    def move(self, x: Array) -> np.ndarray:
        """The numbers of an array [B, N] at the labels' places in packed rows, with 0 elsewhere."""
        packed = np.zeros(self.packed_shape, x.dtype)
        packed[self.packed_places] = np.asarray(x)[self.batch_places]
        return packed

    def put_back(self, x: np.ndarray) -> np.ndarray:
        """Moves numbers of labels from packed rows to the rows of the batch, with 0 elsewhere."""
        batch_rows = np.zeros(self.batch_shape, x.dtype)
        batch_rows[self.batch_places] = x[self.packed_places]
        return batch_rows


def packing_for(
    batch: Batch, passes: Passes, mesh: Mesh | None, total: int | None = None
) -> Packing:
    """The packing with which `passes` compute a batch.

    With `passes.shared`, every row of the batch must have only one segment. `total` is the argument
    of `pack_rows`.
    """
    forest = share_prefixes(batch) if passes.shared else None
    shards = 1 if mesh is None else num_shards(mesh)
    return pack_rows(batch.segment_ids, passes.rows, shards, total, forest)


def pack_rows(
    segment_ids: Array,
    size: int,
    shards: int = 1,
    total: int | None = None,
    forest: Forest | None = None,
) -> Packing:
    """Packs the rows of a batch without dividing a row, so that its segments stay together.

    Args:
      segment_ids: i32[B, T], 1, 2, ... in each row and 0 at padding.
      size: the number of rows in a pass.
      shards: the number of shards. Each shard of a pass has the same number of packed rows.
      total: the number of rows in the result, a multiple of `size`; None: as few as possible.
      forest: the places of rows that share prefixes; None: no rows share a prefix.
    """
    segment_ids = np.asarray(segment_ids)
    is_token = segment_ids > 0
    if forest is None:
        filled, starts = first_fit(is_token.sum(axis=1), segment_ids.shape[1])
    else:
        filled, starts = forest.bins, forest.starts
        is_token &= np.arange(segment_ids.shape[1]) >= forest.shared[:, None]
    lengths = is_token.sum(axis=1)
    needed = max(-(-int(filled.max(initial=-1) + 1) // size), 1)
    places = _places(needed, size, shards, (total or needed * size) // size)
    # The place of each token within its row, and then in the packed rows.
    row, _ = np.nonzero(is_token)
    batch_places = np.flatnonzero(is_token)
    within = np.arange(batch_places.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    packed_places = places[filled[row]] * segment_ids.shape[1] + starts[row] + within
    ids = np.zeros((total or needed * size, segment_ids.shape[1]), np.int32)
    numbers = segment_ids + _segments_before(segment_ids, filled, starts)
    ids.reshape(-1)[packed_places] = numbers[is_token]
    if forest is None:
        return Packing(batch_places, packed_places, ids, needed)
    seen_until = np.full(ids.shape, ids.shape[1], np.int32)  # padding sees itself
    seen_until.reshape(-1)[packed_places] = forest.seen_until[is_token]
    return Packing(batch_places, packed_places, ids, needed, seen_until)


def first_fit(lengths: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """(i64[N] bin of each item, i64[N] start of each item in its bin) by first fit decreasing.

    Bins have `room` tokens. The algorithm takes the longest item first and puts each item into the
    first bin with enough room. It needs at most 11/9 n + 6/9 bins, where n is the smallest possible
    number of bins (Dósa, 2007). Items of equal length keep their order. Empty items are in bin 0.
    """
    bins, starts = np.zeros(lengths.size, np.int64), np.zeros(lengths.size, np.int64)
    used = np.zeros(lengths.size, np.int64)
    for item in np.argsort(-lengths, kind="stable"):
        n = lengths[item]
        if n == 0:
            break
        chosen = np.argmax(used + n <= room)
        bins[item], starts[item] = chosen, used[chosen]
        used[chosen] += n
    return bins, starts


def _places(passes: int, size: int, shards: int, total: int) -> np.ndarray:
    """i64[passes * size]: the packed row that each bin becomes.

    Bins are dealt out to the passes in turn, and the bins of a pass to the shards in turn. In a
    pass, the rows of a shard are consecutive. `total` is the number of passes, including empty
    passes.
    """
    bins = np.arange(passes * size)
    turn = bins // passes  # index of the bin within its pass
    slot = turn % shards * (size // shards) + turn // shards
    return slot * total + bins % passes


def _segments_before(segment_ids: np.ndarray, bins: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """i64[B, 1]: the number of segments that precede each row in its packed row."""
    counts = segment_ids.max(axis=1)
    order = np.lexsort((starts, bins))
    running = np.cumsum(counts[order]) - counts[order]
    is_first = np.diff(bins[order], prepend=-1) > 0
    at_start = np.repeat(running[is_first], np.diff(np.flatnonzero(is_first), append=order.size))
    before = np.empty(order.size, np.int64)
    before[order] = running - at_start
    return before[:, None]
