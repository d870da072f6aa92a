"""The engine against one full forward pass a token, and what a branch must not depend on."""

import json
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data
from helpers import model_oracles as oracle
from helpers.model_oracles import SAMPLED_MODELS as CASES
from helpers.model_oracles import Model, assert_same, random_model

from vinejax.core.settings import SampleConfig
from vinejax.core.types import Batch
from vinejax.engine.branches import Branch, Grown
from vinejax.engine.engine import Engine
from vinejax.learner.score import score

WIDTH = 16  # columns of the ring, and the largest budget; the longest items fill the ring
TRUNKS = [list(np.random.default_rng(n).integers(2, 20, n).tolist()) for n in (9, 30, 17)]
# (trunk, position, budget): at prompts' ends, inside, after the first and the last token but one.
# There are more branches than the four slots, so items start anywhere in the ring.
PLACES = [
    *((0, 9, WIDTH), (0, 1, WIDTH), (0, 8, 5), (0, 9, WIDTH), (0, 4, 1), (0, 9, WIDTH)),
    *((1, 30, WIDTH), (1, 15, WIDTH), (1, 29, 7), (1, 15, WIDTH), (1, 1, 3), (1, 30, WIDTH)),
    *((2, 17, WIDTH), (2, 16, 2), (2, 8, WIDTH), (2, 17, WIDTH)),
]
BRANCHES = [Branch(trunk, at, seed=i << 40 | 7 * i) for i, (trunk, at, _) in enumerate(PLACES)]
BUDGETS = [budget for _, _, budget in PLACES]


class Case(NamedTuple):
    model: Model
    sampling: SampleConfig
    grown: list[Grown]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tiny: Model) -> Case:
    fields, sampling = CASES[request.param]
    model = random_model(tokenizer=tiny.tokenizer, **fields) if fields else tiny
    engine = Engine(model.decoder, sampling, model.tokenizer, slots=4)
    return Case(model, sampling, engine.grow(model.params, TRUNKS, BRANCHES, BUDGETS))


@pytest.fixture(scope="module")
def base(tiny: Model) -> Engine:
    return Engine(tiny.decoder, SampleConfig(), tiny.tokenizer, slots=4)


# --- against slow and obvious generation ---


@pytest.mark.first
def test_branches_are_what_whole_forward_passes_give(case):
    for branch, budget, found in zip(BRANCHES, BUDGETS, case.grown, strict=True):
        prefix = TRUNKS[branch.trunk][: branch.position]
        tokens, logprobs, finish = oracle.continue_slowly(
            case.model, case.sampling, prefix, branch.seed, eos_ids=[1], max_tokens=budget
        )
        assert found.tokens == tokens, branch
        np.testing.assert_allclose(found.logprobs, logprobs, atol=1e-4)
        assert found.finish == finish
    assert {x.finish for x in case.grown} == {"eos", "length"}
    assert max(len(x.tokens) for x in case.grown) == WIDTH, "no item fills the ring"


@pytest.mark.first(2)
def test_the_sampler_s_logprobs_are_the_scorer_s(case):
    """The function that scores every policy agrees with the cached, branching decoder."""
    length = 48
    tokens = np.zeros((len(BRANCHES), length), np.int32)
    mask = np.zeros((len(BRANCHES), length), bool)
    sampled = np.zeros((len(BRANCHES), length), np.float32)
    for row, (branch, found) in enumerate(zip(BRANCHES, case.grown, strict=True)):
        ids = TRUNKS[branch.trunk][: branch.position] + found.tokens
        here = slice(branch.position, len(ids))
        tokens[row, : len(ids)] = ids
        mask[row, here], sampled[row, here] = True, found.logprobs
    zeros = jnp.zeros(tokens.shape)
    positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    batch = Batch(jnp.asarray(tokens), jnp.ones(tokens.shape, jnp.int32), positions,
                  jnp.asarray(mask), zeros, zeros, zeros)  # fmt: skip
    decoder, params, _ = case.model
    scored = score(decoder, params, batch, case.sampling.temperature)
    np.testing.assert_allclose(scored, sampled, atol=1e-4)


@pytest.mark.slow  # test_engine_edges.py goes on from each token of the same text
def test_a_trained_model_writes_what_transformers_wrote(stories):
    golden = json.loads(data.path("stories260K/golden.json").read_text())
    ids = golden["greedy_ids_from_bos"]
    prompts = list(golden["prompts"].values())
    trunks = [ids[:1], *(prompt["ids"] for prompt in prompts)]
    branches = [Branch(i, len(trunk), seed=i) for i, trunk in enumerate(trunks)]
    budgets = [len(ids) - 1, *[32] * len(prompts)]
    sampling = SampleConfig(temperature=0)
    engine = Engine(stories.decoder, sampling, stories.tokenizer, slots=8)
    story, *others = engine.grow(stories.params, trunks, branches, budgets)
    assert story.tokens == ids[1:]
    assert story.text == golden["greedy_text"]
    np.testing.assert_allclose(story.logprobs, golden["greedy_token_logprobs"], atol=1e-4)
    for prompt, found in zip(prompts, others, strict=True):
        assert prompt["ids"] + found.tokens == prompt["greedy_32"]


# --- what a branch must not depend on ---


def test_order_and_company_do_not_matter(base, tiny):
    together = base.grow(tiny.params, TRUNKS, BRANCHES, BUDGETS)
    order = np.random.default_rng(0).permutation(len(BRANCHES))
    shuffled = base.grow(
        tiny.params, TRUNKS, [BRANCHES[i] for i in order], [BUDGETS[i] for i in order]
    )
    assert_same(shuffled, [together[i] for i in order])
    for some in (slice(0, 1), slice(3, 9), slice(15, 16)):
        assert_same(base.grow(tiny.params, TRUNKS, BRANCHES[some], BUDGETS[some]), together[some])

    # The trunks in another order, and with others among them.
    trunks = [TRUNKS[2], [5] * 25, TRUNKS[1], TRUNKS[0]]
    moved = [Branch({0: 3, 1: 2, 2: 0}[b.trunk], b.position, b.seed) for b in BRANCHES]
    company = [Branch(1, 5 + i, seed=99) for i in range(20)]
    found = base.grow(tiny.params, trunks, company + moved, [9] * 20 + BUDGETS)
    assert_same(found[20:], together)


@pytest.mark.first
@pytest.mark.parametrize(
    "settings",
    [
        dict(slots=1, chunk=1),
        dict(slots=9, window_rows=2, chunk=3),
        dict(slots=1, window_rows=1, chunk=64),
        dict(slots=64),
    ],
    ids=str,
)
def test_slots_window_and_chunk_do_not_matter(settings, base, tiny):
    settings = settings | {"skip_repeats": False}
    engine = Engine(tiny.decoder, SampleConfig(), tiny.tokenizer, **settings)
    found = engine.grow(tiny.params, TRUNKS, BRANCHES, BUDGETS)
    assert_same(found, base.grow(tiny.params, TRUNKS, BRANCHES, BUDGETS))


def test_a_trunk_with_most_of_the_branches(base, tiny):
    """150 branches are on one trunk, which takes several rows, and some on other trunks."""
    branches = [Branch(1, 1 + i % 30, seed=i) for i in range(150)] + BRANCHES
    found = base.grow(tiny.params, TRUNKS, branches, [4] * 150 + BUDGETS)
    assert_same(found[150:], base.grow(tiny.params, TRUNKS, BRANCHES, BUDGETS))
    for i in (0, 63, 64, 149):
        assert_same(found[i : i + 1], base.grow(tiny.params, TRUNKS, branches[i : i + 1], 4))


@pytest.mark.slow
def test_the_same_prefix_on_another_trunk_gives_the_same_continuation(base, tiny):
    """A state's value does not depend on the trajectory from which the state is taken."""
    prefix = TRUNKS[1][:12]
    trunks = [prefix, [*prefix, 9, 9, 9], TRUNKS[1]]
    alike = [Branch(i, 12, seed=31) for i in range(3)]
    one, *others = base.grow(tiny.params, trunks, alike, WIDTH)
    assert_same(others, [one, one])
    after, later = base.grow(tiny.params, trunks, [Branch(1, 15, 31), Branch(2, 13, 31)], WIDTH)
    assert after.tokens != one.tokens != later.tokens


def test_both_halves_of_a_seed_count(base, tiny):
    seeds = [0, 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1]
    found = base.grow(tiny.params, TRUNKS, [Branch(0, 9, seed) for seed in seeds], WIDTH)
    assert len({tuple(x.tokens) for x in found}) == len(seeds)


def test_a_draw_belongs_to_its_place_in_the_sequence(base, tiny):
    """A branch from the middle of a continuation, with its seed, draws the same tokens after it."""
    found = base.grow(tiny.params, TRUNKS, BRANCHES, BUDGETS)
    whole = max(found, key=lambda x: len(x.tokens))
    branch = BRANCHES[found.index(whole)]
    trunk = TRUNKS[branch.trunk][: branch.position] + whole.tokens
    starts = range(1, len(whole.tokens))
    rest = [Branch(0, branch.position + n, branch.seed) for n in starts]
    budgets = [len(whole.tokens) - n for n in starts]
    for n, again in zip(starts, base.grow(tiny.params, [trunk], rest, budgets), strict=True):
        assert again.tokens == whole.tokens[n:]
        np.testing.assert_allclose(again.logprobs, whole.logprobs[n:], atol=1e-4)
