"""Sampling for methods whose solutions of several turns branch off one another."""

from collections.abc import Callable

from vinejax.contrib.methods.sampling.turn_trees import BranchingSampler, TurnGrowth
from vinejax.core.settings import Config
from vinejax.core.types import PromptedProblem, RunState
from vinejax.methods.stages import solutions
from vinejax.rollout.turns import TurnSampler
from vinejax.session.iteration import Iteration, Solutions


def branching_solutions(growth: Callable[[Config], TurnGrowth]) -> Callable[..., Solutions]:
    """The sampling stage of a method whose episodes branch by the rule `growth`.

    In tasks without turns this stage samples solutions that do not branch.
    """

    def sample(iteration: Iteration, state: RunState, problems: list[PromptedProblem]) -> Solutions:
        plain = iteration.sampler
        if not isinstance(plain, TurnSampler):
            return solutions(iteration, state, problems)
        sampler = BranchingSampler(
            engine=plain.engine,
            graded=plain.graded,
            cfg=plain.cfg,
            iteration=plain.iteration,
            growth=growth(iteration.cfg),
        )
        params = iteration.session.weights(state.policy.params)
        episodes = sampler.solutions(params, problems, iteration.left)
        iteration.count_solutions(len(episodes))
        return Solutions(problems, episodes, episodes)

    return sample
