"""The gradients of all estimators on the same solutions, repeat by repeat."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from vinejax.core.seeds import row_seed
from vinejax.core.settings import Config
from vinejax.core.types import Episode
from vinejax.learner.batch import step_layout, token_rows
from vinejax.model.decoder import Params
from vinejax.tools.bench.branches import Branches
from vinejax.tools.bench.estimators import (
    EXACT,
    EstimatedCredit,
    FixedParts,
    estimate,
    reads_logprobs,
)
from vinejax.tools.bench.gradients import MeasuredGradients, inner_products, policy_gradients
from vinejax.tools.bench.reference import Reference
from vinejax.tools.bench.settings import BenchConfig
from vinejax.tools.bench.worth import TrueSteps, credit_of_steps, joined, true_steps


@dataclasses.dataclass
class MeasuredRepeats:
    """The measurements of an estimator in its R repeats; `gradients.py` defines ĝ, g₁ and g₂."""

    tokens: list[int] = dataclasses.field(default_factory=list)  # [R] tokens decoded for the credit
    seconds: list[float] = dataclasses.field(default_factory=list)  # [R] seconds for the credit
    squares: list[float] = dataclasses.field(default_factory=list)  # [R] |ĝ|²
    products: list[float] = dataclasses.field(default_factory=list)  # [R] ĝ·(g₁ + g₂)/2
    first_estimate: EstimatedCredit | None = None  # from the first repeat
    gradient_sum: Params | None = None  # Σ_r ĝ_r
    prior_state: Any = None  # state of the prior after the last repeat; None without a prior
    # For each repeat with 'exact', [S]: the credit of the steps, whose true advantages are known.
    credit: list[np.ndarray] = dataclasses.field(default_factory=list)
    trained: list[int] = dataclasses.field(default_factory=list)  # [R] trained tokens of branches

    def gradients(self) -> MeasuredGradients:
        assert self.gradient_sum is not None
        return MeasuredGradients(
            self.squares, self.products, float(optax.tree.norm(self.gradient_sum, squared=True))
        )


class MeasuredSolutions(NamedTuple):
    """The solutions of the first repeat, and costs of a solution as means over all repeats."""

    episodes: list[Episode]  # the first repeat's
    tokens: float  # decoded tokens per solution
    seconds: float  # sampling time per solution
    trained_tokens: float  # response tokens per solution
    truth: TrueSteps | None = None  # true advantages of steps, from the repeats with 'exact'


def measure_gradients(
    parts: FixedParts,
    cfg: Config,
    configs: dict[str, Config],
    reference: Reference,
    say: Callable[[str], None],
) -> tuple[dict[str, MeasuredRepeats], MeasuredSolutions]:
    """Measures all estimators of `configs` on the same solutions.

    Returns the measurements of each estimator by its name, and a summary of the solutions.
    Estimator 'exact' is measured only in the first `bench.exact` repeats.
    """
    # Seeds of the bench's own: the policy was trained on the solutions of the run's seed.
    cfg = dataclasses.replace(cfg, seed=row_seed(cfg.seed, 0, "credit bench, solutions"))
    # If 'exact' shared continuations with an estimator, their errors would count as signal.
    exact_seed = row_seed(cfg.seed, 0, "credit bench, exact")
    configs = {
        name: dataclasses.replace(x, seed=exact_seed if name == EXACT else cfg.seed)
        for name, x in configs.items()
    }
    repeats = {name: MeasuredRepeats() for name in configs}
    engine, count = parts.session.engine, BenchConfig.of(cfg).repeats
    first_episodes: list[Episode] = []
    truths: list[TrueSteps] = []
    tokens, seconds, trained = [], [], []
    for repeat in range(count):
        tokens_before = engine.stats.decoded_tokens
        start = time.perf_counter()
        sampler = parts.sampler(cfg, repeat)
        episodes = sampler.solutions(parts.weights, parts.problems, len(parts.problems))
        seconds.append((time.perf_counter() - start) / len(episodes))
        tokens.append((engine.stats.decoded_tokens - tokens_before) / len(episodes))
        trained.append(np.mean([len(episode.response) for episode in episodes]))
        first_episodes = first_episodes or episodes
        is_exact = repeat < BenchConfig.of(cfg).exact
        measured = {name: x for name, x in configs.items() if name != EXACT or is_exact}
        truths += _measure_repeat(parts, cfg, measured, repeats, reference, episodes, repeat)
        say(f"credit: repeat {repeat + 1} of {count}, {len(episodes)} solutions")
    return repeats, MeasuredSolutions(
        episodes=first_episodes,
        tokens=statistics.mean(tokens),
        seconds=steady(seconds),
        trained_tokens=float(np.mean(trained)),
        truth=joined(truths),
    )


def _measure_repeat(
    parts: FixedParts,
    cfg: Config,
    configs: dict[str, Config],
    repeats: dict[str, MeasuredRepeats],
    reference: Reference,
    episodes: list[Episode],
    repeat: int,
) -> list[TrueSteps]:
    """Measures the estimators `configs` on the solutions `episodes`, and adds results to `repeats`.

    Returns the true advantages of the steps of `episodes`, or [] if `configs` has no 'exact'.
    """
    passes = parts.passes(cfg)
    batch = parts.batch(cfg, episodes, passes.rows)
    if any(map(reads_logprobs, configs.values())):
        batch = parts.scored(cfg, episodes, batch)
    estimates = {}
    for name, config in configs.items():
        estimates[name] = estimate(
            parts, config, episodes, batch, repeat=repeat, prior_state=repeats[name].prior_state
        )
    truths = []
    if EXACT in configs:
        exact = estimates[EXACT].episodes
        steps = step_layout(batch, exact)
        truths.append(true_steps(steps, exact, cfg.ppo.gamma))
        for name, estimated in estimates.items():
            is_own_credit = estimated.labels is None and estimated.branches is None
            if is_own_credit:  # else a step has more than its tokens' credit
                repeats[name].credit.append(credit_of_steps(estimated.advantages, steps))
    parts.session.engine.release()
    gradients = policy_gradients(
        parts.session.model,
        parts.params,
        batch,
        advantages=np.stack([estimated.advantages for estimated in estimates.values()]),
        solutions=len(episodes),
        temperature=cfg.sample.temperature,
        passes=passes,
        base=parts.session.base,
        labels=[estimated.labels for estimated in estimates.values()],
    )
    for i, estimated in enumerate(estimates.values()):
        if estimated.branches is not None and estimated.branches.rows:
            more = _gradient_of_rows(parts, cfg, estimated.branches, len(episodes))
            gradients = jax.tree.map(lambda x, y, i=i: x.at[i].add(y[0]), gradients, more)
    _record(parts, {name: repeats[name] for name in configs}, estimates, gradients, reference)
    return truths


def _gradient_of_rows(parts: FixedParts, cfg: Config, made: Branches, solutions: int) -> Params:
    """The gradient of the rows of continuations, with a leading axis of 1."""
    passes = parts.passes(cfg)
    batch = parts.batch(cfg, made.rows, passes.rows)
    coefficients = token_rows(
        batch.tokens.shape, made.rows, [x.tolist() for x in made.coefficients]
    )
    return policy_gradients(
        parts.session.model,
        parts.params,
        batch,
        advantages=coefficients[None],
        solutions=solutions,
        temperature=cfg.sample.temperature,
        passes=passes,
        base=parts.session.base,
    )


def steady(seconds: Sequence[float]) -> float:
    """The median of `seconds` without the first entry, whose time includes compiling.

    If there is only one entry, it is returned.
    """
    return statistics.median(seconds[1:] or seconds)


def _record(
    parts: FixedParts,
    repeats: dict[str, MeasuredRepeats],
    estimates: dict[str, EstimatedCredit],
    gradients: Params,
    reference: Reference,
) -> None:
    """Adds the measurements of one repeat to each record in `repeats`.

    Index i of the leading axis of `gradients` belongs to the i-th key of `repeats`.
    """
    squares, products = inner_products(parts.session.model, gradients, reference.gradients)
    mean_products = products.mean(axis=1)
    for i, (name, record) in enumerate(repeats.items()):
        gradient = jax.tree.map(lambda x, i=i: x[i], gradients)
        earlier = record.gradient_sum
        record.gradient_sum = gradient if earlier is None else optax.tree.add(earlier, gradient)
        record.squares.append(float(squares[i]))
        record.products.append(float(mean_products[i]))
        record.tokens.append(estimates[name].tokens)
        made = estimates[name].branches
        record.trained.append(0 if made is None else made.trained_tokens)
        record.seconds.append(estimates[name].seconds)
        record.first_estimate = record.first_estimate or estimates[name]
        record.prior_state = estimates[name].prior_state
