"""Shared by methods whose solutions of several turns branch off others: sampling them."""

import dataclasses
from collections.abc import Callable

from vinejax.contrib.methods.sampling.turn_trees import BranchingSampler, TurnGrowth
from vinejax.core.ranges import Count, NotNegative, ZeroToOne
from vinejax.core.settings import Config, MethodSettings
from vinejax.core.types import RunState
from vinejax.methods.stages import solutions
from vinejax.rollout.turns import TurnSampler
from vinejax.session.iteration import Iteration, Solutions


@dataclasses.dataclass(frozen=True)
class BranchingConfig(MethodSettings):
    """There are `rollout.per_prompt` solutions per problem, those that branch off included."""

    weight: NotNegative = 0.5  # w, of the rise of the entropy
    threshold: ZeroToOne = 0.5  # τ
    branches: Count = 1  # at most so many after an answer, each by chance
    tokens: Count = 20  # first ones of a turn, whose entropy counts


def branching_solutions(growth: Callable[[Config], TurnGrowth]) -> Callable[..., Solutions]:
    """The first stage of a method whose episodes branch by a rule; without turns nothing does."""

    def sample(it: Iteration, state: RunState) -> Solutions:
        plain = it.sampler
        if not isinstance(plain, TurnSampler):
            return solutions(it, state)
        problems = it.draw(it.cfg.rollout.prompts)
        given = plain.engine, plain.graded, plain.cfg, plain.iteration, growth(it.cfg)
        params = it.session.weights(state.policy.params)
        episodes = BranchingSampler(*given).solutions(params, problems, it.left)
        it.count(problems, len(episodes))
        return Solutions(problems, episodes, episodes)

    return sample
