"""Sampling of trees of solutions, for methods that branch in the middle of solutions.

Trees grow in waves, each of which is one call of the engine. A method's growth rule says where the
branches of the next wave begin. Every leaf becomes an episode whose steps are the leaf's nodes.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from vinejax.contrib.methods.sampling.tree_paths import (
    Shoot,
    TreeLeaf,
    TreePath,
    attached_shoot,
    leaves,
)
from vinejax.core.seeds import host_rng, row_seed
from vinejax.core.settings import Config
from vinejax.core.text import response_text
from vinejax.core.types import Episode, PromptedProblem
from vinejax.credit.positions import rewards_between
from vinejax.engine.branches import Branch, Grown
from vinejax.model.decoder import Params
from vinejax.rollout.sampler import Sampler, Solution, whole_text
from vinejax.runtime.distributed import is_mine, shared_work
from vinejax.tasks.rewards import Reward

# (number of the wave from 0, a problem's paths so far, Config, random generator) -> the branches of
# the wave. If there are none, the problem's trees are complete. A path that ended with its budget,
# and that no other path continues, is a truncated solution.
Growth = Callable[[int, Sequence[TreePath], Config, np.random.Generator], list[Shoot]]


def sample_trees(
    sampler: Sampler,
    params: Params,
    problems: list[PromptedProblem],
    growth: Growth,
    once: bool = False,
) -> list[Episode]:
    """The leaves of every problem's trees as graded episodes, one problem after another.

    `Episode.nodes` has the nodes from the prompt to the leaf. With `once` every node is trained on
    once, because the nodes that a leaf shares with earlier leaves count as given tokens.
    """
    forest = _Forest(sampler, problems)
    for wave in itertools.count():
        shoots: list[tuple[int, Shoot]] = []
        for n, (problem, _) in enumerate(problems):
            rng = host_rng(sampler.cfg.seed, sampler.iteration, f"tree {problem.id}", wave)
            shoots += [(n, shoot) for shoot in growth(wave, forest.paths[n], sampler.cfg, rng)]
        if not shoots:
            break
        forest.grow(params, shoots, wave)
    return forest.episodes(once)


class _Forest:
    """The trees of the problems of an iteration, which grow wave by wave."""

    def __init__(self, sampler: Sampler, problems: list[PromptedProblem]):
        self.paths: list[list[TreePath]] = [[] for _ in problems]  # paths of each problem
        self._sampler = sampler
        self._cfg = sampler.cfg
        self._engine = sampler.engine
        self._problems = problems

    def grow(self, params: Params, shoots: list[tuple[int, Shoot]], wave: int) -> None:
        """Draws the branches of one wave and adds them to the trees.

        `shoots` has pairs (number of the problem, plan of branches at one place).
        """
        seeds = [itertools.count(len(paths)) for paths in self.paths]
        trunks, branches, budgets, places = [], [], [], []
        for n, planned in shoots:
            problem, prompt = self._problems[n]
            shoot = attached_shoot(self.paths[n], planned)
            before = self._tokens_before(n, shoot)
            trunks.append(prompt + before)
            room = self._room(prompt) - len(before)
            for _ in range(shoot.count):
                # The path's number makes its random numbers differ from the problem's other paths.
                seed = row_seed(
                    self._cfg.seed, self._sampler.iteration, problem.id, rollout=next(seeds[n])
                )
                response = len(prompt) if before else None
                branches.append(Branch(len(trunks) - 1, len(trunks[-1]), seed, response))
                budgets.append(room if shoot.budget is None else min(room, shoot.budget))
                places.append((n, shoot))
        grown = self._engine.grow(params, trunks, branches, budgets)
        drawn = [
            (n, self._path(n, shoot, continuation, wave))
            for (n, shoot), continuation in zip(places, grown, strict=True)
        ]
        steps = self._steps(drawn)
        for i, (n, path) in enumerate(drawn):
            ends, rewards = steps.get(i, ([], None))
            path = dataclasses.replace(path, step_ends=ends, step_rewards=rewards)
            self.paths[n].append(path)

    def _tokens_before(self, n: int, shoot: Shoot) -> list[int]:
        """The response tokens of problem `n` that come before the branches that `shoot` plans."""
        return [] if shoot.parent is None else self.paths[n][shoot.parent].tokens[: shoot.position]

    def _room(self, prompt: list[int]) -> int:
        """The largest number of tokens that a response to this prompt may have."""
        return min(self._cfg.sample.max_tokens, self._engine.model.cfg.context - len(prompt))

    def _path(self, n: int, shoot: Shoot, grown: Grown, wave: int) -> TreePath:
        prompt, before = self._problems[n][1], self._tokens_before(n, shoot)
        text = response_text(self._engine.tokenizer, prompt, before)
        tokens = before + grown.tokens
        logprobs = [] if shoot.parent is None else self.paths[n][shoot.parent].logprobs
        finished = grown.finish != "length"
        return TreePath(
            tokens=tokens,
            logprobs=logprobs[: len(before)] + grown.logprobs,
            parent=shoot.parent,
            start=len(before),
            wave=wave,
            is_over=finished or len(tokens) >= self._room(prompt),
            text=whole_text(text, grown),
            finished=finished,
        )

    def _steps(
        self, drawn: list[tuple[int, TreePath]]
    ) -> dict[int, tuple[list[int], list[float] | None]]:
        """{index in `drawn`: (ends of the path's steps, their rewards)} for paths that are over.

        `drawn` has pairs (number of the problem, path). The task divides responses into steps; None
        stands for the rewards if the task gives none to steps.
        """
        solutions = {}
        for i, (n, path) in enumerate(drawn):
            if is_mine(i) and path.is_over:
                problem, prompt = self._problems[n]
                solutions[i] = Solution(problem, prompt, path.tokens, path.text)
        return shared_work({i: self._sampler.split(s) for i, s in solutions.items()})

    def episodes(self, once: bool) -> list[Episode]:
        """The leaves of all trees as graded episodes; `once` is that of `sample_trees`."""
        all_leaves = [(n, leaf) for n, paths in enumerate(self.paths) for leaf in leaves(paths)]
        with self._sampler.graded.background() as background:
            for i, (n, leaf) in enumerate(all_leaves):
                path = self.paths[n][leaf.number]
                if is_mine(i) and path.finished:
                    background.add(i, self._problems[n][0], path.text, path.tokens)
            rewards = background.rewards()
        nothing = Reward(self._cfg.reward.truncated)
        reached: list[set[int]] = [set() for _ in self.paths]
        episodes = []
        for i, (n, leaf) in enumerate(all_leaves):
            given = sum(node in reached[n] for node in leaf.nodes) if once else 0
            reached[n].update(leaf.nodes)
            episodes.append(self._episode(n, leaf, given, rewards.get(i, nothing)))
        return episodes

    def _episode(self, n: int, leaf: TreeLeaf, given: int, reward: Reward) -> Episode:
        """The episode of a leaf, whose first `given` nodes are not trained on."""
        problem, prompt = self._problems[n]
        path = self.paths[n][leaf.number]
        start = leaf.ends[given - 1] if given else 0
        ends, rewards = leaf.ends[given:], None
        if path.step_rewards is not None:
            # The reward of a step goes to the node in which the step ends. If that node is given,
            # the reward goes to the first node that is not given.
            rewards = rewards_between(ends, path.step_ends, path.step_rewards)
        return Episode(
            problem_id=problem.id,
            prompt=prompt,
            response=path.tokens,
            logprobs=[0.0] * start + path.logprobs[start:],
            text=path.text,
            finished=path.finished,
            reward=float(np.float32(reward.total)),
            step_ends=ends,
            step_rewards=rewards,
            reward_parts=reward.parts,
            given=start,
            nodes=leaf.nodes,
        )
