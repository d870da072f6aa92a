"""Shared by methods whose solutions of several turns branch off others: sampling them."""

from collections.abc import Callable

from vinejax.contrib.methods.sampling.turn_trees import BranchingSampler, TurnGrowth
from vinejax.core.settings import Config
from vinejax.core.types import RunState
from vinejax.methods.stages import solutions
from vinejax.rollout.turns import TurnSampler
from vinejax.session.iteration import Iteration, Solutions


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
