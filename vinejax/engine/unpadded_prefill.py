"""The trunks of a prefill without padding, and once what several of them begin with.

On a CPU a padded position costs what a token does. There projections and logits are computed for P
places, which have the tokens of B trunks one after the other, and only attention for all B * T
positions. A trunk has the places of an earlier one as far as their tokens are the same, but for the
last of these: the tokens that follow it differ, and with them their log-probabilities.

64 solutions of eight word problems, half of whose tokens are prompts, are scored by SmolLM2-135M in
0.51 of the CPU time that they took without shared places and with logits of all positions (medians
of three, 2026-11-27).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from vinejax.core.types import Array

# Sixteenths of the positions that have a place. Nine hold to 95% on average what trunks between
# half of T and all have without sharing; five are for solutions of one problem, and for a rest.
SIZES = (5, 9)
MIN_TRUNKS = 8  # of a batch; of fewer a place more is a larger share
ALIKE = 4  # trunks begin alike if a quarter of the shorter one is the same


class CompactPlaces(NamedTuple):
    """Where the tokens of B trunks of up to T tokens are computed."""

    source: Array  # i32[P] of each place: its token among the B * T
    place: Array  # i32[B, T] of each token; P where there is none


def without_padding(
    compact_places: CompactPlaces | None, x: Shaped[jax.Array, "B T *rest"]
) -> jax.Array:
    """What is computed of x: [1, P, ...], or all of it if `compact_places` is None."""
    return x if compact_places is None else x.reshape(-1, *x.shape[2:])[compact_places.source][None]


def padded(compact_places: CompactPlaces | None, x: jax.Array) -> Shaped[jax.Array, "B T *rest"]:
    """The inverse of `without_padding`, 0 where there is no token."""
    return (
        x
        if compact_places is None
        else jnp.take(x[0], compact_places.place, axis=0, mode="fill", fill_value=0)
    )


class PrefillFit(NamedTuple):
    """What a prefill computes of each shard's next trunks."""

    counts: list[int]  # of trunks, by shard
    places: int | None  # of a shard; None: all positions are computed


def place_counts(platform: str, batch: int, length: int) -> list[int]:
    """The numbers of places that a shard may have; none where padding is computed."""
    is_flat = platform == "cpu" and batch >= MIN_TRUNKS
    return [batch * length * share // 16 for share in SIZES] if is_flat else []


def in_groups(trunks: Sequence[Sequence[int]]) -> list[int]:
    """The trunks' numbers, those that begin alike side by side, the group of the longest first."""
    groups: list[list[int]] = []
    for i in sorted(range(len(trunks)), key=lambda i: list(trunks[i])):
        last = trunks[groups[-1][-1]] if groups else ()
        if ALIKE * num_common(last, trunks[i]) >= min(len(last), len(trunks[i])) > 0:
            groups[-1].append(i)
        else:
            groups.append([i])
    groups.sort(key=lambda group: -max(len(trunks[i]) for i in group))
    return [i for group in groups for i in group]


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of first tokens that are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (x, y) in pairs if x != y), min(len(one), len(other)))


def shared_tokens(trunks: Sequence[Sequence[int]], shares: bool = True) -> list[tuple[int, int]]:
    """For each trunk an earlier one, and how many first tokens have their places there.

    Without `shares` these are none.
    """
    if not shares:
        return [(0, 0)] * len(trunks)
    found = []
    for i, ids in enumerate(trunks):
        common = [num_common(ids, earlier) for earlier in trunks[:i]]
        earlier = int(np.argmax(common)) if common else 0
        found.append((earlier, max(max(common, default=0) - 1, 0)))
    return found


def fit_prefill(
    trunks: Sequence[Sequence[Sequence[int]]], sizes: Sequence[int], shares: bool = True
) -> PrefillFit:
    """How many of each shard's trunks fit, in the smallest of `sizes` that holds all, or the last.

    `shares`: trunks that begin alike have the same places there.
    """
    if not sizes:
        return PrefillFit([len(of_shard) for of_shard in trunks], None)
    taken = []
    for of_shard in trunks:
        shared = shared_tokens(of_shard, shares)
        taken.append(np.cumsum([len(x) - n for x, (_, n) in zip(of_shard, shared, strict=True)]))
    most = max(of_shard[-1] for of_shard in taken if len(of_shard))
    places = next((size for size in sizes if size >= most), sizes[-1])
    return PrefillFit([int((of_shard <= places).sum()) for of_shard in taken], places)


def compact_places_of(
    trunks: Sequence[Sequence[int]], batch: int, length: int, places: int, shares: bool = True
) -> CompactPlaces:
    """The places of a shard's trunks, on the host; arguments are as for `fit_prefill`."""
    source, place = np.zeros(places, np.int32), np.full((batch, length), places, np.int32)
    end = 0
    shared = shared_tokens(trunks, shares)
    for i, (ids, (earlier, n)) in enumerate(zip(trunks, shared, strict=True)):
        own = np.arange(end, end + len(ids) - n)
        place[i, :n], place[i, n : len(ids)] = place[earlier, :n], own
        source[own] = i * length + np.arange(n, len(ids))
        end += len(own)
    return CompactPlaces(source, place)
