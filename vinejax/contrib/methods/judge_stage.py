"""The sampling stage of methods whose rewards come from a judge, which compares two responses.

Sampling itself is that of other methods. The judge's reward of a solution is
`reward_parts["judge"]`. It is shown as the metric `reward/judge` and in the report, beside the
task's own reward.
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

# (iteration, solutions) -> the pairs (first, second) that the judge compares, per solution
Opponents = Callable[[Iteration, Solutions], list[list[tuple[str, str]]]]
# chances that the first of a solution's pairs is the better one -> the judge's reward
Earnings = Callable[[list[float]], float]


def judged_solutions(opponents: Opponents, earnings: Earnings) -> Callable[..., Solutions]:
    """The sampling stage: solutions, each compared with its opponents by the judge."""

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
        verdicts = chances_of(iteration, pairs)
        iteration.metrics |= {
            "judge/pairs": len(pairs),
            "judge/timeouts": float(verdicts["timeouts"].mean()),
        }
        by_episode: list[list[float]] = [[] for _ in sampled.episodes]
        for i, chance in zip(owners, verdicts["chances"].tolist(), strict=True):
            by_episode[i].append(chance)
        episodes = [
            dataclasses.replace(e, reward_parts={**(e.reward_parts or {}), "judge": earnings(x)})
            for e, x in zip(sampled.episodes, by_episode, strict=True)
        ]
        return Solutions(sampled.problems, episodes, episodes)

    return sample


def chances_of(iteration: Iteration, pairs: list[JudgedPair]) -> dict[str, np.ndarray]:
    """The judge's chances and whether time ran out, by pair; such a pair has the chance ½.

    Each host asks about its part of the pairs.
    """
    settings = JudgeConfig.of(iteration.cfg)
    here = [i for i in range(len(pairs)) if is_mine(i)]
    chances_here = compared(
        settings.function, [pairs[i] for i in here], settings.batch, settings.timeout_s
    )
    by_pair = shared_work(dict(zip(here, chances_here, strict=True)))
    chances = [by_pair[i] for i in range(len(pairs))]
    return {
        "chances": np.array([0.5 if x is None else x for x in chances]),
        "timeouts": np.array([x is None for x in chances]),
    }


def judgements(rollout: Rollout) -> np.ndarray:
    """The judge's reward of each solution, f32[episodes]."""
    return np.array([(e.reward_parts or {})["judge"] for e in rollout.episodes], np.float32)
