"""Rows of continuations: no bias, the positions of forks, and what is refused."""

from typing import Any
from unittest import mock

import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import vine_cases
from helpers.applied import applied
from helpers.chain_cases import CHAIN, simulation, term
from helpers.refusals import refuses

from vinejax.config.checks import check_config
from vinejax.core.settings import ValuesConfig
from vinejax.core.types import Episode, Problem, Rollout
from vinejax.credit.positions import TextOf
from vinejax.learner.batch import collate, step_layout
from vinejax.methods.credit_by_role import step_credit
from vinejax.rollout.sampler import Sampler
from vinejax.rollout.vine import sampled_states, valued_episodes
from vinejax.tools.bench.branches import uniform_position, with_branches

PROMPT = [cases.BOS, 5]
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
    bench = {"branches": setting["branches"]}
    values = {"positions": "tokens", "every": 2, "max_states": None} | setting
    del values["branches"]
    credit = {"lambda_": 0.5, "baseline_lambda": 0.5}
    cfg = applied(cases.config(values=values, credit=credit, bench=bench))
    rng = np.random.default_rng(3)
    terms = (logit_gradients(CHAIN.episodes(rng, 1250, 4), cfg, rng) for _ in range(4))
    return CHAIN.standard_errors_off(terms, group=4)


def logit_gradients(episodes: list[Episode], cfg: Any, rng: np.random.Generator) -> np.ndarray:
    """[episodes, length, 4] each solution's gradient by the logits of the letters at each time."""
    problems = [(Problem(name, "", ""), [cases.BOS]) for name in {e.problem_id for e in episodes}]
    engine = vine_cases.FakeEngine(lambda branch, k: ("", "eos"))
    sampler = Sampler(engine, vine_cases.rewards_of(vine_cases.Task()), cfg, 0)  # pyright: ignore
    with mock.patch.object(Sampler, "continuations", simulation(CHAIN.draw(rng), [])):
        states, logprobs = sampled_states(sampler, {}, problems, episodes)
    rows = valued_episodes(states, logprobs, cfg.ppo.gamma)
    batch = collate(rows, 1)
    rollout = Rollout(rows, batch, step_layout(batch, rows))
    advantages = np.where(batch.mask, step_credit(rollout, cfg).advantages, 0).astype(np.float32)
    own, made = with_branches(rollout, advantages, states, cfg)
    first = 1  # tokens of the prompt
    terms = [
        term(owner, row.response, x)
        for owner, row, x in zip(made.solutions, made.rows, made.coefficients, strict=True)
    ]
    terms += [
        term(i, e.response, own[i, first : first + len(e.response)]) for i, e in enumerate(rows)
    ]
    return CHAIN.logit_gradients(terms, len(rows))


@pytest.mark.parametrize(
    "sections",
    [
        {"bench": {"branches": "some"}, "values": ROWS},
        {"bench": {"branches": "first"}, "credit": {"labels": "group"}, "values": ROWS},
        {"bench": {"branches": "first"}, "values": ROWS | {"dedup": True}},
        {"bench": {"branches": "all"}, "values": ROWS | {"positions": "steps"}},
        {"bench": {"branches": "fork"}, "values": ROWS},
    ],
    ids=str,
)
def test_rows_that_cannot_be_are_refused(sections: dict[str, Any]):
    with refuses("bench.branches"):
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
