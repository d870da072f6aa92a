"""Seeds: the numbers of released versions, and that every part of a purpose counts."""

import itertools

from vinejax.core.seeds import host_rng, row_seed


def test_seeds_are_those_of_every_version():
    """BLAKE2b of the fields between slashes: a change would draw other tokens in a resumed run."""
    assert row_seed(0, 0, "train/7") == 15714195591228011954
    assert row_seed(1, 2, "train/7", rollout=3, state=4, k=5) == 17541118380939862156
    assert host_rng(0, 3, "minibatches", epoch=1).integers(2**32) == 2965917210


def test_every_field_of_a_row_counts():
    rows = itertools.product((0, 1), (0, 1), ("p", "q"), (0, 1), (0, 1), (0, 1))
    seeds = [row_seed(*fields) for fields in rows]
    assert len(set(seeds)) == len(seeds) == 64
    assert all(0 <= seed < 2**64 for seed in seeds)
    drawn = [host_rng(*f).integers(2**62) for f in [(0, 0, "a"), (0, 0, "a", 1), (0, 0, "b")]]
    assert len(set(drawn)) == 3
