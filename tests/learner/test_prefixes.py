"""Shared prefixes: the tokens that each token sees, and results, which sharing does not change."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from helpers import eight_devices
from helpers import loop_cases as cases
from helpers import method_cases as methods

from vinejax.core.types import Batch, Episode
from vinejax.learner.batch import collate
from vinejax.learner.likelihood import Likelihood
from vinejax.learner.packing import (
    Packing,
    Passes,
    pack_rows,
    packing_for,
    passes_for,
    with_sharing,
)
from vinejax.learner.policy import PolicyObjective, clipped_loss
from vinejax.learner.prefixes import common_prefixes, share_prefixes
from vinejax.learner.score import scores_of
from vinejax.learner.update import Objective, gradients
from vinejax.methods.ppo import CriticObjective, Targets, critic_values
from vinejax.model.config import Compute
from vinejax.model.decoder import Decoder

ROOM = 64


@functools.cache
def episodes() -> tuple[Episode, ...]:
    """Two problems with four solutions each, tails of one solution, and a third problem."""
    rng = np.random.default_rng(0)

    def drawn(n: int) -> list[int]:
        return rng.integers(3, cases.VOCAB, n).tolist()

    prompts = [drawn(11), drawn(6), drawn(4)]
    prompts[1][:3] = prompts[0][:3]
    found = [cases.episode(prompts[i], drawn(n)) for i in (0, 1) for n in (14, 9, 5, 17)]
    whole = found[0].response
    for given, n in [(4, 6), (4, 1), (9, 8), (9, 5), (13, 3)]:
        tail = cases.episode(prompts[0], whole[:given] + drawn(n))
        found.append(dataclasses.replace(tail, given=given))
    # Solutions with the same first token, and a solution that is a prefix of another.
    found.append(cases.episode(prompts[1], [*found[4].response[:2], *drawn(3)]))
    found.append(cases.episode(prompts[1], found[4].response[:7]))
    return *found, cases.episode(prompts[2], drawn(7))


@functools.cache
def minibatch() -> Batch:
    """The episodes as rows. Some tokens, also at the start of responses, are not trained on."""
    rng = np.random.default_rng(1)
    batch = collate(list(episodes()), rows=20, longest=ROOM)
    batch.mask[5] = False
    batch.mask[6, :8] = False
    batch.mask[3, ::3] = False
    return cases.with_arrays_of_chance(batch, rng)


# --- places


def rows_that_begin_alike(seed: int) -> Batch:
    """Random walks down a tree of two symbols in random order, and an empty row."""
    rng = np.random.default_rng(seed)
    count, room = 40, int(rng.integers(16, 48))
    batch = collate([cases.episode([3], [4])] * count, rows=count, longest=room)
    lengths = rng.integers(1, room + 1, count)
    lengths[3] = 0
    is_token = np.arange(batch.tokens.shape[1]) < lengths[:, None]
    tokens = np.where(is_token, rng.random(is_token.shape) < 0.15, False).astype(np.int32)
    first = rng.integers(0, lengths + 1)
    mask = is_token & (np.arange(is_token.shape[1]) >= first[:, None])
    mask &= rng.random(mask.shape) < 0.8
    positions = np.where(is_token, np.arange(is_token.shape[1]), 0).astype(np.int32)
    segment_ids = is_token.astype(np.int32)
    return batch._replace(tokens=tokens, mask=mask, positions=positions, segment_ids=segment_ids)


@pytest.mark.parametrize("seed", range(4))
def test_common_prefixes_equal_a_loop(seed: int):
    batch = rows_that_begin_alike(seed)
    lengths = np.count_nonzero(batch.segment_ids, axis=1)
    rows = [row[:n].tolist() for row, n in zip(batch.tokens, lengths, strict=True)]
    common, some = (common_prefixes(batch.tokens, lengths, n) for n in (len(rows), 3))
    for a, one in enumerate(rows):
        near, equal = common(a)
        assert sorted(near.tolist()) == list(range(len(rows)))
        for b, n in zip(near.tolist(), equal.tolist(), strict=True):
            other = rows[b]
            pairs = [x == y for x, y in zip(one, other, strict=False)]
            assert n == (pairs.index(False) if False in pairs else len(pairs))
        found = dict(zip(*(x.tolist() for x in some(a)), strict=True))
        assert a in found and 4 <= len(found) <= 7
        assert found.items() <= dict(zip(near.tolist(), equal.tolist(), strict=True)).items()


def packed_with(batch: Batch, size: int = 4) -> tuple[Packing, Batch]:
    packing = packing_for(batch, Passes(size, True, True), None)
    return packing, packing.pack(batch)


@pytest.mark.parametrize("seed", range(6))
def test_each_token_sees_its_row_up_to_itself(seed: int):
    """In packed rows, a trained token and the one before it see exactly their own sequence."""
    batch = rows_that_begin_alike(seed)
    packing, packed = packed_with(batch)
    assert packed.seen_until is not None
    width = batch.tokens.shape[1]
    length = packed.tokens.shape[1]
    has_place = set(packing.batch_places.tolist())
    assert len(has_place) == packing.batch_places.size < np.count_nonzero(batch.segment_ids)
    for before, after in zip(packing.batch_places, packing.packed_places, strict=True):
        row, t = divmod(int(before), width)
        bin_, q = divmod(int(after), length)
        seen = np.flatnonzero(packed.seen_until[bin_, : q + 1] > q)
        assert packed.positions[bin_, seen].tolist() == list(range(t + 1)) and seen[-1] == q
        assert packed.tokens[bin_, seen].tolist() == batch.tokens[row, : t + 1].tolist()
    for row, t in zip(*np.nonzero(batch.mask), strict=True):
        assert row * width + t in has_place and (t == 0 or row * width + t - 1 in has_place)
    np.testing.assert_array_equal(packing.put_back(packed.mask, len(batch.mask)), batch.mask)
    is_padding = packed.segment_ids == 0
    assert (packed.seen_until > np.arange(length)).all() and not packed.mask[is_padding].any()


def test_a_prompt_and_a_given_part_lie_there_once():
    """With all siblings in one row, each branch costs one token more than in a tree."""
    batch = minibatch()
    some = jax.tree.map(lambda x: x[[0, 8, 9, 10, 11, 12]], batch)
    forest = share_prefixes(some)
    assert (forest.bins == 0).all() and forest.shared.tolist() == [0, 14, 14, 19, 19, 23]
    tokens = np.count_nonzero(pack_rows(some.segment_ids, 1, forest=forest).segment_ids)
    assert tokens == 25 + (1 + 6) + (1 + 1) + (1 + 8) + (1 + 5) + (1 + 3)


def test_fewer_rows_are_filled():
    batch = minibatch()
    alone = pack_rows(batch.segment_ids, 1)
    packing, packed = packed_with(batch, 1)
    assert packing.num_passes < 0.7 * alone.num_passes
    assert np.count_nonzero(packed.segment_ids) == packing.packed_places.size


# --- what is computed


PLAIN, SHARED = Passes(4), Passes(2, packed=True, shared=True)
WINDOWS: list[tuple[int | None, ...]] = [(), (7, 7), (5, None)]


@pytest.mark.parametrize("windows", WINDOWS)
def test_scores_are_those_of_single_rows(windows: tuple[int | None, ...]):
    model, params, batch = cases.model(windows=windows), cases.params(), minibatch()
    alone, shared = (scores_of(model, params, batch, 0.6, passes) for passes in (PLAIN, SHARED))
    np.testing.assert_allclose(shared, alone, rtol=1e-5, atol=2e-6)
    assert (shared[batch.mask] != 0).all() and not shared[~batch.mask].any()


def test_values_are_those_of_single_rows():
    model, critic, batch = cases.model(), methods.critic_params(), minibatch()
    alone, shared = (critic_values(model, critic, batch, passes) for passes in (PLAIN, SHARED))
    np.testing.assert_allclose(shared, alone, rtol=1e-5, atol=2e-6)
    assert (shared[batch.mask] != 0).all()


grads_of = jax.jit(gradients, static_argnames="objective")


def objective_of(name: str, **fields: Any) -> tuple[Objective, Any, Any]:
    """(an objective, its parameters, its rows)"""
    model = fields.pop("model", cases.model())
    policy = functools.partial(PolicyObjective, model=model, temperature=0.6, kl_coef=0.1, **fields)
    if name == "critic":
        rng = np.random.default_rng(2)
        values, returns = (rng.uniform(0, 1, minibatch().mask.shape).astype("f4") for _ in "ab")
        objective = CriticObjective(model=model, clip=0.2, **fields)
        return objective, methods.critic_params(), (minibatch(), Targets(values, returns))
    objectives = {
        "token": lambda: policy(loss=clipped_loss, whiten="minibatch"),
        "sequence": lambda: policy(
            loss=clipped_loss, reduction="sequence", kl_reduction="sequence"
        ),
        "budget": lambda: policy(loss=clipped_loss, reduction="budget", max_tokens=16),
        "likelihood": lambda: Likelihood(model=model, reduction="sequence", **fields),
    }
    return objectives[name](), cases.params(), minibatch()


OBJECTIVES = [("sequence", 1), ("token", 4), ("critic", 1), ("budget", 4), ("likelihood", 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), [*OBJECTIVES, ("sequence", 4)])
def test_gradients_are_those_of_single_rows(name: str, size: int):
    objective, params, rows = objective_of(name, microbatch=size, packed=True, shared=True)
    packed = objective.pack(rows)
    of_packed = packed if isinstance(packed, Batch) else packed[0]
    plain = pack_rows(minibatch().segment_ids, 1)
    assert np.count_nonzero(of_packed.segment_ids.any(axis=1)) < plain.num_passes
    expected, sums = grads_of(dataclasses.replace(objective, microbatch=4), params, rows)
    grads, found = grads_of(objective, params, packed)
    cases.assert_close(grads, expected, cases.ROUNDING)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-6), found, sums)


DEVICES = """
import jax
from learner import test_prefixes as here
from helpers import loop_cases as cases
from vinejax.model.sharding import mesh_over, param_shardings

for name in ("sequence", "critic"):
    plain, params, rows = here.objective_of(name, microbatch=4)
    alone, _ = here.grads_of(plain, params, rows)
    for sizes in ((2, 2, 2), (1, 2, 1)):
        mesh = mesh_over(sizes, jax.devices()[: sizes[0] * sizes[1] * sizes[2]])
        model = cases.model().__class__(cases.model().cfg, mesh)
        objective, params, rows = here.objective_of(
            name, model=model, microbatch=4, packed=True, shared=True
        )
        params = jax.device_put(params, param_shardings(mesh, params))
        found, _ = here.grads_of(objective, params, objective.pack(rows))
        cases.assert_close(found, alone, cases.ROUNDING)
    print(name)
"""


@pytest.mark.slow
def test_shared_prefixes_over_devices():
    assert len(eight_devices.printed("-c", DEVICES)) == 2


# --- the setting


def test_where_prefixes_are_shared():
    model, mixed = cases.model(), cases.model(windows=(5, None))
    cfg = cases.config()

    def chosen(value: bool, model: Decoder, platform: str, packing: bool = True) -> bool:
        ppo = dataclasses.replace(cfg.ppo, share_prefixes=value, packing=packing)
        found = with_sharing(dataclasses.replace(cfg, ppo=ppo), model, platform)
        assert passes_for(found, 8, None).shared == found.ppo.share_prefixes
        return found.ppo.share_prefixes

    assert [chosen(True, model, x) for x in ("cpu", "gpu", "tpu")] == [True, True, False]
    assert not chosen(True, model, "cpu", packing=False) and not chosen(False, model, "cpu")
    plainly = dataclasses.replace(model, compute=Compute(attention="xla"))
    assert chosen(True, plainly, "tpu") and chosen(True, mixed, "tpu")
