"""Labels: their coefficients by hand, which samples count where, their scale, and no bias."""

import dataclasses
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import vine_cases
from helpers.applied import applied
from helpers.chain_cases import CHAIN, START, Chain, Term, simulation, term

from vinejax.config.checks import check_config
from vinejax.core.errors import ConfigError
from vinejax.core.types import Episode, Labels, PassingTokens, Problem, Rollout, Turn
from vinejax.credit.assign import Credit, assigned
from vinejax.credit.labels import (
    batch_labels,
    departure_of,
    label_metrics,
    passing_tokens,
    with_labels,
)
from vinejax.credit.samples import Sample
from vinejax.credit.trained_labels import scaled, trained_labels
from vinejax.learner.batch import collate, step_layout
from vinejax.methods.credit_by_role import step_credit
from vinejax.rollout.sampler import Sampler
from vinejax.rollout.vine import fill_values

A, B, C = 7, 8, 9  # tokens
PROMPT = [cases.BOS, 5]


class Vector(NamedTuple):
    kind: str
    outcome: float
    branches: list[tuple[int, float]]  # token and return of each sample
    expected: dict[int, float]
    advantage: float = 0.0
    learned: float = 0.0
    is_solution: tuple[bool, ...] = (False, False, False)
    weight: float = 0.5


VECTORS = [
    Vector("group", 1, [(A, 0), (B, 1)], {A: -1 / 6, B: 1 / 6}),
    Vector("group", 0, [(B, 1), (B, 0), (C, 1)], {A: -1 / 6, B: 0, C: 1 / 6}),
    Vector("group", 1, [(A, 1), (A, 0), (A, 0)], {A: 0}),
    Vector("group", 1, [], {A: 0.75}, advantage=0.75),
    Vector("mixed", 1, [(A, 0), (B, 1)], {A: 0, B: 0.25}, advantage=0.5),
    Vector("mixed", 0, [(B, 1), (B, 0), (C, 1)], {A: 0.125, B: -1 / 12, C: 1 / 12}, advantage=0.25),
    Vector("mixed", 1, [(B, 0)], {A: 0.25, B: -0.5}, advantage=0.5),
    Vector("mixed", 1, [], {A: 0.5}, advantage=0.5),
    # B = (2·v + Q) / 3; with two samples (2·v + Q + R of the other) / 4, and thirds.
    Vector("blend", 1, [(B, 0)], {A: 0.25, B: -1 / 3}, advantage=0.5, learned=0.5),
    Vector("blend", 1, [(B, 0), (C, 1)], {A: 1 / 6, B: -1 / 4, C: 1 / 6}, 0.5, learned=0.5),
    # Another solution's baseline has no v: (1 + 1) / 2.
    Vector(
        "blend",
        outcome=1,
        branches=[(B, 0), (C, 1)],
        expected={A: 1 / 6, B: -1 / 3, C: 1 / 6},
        advantage=0.5,
        learned=0.5,
        is_solution=(True, False, False),
    ),
    # w = 3/4: shares of 3/4 and 1/4, and ρ = 3.
    Vector("mixed", 1, [(B, 0)], {A: 0.375, B: -0.25}, advantage=0.5, weight=0.75),
    Vector("blend", 1, [(B, 0)], {A: 0.375, B: -1 / 6}, 0.5, learned=0.5, weight=0.75),
]


def config(kind: str = "group", weight: float = 0.5, **more: Any) -> Any:
    return applied(cases.config(credit={"labels": kind, "label_weight": weight}, **more))


def rollout_of(episodes: list[Episode]) -> Rollout:
    batch = collate(episodes, 1)
    return Rollout(
        episodes,
        batch._replace(labels=batch_labels(batch, episodes)),
        step_layout(batch, episodes),
    )


def labels_by_place(labels: Labels | None) -> dict[tuple[int, ...], float]:
    """(row, position, token) -> coefficient."""
    assert labels is not None
    row, column = np.nonzero(labels.position)
    keys = zip(row, labels.position[row, column], labels.token[row, column], strict=True)
    numbers = map(float, labels.coefficients[row, column])
    return {tuple(map(int, key)): x for key, x in zip(keys, numbers, strict=True)}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda x: f"{x.kind}-{len(x.branches)}")
def test_coefficients_by_hand(vector: Vector):
    branches, count = np.array(vector.branches, float).reshape(-1, 2), len(vector.branches)
    passing = PassingTokens(
        position=np.zeros(count, int),
        token=branches[:, 0].astype(int),
        returns=branches[:, 1],
        logprobs=np.zeros(count, np.float32),
        is_solution=np.array(vector.is_solution[:count], bool),
    )
    rollout = rollout_of([cases.episode(PROMPT, [A], reward=vector.outcome, passing=passing)])
    where = np.zeros(rollout.batch.tokens.shape, np.float32)
    where[0, len(PROMPT)] = 1
    rollout = rollout._replace(values=where * np.float32(vector.learned))
    cfg = config(vector.kind, vector.weight)
    credit = with_labels(Credit(where * np.float32(vector.advantage)), rollout, cfg)
    found = {A: float(credit.advantages[0, len(PROMPT)])}
    for (row, position, token), x in labels_by_place(credit.labels).items():
        assert (row, position) == (0, len(PROMPT)) and token != A
        found[token] = x
    assert found == pytest.approx(vector.expected, abs=1e-7)
    assert np.count_nonzero(credit.advantages) == (vector.expected[A] != 0)


def sample(start: int, *tokens: int, outcome: float, **more: Any) -> Sample:
    logprobs = [-0.5 - i for i in range(start, len(tokens))]
    plain: dict[str, Any] = {"ends": [], "rewards": []}
    return Sample(
        np.array(tokens, np.int32), start, outcome=outcome, logprobs=logprobs, **plain | more
    )


def test_a_sample_counts_as_far_as_it_repeats_the_solution():
    """From its first own token to the token by which it leaves the solution, or to its end."""
    one = cases.episode(PROMPT, [A, B, C, A, cases.EOS])
    leaves, repeats = sample(1, A, B, B, C, outcome=0.25), sample(3, *one.response, outcome=0.5)
    ends = sample(0, A, B, outcome=0.75)  # as if a budget had cut it
    found = passing_tokens(one, [leaves, repeats], [ends], 1.0)
    expected = [(1, B, 0.25, -1.5), (2, B, 0.25, -2.5), (3, A, 0.5, -3.5)]
    expected += [(4, cases.EOS, 0.5, -4.5), (0, A, 0.75, -0.5), (1, B, 0.75, -1.5)]
    assert list(zip(*(x.tolist() for x in found[:4]), strict=True)) == expected
    assert found.is_solution.tolist() == [False] * 4 + [True] * 2
    assert [len(x) for x in passing_tokens(one, [], [], 1.0)] == [0] * 5


def test_returns_are_those_from_each_position():
    one = cases.episode(PROMPT, [A, B, C, A])
    drawn = sample(0, A, B, C, C, outcome=1.0, ends=[2, 4], rewards=[0.5, 0.25])
    assert passing_tokens(one, [drawn], [], 1.0).returns.tolist() == [1.75, 1.75, 1.25, 1.25]


def test_a_continuation_leaves_where_its_token_differs():
    drawn = sample(1, A, B, C, C, outcome=1.0, ends=[2, 4], rewards=[0.5, 0.25])
    assert departure_of(drawn, [A, B, A, C, A], 1.0) == (2, C, 1.25)  # a step has ended before
    assert departure_of(drawn, [A, A], 1.0) == (1, B, 1.75)
    for response in ([A, B], [A, B, C, C], [A, B, C, C, A]):
        assert departure_of(drawn, response, 1.0) is None
    assert departure_of(sample(0, B, outcome=0.5), [A], 1.0) == (0, B, 0.5)


def two_solutions() -> Rollout:
    """Two samples leave the first solution at its third token, alike, and one at its first.

    The second solution has no sample, and the third one, which leaves by its first token.
    """
    one, other = cases.episode(PROMPT, [A, B, C], reward=1.0), cases.episode([cases.BOS], [A, B])
    samples = [sample(0, A, B, B, outcome=0.0), sample(1, A, B, B, outcome=1.0)]
    samples.append(sample(0, C, A, outcome=0.0))
    third = passing_tokens(other, [sample(0, B, B, outcome=0.5)], [], 1.0)
    passing = passing_tokens(one, samples, [], 1.0)
    return rollout_of(
        [
            cases.episode(PROMPT, [A, B, C], reward=1.0, passing=passing),
            other,
            cases.episode([cases.BOS], [A, B], passing=third),
        ]
    )


def test_labels_of_a_batch():
    """Equal tokens of a position are one label, with the sampler's log-probability."""
    labels = two_solutions().batch.labels
    assert labels is not None and not labels.coefficients.any()
    assert list(labels_by_place(labels)) == [(0, 2, C), (0, 4, B), (2, 1, B)]
    is_label = labels.position > 0
    assert labels.old_logprobs[is_label].tolist() == [-0.5, -2.5, -0.5]
    assert labels.sampler_logprobs is labels.old_logprobs


def test_labels_and_advantages_of_all_positions():
    rollout = two_solutions()
    advantages = np.where(rollout.batch.mask, np.float32(0.25), np.float32(0))
    credit = with_labels(Credit(advantages), rollout, config("group"))
    own = credit.advantages[rollout.batch.mask]
    # Of the first solution: X = 1, 0, 0 with tokens A, A, C; 1, 0, 1 with B; 1, 0, 1 with C, B, B.
    expected = [(1 - 0) / 3 + (0 - 0.5) / 3, 0, (1 - 0.5) / 3, 0.25, 0.25, -0.25 / 1, 0.25]
    np.testing.assert_allclose(own, expected, atol=1e-7)
    found = labels_by_place(credit.labels)
    wanted = {(0, 2, C): -0.5 / 3, (0, 4, B): (-1 + 0.5) / 3, (2, 1, B): 0.25}
    assert found == pytest.approx(wanted)


def test_only_trained_positions_have_labels():
    rollout = two_solutions()
    cfg = config("group", ppo={"whiten": "none", "minibatch": 2})
    mask = np.array(rollout.batch.mask)
    mask[0, 4] = False
    plain = Credit(np.zeros(mask.shape, np.float32), mask=mask)
    credit = assigned(with_labels(plain, rollout, cfg), rollout, cfg)
    assert credit.labels is not None
    assert list(labels_by_place(credit.labels)) == [(0, 2, C), (2, 1, B)]
    assert label_metrics(credit, rollout) == {
        "credit/labels": 2 / 6,
        "credit/coverage": 3 / 6,
        "credit/agreement": 3 / 5,
    }
    nothing = trained_labels(credit.labels, np.zeros_like(mask))
    assert not nothing.position.any() and nothing.position.shape[1] <= mask.shape[1] // 4


def test_given_and_observed_tokens_have_no_labels():
    """A sample that differs there has passed other states, or none of the policy's."""
    turn = Turn(drawn=2, end=3, action="", observation="", reward=0.0, key=None)
    passing = PassingTokens(
        position=np.arange(4),
        token=np.full(4, C),
        returns=np.ones(4),
        logprobs=np.zeros(4, np.float32),
        is_solution=np.zeros(4, bool),
    )
    one = cases.episode(PROMPT, [A, B, A, B], given=1, turns=(turn,), passing=passing)
    labels = rollout_of([one]).batch.labels
    assert list(labels_by_place(labels)) == [(0, 3, C), (0, 5, C)]


def test_no_sample_passes():
    rollout = rollout_of([cases.episode(PROMPT, [A, B]), cases.episode(PROMPT, [])])
    advantages = np.where(rollout.batch.mask, np.float32(0.5), np.float32(0))
    cfg = config("group", ppo={"whiten": "none", "minibatch": 2})
    credit = assigned(with_labels(Credit(advantages), rollout, cfg), rollout, cfg)
    np.testing.assert_array_equal(credit.advantages, advantages)
    assert label_metrics(credit, rollout) == {"credit/labels": 0, "credit/coverage": 0}


def test_terms_that_cancel_leave_no_label():
    """Thirds do not cancel to the last bit: b is drawn twice, with 1 and 0."""
    samples = [sample(0, B, outcome=x) for x in (1.0, 0.0)] + [sample(0, C, outcome=1.0)]
    passing = passing_tokens(cases.episode(PROMPT, [A]), samples, [], 1.0)
    rollout = rollout_of([cases.episode(PROMPT, [A], reward=0.0, passing=passing)])
    cfg = config("group", ppo={"whiten": "none", "minibatch": 2})
    plain = Credit(np.zeros(rollout.batch.mask.shape, np.float32))
    credit = assigned(with_labels(plain, rollout, cfg), rollout, cfg)
    assert labels_by_place(credit.labels) == pytest.approx({(0, 2, C): 1 / 6})


def test_after_the_last_state_its_learned_value_counts():
    """With `values.max_states` the second step begins at no state: B = (2·v + Q) / 3 there, too."""
    one = cases.episode(
        PROMPT,
        [A, B],
        reward=1.0,
        step_ends=[1, 2],
        is_state=np.array([True, False]),
        value_counts=np.array([1, 0], np.int32),
        values=np.array([0.0, 1.0], np.float32),
    )
    passing = passing_tokens(one, [sample(0, A, C, outcome=0.0)], [], 1.0)
    rollout = rollout_of([dataclasses.replace(one, passing=passing)])
    learned = np.zeros(rollout.batch.tokens.shape, np.float32)
    learned[0, len(PROMPT)] = 0.5  # before the first step alone
    plain = Credit(np.zeros(learned.shape, np.float32))
    credit = with_labels(plain, rollout._replace(values=learned), config("blend"))
    assert labels_by_place(credit.labels) == pytest.approx({(0, 3, C): -1 / 3})


def test_the_scale_is_one_number_without_a_shift():
    rollout = two_solutions()
    cfg = config("group", ppo={"whiten": "iteration", "minibatch": 2})
    plain = with_labels(Credit(np.zeros(rollout.batch.mask.shape, np.float32)), rollout, cfg)
    assert plain.labels is not None
    labels = trained_labels(plain.labels, rollout.batch.mask)
    credit = assigned(plain, rollout, cfg)
    assert credit.labels is not None
    square = np.sum(plain.advantages**2) + np.sum(labels.coefficients**2)
    scale = np.sqrt(square / np.count_nonzero(rollout.batch.mask))
    np.testing.assert_allclose(credit.advantages * scale, plain.advantages, atol=1e-6)
    np.testing.assert_allclose(credit.labels.coefficients * scale, labels.coefficients, atol=1e-6)
    for mask in (np.ones((2, 4), bool), np.zeros((2, 4), bool)):
        none = scaled(
            np.zeros((2, 4), np.float32),
            mask,
            labels._replace(coefficients=np.zeros((2, 1), np.float32)),
        )
        assert not none[0].any() and not none[1].coefficients.any()


SETTINGS: list[dict[str, Any]] = [
    {"labels": "group", "k": 1},
    {"labels": "group", "k": 2, "reuse": True},
    {"labels": "mixed", "k": 1, "reuse": True},
    {"labels": "mixed", "k": 2, "label_weight": 0.3},
    {"labels": "blend", "k": 1, "prior": "probe", "reuse": True},
]


# Letters that earn a reward at their step; the outcome is less, so that returns stay as they are.
WITH_STEPS = dataclasses.replace(CHAIN, step_rewards=np.array([0.25, -0.5, 0.5, 0.125]))


def standard_errors_off(setting: dict[str, Any], chain: Chain, problems: int) -> float:
    of_credit = ("labels", "label_weight")
    credit = {"lambda_": 0.5, "baseline_lambda": 0.5}
    credit |= {name: x for name, x in setting.items() if name in of_credit}
    values = {name: x for name, x in setting.items() if name not in of_credit}
    values |= {"positions": "tokens", "every": 2, "max_states": None}
    cfg, rng = applied(cases.config(values=values, credit=credit)), np.random.default_rng(3)
    parts = problems // 1250
    terms = (logit_gradients(chain, chain.episodes(rng, 1250, 4), cfg, rng) for _ in range(parts))
    return chain.standard_errors_off(terms, group=4)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda x: "-".join(map(str, x.values())))
def test_the_gradient_has_no_bias(setting: dict[str, Any]):
    """20,000 solutions, in groups of four: no entry is more than 4 standard errors off."""
    assert standard_errors_off(setting, CHAIN, 5000) < 4


@pytest.mark.nightly
@pytest.mark.parametrize("chain", [CHAIN, WITH_STEPS], ids=["outcome", "steps"])
@pytest.mark.parametrize(
    "setting",
    [*SETTINGS, SETTINGS[1] | {"backup": True}, SETTINGS[1] | {"dedup": False}],
    ids=lambda x: "-".join(map(str, x.values())),
)
def test_the_gradient_has_no_bias_with_many_solutions(setting: dict[str, Any], chain: Chain):
    """100,000 solutions, also with rewards of steps."""
    assert standard_errors_off(setting, chain, 25_000) < 4


@pytest.mark.slow
def test_rewards_of_steps_leave_no_bias():
    assert standard_errors_off(SETTINGS[1], WITH_STEPS, 5000) < 4


def logit_gradients(
    chain: Chain, episodes: list[Episode], cfg: Any, rng: np.random.Generator
) -> np.ndarray:
    """[episodes, length, 4] each solution's gradient by the logits of the letters at each time.

    A learned value, if the configuration has any, is the mean reward of the problem's other
    solutions, which the probe's values contain as well.
    """
    problems = [(Problem(name, "", ""), [cases.BOS]) for name in {e.problem_id for e in episodes}]
    engine = vine_cases.FakeEngine(lambda branch, k: ("", "eos"))
    sampler = Sampler(engine, vine_cases.rewards_of(vine_cases.Task()), cfg, 0)  # pyright: ignore
    with mock.patch.object(Sampler, "continuations", simulation(chain.draw(rng), [])):
        rollout = rollout_of(fill_values(sampler, {}, problems, episodes))
    if cfg.values.prior:
        groups = np.array([sum(e.rewards) for e in rollout.episodes]).reshape(-1, 4)
        others = (groups.sum(axis=1, keepdims=True) - groups) / 3
        learned = np.repeat(others.reshape(-1, 1), rollout.batch.tokens.shape[1], axis=1)
        rollout = rollout._replace(values=learned.astype(np.float32), weight=0.6)
    credit, first = with_labels(step_credit(rollout, cfg), rollout, cfg), 1
    terms = [
        term(i, e.response, credit.advantages[i, first : first + len(e.response)])
        for i, e in enumerate(rollout.episodes)
    ]
    labels, tokens = credit.labels, rollout.batch.tokens
    assert labels is not None
    row, column = np.nonzero(labels.position)
    position, token = labels.position[row, column], labels.token[row, column]
    before = np.where(position > first, tokens[row, position - 1], START)
    terms.append(Term(row, position - first, before, token, labels.coefficients[row, column]))
    return chain.logit_gradients(terms, len(rollout.episodes))


@pytest.mark.parametrize(
    ("reason", "sections"),
    [
        ("method = 'vineppo'", {"method": "spo_chain"}),
        ("values.budget = 'left'", {"values": {"budget": "fresh"}}),
        ("values.allocation other than", {"values": {"allocation": "bisection"}}),
        ("credit.mask of 'none'", {"credit": {"labels": "group", "mask": "low_probability"}}),
        ("values.prior", {"credit": {"labels": "blend"}}),
        ("ppo.gamma = 1", {"ppo": {"gamma": 0.9}}),
        ("ppo.whiten of", {"ppo": {"whiten": "minibatch"}}),
        ("ppo.loss of single tokens", {"ppo": {"loss": "gspo"}}),
    ],
)
def test_labels_that_cannot_be_are_refused(reason: str, sections: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"^credit.labels = .*: needs (a )?{reason}"):
        check_config(cases.config(**{"credit": {"labels": "group"}} | sections))


@pytest.mark.parametrize("mask", ["none", "top_entropy"])
def test_labels_that_can_be_are_not_refused(mask: str):
    check_config(cases.config(credit={"labels": "group", "mask": mask}))
