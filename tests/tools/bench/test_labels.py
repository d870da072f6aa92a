"""Labels: their coefficients by hand, which samples count where, no bias, and their gradient."""

from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import vine_cases
from helpers.applied import applied
from helpers.chain_cases import CHAIN, NUM_LETTERS, START, simulation
from helpers.refusals import refuses

from vinejax.config.checks import check_config
from vinejax.core.settings import ValuesConfig
from vinejax.core.types import Episode, Problem, Rollout
from vinejax.credit.positions import TextOf
from vinejax.credit.samples import Sample
from vinejax.learner.batch import collate, step_layout
from vinejax.learner.packing import Passes
from vinejax.methods.credit_by_role import step_credit
from vinejax.rollout.sampler import Sampler
from vinejax.rollout.vine import sampled_states, valued_episodes
from vinejax.tools.bench.branches import uniform_position, with_branches
from vinejax.tools.bench.gradients import policy_gradients
from vinejax.tools.bench.labels import (
    NO_LABELS,
    Labels,
    PassingTokens,
    labelled,
    passing_tokens,
    with_labels,
)
from vinejax.tools.bench.settings import BenchConfig

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
]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda x: f"{x.kind}-{len(x.branches)}")
def test_coefficients_by_hand(vector: Vector):
    batch = collate([cases.episode(PROMPT, [A])], 1)
    where = np.zeros(batch.tokens.shape, np.float32)
    where[0, len(PROMPT)] = 1
    place = np.full(len(vector.branches), len(PROMPT))
    branches = np.array(vector.branches, float).reshape(-1, 2)
    own, labels = labelled(
        batch,
        batch.mask,
        advantages=where * np.float32(vector.advantage),
        outcomes=where * np.float32(vector.outcome),
        passing=PassingTokens(
            place,
            token=branches[:, 0].astype(int),
            returns=branches[:, 1],
            is_solution=np.array(vector.is_solution[: len(place)], bool),
        ),
        kind=vector.kind,
        weight=0.5,
        learned=where * np.float32(vector.learned),
    )
    found = dict.fromkeys(vector.expected, 0.0) | {A: float(own[0, len(PROMPT)])}
    found |= dict(zip(labels.token.tolist(), labels.coefficient.tolist(), strict=True))
    assert found == pytest.approx(vector.expected, abs=1e-7)
    assert set(labels.place) <= {len(PROMPT)} and A not in labels.token
    assert np.count_nonzero(own) <= 1


def test_a_sample_counts_as_far_as_it_repeats_the_solution():
    """From its first own token to the token by which it leaves the solution, or to its end."""
    one = cases.episode(PROMPT, [A, B, C, A, cases.EOS])
    other = cases.episode([cases.BOS], [A, cases.EOS])

    def sample(start: int, *tokens: int, outcome: float) -> Sample:
        return Sample(np.array(tokens, np.int32), start, ends=[], rewards=[], outcome=outcome)

    batch = collate([one, other], 1)
    leaves, repeats = sample(1, A, B, B, C, outcome=0.25), sample(3, *one.response, outcome=0.5)
    ends = sample(0, A, B, outcome=0.75)  # as if a budget had cut it
    samples = [([leaves, repeats], [ends]), ([sample(1, A, B, outcome=1.0)], [])]
    found = passing_tokens(batch, [one, other], samples, 1.0)
    first, second = len(PROMPT), batch.tokens.shape[1] + 1
    expected = [(first + 1, B, 0.25), (first + 2, B, 0.25)]
    expected += [(first + 3, A, 0.5), (first + 4, cases.EOS, 0.5)]
    expected += [(first, A, 0.75), (first + 1, B, 0.75), (second + 1, B, 1.0)]
    assert list(zip(*(x.tolist() for x in found[:3]), strict=True)) == expected
    assert found.is_solution.tolist() == [False] * 4 + [True] * 2 + [False]


def test_returns_are_those_from_each_position():
    one = cases.episode(PROMPT, [A, B, C, A])
    sample = Sample(np.array([A, B, C, C]), 0, ends=[2, 4], rewards=[0.5, 0.25], outcome=1.0)
    found = passing_tokens(collate([one], 1), [one], [([sample], [])], 1.0)
    assert found.returns.tolist() == [1.75, 1.75, 1.25, 1.25]


def test_positions_outside_the_mask_have_no_labels():
    one = cases.episode(PROMPT, [A, B, C])
    batch = collate([one], 1)
    mask = np.array(batch.mask)
    mask[0, len(PROMPT) + 1] = False
    sample = Sample(np.array([A, C]), 0, ends=[], rewards=[], outcome=1.0)
    zeros = np.zeros(mask.shape, np.float32)
    own, labels = labelled(
        batch,
        mask,
        advantages=zeros,
        outcomes=zeros,
        passing=passing_tokens(batch, [one], [([sample], [])], 1.0),
        kind="mixed",
        weight=0.5,
    )
    assert not len(labels.place) and np.flatnonzero(own).tolist() == [len(PROMPT)]


ROWS = {"positions": "tokens", "dedup": False, "max_states": None}
RANDOM = np.random.default_rng(5)


def random_position(episode: Episode, text_of: TextOf, values: ValuesConfig) -> list[int]:
    """`uniform_position`, whose hash is not random for the chain's few responses."""
    position = int(RANDOM.integers(values.every))
    return [position] if position < len(episode.response) else []


def position_by_length(episode: Episode, text_of: TextOf, values: ValuesConfig) -> list[int]:
    """A position that is uniform over the response's own tokens."""
    return [int(RANDOM.integers(len(episode.response)))]


SETTINGS: list[dict[str, Any]] = [
    {"labels": "group", "k": 1},
    {"labels": "group", "k": 2, "reuse": True},
    {"labels": "mixed", "k": 1, "reuse": True},
    {"labels": "mixed", "k": 2, "label_weight": 0.3},
    {"labels": "blend", "k": 1, "label_weight": 0.7, "prior": "probe", "reuse": True},
    {"branches": "first", "k": 1, "dedup": False},
    {"branches": "all", "k": 2, "dedup": False},
    {
        "branches": "fork",
        "k": 2,
        "dedup": False,
        "positions": f"{__name__}.random_position",
        "every": 4,
    },
]


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda x: "-".join(map(str, x.values())))
def test_the_gradient_has_no_bias(setting: dict[str, Any]):
    """20,000 solutions, in groups of four: no entry is more than 4 standard errors off."""
    assert standard_errors_off(setting) < 4


@pytest.mark.slow
def test_a_fork_that_knows_the_length_is_biased():
    assert standard_errors_off(SETTINGS[-1] | {"positions": f"{__name__}.position_by_length"}) > 8


def standard_errors_off(setting: dict[str, Any]) -> float:
    """The greatest distance of an entry of the gradient from its closed form."""
    of_bench = ("labels", "label_weight", "branches")
    bench = {name: x for name, x in setting.items() if name in of_bench}
    values = {"positions": "tokens", "every": 2} | setting
    values = {name: x for name, x in values.items() if name not in of_bench}
    credit = {"lambda_": 0.5, "baseline_lambda": 0.5}
    cfg = applied(cases.config(values=values | {"max_states": None}, credit=credit, bench=bench))
    rng, problems = np.random.default_rng(3), 1250
    found = np.concatenate(
        [
            logit_gradients(CHAIN.episodes(rng, problems, 4), cfg, rng)
            .reshape(problems, 4, -1)
            .mean(axis=1)
            for _ in range(4)
        ]
    )
    errors = found.std(axis=0) / np.sqrt(len(found))
    off = (found.mean(axis=0) - CHAIN.gradient().reshape(-1)) / (errors + 1e-9)
    print(f"{setting}: {np.abs(off).max():.2f} standard errors, mean square {np.sum(errors**2)}")
    return float(np.abs(off).max())


class Term(NamedTuple):
    """Coefficients of log-probabilities of letters, as flat arrays."""

    solution: np.ndarray
    time: np.ndarray  # number of letters before
    before: np.ndarray  # the letter before
    letter: np.ndarray
    coefficient: np.ndarray


def term(solution: int, letters: list[int], coefficients: np.ndarray) -> Term:
    """The coefficients of the letters of a whole response."""
    count = len(letters)
    before = np.array([START, *letters[:-1]])
    return Term(np.full(count, solution), np.arange(count), before, np.array(letters), coefficients)


def logit_gradients(episodes: list[Episode], cfg: Any, rng: np.random.Generator) -> np.ndarray:
    """[episodes, length, 4] each solution's gradient by the logits of the letters at each time.

    A learned value, if the configuration has any, is the mean reward of the problem's other
    solutions, which the probe's values contain as well.
    """
    problems = [(Problem(name, "", ""), [cases.BOS]) for name in {e.problem_id for e in episodes}]
    engine = vine_cases.FakeEngine(lambda branch, k: ("", "eos"))
    sampler = Sampler(engine, vine_cases.rewards_of(vine_cases.Task()), cfg, 0)  # pyright: ignore
    with mock.patch.object(Sampler, "continuations", simulation(CHAIN.draw(rng), [])):
        states, logprobs = sampled_states(sampler, {}, problems, episodes)
    rows = valued_episodes(states, logprobs, cfg.ppo.gamma)
    batch = collate(rows, 1)
    rollout = Rollout(rows, batch, step_layout(batch, rows))
    if cfg.values.prior:
        groups = np.array([e.reward for e in rows]).reshape(-1, 4)
        others = (groups.sum(axis=1, keepdims=True) - groups) / 3
        learned = np.repeat(others.reshape(-1, 1), batch.tokens.shape[1], axis=1)
        rollout = rollout._replace(values=learned.astype(np.float32), weight=0.6)
    advantages = np.where(batch.mask, step_credit(rollout, cfg).advantages, 0).astype(np.float32)
    bench, length = BenchConfig.of(cfg), batch.tokens.shape[1]
    first = 1  # tokens of the prompt
    terms = []
    if bench.branches != "off":
        own, made = with_branches(rollout, advantages, states, cfg)
        terms += [
            term(owner, row.response, x)
            for owner, row, x in zip(made.solutions, made.rows, made.coefficients, strict=True)
        ]
    else:
        own, labels = with_labels(rollout, np.asarray(batch.mask), advantages, states, cfg)
        row, column = np.divmod(labels.place, length)
        before = np.where(column > first, batch.tokens[row, column - 1], START)
        terms.append(Term(row, column - first, before, labels.token, labels.coefficient))
    terms += [
        term(i, e.response, own[i, first : first + len(e.response)]) for i, e in enumerate(rows)
    ]
    solution, time, before, letter, coefficient = map(np.concatenate, zip(*terms, strict=True))
    scores = np.eye(NUM_LETTERS)[letter] - CHAIN.moves[before]
    gradients = np.zeros((len(rows), CHAIN.length, NUM_LETTERS))
    np.add.at(gradients, (solution, time), coefficient[:, None] * scores)
    return gradients


@pytest.mark.slow
@pytest.mark.parametrize("passes", [Passes(2), Passes(2, packed=True)])
def test_the_gradient_is_that_of_a_plain_loop(passes: Passes):
    episodes = cases.random_episodes([(4, 3), (2, 5), (3, 1), (5, 21), (3, 8)])
    batch = collate(episodes, 2)
    length, rng = batch.tokens.shape[1], np.random.default_rng(0)
    credit = rng.normal(size=(2, *batch.mask.shape)).astype(np.float32)
    trained = np.flatnonzero(batch.mask)
    place = rng.choice(trained, 24, replace=False)
    token = (batch.tokens.reshape(-1)[place] + rng.integers(1, cases.VOCAB, 24)) % cases.VOCAB
    labels = [Labels(place, token, rng.normal(size=24)), NO_LABELS]
    gradients = policy_gradients(
        cases.model(),
        cases.params(),
        batch,
        advantages=credit,
        solutions=3,
        temperature=0.7,
        passes=passes,
        labels=labels,
    )

    def objective(params: Any, e: int) -> Any:
        logits = cases.logits(params, batch.tokens) / 0.7
        logprobs = jax.nn.log_softmax(logits)
        total = 0.0
        for row, column in zip(*np.divmod(trained, length), strict=True):
            own = batch.tokens[row, column]
            total += credit[e, row, column] * logprobs[row, column - 1, own]
        for at, label, coefficient in zip(*labels[e], strict=True):
            row, column = divmod(int(at), length)
            total += coefficient * logprobs[row, column - 1, label]
        return total / 3

    for e in range(2):
        expected = jax.jit(jax.grad(objective), static_argnums=1)(cases.params(), e)
        cases.assert_close(jax.tree.map(lambda x, e=e: x[e], gradients), expected, cases.ROUNDING)


@pytest.mark.parametrize(
    "sections",
    [
        {"bench": {"labels": "groups"}},
        {"bench": {"labels": "group"}, "method": "rloo", "values": {"k": 9, "max_states": None}},
        {"bench": {"labels": "mixed"}, "values": {"budget": "fresh"}},
        {"bench": {"labels": "blend"}},
        {"bench": {"labels": "group", "branches": "first"}, "values": ROWS},
        {"bench": {"branches": "first"}, "values": ROWS | {"dedup": True}},
        {"bench": {"branches": "all"}, "values": ROWS | {"positions": "steps"}},
        {"bench": {"branches": "fork"}, "values": ROWS},
    ],
    ids=str,
)
def test_labels_that_cannot_be_are_refused(sections: dict[str, Any]):
    with refuses("bench.branches" if "branches" in sections["bench"] else "bench.labels"):
        check_config(cases.config(**sections))


def test_rows_that_can_be_are_not_refused():
    check_config(cases.config(bench={"branches": "first"}, values=ROWS))


def test_positions_of_forks_are_uniform():
    rng, positions = np.random.default_rng(0), []
    values = ValuesConfig(every=8)
    for _ in range(4000):
        response = rng.integers(3, 20, size=6).tolist()
        positions += uniform_position(cases.episode(PROMPT, response), str, values) or [-1]
    counts = np.bincount(np.array(positions) + 1, minlength=7)
    expected = np.array([1000, *[500] * 6])  # two of eight positions are past the end
    assert len(counts) == 7 and np.abs(counts - expected).max() < 4 * np.sqrt(1000)
