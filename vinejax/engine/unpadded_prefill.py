"""A prefill without padding, which computes the common beginning of several trunks once.

On a CPU a padded position costs as much time as a token. Projections and logits are therefore
computed for P places only, which hold the tokens of B trunks one after the other. Attention alone
is computed for all B * T positions. Trunks with a common beginning share the places of its
tokens, except for its last token. The hidden state of that token gives the log-probability of the
next token, which differs between the trunks.

SmolLM2-135M scores 64 solutions of eight word problems, half of whose tokens are prompts, in 0.51
of the CPU time of a prefill without shared places and with logits of all positions (medians of
three, 2026-11-27).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from vinejax.core.types import Array

# Numbers of places, in sixteenths of the positions. Trunks of T / 2 to T tokens without shared
# places fill nine sixteenths to 95% on average. Five are for solutions of one problem, and for a
# last batch.
SIZES = (5, 9)
MIN_TRUNKS = 8  # fewest trunks of a batch; in a smaller one, unused places are a larger share
ALIKE = 4  # trunks begin alike if they share a quarter of the shorter one's tokens


class CompactPlaces(NamedTuple):
    """The P places at which the tokens of B trunks of up to T tokens are computed."""

    source: Array  # i32[P] index of each place's token among the B * T
    place: Array  # i32[B, T] place of each token; P where there is no token


def without_padding(
    compact_places: CompactPlaces | None, x: Shaped[jax.Array, "B T *rest"]
) -> jax.Array:
    """The entries of x at the P places, [1, P, ...]; x itself if `compact_places` is None."""
    return x if compact_places is None else x.reshape(-1, *x.shape[2:])[compact_places.source][None]


def with_padding(
    compact_places: CompactPlaces | None, x: jax.Array
) -> Shaped[jax.Array, "B T *rest"]:
    """Converts x from the form that `without_padding` returns back to [B, T, ...].

    The result is 0 at padding. If `compact_places` is None, the result is x itself.
    """
    if compact_places is None:
        return x
    return jnp.take(x[0], compact_places.place, axis=0, mode="fill", fill_value=0)


class PrefillFit(NamedTuple):
    """The number of trunks that a prefill computes, and the number of places that it has."""

    counts: list[int]  # number of trunks per shard
    places: int | None  # number of places of a shard; None if all positions are computed


def place_counts(platform: str, batch: int, length: int) -> list[int]:
    """The numbers of places that a prefill may have on a shard.

    The list is empty if padding is computed, too, so that no places are used.
    """
    skips_padding = platform == "cpu" and batch >= MIN_TRUNKS
    return [batch * length * share // 16 for share in SIZES] if skips_padding else []


def in_groups(trunks: Sequence[Sequence[int]]) -> list[int]:
    """The trunks' numbers in an order in which trunks that begin alike are side by side.

    The group with the longest trunk comes first.
    """
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
    """The number of tokens of the common beginning of two sequences."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (x, y) in pairs if x != y), min(len(one), len(other)))


def shared_tokens(trunks: Sequence[Sequence[int]], shares: bool = True) -> list[tuple[int, int]]:
    """For each trunk, the index of an earlier trunk and the number of first tokens that they share.

    A shared token is computed only once, for both trunks. The last token of their common beginning
    is not shared. The number is 0 for the first trunk, and for all trunks if `shares` is False.
    """
    if not shares:
        return [(0, 0)] * len(trunks)
    shared = []
    for i, ids in enumerate(trunks):
        common = [num_common(ids, earlier) for earlier in trunks[:i]]
        earlier = int(np.argmax(common)) if common else 0
        shared.append((earlier, max(max(common, default=0) - 1, 0)))
    return shared


def fit_prefill(
    trunks: Sequence[Sequence[Sequence[int]]], sizes: Sequence[int], shares: bool = True
) -> PrefillFit:
    """The number of places of a prefill, and how many of each shard's trunks fit these places.

    The number of places is the first of `sizes` with room for all trunks, or the last of `sizes` if
    none has room. If `sizes` is empty, it is None, and all trunks fit. For `shares` see
    `shared_tokens`.
    """
    if not sizes:
        return PrefillFit([len(of_shard) for of_shard in trunks], None)
    totals = []  # per shard: cumulative number of places over its trunks
    for of_shard in trunks:
        shared = shared_tokens(of_shard, shares)
        totals.append(np.cumsum([len(x) - n for x, (_, n) in zip(of_shard, shared, strict=True)]))
    most = max(of_shard[-1] for of_shard in totals if len(of_shard))
    places = next((size for size in sizes if size >= most), sizes[-1])
    return PrefillFit([int((of_shard <= places).sum()) for of_shard in totals], places)


def compact_places_of(
    trunks: Sequence[Sequence[int]], batch: int, length: int, places: int, shares: bool = True
) -> CompactPlaces:
    """The places of a shard's trunks, as NumPy arrays with P = `places`, B = `batch`, T = `length`.

    With `shares` trunks share the places of a common beginning (`shared_tokens`).
    """
    source, place = np.zeros(places, np.int32), np.full((batch, length), places, np.int32)
    end = 0
    shared = shared_tokens(trunks, shares)
    for i, (ids, (earlier, n)) in enumerate(zip(trunks, shared, strict=True)):
        new = np.arange(end, end + len(ids) - n)
        place[i, :n], place[i, n : len(ids)] = place[earlier, :n], new
        source[new] = i * length + np.arange(n, len(ids))
        end += len(new)
    return CompactPlaces(source, place)
