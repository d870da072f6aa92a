"""Shared by methods whose rewards a judge gives, which compares two responses: `judges.py`.

Sampling is that of other methods. What a solution earned from the judge is `reward_parts["judge"]`,
and so the metric `reward/judge` and a column of the report; the task's own reward stays beside it.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from vinejax.contrib.methods.judges import JudgedPair, compared
from vinejax.contrib.methods.settings import JudgeConfig
from vinejax.core.types import PromptedProblem, Rollout, RunState
from vinejax.methods.stages import solutions
from vinejax.runtime.distributed import is_mine, shared_work
from vinejax.session.iteration import Iteration, Solutions
from vinejax.tasks.answers import bare_answer

# (iteration, solutions) -> for each solution the (first, second) that the judge compares for it
Opponents = Callable[[Iteration, Solutions], list[list[tuple[str, str]]]]
# chance that the first of each of these is better -> what the episode earned
Earnings = Callable[[list[float]], float]


def judged_solutions(opponents: Opponents, earnings: Earnings) -> Callable[..., Solutions]:
    """The first stage of a method: solutions, each compared with its opponents by the judge."""

    def sample(iteration: Iteration, state: RunState, drawn: list[PromptedProblem]) -> Solutions:
        sampled = solutions(iteration, state, drawn)
        against = opponents(iteration, sampled)
        problems = {problem.id: problem for problem, _ in sampled.problems}
        pairs, owners = [], []
        for i, (episode, texts) in enumerate(zip(sampled.episodes, against, strict=True)):
            problem = problems[episode.problem_id]
            owners += [i] * len(texts)
            answer = bare_answer(problem.answer)
            pairs += [
                JudgedPair(problem.question, answer, first, second) for first, second in texts
            ]
        found = chances_of(iteration, pairs)
        iteration.metrics |= {
            "judge/pairs": len(pairs),
            "judge/timeouts": float(found["drawn"].mean()),
        }
        by_episode: list[list[float]] = [[] for _ in sampled.episodes]
        for i, chance in zip(owners, found["chances"].tolist(), strict=True):
            by_episode[i].append(chance)
        episodes = [
            dataclasses.replace(e, reward_parts={**(e.reward_parts or {}), "judge": earnings(x)})
            for e, x in zip(sampled.episodes, by_episode, strict=True)
        ]
        return Solutions(sampled.problems, episodes, episodes)

    return sample


def chances_of(iteration: Iteration, pairs: list[JudgedPair]) -> dict[str, np.ndarray]:
    """The judge's chances, of which each host asks about its own; ½ where time ran out."""
    settings, mine = JudgeConfig.of(iteration.cfg), [i for i in range(len(pairs)) if is_mine(i)]
    found = compared(
        settings.function, [pairs[i] for i in mine], settings.batch, settings.timeout_s
    )
    by_pair = shared_work(dict(zip(mine, found, strict=True)))
    chances = [by_pair[i] for i in range(len(pairs))]
    return {
        "chances": np.array([0.5 if x is None else x for x in chances]),
        "drawn": np.array([x is None for x in chances]),
    }


def judgements(rollout: Rollout) -> np.ndarray:
    """f32[episodes] what the judge gave each solution."""
    return np.array([(e.reward_parts or {})["judge"] for e in rollout.episodes], np.float32)
