"""Packed rows: the places of tokens, and results, which packing does not change."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods

from vinejax.core.settings import MeshConfig
from vinejax.core.types import Batch, Episode
from vinejax.learner.batch import collate
from vinejax.learner.packing import Packing, Passes, first_fit, pack_rows, passes_for
from vinejax.learner.policy import PolicyObjective, clipped_loss
from vinejax.learner.score import scores_of
from vinejax.learner.update import gradients
from vinejax.methods.dpo_positive import DPOConfig, loss
from vinejax.methods.pairs import PairObjective
from vinejax.methods.ppo import critic_values
from vinejax.model.sharding import make_mesh
from vinejax.rl.losses import dpo_positive

GSM8K_LIKE = (4.9, 0.45)  # mean and standard deviation of log length


def lengths_of(seed: int, count: int, room: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).lognormal(*GSM8K_LIKE, count)
    return np.clip(drawn.astype(int), 1, room)


# --- places


def first_fit_by_hand(lengths: list[int], room: int) -> list[list[int]]:
    """The items in each bin, in order."""
    bins: list[list[int]] = []
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        for found in bins:
            if sum(lengths[i] for i in found) + lengths[item] <= room:
                found.append(item)
                break
        else:
            bins.append([item])
    return bins


@pytest.mark.parametrize("seed", range(5))
def test_first_fit_equals_the_loop(seed: int):
    lengths = lengths_of(seed, 200, 512)
    bins, starts = first_fit(lengths, 512)
    for number, items in enumerate(first_fit_by_hand(lengths.tolist(), 512)):
        assert np.flatnonzero(bins == number).tolist() == sorted(items)
        ends = np.cumsum(lengths[items])
        assert starts[items].tolist() == [0, *ends[:-1]]


def test_nothing_to_pack():
    assert [x.tolist() for x in first_fit(np.zeros(3, int), 8)] == [[0] * 3, [0] * 3]
    packing = pack_rows(np.zeros((4, 8), np.int32), 2, total=4)
    assert packing.num_passes == 1 and not packing.segment_ids.any()


def rows_of_segments(seed: int, count: int, room: int) -> np.ndarray:
    """Segment ids of rows with one to three segments, and of empty rows."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((count, room), np.int32)
    for b in rng.permutation(count)[: count - 3]:
        sizes = rng.integers(1, room // 6, rng.integers(1, 4))
        ids[b, : sizes.sum()] = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    return ids


@pytest.mark.parametrize(("size", "shards", "total"), [(4, 1, None), (4, 2, 24), (8, 4, 24)])
def test_every_token_has_one_place(size: int, shards: int, total: int | None):
    ids = rows_of_segments(0, 24, 64)
    packing = pack_rows(ids, size, shards, total)
    numbered = np.arange(1, ids.size + 1).reshape(ids.shape) * (ids > 0)
    packed = packing.move(numbered)
    height = packing.num_passes * size
    assert packed.shape == packing.segment_ids.shape == (total or height, 64)
    np.testing.assert_array_equal(np.sort(packed[packed > 0]), numbered[numbered > 0])
    np.testing.assert_array_equal(packing.put_back(packed, 24), numbered)
    for b in range(24):  # a row stays together, in its order
        at = np.flatnonzero(np.isin(packed, numbered[b][numbered[b] > 0]))
        assert not at.size or np.array_equal(at, at[0] + np.arange(at.size))
        assert packed.reshape(-1)[at].tolist() == numbered[b][numbered[b] > 0].tolist()
        shift = packing.segment_ids.reshape(-1)[at] - ids[b][ids[b] > 0]
        assert len(set(shift.tolist())) <= 1
    for row, found in zip(packing.segment_ids, packed, strict=True):  # 1, 2, ..., then padding
        n = np.count_nonzero(found)
        assert (found[:n] > 0).all() and set(np.diff(row[:n], prepend=0)) <= {0, 1}
        assert not row[n:].any()


def test_rows_are_shared_evenly():
    """Passes without tokens come last. In others, shards differ by at most one row."""
    batch = np.arange(256) < lengths_of(1, 64, 256)[:, None]
    packing = pack_rows(batch.astype(np.int32), 8, 4, total=64)
    is_used = packing.segment_ids.any(axis=1).reshape(4, 2, 8)  # shard, row, pass
    assert not is_used[:, :, packing.num_passes :].any() and packing.num_passes < 8
    rows = is_used[:, :, : packing.num_passes].sum(axis=1)
    assert (np.ptp(rows, axis=0) <= 1).all()


@pytest.mark.parametrize("room", [512, 1024])
def test_long_tails_fill_their_rows(room: int):
    lengths = lengths_of(2, 512, room)
    bins, _ = first_fit(lengths, room)
    assert lengths.sum() / ((bins.max() + 1) * room) > 0.95


def test_passes():
    mesh = make_mesh(MeshConfig())
    cfg = cases.config(ppo={"minibatch": 64, "microbatch": None}, sft={"batch": 64})
    assert passes_for(cfg, 64, mesh) == passes_for(cfg, 64, None) == Passes(4, True, True)
    assert [passes_for(cfg, n, mesh).rows for n in (1, 12, 32, 37)] == [1, 1, 2, 37]
    plain = dataclasses.replace(cfg, ppo=dataclasses.replace(cfg.ppo, packing=False))
    assert passes_for(plain, 64, mesh) == Passes(64, False)
    chosen = dataclasses.replace(cfg, ppo=dataclasses.replace(cfg.ppo, microbatch=16))
    assert passes_for(chosen, 64, mesh) == Passes(16, True, True)


# --- what is computed


def episodes() -> list[Episode]:
    """The episodes of `method_cases`, and one with given tokens."""
    found = methods.episodes()
    part = dataclasses.replace(found[3], given=3)
    return [*found, part]


def test_scores_and_values_are_those_of_single_rows():
    model, params, critic = cases.model(), cases.params(), methods.critic_params()
    batch = collate(episodes(), rows=12)
    mask = np.asarray(batch.mask)
    for of in (
        lambda passes: scores_of(model, params, batch, 0.6, passes),
        lambda passes: critic_values(model, critic, batch, passes),
    ):
        alone, packed = of(Passes(4)), of(Passes(2, packed=True))
        np.testing.assert_allclose(packed, alone, rtol=1e-5, atol=1e-6)
        assert (packed[mask] != 0).all() and not packed[~mask].any()


def test_episodes_of_a_row_do_not_see_each_other():
    model, params = cases.model(), cases.params()
    batch = collate(episodes(), rows=12)
    packing = pack_rows(batch.segment_ids, 4)
    assert packing.segment_ids.max() > 2
    before = scores_of(model, params, batch, 0.6, Passes(4, True))
    tokens = batch.tokens.copy()
    tokens[2, 4] = 3 + (tokens[2, 4] - 2) % (cases.VOCAB - 3)
    after = scores_of(model, params, batch._replace(tokens=tokens), 0.6, Passes(4, True))
    changed = before != after
    assert changed[2, 4 : len(episodes()[2].tokens)].all()
    changed[2] = False
    assert not changed.any()


# test_methods.py packs every kind of batch over a mesh.
@pytest.mark.first
@pytest.mark.parametrize("method", ("vineppo", "critic", "dpo_positive", "restem"))
def test_packing_changes_no_gradient(method: str):
    expected, sums = methods.gradient_and_sums(method, 2)
    grads, packed = methods.gradient_and_sums(method, 2, packed=True)
    cases.assert_close(grads, expected, cases.ROUNDING)
    found, wanted = (
        np.concatenate([np.ravel(y) for y in jax.tree.leaves(x)]) for x in (packed, sums)
    )
    # The margins of the pairs add up to 0.
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


REDUCTIONS: list[dict[str, Any]] = [
    {"reduction": "sequence", "kl_reduction": "sequence"},
    {"reduction": "budget", "max_tokens": 16, "whiten": "minibatch"},
    {"reduction": "token", "kl_reduction": "policy"},
]
grads_of = jax.jit(gradients, static_argnames="objective")


def minibatch() -> Batch:
    """Rows with advantages, one of them without a trained token."""
    rng = np.random.default_rng(0)
    batch = collate(episodes(), rows=12)
    batch.mask[1] = False
    batch.mask[4, ::3] = False
    return cases.with_arrays_of_chance(batch, rng)


@pytest.mark.slow
@pytest.mark.parametrize("fields", REDUCTIONS)
def test_reductions_count_episodes(fields: dict[str, Any]):
    batch = minibatch()
    make = functools.partial(
        PolicyObjective, model=cases.model(), temperature=0.6, loss=clipped_loss
    )
    objective = make(microbatch=2, packed=True, kl_coef=0.1, **fields)
    packed = objective.pack(batch)
    assert np.count_nonzero(packed.segment_ids.any(axis=1)) < 6 and len(packed.tokens) == 12
    expected, sums = grads_of(objective, cases.params(), batch)
    grads, found = grads_of(objective, cases.params(), packed)
    cases.assert_close(grads, expected, cases.ROUNDING)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-6), found, sums)


@pytest.mark.slow
def test_pairs_equal_those_of_single_rows():
    """The reference is DPO-Positive's loss of scores from rows with one solution each."""
    rows = methods.batch()
    scores = scores_of(cases.model(), cases.params(), rows, 0.8, Passes(8))
    moved = np.where(rows.mask, scores - rows.ref_logprobs, 0.0).sum(axis=1)
    zero = np.zeros(8, np.float32)
    chosen, rejected = moved.astype(np.float32), np.roll(moved, 3).astype(np.float32)
    expected = np.asarray(
        dpo_positive(chosen, rejected, ref_chosen=zero, ref_rejected=zero, beta=0.1, penalty=5.0)
    )
    objective = PairObjective(
        model=cases.model(),
        microbatch=2,
        packed=True,
        temperature=0.8,
        loss=loss,
        own=DPOConfig(penalty=5.0),
    )
    pairs = methods.pairs_of(rows)
    for batch in (pairs, objective.pack(pairs)):
        _, sums = grads_of(objective, cases.params(), batch)
        assert sums.pairs == 8
        np.testing.assert_allclose(sums.loss, expected.sum(), rtol=1e-4)


class Counted(PolicyObjective):
    """Counts the passes that are made."""

    def loss_over(self, rows: Batch) -> Any:
        arrays, loss = super().loss_over(rows)

        def counted(params: Any, micro: Any) -> Any:
            jax.debug.callback(PASSES.append, 1)
            return loss(params, micro)

        return arrays, counted


PASSES: list[int] = []


@pytest.mark.slow
def test_passes_without_tokens_are_not_made():
    objective = Counted(
        model=cases.model(), temperature=0.6, loss=clipped_loss, microbatch=1, packed=True
    )
    batch = minibatch()
    packing: Packing = pack_rows(batch.segment_ids, 1, total=12)
    jax.block_until_ready(grads_of(objective, cases.params(), objective.pack(batch)))
    jax.effects_barrier()
    assert len(PASSES) == packing.num_passes < 6
