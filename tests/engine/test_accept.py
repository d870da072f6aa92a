"""Branches that accept tokens of their trunks equal branches whose tokens are all decoded."""

import dataclasses
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import eight_devices
from helpers.model_oracles import SAMPLED_MODELS, Model, assert_same, random_model

from vinejax.core.errors import DivergedError
from vinejax.core.settings import SampleConfig
from vinejax.engine import drain, phase
from vinejax.engine.accept import REACH, skip_repeats
from vinejax.engine.branches import Branch, BranchSet, Grown, branch_set_of
from vinejax.engine.collect import Collector
from vinejax.engine.decode import GOING, NOT_FINITE, uniforms
from vinejax.engine.engine import Engine
from vinejax.engine.sampling import BLOCK, FORMS, draw_intervals, inverse_cdf, is_drawn, sample
from vinejax.engine.stats import EngineStats
from vinejax.engine.trace import HostSteps

PROMPTS = [np.random.default_rng(n).integers(2, 20, n).tolist() for n in (5, 9, 14)]
MOST = 24  # tokens of a solution
STEPS = 5  # between two states
K = 4


@pytest.fixture(scope="module")
def small(tiny: Model) -> Model:
    return random_model(tokenizer=tiny.tokenizer, num_layers=1, seed=2)


def solutions(model: Model, sampling: SampleConfig, **settings: Any) -> list[list[int]]:
    """A trunk per prompt: a solution of the model itself, so that accepted prefixes are long."""
    engine = Engine(model.decoder, sampling, model.tokenizer, **settings)
    branches = [Branch(i, len(prompt), seed=i) for i, prompt in enumerate(PROMPTS)]
    grown = engine.grow(model.params, PROMPTS, branches, MOST)
    return [prompt + one.tokens for prompt, one in zip(PROMPTS, grown, strict=True)]


def continuations(trunks: list[list[int]]) -> tuple[list[Branch], list[int]]:
    """K branches per state of each trunk, one branch with the trunk's own seed, and all budgets."""
    branches, budgets = [], []
    for i, (prompt, trunk) in enumerate(zip(PROMPTS, trunks, strict=True)):
        start = len(prompt)
        for position in range(start, len(trunk) + 1, STEPS):
            seeds = [i, *(1 << 32 | 7 * len(branches) + k for k in range(K))]
            branches += [Branch(i, position, seed, start) for seed in seeds]
            budgets += [MOST - (position - start)] * (K + 1)
    return branches, [max(budget, 1) for budget in budgets]


def common(one: list[int], other: list[int]) -> int:
    """The length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def not_decoded(
    model: Model,
    stop: tuple[str, ...],
    trunks: list[list[int]],
    branches: list[Branch],
    grown: list[Grown],
) -> int:
    """The number of tokens that the prefill decides: accepted tokens and departing tokens.

    Decoding decides at a trunk's end, and where the trunk's token would end the branch. A token
    that ends its branch counts as decoded.
    """
    total = 0
    for branch, one in zip(branches, grown, strict=True):
        trunk, last = trunks[branch.trunk], len(one.tokens) - 1
        repeat = min(common(trunk[branch.position :], one.tokens), last)
        place = branch.position + repeat
        is_inside = place < len(trunk) and trunk[place] != model.tokenizer.eos_token_id
        text = model.tokenizer.decode(trunk[branch.response : place + 1])
        total += repeat + (is_inside and repeat < last and not (stop and text.endswith(stop)))
    return total


def check(
    model: Model,
    sampling: SampleConfig,
    trunks: list[list[int]],
    branches: list[Branch],
    budgets: list[int],
    **settings: Any,
) -> list[Grown]:
    """Checks that results are the same with and without acceptance.

    Exactly the tokens that the prefill decides are not decoded.
    """
    settings = {"slots": 4, **settings}
    engines = [
        Engine(model.decoder, sampling, model.tokenizer, skip_repeats=skips, **settings)
        for skips in (False, True)
    ]
    streams = [
        engine.stream(model.params, trunks, branches, budgets, scored=True) for engine in engines
    ]
    expected, found = (stream.in_order() for stream in streams)
    assert_same(found, expected)
    for one, other in zip(*(stream.trunk_logprobs for stream in streams), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    plain, skipping = (engine.stats for engine in engines)
    assert plain.repeated_tokens == 0
    count = not_decoded(model, sampling.stop, trunks, branches, expected)
    assert skipping.repeated_tokens == count > 0
    assert skipping.decoded_tokens + skipping.repeated_tokens == plain.decoded_tokens
    assert skipping.useful_tokens == plain.useful_tokens
    return found


# --- which numbers draw a token ---


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("size", "platform"), [(5, "cpu"), (BLOCK, "cpu"), (2 * BLOCK, "tpu"), (3 * BLOCK - 7, "cpu")]
)
def test_a_token_is_drawn_by_the_numbers_with_which_the_inverse_cdf_gives_it(
    size: int, platform: str
):
    """At random numbers, and at and beside each step of the distribution, for every token.

    Both functions get the same rows. With another number of rows XLA may add the weights of a block
    in another order, and a number within an ulp of a step could draw the next token.
    """
    rng = np.random.default_rng(size)
    probs = rng.exponential(size=size).astype(np.float32) ** 3
    probs[rng.random(size) < 0.3] = 0
    probs /= probs.sum()
    steps = np.cumsum(probs, dtype=np.float32)
    numbers = np.concatenate([rng.random(64, np.float32), steps, [0, 1 - 2**-24]])
    beside = [np.nextafter(numbers, to, dtype=np.float32) for to in (np.float32(0), np.float32(1))]
    u = np.clip(np.concatenate([numbers, *beside]), 0, 1 - 2**-24).astype(np.float32)

    rows = np.tile(probs, (len(u), 1))
    tokens = np.asarray(jax.jit(inverse_cdf)(rows, u))

    @jax.jit
    def are_drawn(rows: jax.Array, u: jax.Array) -> jax.Array:
        def by_token(token: jax.Array) -> jax.Array:
            tokens = jnp.broadcast_to(token, u.shape)
            return is_drawn(draw_intervals(rows, tokens, form=FORMS[platform]), u)

        return jax.lax.map(by_token, jnp.arange(size), batch_size=32)

    found = np.asarray(are_drawn(rows, u)).T
    np.testing.assert_array_equal(found, tokens[:, None] == np.arange(size))


def test_numbers_of_a_vocabulary_that_is_split():
    rng, places = np.random.default_rng(0), 4
    size = 60 * places
    probs = rng.exponential(size=(200, size)).astype(np.float32) ** 3
    probs[:, : size // places] *= np.float32(0.2)
    u = jnp.asarray(rng.random(200, np.float32))
    parts = probs.reshape(200, places, -1).swapaxes(0, 1)

    def both(part: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        token = inverse_cdf(part, u, "places")
        other = (token + 1) % size
        yes = is_drawn(draw_intervals(part, token, "places"), u)
        return token, yes, is_drawn(draw_intervals(part, other, "places"), u)

    token, yes, no = map(np.asarray, jax.jit(jax.vmap(both, axis_name="places"))(parts))
    assert len(set(token[0] // (size // places))) == places
    assert yes.all() and not no.any()


def test_no_number_draws_by_logits_that_are_not_finite():
    draws = draw_intervals(jnp.full((1, 5), jnp.nan), jnp.array([2]))
    assert not any(is_drawn(draws, jnp.array([u], jnp.float32)) for u in (0.0, 0.5, 0.999))


# --- a phase ---


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mha", "gqa", "window", "mqa"])
def test_tokens_are_those_of_decoding_everything(name: str, tiny: Model):
    """EOS, budgets and the trunks' ends occur in accepted prefixes; slots are fewer than branches.

    The sampling settings include top-p and top-k. A branch with the solution's seed accepts the
    solution to its end.
    """
    fields, sampling = SAMPLED_MODELS[name]
    model = random_model(tokenizer=tiny.tokenizer, **fields)
    trunks = solutions(model, sampling)
    branches, budgets = continuations(trunks)
    budgets[: K + 1] = [3] * (K + 1)
    found = check(model, sampling, trunks, branches, budgets)
    assert {one.finish for one in found} == {"eos", "length"}


@pytest.mark.slow
def test_stop_strings_within_repeats(small: Model):
    """One begins in the trunk, one in the accepted prefix of the branch with the trunk's seed."""
    trunks = solutions(small, SampleConfig(temperature=0.7))
    state = len(PROMPTS[2]) + STEPS
    pairs = trunks[2][state - 1 : state + 1], trunks[1][len(PROMPTS[1]) + 1 :][:2]
    stops = tuple(small.tokenizer.decode(pair) for pair in pairs)
    branches, budgets = continuations(trunks)
    sampling = SampleConfig(temperature=0.7, stop=stops)
    found = check(small, sampling, trunks, branches, budgets)
    assert any(one.overlap for one in found), "no stop string begins in a trunk"
    assert any(one.finish == "stop" and len(one.tokens) > 2 for one in found)


@pytest.mark.slow  # test_engine_window.py has a window with repeats
@pytest.mark.parametrize(
    "settings", [dict(window_rows=1, chunk=2), dict(slots=24, chunk=3)], ids=str
)
def test_windows_and_slots(settings: dict[str, Any], small: Model):
    """Some trunks are computed again later, and one enters several rows at once."""
    sampling = SampleConfig(temperature=0.8)
    trunks = solutions(small, sampling)
    branches, budgets = continuations(trunks)
    branches += [dataclasses.replace(branch, seed=branch.seed + 99) for branch in branches]
    branches += [Branch(1, len(PROMPTS[1]) + n % 3, n << 33) for n in range(60)]
    check(small, sampling, trunks, branches, [*budgets, *budgets, *[MOST] * 60], **settings)


@pytest.mark.slow
def test_a_phase_with_a_drain(small: Model, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drain, "MIN_SLOTS", 8)
    monkeypatch.setattr(drain, "MIN_TOKENS", 0)
    with mock.patch.object(phase, "to_drain", side_effect=drain.to_drain) as to_drain:
        sampling = SampleConfig(temperature=0.8)
        trunks = solutions(small, sampling)
        branches, budgets = continuations(trunks)
        long = [Branch(0, len(PROMPTS[0]) + n, n << 34) for n in range(3)]
        check(small, sampling, trunks, branches + long, budgets + [60] * 3, slots=8, chunk=3)
    assert to_drain.call_count == 2, "each engine has a drain"


@pytest.mark.slow
def test_by_the_interpreted_kernel(small: Model):
    sampling = SampleConfig(temperature=0.8)
    trunks = solutions(small, sampling)
    branches, budgets = continuations(trunks)
    check(small, sampling, trunks, branches, budgets, attention="kernel")


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_a_trunk_is_computed_up_to_the_reach_of_its_last_branch(
    temperature: float, tiny: Model, monkeypatch: pytest.MonkeyPatch
):
    """At temperature 0 no token is drawn at random, so a trunk is computed to its last branch."""
    computed = []
    monkeypatch.setattr(Engine, "_grow", lambda self, params, work, *_: computed.append(work) or ())
    trunk, branches = [3] * 90, [Branch(0, 3, 1), Branch(0, 8, 2)]
    for skips in (True, False):
        sampling = SampleConfig(temperature=temperature)
        engine = Engine(tiny.decoder, sampling, tiny.tokenizer, skip_repeats=skips)
        list(engine.stream(tiny.params, [trunk], branches))
    expected = [8 + REACH, 8] if temperature else [8, 8]
    assert [len(work.trunks[0]) for work in computed] == expected
    # No row becomes longer by it, and a branch of one token accepts none.
    assert [work.longest for work in computed] == [8, 8]
    assert [len(work.within(32).trunks[0]) for work in computed] == [min(n, 32) for n in expected]
    one = branch_set_of([trunk], branches, [5, 1], tiny.decoder.cfg, False, REACH)
    assert len(one.trunks[0]) == 3 + REACH


@pytest.mark.parametrize(("position", "budget"), [(9, MOST), (4, 1)])
def test_without_possible_acceptance_there_is_no_search(
    position: int, budget: int, tiny: Model, monkeypatch: pytest.MonkeyPatch
):
    """At a trunk's end and with a budget of one token, no further program is compiled."""
    hidden = []
    prefill = phase.prefill

    def noted(*args: Any, **kwargs: Any) -> Any:
        result = prefill(*args, **kwargs)
        hidden.append(result.hidden)
        return result

    monkeypatch.setattr(phase, "prefill", noted)
    search = mock.patch.object(phase, "skip_repeats", side_effect=AssertionError("a search"))
    engine = Engine(tiny.decoder, SampleConfig(), tiny.tokenizer)
    with search:
        engine.grow(tiny.params, PROMPTS, [Branch(1, position, 5)], budget)
    assert hidden == [None] and engine.stats.repeated_tokens == 0


def test_the_number_of_a_token_counts_accepted_tokens():
    shape = (1, 1, 2)
    item, ended = np.zeros(shape, np.int32), np.array([[[GOING, NOT_FINITE]]], np.int32)
    steps = HostSteps(item, item, item.astype(np.float32), ended)
    branch_set = BranchSet([[3, 4]], [Branch(0, 1, 1)], [9], 1, [False])
    collector = Collector(branch_set, [[0]], 1, 2, EngineStats(), lambda branch: 5)
    with pytest.raises(DivergedError, match="the logits of its token 7 are not finite"):
        list(collector.add(steps))


# --- bfloat16, in which prefill and decoding round differently ---


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [SampleConfig(stop=("7", "=")), SampleConfig(temperature=0.7, top_p=0.8, top_k=12)],
    ids=str,
)
def test_one_distribution_decides_each_place_of_a_trunk(
    sampling: SampleConfig, tiny: Model, monkeypatch: pytest.MonkeyPatch
):
    """The departing token is drawn from the prefill's logits, too, and may end its branch."""
    fields: dict[str, Any] = dict(num_layers=4, seed=5, dtype="bfloat16")
    model = random_model(tokenizer=tiny.tokenizer, **fields)
    searches = []

    def noted(*args: Any) -> Any:
        searches.append(args)
        return skip_repeats(*args)

    monkeypatch.setattr(phase, "skip_repeats", noted)
    start, eos = len(PROMPTS[1]), tiny.tokenizer.eos_token_id
    trunk = PROMPTS[1] + [5, 12, 9, 16, 4, 11, eos, 3]
    branches = [Branch(0, start + n % 2, n << 31) for n in range(600)]
    engine = Engine(model.decoder, sampling, tiny.tokenizer, slots=64)
    grown = engine.grow(model.params, [trunk], branches, 4)
    plain = Engine(model.decoder, sampling, tiny.tokenizer, slots=64, skip_repeats=False)
    decoded = plain.grow(model.params, [trunk], branches, 4)

    ((_, weights, _, _, hidden, _, _),) = searches
    logits = model.decoder.logits(weights, hidden[0, : len(trunk)])
    halves = [divmod(branch.seed, 1 << 32) for branch in branches]
    seeds = jnp.asarray(np.array(halves, np.uint32))

    @jax.jit
    def draws_at(place: jax.Array) -> tuple[jax.Array, jax.Array]:
        u = uniforms(seeds, jnp.full(len(branches), place))
        rows = jnp.broadcast_to(logits[place - 1], (len(branches), logits.shape[-1]))
        return sample(rows, u, sampling.temperature, sampling.top_p, sampling.top_k)

    draws = {place: draws_at(place) for place in range(start, len(trunk))}
    endings = {"eos": 0, "stop": 0, "flip": 0}
    for n, (branch, one, other) in enumerate(zip(branches, grown, decoded, strict=True)):
        for t, token in enumerate(one.tokens):
            place = branch.position + t
            text = tiny.tokenizer.decode([trunk[place]])
            if t == 3 or trunk[place] == eos or text in sampling.stop:
                break  # decoding decides this place
            expected, logprobs = (x[n] for x in draws[place])
            assert token == expected, "drawn from other logits"
            assert one.logprobs[t] == pytest.approx(float(logprobs), abs=1e-5)
            if token != trunk[place]:
                if token == eos or tiny.tokenizer.decode([token]) in sampling.stop:
                    endings[one.finish] += 1
                    assert len(one.tokens) == t + 1
                endings["flip"] += other.tokens[: t + 1] != one.tokens[: t + 1]
                break
    assert endings["flip"] > 0, "both ways round alike"
    assert not sampling.stop or all(endings.values())


# --- meshes ---


PROGRAM = """
from helpers import model_oracles
from test_accept import check, continuations, solutions
import jax
from vinejax.model.sharding import make_mesh, param_shardings
from vinejax.core.settings import MeshConfig, SampleConfig
from vinejax.tasks.arithmetic import Arithmetic

sampling = SampleConfig(temperature=0.7, top_p=0.95, top_k=12, stop=("=1",))
for sizes, fields in (((2, 1, 2), {}), ((1, 2, 4), {}), ((2, 1, 2), {"vocab_size": 21})):
    model = model_oracles.random_model(Arithmetic().tokenizer(), **fields)
    trunks = solutions(model, SampleConfig(temperature=0.7))
    branches, budgets = continuations(trunks)
    expected = check(model, sampling, trunks, branches, budgets)
    mesh = make_mesh(MeshConfig(*sizes))
    placed = jax.device_put(model.params, param_shardings(mesh, model.params))
    on_mesh = model._replace(params=placed)
    found = check(on_mesh, sampling, trunks, branches, budgets, mesh=mesh, slots=8)
    model_oracles.assert_same(found, expected)
print("done")
"""


@pytest.mark.slow
def test_on_meshes():
    """Several shards, and vocabularies that `tensor` splits or does not divide."""
    program = f"import sys; sys.path.append('engine'){PROGRAM}"
    assert eight_devices.printed("-c", program)[-1] == "done"
