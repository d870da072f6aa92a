"""Sampling and credit for methods whose solutions are leaves of trees."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from vinejax.contrib.methods.sampling.tree_sampling import Growth, sample_trees
from vinejax.core.types import Episode, PromptedProblem, Rollout, RunState
from vinejax.credit.assign import Credit, solution_rewards
from vinejax.rl.advantages import token_advantages
from vinejax.session.iteration import Iteration, Solutions


def tree_solutions(growth: Growth, once: bool = False) -> Callable[..., Solutions]:
    """The sampling stage of a method whose trees grow by the rule `growth`.

    With `once` a node that several leaves share is trained on only in the first of these leaves. A
    problem counts as `rollout.per_prompt` solutions, however many leaves its trees have.
    """

    def sample(iteration: Iteration, state: RunState, problems: list[PromptedProblem]) -> Solutions:
        params = iteration.session.weights(state.policy.params)
        episodes = sample_trees(iteration.sampler, params, problems, growth, once)
        iteration.count_solutions(len(problems) * iteration.cfg.rollout.per_prompt)
        return Solutions(problems, episodes, episodes)

    return sample


def by_problem(
    episodes: Sequence[Episode],
) -> Iterator[tuple[list[list[int]], list[float]]]:
    """Yields, for each problem, (node numbers of every leaf, reward of every leaf)."""
    leaves_of: dict[str, list[int]] = {}
    for i, episode in enumerate(episodes):
        leaves_of.setdefault(episode.problem_id, []).append(i)
    rewards = solution_rewards(list(episodes)).tolist()
    for leaves in leaves_of.values():
        yield [episodes[i].nodes or [] for i in leaves], [rewards[i] for i in leaves]


def per_node(rollout: Rollout, values: Sequence[Sequence[float]]) -> Credit:
    """Credit that gives each token its node's advantage.

    `values` lists, for each leaf, the advantages of the nodes on its path. If an episode has fewer
    steps than nodes, its steps are the last nodes. The earlier nodes are not trained on.
    """
    by_step = np.zeros(rollout.steps.rewards.shape, np.float32)
    for row, (episode, leaf) in enumerate(zip(rollout.episodes, values, strict=True)):
        steps = len(episode.step_ends)
        by_step[row, :steps] = leaf[len(leaf) - steps :]
    return Credit(token_advantages(by_step, rollout.steps.step_ids), by_step=by_step)
