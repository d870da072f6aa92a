"""Solutions in the doors' environment that branch off one another at turns."""

from typing import Any

from helpers import turn_cases as cases
from vinejax.contrib.methods.sampling.turn_trees import BranchingSampler, TurnGrowth
from vinejax.core.types import Episode
from vinejax.tasks.doors import DoorsTask
from vinejax.tasks.graded import GradedTask


def grown(
    growth: TurnGrowth, engine: Any = None, task: Any = None, per_prompt: int = 6
) -> list[list[Episode]]:
    """The solutions of each problem, which may branch off others."""
    cfg = cases.config(rollout={"prompts": 2, "per_prompt": per_prompt}, env={"workers": 2})
    graded = GradedTask(task or DoorsTask(), cfg.grader)
    branching = BranchingSampler(engine or cases.Unsure(), graded, cfg, 0, growth)
    found = cases.problems(2)
    episodes = branching.solutions({}, found, 2)
    assert [e.problem_id for e in episodes] == [p.id for p, _ in found for _ in range(per_prompt)]
    return [episodes[:per_prompt], episodes[per_prompt:]]


def rule(first: int, branches: Any = lambda place, rng: int(rng.random() < 0.5)) -> TurnGrowth:
    return TurnGrowth(lambda entropies: 9 if entropies else first, branches, 20)
