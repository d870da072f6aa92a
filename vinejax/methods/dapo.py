"""DAPO: GRPO on groups with spread alone, a higher upper clip, and a penalty on overlong solutions.

    A: `grpo`'s, of r less up to ½ over the last `dapo.overlong` of `sample.max_tokens`

Up to `dapo.rounds` rounds of `rollout.prompts` problems are sampled, until that many groups have
unequal rewards; then others fill up. All samples count in totals and in `reward/mean`.

Source: https://arxiv.org/abs/2503.14476, section 3.

Departs: half the penalty, as rewards are 0 and 1, there -1 and 1; bounded rounds.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from vinejax.core.ranges import BelowOne, Count
from vinejax.core.settings import Config, MethodSettings
from vinejax.core.types import Episode, PromptedProblem, Rollout, RunState
from vinejax.credit.assign import Credit, against_group, group_numbers, solution_rewards
from vinejax.methods.base import Method
from vinejax.rl.advantages import overlong_penalty
from vinejax.rollout.problems import chunks
from vinejax.session.iteration import Iteration, Solutions


@dataclasses.dataclass(frozen=True)
class DAPOConfig(MethodSettings):
    section: ClassVar[str] = "dapo"

    rounds: Count = 4  # rounds of sampling per iteration, at most, to find groups with spread
    overlong: BelowOne = 0.2  # last part of sample.max_tokens: a solution loses up to 0.5 there


def dynamic_sampling(it: Iteration, state: RunState) -> Solutions:
    """Solutions of `rollout.prompts` problems whose rewards are not all equal."""
    params = it.session.weights(state.policy.params)
    count = min(it.cfg.rollout.prompts, it.left.prompts)
    rounds = DAPOConfig.of(it.cfg).rounds
    problems = it.draw(rounds * count)
    episodes, sampled = sample_with_spread(
        lambda part: it.sample(params, part), problems, count, rounds
    )
    it.metrics["rollout/discarded"] = len(sampled) - len(episodes)
    return Solutions(problems, episodes, sampled)


def sample_with_spread(
    sample: Callable[[list[PromptedProblem]], list[Episode]],
    problems: list[PromptedProblem],
    wanted: int,
    rounds: int,
) -> tuple[list[Episode], list[Episode]]:
    """Returns the episodes of `wanted` problems, and all episodes that were sampled.

    `sample` gives a group of episodes per problem, in the problems' order. Each round samples the
    next `wanted` of `problems` and keeps the groups whose rewards, those of their steps included,
    are not all equal: the others teach nothing. After `rounds` rounds, or the last problem, groups
    without spread are added, up to `wanted`.
    """
    spread: list[list[Episode]] = []
    flat: list[list[Episode]] = []
    for chosen in list(chunks(problems, wanted))[:rounds]:
        groups: dict[str, list[Episode]] = {problem.id: [] for problem, _ in chosen}
        for episode in sample(chosen):
            groups[episode.problem_id].append(episode)
        for group in groups.values():
            (spread if np.ptp(solution_rewards(group)) > 0 else flat).append(group)
        if len(spread) >= wanted:
            break
    kept = (spread + flat)[:wanted]
    sampled = [episode for group in spread + flat for episode in group]
    return [episode for group in kept for episode in group], sampled


def penalised(rollout: Rollout, cfg: Config) -> Credit:
    """GRPO's advantages of rewards less a penalty for coming near the token budget.

    A group whose rewards are all equal before the penalty has advantage 0: the published method
    excludes such groups.
    """
    episodes = rollout.episodes
    rewards = solution_rewards(episodes)
    lengths = np.array([len(episode.response) for episode in episodes], np.int32)
    budget = cfg.sample.max_tokens
    overlong = DAPOConfig.of(cfg).overlong * budget
    penalty = np.asarray(overlong_penalty(lengths, budget, overlong))
    groups = group_numbers(episodes)
    spread = {g for g in groups if np.ptp(rewards[groups == g]) > 0}
    less_penalty = np.where([g in spread for g in groups], rewards + 0.5 * penalty, 0.0)
    return against_group(rollout, "grpo", less_penalty.astype(np.float32))


METHOD = Method(
    penalised,
    sample=dynamic_sampling,
    clip_high=0.28,
    settings=DAPOConfig,
    needs_groups=True,
)
