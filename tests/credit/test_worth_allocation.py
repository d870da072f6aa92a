"""What step credit is worth, and the setting that is chosen by it."""

import dataclasses
import functools

import numpy as np
import pytest
from helpers import vine_cases as cases
from helpers.applied import assign_credit

from vinejax.core.errors import ConfigError
from vinejax.core.settings import ValuesConfig
from vinejax.core.types import Rollout
from vinejax.credit import worth
from vinejax.credit.allocation import Seen
from vinejax.credit.rules import check_rules
from vinejax.credit.worth import COUNTS, EXPLORED, FILTERS, LAMS, STRIDES, Choice, Explored, Worth
from vinejax.learner.batch import collate, step_layout
from vinejax.methods.known import find_method
from vinejax.methods.worth import explored as of_rollout
from vinejax.methods.worth import measured
from vinejax.rl.by_role import role_advantages

STEPS = 12
VALUES = ValuesConfig(allocation="worth")


def solutions(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(f32[B, C] values of states, f32[B] outcomes): steps 3 and 7 double V or end it."""
    rng = np.random.default_rng(seed)
    values = np.zeros((size, STEPS), np.float32)
    now = np.full(size, 0.25)
    for c in range(STEPS):
        values[:, c] = now
        if c in (3, 7):
            now = np.where(rng.random(size) < 0.5, 2 * now, 0)
    return values, (rng.random(size) < now).astype(np.float32)


def explored(size: int, seed: int, v_error: float = 0.1) -> Explored:
    """Explored solutions whose steps have ten tokens."""
    values, outcomes = solutions(size, seed)
    rng = np.random.default_rng(seed + 1)
    rewards = np.zeros(values.shape, np.float32)
    rewards[:, -1] = outcomes
    return Explored(
        returns=(rng.random((2, *values.shape)) < values).astype(np.float32),
        rewards=rewards,
        num_steps=np.full(size, STEPS, np.int32),
        is_state=np.ones(values.shape, bool),
        v=(values + rng.normal(0, v_error, values.shape)).astype(np.float32),
        weight=np.ones(values.shape, np.float32),
        left=np.tile(10.0 * (STEPS - np.arange(STEPS)), (size, 1)),
        share=np.ones(values.shape),
    )


@functools.cache
def seen(size: int, seed: int = 0, v_error: float = 0.1) -> Worth:
    return worth.updated(worth.fresh_worth(), explored(size, seed, v_error))


def square_of(choice: Choice, size: int = 4000) -> float:
    """The mean of Â² over steps, by drawing what the setting draws."""
    values, outcomes = solutions(size, seed=77)
    rng = np.random.default_rng(78)
    rewards = np.zeros(values.shape, np.float32)
    rewards[:, -1] = outcomes
    means = (rng.random((choice.count, *values.shape)) < values).mean(axis=0)
    sampled = np.broadcast_to(np.arange(STEPS) % choice.stride == 0, values.shape)
    v = np.float32(values + rng.normal(0, 0.1, values.shape))
    steps = np.full(size, STEPS, np.int32)
    roles = choice.lam, choice.filter, 1.0, sampled, v, choice.weight
    return float(np.mean(np.asarray(role_advantages(means, rewards, steps, *roles)) ** 2))


@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.parametrize("stride", [1, 4])
def test_two_draws_tell_what_more_would_give(count: int, stride: int):
    kept = seen(4000)
    _, squares, weights = worth._table(kept, 0.125)
    k, m = COUNTS.index(count), STRIDES.index(stride)
    for lam, w in ((0.0, 0.0), (0.5, 0.3), (1.0, 0.7)):
        at = (k, LAMS.index(lam), FILTERS.index(w), m)
        expected = square_of(Choice(count, stride, lam, w, float(weights[at])))
        found = squares[at] / 4000
        assert found == pytest.approx(expected, rel=0.06), (lam, w)


def test_the_signal_and_the_worth_of_outcomes():
    """V is ¼, then 0 or ½, then 0 or 1: A² is 1/16 in step 3 and 1/8 on average in step 7."""
    kept = seen(4000, v_error=0.0)
    assert kept.signal / 4000 == pytest.approx((1 / 16 + 1 / 8) / STEPS, rel=0.15)
    variance = (4 * 3 / 16 + 4 * 1 / 8 + 4 * 0) / STEPS  # E V(1 - V) before each step
    assert kept.outcome / 4000 == pytest.approx(variance, rel=0.05)


def test_tokens_of_continuations_at_every_so_many_states():
    kept = seen(40)
    per_solution = [sum(10 * (STEPS - c) for c in range(0, STEPS, m)) for m in STRIDES]
    np.testing.assert_allclose(kept.drawn, 40 * np.array(per_solution))
    assert kept.tokens == 40 * 120 and kept.solutions == 40
    given = explored(40, 0)
    given.share[:, 0] = 1 / 8  # the problem's solutions have one first state
    shared = worth.updated(worth.fresh_worth(), given)
    np.testing.assert_allclose(shared.drawn, kept.drawn - 40 * 7 / 8 * 120)


def test_a_state_that_solutions_share_is_paid_for_once():
    """Two solutions have one first state; K = 4."""
    cfg = cases.config()
    both, engine = cases.fill([cases.episode(cases.RIGHT), cases.episode(cases.WRONG)], cfg)
    assert len(engine.branches) == 4 * (2 + 4 - 1)
    batch = collate(both, rows=2)
    rollout = Rollout(both, batch, step_layout(batch, both))
    found = measured(rollout, assign_credit(rollout, cfg), cfg)["credit/price"]
    lengths = [len(one.response) for one in both]
    later = [n - end for n, one in zip(lengths, both, strict=True) for end in one.step_ends[:-1]]
    tokens = 4 * (sum(lengths) / 2 + sum(later)) / sum(lengths)
    assert found == pytest.approx(worth.price_of(cfg.values.price, tokens))
    learned = rollout._replace(values=np.zeros(batch.mask.shape, np.float32))
    assert of_rollout(learned).share[:, :4].tolist() == [[0.5, 1, 1, 1]] * 2


def test_old_solutions_fade():
    kept = worth.updated(seen(worth.HALF_LIFE), explored(worth.HALF_LIFE, 5))
    assert kept.solutions == worth.HALF_LIFE * 1.5


def test_solutions_that_were_not_explored_do_not_count():
    some = explored(40, 3)
    is_row = np.arange(40) % 3 == 0
    few = Explored(*(x[:, is_row] if x.ndim == 3 else x[is_row] for x in some))
    rest = some._replace(
        weight=some.weight * is_row[:, None], v=np.where(is_row[:, None], some.v, 9.0)
    )
    found, expected = (worth.updated(worth.fresh_worth(), x) for x in (rest, few))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_step_credit_is_chosen_where_it_pays_and_only_there():
    kept = seen(400)
    chosen = worth.choice(kept, price=1 / 8)
    assert chosen.count > 0
    gain = kept.outcome / 400 / square_of(chosen)
    tokens = kept.drawn[STRIDES.index(chosen.stride)] / kept.tokens * chosen.count
    assert gain > 1.1 * worth.price_of(1 / 8, tokens)
    assert worth.choice(kept, price=100.0).count == 0
    assert worth.choice(worth.fresh_worth(), price=1 / 8).count == 0


def test_few_solutions_do_not_speak_for_many_continuations():
    """Products of few draws can come out near 0 or below, as if nothing but noise were left."""
    counts = [worth.choice(seen(4, seed), 1 / 8).count for seed in range(20)]
    assert np.mean(np.array(counts) > EXPLORED) < 0.2
    assert np.mean([worth.choice(seen(400, seed), 1e-3).count > 4 for seed in range(5)]) == 1


def test_exploring_is_bounded():
    kept, share = seen(400), 0.1
    values = dataclasses.replace(VALUES, explore=share)
    chosen = worth.choice(kept, values.price)
    late = worth.chance(kept, chosen, 50, 16, values)
    cost, _, _ = worth._table(kept, values.price)
    usual = cost[COUNTS.index(chosen.count), STRIDES.index(chosen.stride)]
    assert late * (cost[COUNTS.index(EXPLORED), 0] - usual) == pytest.approx(share * usual)
    none = dataclasses.replace(VALUES, explore=0.0)
    first = [worth.chance(kept, chosen, i, 16, none) for i in range(60)]
    assert first[0] == 0.5 and sum(first) == pytest.approx(1.0)
    assert worth.chance(kept, chosen, 0, 10_000, values) == worth.MOST_EXPLORED / 10_000


def test_whether_a_solution_is_explored_is_a_draw_of_its_own():
    drawn = [worth.is_explored(7, n, i, 0.3) for n in range(20) for i in range(100)]
    assert np.mean(drawn) == pytest.approx(0.3, abs=0.04)
    assert drawn == [worth.is_explored(7, n, i, 0.3) for n in range(20) for i in range(100)]
    assert all(worth.is_explored(7, 0, i, 1.0) for i in range(50))
    assert not any(worth.is_explored(7, 0, i, 0.0) for i in range(50))


def test_allocations():
    state = Seen([[]] * 5, [0.0] * 5, 1.0)
    assert worth.at_every(3, 2)(0, state, VALUES) == [3, 0, 3, 0, 3]
    assert worth.at_every(3, 2)(1, state, VALUES) is None
    assert worth.at_every(0, 1)(0, state, VALUES) is None
    assert worth.everywhere(0, state, VALUES) == [2] * 5


@pytest.mark.parametrize(
    ("sections", "about"),
    [
        ({}, "values.allocation = 'worth': needs values.prior"),
        ({"prior": "probe", "credit": {"lam": 0.5}}, "credit.lam = 0.5: cannot be with"),
        ({"prior": "probe", "reuse": True}, "values.reuse = True: cannot be with"),
        ({"prior": "probe", "k": 3}, "values.k = 3: is read by"),
    ],
)
def test_what_does_not_fit_is_refused(sections: dict, about: str):
    credit = sections.pop("credit", None)
    cfg = cases.config(credit, **{"k": 9, "allocation": "worth"} | sections)
    cfg = find_method("vineppo").applied_to(cfg)
    with pytest.raises(ConfigError, match=about):
        check_rules(cfg, lambda field, value: field == "values.k" and value == 3)
