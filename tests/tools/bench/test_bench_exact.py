"""The bench on a real model whose responses can all be listed, so that nothing is left to chance.

Responses have at most three tokens of a vocabulary of 20, and every token is a step: 7,240 of
them, with probabilities by one forward pass. Values, the policy gradient and the variances of its
estimators follow by summation.
"""

import dataclasses
import itertools
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import loop_cases as cases
from helpers.vine_cases import rewards_of

from vinejax.core.types import Episode, Problem
from vinejax.engine.engine import Engine
from vinejax.learner.batch import collate
from vinejax.learner.packing import Passes
from vinejax.tools.bench import reference
from vinejax.tools.bench.estimators import FixedParts, estimator_config
from vinejax.tools.bench.gradients import inner_products, policy_gradients
from vinejax.tools.bench.measure import measure_gradients
from vinejax.tools.bench.reference import Reference
from vinejax.tools.bench.worth import worth_of

PROMPT = [cases.BOS, 5, 9, 12]
LONGEST = 3
GROUP = 16
CUT = 1.0  # reward of a response without EOS, which three tokens rarely have


class EveryToken(cases.FewProblems):
    """A step a token; a response is right if its text has an odd digit."""

    def reward(self, problem: Problem, response: str) -> float:
        return float(bool(set(response) & set("13579")))

    def step_ends(self, num_tokens: int) -> list[int]:
        return list(range(1, num_tokens + 1))


class Listed(NamedTuple):
    """All responses, of N; a response of fewer than three tokens ends with EOS."""

    responses: list[tuple[int, ...]]
    chances: np.ndarray  # f64[N]
    rewards: np.ndarray  # f64[N]
    values: dict[tuple[int, ...], float]  # of every prefix that is no response


def fixed() -> FixedParts:
    cfg = config()
    model, tokenizer = cases.model(), cases.tokenizer()
    session = types.SimpleNamespace(
        model=model,
        engine=Engine(model, cfg.sample, tokenizer, slots=64),
        graded=rewards_of(EveryToken()),
        load_reference=cases.params,
        base=None,
        weights=lambda trained: trained,
        mesh=model.mesh,
    )
    problems = [(Problem("p", "", ""), PROMPT)]
    return FixedParts(session, cases.params(), None, problems)  # pyright: ignore


def config(**bench: Any):
    return cases.config(
        sample={"max_tokens": LONGEST, "temperature": 1.0},
        rollout={"per_prompt": GROUP},
        reward={"truncated": CUT},
        ppo={"minibatch": 16, "microbatch": 16},
        sft={"batch": 16},
        bench=bench,
    )


def as_episodes(responses: list[tuple[int, ...]]) -> list[Episode]:
    return [cases.episode(PROMPT, list(response)) for response in responses]


@pytest.fixture(scope="module")
def listed() -> Listed:
    rest = range(cases.VOCAB)
    ended = [(cases.EOS,)]
    ended += [(x, cases.EOS) for x in rest if x != cases.EOS]
    whole = [x for x in itertools.product(rest, repeat=LONGEST) if cases.EOS not in x[:-1]]
    responses = ended + whole
    batch = collate(as_episodes(responses), 1)
    width = len(PROMPT) + LONGEST
    table = np.full((len(responses), LONGEST), cases.EOS)
    for row, response in enumerate(responses):
        table[row, : len(response)] = response
    logprobs = jax.nn.log_softmax(cases.logits(cases.params(), batch.tokens[:, :width]))
    at = np.arange(len(PROMPT) - 1, width - 1)
    taken = np.take_along_axis(np.asarray(logprobs, np.float64)[:, at], table[..., None], 2)[..., 0]
    is_drawn = np.arange(LONGEST) < np.array([len(x) for x in responses])[:, None]
    chances = np.exp(np.where(is_drawn, taken, 0).sum(axis=1))
    assert chances.sum() == pytest.approx(1, abs=1e-5)
    text = cases.tokenizer()
    task, problem = EveryToken(), Problem("p", "", "")
    rewards = np.array(
        [task.reward(problem, text.decode(list(x))) if cases.EOS in x else CUT for x in responses]
    )
    values = {}
    for length in range(LONGEST):
        prefixes = [x[:length] for x in responses]
        for prefix in set(prefixes):
            inside = np.array(
                [p == prefix and len(x) > length for p, x in zip(prefixes, responses, strict=True)]
            )
            if inside.any() and prefix not in responses:
                values[prefix] = float(np.average(rewards[inside], weights=chances[inside]))
    return Listed(responses, chances, rewards, values)


def squared_norms(listed: Listed, weights: np.ndarray) -> np.ndarray:
    """f64[N, W] |Σ_t w_t·∇log π(y_t)|² of each response y, for weights [N, W, 3] of its tokens."""
    batch = collate(as_episodes(listed.responses), 1)
    tokens = jnp.asarray(batch.tokens[:, : len(PROMPT) + LONGEST])
    first = len(PROMPT)

    def weighted(params, row, of_tokens):
        logprobs = jax.nn.log_softmax(cases.logits(params, row[None])[0])
        taken = logprobs[jnp.arange(first - 1, first + LONGEST - 1), row[first:]]
        return jnp.sum(of_tokens * taken)

    @jax.jit
    def norms(rows, weights):
        def one(row, of_tokens):
            grads = jax.grad(weighted)(cases.params(), row, of_tokens)
            return sum(jnp.sum(x**2) for x in jax.tree.leaves(grads))

        return jax.vmap(jax.vmap(one, (None, 0)))(rows, weights)

    size = 181  # divides 7,240
    parts = [
        norms(tokens[i : i + size], jnp.asarray(weights[i : i + size], jnp.float32))
        for i in range(0, len(tokens), size)
    ]
    return np.concatenate([np.asarray(part, np.float64) for part in parts])


class Closed(NamedTuple):
    """The gradient, and relative variances for a batch of GROUP solutions."""

    gradient: Any  # a tree with a leading axis of 1
    squared: float  # |g|²
    rloo: float
    exact: float
    sampled: float  # the noise of one continuation per state, to be added to `exact`
    worth: float  # of credit by one continuation per state


@pytest.fixture(scope="module")
def closed(listed: Listed) -> Closed:
    chances, rewards = listed.chances, listed.rewards
    batch = collate(as_episodes(listed.responses), 40)
    weights = np.zeros(batch.mask.shape, np.float32)
    weights[: len(rewards)] = (chances * rewards)[:, None]
    gradient = policy_gradients(
        cases.model(),
        cases.params(),
        batch,
        advantages=weights[None],
        solutions=1,
        temperature=1.0,
        passes=Passes(40),
    )
    squared = float(inner_products(cases.model(), gradient, gradient)[0][0])
    of_tokens = np.zeros((len(rewards), 2 + LONGEST, LONGEST))
    noise = np.zeros((len(rewards), LONGEST + 1))
    for i, y in enumerate(listed.responses):
        path = [listed.values[y[:t]] for t in range(len(y))] + [rewards[i]]
        of_tokens[i, 0, : len(y)] = 1
        of_tokens[i, 1, : len(y)] = np.diff(path)
        for t, value in enumerate(path[:-1]):  # an error e of V_t adds e·(s_{t-1} - s_t)
            of_tokens[i, 2 + t, t] = -1
            of_tokens[i, 2 + t, max(t - 1, 0)] += t > 0
            noise[i, t] = value * (1 - value)
    norms = squared_norms(listed, of_tokens)
    signal = float(chances @ (of_tokens[:, 1] ** 2).sum(axis=1))
    of_steps = float(chances @ (noise[:, :-1] + noise[:, 1:]).sum(axis=1))
    whole, n, m = norms[:, 0], GROUP, float(chances @ rewards)
    # The U-statistic with kernel (R_a - R_b)(s_a - s_b) / 2, where E s = 0 and E[R s] = g.
    first = (chances @ ((rewards - m) ** 2 * whole) + 3 * squared) / 4 - squared
    both = 2 * chances @ (rewards**2 * whole) + 2 * m * chances @ whole  # rewards are 0 or 1
    both = (both - 4 * m * (chances @ (rewards * whole)) + 4 * squared) / 4 - squared
    return Closed(
        gradient=gradient,
        squared=squared,
        rloo=float((4 * (n - 2) * first + 2 * both) / (n * (n - 1)) / squared),
        exact=float(chances @ norms[:, 1] - squared) / n / squared,
        sampled=float(chances @ (noise[:, :-1] * norms[:, 2:]).sum(axis=1)) / n / squared,
        worth=signal / (signal + of_steps),
    )


@pytest.mark.slow
def test_gradients_have_the_analytic_mean_and_variance(closed: Closed):
    """Within four standard errors over the repeats, which are small enough to tell them apart.

    The truth of the worth is of a few continuations: with those of `vineppo_k1` among them it
    would come out too high.
    """
    cfg = config(repeats=60, exact=60, truth=8)
    configs = {name: estimator_config(cfg, name) for name in ("rloo", "vineppo_k1", "exact")}
    for name in ("vineppo_k1", "exact"):
        values = dataclasses.replace(configs[name].values, dedup=False)
        configs[name] = dataclasses.replace(configs[name], values=values)
    both = jax.tree.map(lambda x: jnp.concatenate([x, x]), closed.gradient)
    truth = Reference(both, closed.squared, error=0.0, solutions=1, reward=0.0)
    repeats, solutions = measure_gradients(fixed(), cfg, configs, truth, lambda line: None)
    expected = {"rloo": closed.rloo, "vineppo_k1": closed.exact + closed.sampled}
    for name, more in expected.items():
        own = repeats[name]
        for of_repeats, mean in ((own.squares, 1 + more), (own.products, 1.0)):
            scaled = np.array(of_repeats) / closed.squared
            error = scaled.std(ddof=1) / np.sqrt(len(scaled))
            print(f"{name}: {scaled.mean():.3f} ± {error:.3f}, in closed form {mean:.3f}")
            assert abs(scaled.mean() - mean) < 4 * error and error < 0.15 * mean
    assert solutions.truth is not None
    worth = worth_of(np.concatenate(repeats["vineppo_k1"].credit), solutions.truth)
    print(f"worth {worth}, in closed form {closed.worth:.3f}")
    assert worth.value == pytest.approx(closed.worth, abs=0.05)
    assert 1 < solutions.trained_tokens <= LONGEST and solutions.tokens >= solutions.trained_tokens


@pytest.mark.slow
def test_the_reference_comes_near_the_gradient(closed: Closed, monkeypatch):
    monkeypatch.setattr(reference, "PER_PROMPT", 1000)
    found = reference.sample_reference(fixed(), config(reference=4000))
    mean = jax.tree.map(lambda x: x.mean(axis=0, keepdims=True), found.gradients)
    apart = jax.tree.map(jnp.subtract, mean, closed.gradient)
    error = float(optax.tree.norm(apart, squared=True)) / closed.squared
    expected = closed.rloo * GROUP / 4000
    print(f"error {error:.4f}, said to be {found.error:.4f}, expected {expected:.4f}")
    assert found.solutions == 4000
    assert max(error, found.error) < 5 * expected  # few directions have most of the variance
    assert found.product == pytest.approx(closed.squared, rel=0.1)
