"""Packing: several episodes share a row, so that a pass computes few tokens of padding.

On the host a row is one episode, or one pair: credit, minibatches and metrics count these. A batch
is packed where it enters a compiled program, and results per token are put back into the batch's
own rows. Segment ids and positions keep the episodes of a row apart. Packing depends on the batch
alone, so that a run that is resumed repeats it.

Programs keep their shapes: rows of the batch's length, in passes of as many rows as without
packing. There are fewer passes (scoring), or those at the end are empty and `update.gradients`
skips them. The batch's length has room for its longest episode.
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config
from vinejax.core.types import Array, Batch
from vinejax.learner.prefixes import Forest, share_prefixes
from vinejax.model.attention import KERNELS
from vinejax.model.decoder import Decoder
from vinejax.model.sharding import num_shards

# Maximum number of passes over a batch without `ppo.microbatch`. More passes leave fewer empty rows
# in the last one, but each has to keep the device busy.
MAX_PASSES = 16


class Passes(NamedTuple):
    """How the rows of a batch go through a model."""

    rows: int  # of one pass, over all devices
    packed: bool = False
    shared: bool = False  # packed rows that begin alike share these tokens: see `prefixes.py`


def passes_for(cfg: Config, rows: int, mesh: Mesh | AbstractMesh | None) -> Passes:
    """The passes over a batch of `rows` rows, which data x fsdp divides.

    A pass has `ppo.microbatch` rows. Without one it has all rows or, if they are packed, the fewest
    that divide them into at most `MAX_PASSES` equal passes, split evenly over data x fsdp.
    """
    ppo = cfg.ppo
    shares = ppo.packing and ppo.share_prefixes == "on"
    if ppo.microbatch is not None or not ppo.packing:
        return Passes(ppo.microbatch or rows, ppo.packing, shares)
    shards = 1 if mesh is None else num_shards(mesh)
    sizes = (n for n in range(shards, rows, shards) if rows % n == 0 and rows <= MAX_PASSES * n)
    return Passes(next(sizes, rows), True, shares)


def with_sharing(cfg: Config, model: Decoder, platform: str) -> Config:
    """The configuration with `ppo.share_prefixes` 'on' or 'off' where it is 'auto'.

    Raises ConfigError if it is 'on' and the attention of the model on the platform cannot share.
    """
    ppo, name = cfg.ppo, model.compute.attention
    kernel = KERNELS.get(platform) if name == "auto" else name
    can_share = kernel != "splash" or model.cfg.is_mixed
    if ppo.share_prefixes == "auto":
        chosen = "on" if ppo.packing and can_share else "off"
        return dataclasses.replace(cfg, ppo=dataclasses.replace(ppo, share_prefixes=chosen))
    if ppo.share_prefixes == "on" and not can_share:
        message = (
            "splash attention keeps sequences apart; leave it out, or set model.attention='xla'"
        )
        raise ConfigError("ppo.share_prefixes", message, "'on'")
    return cfg


def with_single_rows(model: Decoder, cfg: Config) -> Decoder:
    """The model, told whether rows of batches hold one sequence each, as they do without packing;
    not for DPO, whose rows are pairs."""
    single = not cfg.ppo.packing
    compute = dataclasses.replace(model.compute, single_rows=single)
    return dataclasses.replace(model, compute=compute)


class Packing(NamedTuple):
    """Where the tokens of a batch's rows lie in packed rows.

    The j-th of n passes has the packed rows j, j + n, j + 2n, ..., as in `update.gradients`.
    A token that a row shares with another has its place in the other alone.
    """

    batch_places: np.ndarray  # i64[tokens] place of each token in the batch's rows, flattened
    packed_places: np.ndarray  # i64[tokens] its place in the packed rows, flattened
    segment_ids: np.ndarray  # i32[packed rows, T]
    num_passes: int  # that have tokens
    seen_until: np.ndarray | None = None  # i32[packed rows, T] of `Batch`; None: nothing is shared

    def pack(self, rows: Batch) -> Batch:
        """The batch in packed rows."""
        packed = jax.tree.map(self.move, rows)
        return packed._replace(segment_ids=self.segment_ids, seen_until=self.seen_until)

    def move(self, x: Array) -> np.ndarray:
        """An array [B, T] in packed rows, 0 where no token is."""
        packed = np.zeros(self.segment_ids.size, x.dtype)
        packed[self.packed_places] = np.asarray(x).reshape(-1)[self.batch_places]
        return packed.reshape(self.segment_ids.shape)

    def put_back(self, x: np.ndarray, rows: int) -> np.ndarray:
        """An array over packed rows as one over the `rows` rows of the batch, 0 off its tokens."""
        length = self.segment_ids.shape[1]
        batch_rows = np.zeros(rows * length, x.dtype)
        batch_rows[self.batch_places] = x.reshape(-1)[self.packed_places]
        return batch_rows.reshape(rows, length)


def packing_for(
    batch: Batch, passes: Passes, mesh: Mesh | None, total: int | None = None
) -> Packing:
    """`pack_rows` of a batch for the passes; rows that share prefixes must have one segment."""
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
    """Packs the rows of a batch, each as a whole: its segments stay together and in their order.

    Args:
      segment_ids: i32[B, T], 1, 2, ... in each row and 0 at padding.
      size: rows of a pass.
      shards: parts that the rows of a pass are split into; they share the packed rows evenly.
      total: rows of the result, a multiple of `size`; None: as few as needed.
      forest: the bins of rows that share prefixes; None: nothing is shared.
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
    # A token's place in its row, and from there in the packed one.
    row, _ = np.nonzero(is_token)
    batch_places = np.flatnonzero(is_token)
    within = np.arange(batch_places.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    packed_places = places[filled[row]] * segment_ids.shape[1] + starts[row] + within
    ids = np.zeros((total or needed * size, segment_ids.shape[1]), np.int32)
    ids.reshape(-1)[packed_places] = (segment_ids + _segments_before(segment_ids, filled, starts))[
        is_token
    ]
    if forest is None:
        return Packing(batch_places, packed_places, ids, needed)
    seen_until = np.full(ids.shape, ids.shape[1], np.int32)  # padding sees itself
    seen_until.reshape(-1)[packed_places] = forest.seen_until[is_token]
    return Packing(batch_places, packed_places, ids, needed, seen_until)


def first_fit(lengths: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """(i64[N] the bin of each item, i64[N] where in it the item begins): first fit decreasing.

    The longest item first, each into the first bin that has room: at most 11/9 n + 6/9 bins, with n
    the fewest possible (Dósa, 2007). Equal items keep their order; empty ones are in bin 0.
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
    """i64[passes * size] the packed row of each bin; bins are dealt to the passes and shards.

    Of a pass's rows each shard has consecutive ones. `total` is the number of all passes.
    """
    bins = np.arange(passes * size)
    turn = bins // passes  # number of the bin within its pass
    slot = turn % shards * (size // shards) + turn // shards
    return slot * total + bins % passes


def _segments_before(segment_ids: np.ndarray, bins: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """i64[B, 1] the number of segments that lie before each row's own in its packed row."""
    counts = segment_ids.max(axis=1)
    order = np.lexsort((starts, bins))
    running = np.cumsum(counts[order]) - counts[order]
    is_first = np.diff(bins[order], prepend=-1) > 0
    at_start = np.repeat(running[is_first], np.diff(np.flatnonzero(is_first), append=order.size))
    before = np.empty(order.size, np.int64)
    before[order] = running - at_start
    return before[:, None]
