"""The reference gradient: two independent estimates from many solutions, at a fixed policy."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vinejax.core.settings import Config
from vinejax.core.types import Episode
from vinejax.credit.assign import group_numbers, solution_rewards
from vinejax.model.decoder import Params
from vinejax.rl.advantages import group_advantages
from vinejax.tools.bench.estimators import FixedParts
from vinejax.tools.bench.gradients import inner_products, policy_gradients, reference_error
from vinejax.tools.bench.settings import BenchConfig
from vinejax.tools.bench.truth import with_own_seed

PER_PROMPT = 16  # solutions of a problem that are sampled at once
ROWS = 1024  # minimum rows of a batch


class Reference(NamedTuple):
    """Two estimates g₁ and g₂ of the policy gradient, and their error."""

    gradients: Params  # g₁ and g₂, along a leading axis of 2
    product: float  # g₁·g₂, whose expectation is |g|²
    error: float  # relative squared error of (g₁ + g₂)/2
    solutions: int  # number of solutions of both estimates together
    reward: float  # mean reward of the solutions


def sample_reference(parts: FixedParts, cfg: Config) -> Reference:
    """Samples `bench.reference` solutions and estimates the gradient from each half of them.

    An estimate is REINFORCE with the mean reward of the problem's other solutions as baseline. This
    is unbiased and needs at least two solutions of every problem.
    """
    halves = [_sample(parts, cfg, half) for half in (0, 1)]
    gradients = [_gradient(parts, cfg, episodes) for episodes in halves]
    both = jax.tree.map(lambda *x: jnp.concatenate(x), *gradients)
    squares, products = inner_products(parts.session.model, both, both)
    rewards = [episode.reward for episodes in halves for episode in episodes]
    return Reference(
        gradients=both,
        product=float(products[0, 1]),
        error=reference_error(squares[0], squares[1], products[0, 1]),
        solutions=len(rewards),
        reward=float(np.mean(rewards)),
    )


def _sample(parts: FixedParts, cfg: Config, half: int) -> list[Episode]:
    """Samples the solutions of half 0 or 1, at most `PER_PROMPT` of a problem at once."""
    session, problems = parts.session, parts.problems
    left = BenchConfig.of(cfg).reference // 2 // len(problems)
    seeded = with_own_seed(cfg, f"reference {half}")
    episodes: list[Episode] = []
    part = 0
    while left > 0:
        rollout = dataclasses.replace(cfg.rollout, per_prompt=min(left, PER_PROMPT))
        sampler = parts.sampler(dataclasses.replace(seeded, rollout=rollout), part)
        episodes += sampler.solutions(parts.weights, parts.problems, len(parts.problems))
        left, part = left - rollout.per_prompt, part + 1
    session.engine.release()
    return episodes


def _gradient(parts: FixedParts, cfg: Config, episodes: list[Episode]) -> Params:
    """The policy gradient estimated by RLOO from the episodes, with a leading axis of 1."""
    passes = parts.passes(cfg)
    advantages = np.asarray(
        group_advantages(solution_rewards(episodes), group_numbers(episodes), "rloo")
    )
    rows = -(-ROWS // passes.rows) * passes.rows

    def part(start: int) -> Params:
        chosen = episodes[start : start + rows]
        batch = parts.batch(cfg, chosen, passes.rows)
        credit = np.zeros(batch.mask.shape, np.float32)
        credit[: len(chosen)] = advantages[start : start + rows, None]
        return policy_gradients(
            parts.session.model,
            parts.params,
            batch,
            advantages=credit[None] * batch.mask,
            solutions=len(episodes),
            temperature=cfg.sample.temperature,
            passes=passes,
            base=parts.session.base,
        )

    return functools.reduce(optax.tree.add, map(part, range(0, len(episodes), rows)))
