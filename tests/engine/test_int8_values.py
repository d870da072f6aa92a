"""`values.dtype='int8'`: continuations of a rounded policy, beside solutions of the policy."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers.applied import fill_values, sample_episodes
from helpers.int8_oracle import rounded_params
from helpers.model_oracles import SAMPLED_MODELS, Model, random_model
from helpers.vine_cases import MAX_TOKENS, PROBLEM, Task, rewards_of

from vinejax.core.errors import DivergedError
from vinejax.core.settings import Config, SampleConfig
from vinejax.core.types import Episode
from vinejax.engine.branches import Branch, Grown
from vinejax.engine.engine import Engine
from vinejax.tools.bench.truth import with_own_seed

TRUNKS = [[4, 5, 6, 9, 12], [7, 8]]
BRANCHES = [Branch(i % 2, 1 + i % 2, seed) for i, seed in enumerate(range(24))]


def grow(model: Model, params: Any, sampling: SampleConfig, **settings: Any) -> list[Grown]:
    engine = Engine(model.decoder, sampling, model.tokenizer, slots=8, skip_repeats=False)
    return engine.stream(params, TRUNKS, BRANCHES, 12, **settings).in_order()


@pytest.mark.first
@pytest.mark.parametrize("name", ["gqa", "mha"])
def test_the_sampler_is_the_model_with_rounded_kernels(name: str, tiny: Model):
    fields, sampling = SAMPLED_MODELS[name]
    model = random_model(tokenizer=tiny.tokenizer, **fields)
    expected = grow(model, rounded_params(model.params), sampling)
    found = grow(model, model.params, sampling, int8=True)
    assert [x.tokens for x in found] == [x.tokens for x in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-5)
    of_model = grow(model, model.params, sampling)
    off = max(abs(x.logprobs[0] - y.logprobs[0]) for x, y in zip(found, of_model, strict=True))
    assert off > 1e-3, "the rounding is not seen"


def test_the_two_copies_replace_each_other(tiny: Model):
    engine = Engine(tiny.decoder, SampleConfig(), tiny.tokenizer, slots=8)
    calls = [False, True, True, False, True]
    found = [engine.stream(tiny.params, TRUNKS, BRANCHES, 12, int8=x).in_order() for x in calls]
    assert found[0] == found[3] and found[1] == found[2] == found[4]
    assert found[0] != found[1]


def test_kernels_that_are_not_finite_are_an_error(tiny: Model):
    layers = tiny.params["layers"]
    kernel = layers["up"]["kernel"].at[0, 3, 5].set(jnp.nan)
    params = {**tiny.params, "layers": {**layers, "up": {**layers["up"], "kernel": kernel}}}
    with pytest.raises(DivergedError, match="are not finite"):
        grow(tiny, params, SampleConfig(), int8=True)


def config(dtype: str) -> Config:
    return cases.config(
        values={"k": 4, "max_states": None, "dtype": dtype}, sample={"max_tokens": MAX_TOKENS}
    )


def episodes_of(tiny: Model, dtype: str) -> tuple[list[Episode], list[Episode]]:
    """(solutions, the same with values) of one iteration."""
    cfg, graded = config(dtype), rewards_of(Task(lambda text: len(text) % 7 / 6))
    engine = Engine(tiny.decoder, cfg.sample, tiny.tokenizer, slots=8, skip_repeats=False)
    episodes = sample_episodes(engine, tiny.params, graded, [PROBLEM], cfg, 3)
    return episodes, fill_values(engine, tiny.params, graded, [PROBLEM], episodes, cfg, 3)


def test_solutions_are_those_of_the_policy_and_values_those_of_the_rounded_one(tiny: Model):
    (solutions, valued), (same, rounded) = (episodes_of(tiny, x) for x in ("model", "int8"))
    assert [x.response for x in same] == [x.response for x in solutions]
    assert [x.logprobs for x in same] == [x.logprobs for x in solutions]
    texts = [
        [[c.text for c in of_state] for episode in found for of_state in episode.continuations]
        for found in (valued, rounded)
    ]
    assert list(map(len, texts[0])) == list(map(len, texts[1])) and texts[0] != texts[1]
    # Log-probabilities that the prefill computes with rounded kernels are not the policy's.
    assert valued[0].scored is not None and rounded[0].scored is None


def test_the_ground_truth_of_the_bench_is_that_of_the_policy():
    assert with_own_seed(config("int8"), "any").values.dtype == "model"
