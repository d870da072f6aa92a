"""Functions as `values.prior`: their arguments, their results, their errors."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from helpers import loop_cases as loops
from helpers import vine_cases as cases
from helpers.applied import stand_in
from helpers.contrib import priors
from helpers.refusals import refuses

from vinejax.config.checks import check_config
from vinejax.contrib.priors import platt
from vinejax.contrib.priors.platt import Scaling
from vinejax.contrib.priors.prior_function import find_prior, function_values
from vinejax.contrib.priors.prior_option import FunctionPrior
from vinejax.contrib.priors.settings import PriorFunctionConfig
from vinejax.core.errors import UserError
from vinejax.core.settings import Config
from vinejax.core.types import Problem, Rollout
from vinejax.learner.batch import collate, step_layout
from vinejax.session.session import Session


def place(prior: str) -> str:
    """File and line of a function; for functions that fail, the line of the failure."""
    within = prior in ("raises", "hangs")
    return f"{priors.__file__}:{getattr(priors, prior).__code__.co_firstlineno + within}"


def config(prior: str, timeout_s: float = 600.0, **values: Any) -> Config:
    cfg = cases.config(prior=f"helpers.contrib.priors.{prior}", **values)
    own = {"prior_function": PriorFunctionConfig(timeout_s)}
    return dataclasses.replace(cfg, sections=own)


def a_session() -> Any:
    return stand_in(
        Session,
        task=cases.Task(),
        graded=cases.rewards_of(cases.Task()),
        tokenizer=loops.tokenizer(),
        problems={"train": [(Problem("train/6", "1+1", "#### 2"), []), cases.PROBLEM]},
        model=loops.model(),
    )


def a_rollout(cfg: Config) -> Rollout:
    """A rollout of two solutions with two and four states, the first of which is the same."""
    both = [cases.episode(cases.RIGHT), cases.episode(cases.WRONG, reward=0.0)]
    episodes, _ = cases.fill(both, cfg)
    batch = collate(episodes, 4)
    return Rollout(episodes, batch, step_layout(batch, episodes))


def judge(prior: str, **values: Any) -> np.ndarray:
    cfg = config(prior, **values)
    return function_values(a_session(), a_rollout(cfg), cfg)


def test_a_function_is_given_prompt_and_response_up_to_the_state():
    priors.SEEN.clear()
    found = judge("by_length")
    texts = ["", cases.RIGHT[0], *("".join(cases.WRONG[:c]) for c in range(4))]
    np.testing.assert_array_equal(found, [1 / (1 + len(text)) for text in texts])
    completions = [text for _, text in priors.SEEN]
    # The prompt's end is a state of both solutions; the function gets it once.
    assert completions == ["", texts[1], *texts[3:]]
    assert {prompt for prompt, _ in priors.SEEN} == {f"{cases.QUESTION}="}


def test_a_function_of_one_response():
    assert judge("one_by_one").tolist() == [0.75, 0.25, 0.75, 0.25, 0.25, 0.25]


@pytest.mark.parametrize(
    ("prior", "rule"),
    [
        ("raises", r"failed on problem train/7, step 0 to problem train/7, step \d: PLACE: KeyE"),
        ("gives_nan", r"gave nan for problem train/7, step \d; needed is a finite .*\(PLACE\)"),
        ("too_large", r"gave 1.3 for problem train/7, step \d; .* from 0 to 1 \(PLACE\)"),
        ("too_few", r"gave 4 rewards for 5 completions on problem train/7, step 0 to .*PLACE"),
        ("judges_none", r"gave None for problem train/7, step 0; needed is .*\(PLACE\)"),
        ("unknown_argument", r"takes 'colour', which is none of prompts, .*\(PLACE\)"),
    ],
)
def test_a_wrong_function_is_one_line(prior: str, rule: str):
    with pytest.raises(UserError) as error:
        judge(prior)
    line = str(error.value)
    assert "\n" not in line and line.startswith(f"values.prior: helpers.contrib.priors.{prior} ")
    assert re.search(rule.replace("PLACE", place(prior)), line), line


def test_a_function_that_hangs_is_one_line():
    with pytest.raises(UserError) as error:
        judge("hangs", timeout_s=0.2)
    assert str(error.value) == (
        "values.prior: helpers.contrib.priors.hangs took more than prior_function.timeout_s = 0.2"
        f" on problem train/7, step 0 to problem train/7, step 3: it is at {place('hangs')}"
    )


def test_what_a_configuration_may_name():
    check_config(config("by_length", timeout_s=1.0))
    assert find_prior(cases.config(prior="probe").values) is None
    with refuses("values.prior"):
        check_config(config("absent"))
    with refuses("values.prior"):
        check_config(cases.config(prior="prob"))
    own = {"prior_function": PriorFunctionConfig(5.0)}
    with refuses("prior_function"):
        check_config(dataclasses.replace(cases.config(prior="probe"), sections=own))


def test_numbers_are_scaled_and_learned_from():
    cfg = config("by_length")
    session, rollout = a_session(), a_rollout(cfg)
    prior = FunctionPrior()
    kept = prior.fresh_prior(session.model, cfg)
    assert isinstance(kept, Scaling)
    valued = prior.with_prior(session, rollout, kept, cfg)
    assert valued.values is not None and valued.weight == 0
    start = len(cases.PROMPT)
    # Before there are targets v is the number itself, before the first token of a step.
    v = valued.values[0, [start, start + len(cases.RIGHT[0])]]
    least = 1 / (1 + np.exp(platt.WIDEST))
    np.testing.assert_allclose(v, [1 - least, 1 / (1 + len(cases.RIGHT[0]))], rtol=1e-6)
    after, metrics = prior.learned(kept, valued, cfg)
    assert isinstance(after, Scaling) and after.bins[0].sum() == 6 * (1 + cfg.values.k)
    assert {"value/error", "value/weight"} <= set(metrics)
    fixed = dataclasses.replace(cfg, credit=dataclasses.replace(cfg.credit, prior=0.3))
    assert prior.with_prior(session, rollout, kept, fixed).weight == 0.3
