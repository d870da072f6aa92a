"""The places at which the tokens of a prefill's trunks are computed."""

import numpy as np
import pytest

from vinejax.engine.unpadded_prefill import (
    PrefillFit,
    compact_places_of,
    fit_prefill,
    in_groups,
    place_counts,
    shared_tokens,
)

rng = np.random.default_rng(0)
PROMPTS = [rng.integers(2, 20, n).tolist() for n in (9, 5)]
# Solutions of two problems in turn; one occurs twice, and one is the beginning of another.
TRUNKS = [PROMPTS[i % 2] + rng.integers(2, 20, 3 + i).tolist() for i in range(6)]
TRUNKS += [TRUNKS[1], TRUNKS[2][:10]]


def test_trunks_that_begin_alike_are_side_by_side():
    order = in_groups(TRUNKS)
    assert sorted(order) == list(range(8))
    assert [TRUNKS[i][:5] == PROMPTS[0][:5] for i in order] == [True] * 4 + [False] * 4
    assert in_groups([]) == []
    apart = [[1, 2, 3, 4, 5, 6, 7, 8], [1, 3], [2] * 9]
    assert in_groups(apart) == [2, 0, 1], "of eight tokens one is the same"


def test_tokens_with_the_same_beginning_share_a_place():
    """Two tokens share a place only if all tokens up to the next one are the same."""
    compact_places = compact_places_of(TRUNKS, batch=8, length=20, places=90)
    tokens = np.zeros((8, 20), np.int32)
    for row, ids in enumerate(TRUNKS):
        tokens[row, : len(ids)] = ids
    places: dict[int, set[tuple[int, ...]]] = {}
    for row, ids in enumerate(TRUNKS):
        assert (compact_places.place[row, len(ids) :] == 90).all()
        for column in range(len(ids)):
            place = int(compact_places.place[row, column])
            source = int(compact_places.source[place])
            assert source % 20 == column and tokens.reshape(-1)[source] == ids[column]
            places.setdefault(place, set()).add(tuple(ids[: column + 2]))
    assert all(len(beginnings) == 1 for beginnings in places.values())
    assert sorted(places) == list(range(len(places)))
    assert len(places) == sum(map(len, TRUNKS)) - sum(n for _, n in shared_tokens(TRUNKS))
    assert len(places) < sum(map(len, TRUNKS)) - 3 * 8 - 3 * 4
    apart = compact_places_of(TRUNKS, 8, 20, 200, shares=False)
    assert len(np.unique(apart.place)) == sum(map(len, TRUNKS)) + 1


@pytest.mark.parametrize("shares", [True, False])
def test_as_many_trunks_as_places_hold(shares: bool):
    sizes = [50, 90]
    found = fit_prefill([TRUNKS, TRUNKS[:2]], sizes, shares)
    compact_places = compact_places_of(TRUNKS[: found.counts[0]], 8, 20, 90, shares)
    assert found.places == 90 and found.counts[1] == 2
    assert len(np.unique(compact_places.place)) - 1 <= 90
    assert (found.counts[0] == 8) == shares
    if not shares:
        assert sum(map(len, TRUNKS[: found.counts[0] + 1])) > 90
    assert fit_prefill([TRUNKS[:2], []], sizes, shares) == PrefillFit([2, 0], 50)
    assert fit_prefill([TRUNKS], [], shares) == PrefillFit([8], None)


def test_only_a_cpu_computes_without_padding():
    assert place_counts("cpu", 8, 32) == [80, 144]
    assert not place_counts("cpu", 4, 32) and not place_counts("tpu", 8, 32)
