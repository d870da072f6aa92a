"""What a run has used, counted alike for every method, and when its budget is used up."""

import dataclasses
import math
from collections.abc import Mapping

from vinejax.config import BudgetConfig, Config


@dataclasses.dataclass(frozen=True)
class Spent:
    """Totals since the start of a run, over all processes that continued it."""

    prompts: int = 0  # problems drawn, each time anew
    episodes: int = 0  # solutions sampled from them
    tokens: int = 0  # generated: solutions and continuations, not evaluation
    updates: int = 0  # gradient steps of the policy that were tried
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # by stage

    def plus(self, **more: int) -> "Spent":
        """With these counts added."""
        return dataclasses.replace(self, **{k: getattr(self, k) + x for k, x in more.items()})

    def timed(self, timings: Mapping[str, float]) -> "Spent":
        """With `timing_s/<stage>` added to the seconds of each stage."""
        seconds = dict(self.seconds)
        for name, x in timings.items():
            stage = name.removeprefix("timing_s/")
            seconds[stage] = seconds.get(stage, 0.0) + x
        return dataclasses.replace(self, seconds=seconds)

    def metrics(self) -> dict[str, float]:
        counts = {name: getattr(self, name) for name in ("prompts", "episodes", "tokens")}
        named = {f"total/{name}": x for name, x in (counts | {"updates": self.updates}).items()}
        return named | {f"timing_s/total_{stage}": x for stage, x in self.seconds.items()}


@dataclasses.dataclass(frozen=True)
class Left:
    """What a budget still allows; without a bound a number that nothing reaches."""

    prompts: int
    updates: int

    @property
    def nothing(self) -> bool:
        return self.prompts < 1 or self.updates < 1


def left(cfg: Config, spent: Spent) -> Left:
    """What the run may still use. Whole groups only: a problem takes `rollout.per_prompt`."""
    budget, endless = cfg.budget, 2**62
    groups = endless
    if budget.episodes is not None:
        groups = (budget.episodes - spent.episodes) // cfg.rollout.per_prompt
    prompts = endless if budget.prompts is None else budget.prompts - spent.prompts
    updates = endless if budget.updates is None else budget.updates - spent.updates
    return Left(min(prompts, groups), updates)


def num_updates(cfg: Config) -> int:
    """Updates of a policy-gradient run: the learning rate decays over them."""
    per_prompt, minibatch = cfg.rollout.per_prompt, cfg.ppo.minibatch
    a_step = math.ceil(cfg.rollout.prompts * per_prompt / minibatch) * cfg.ppo.epochs
    iterations = min(cfg.iterations, *_iterations(cfg.budget, cfg.rollout.prompts, per_prompt))
    return min(iterations * a_step, cfg.budget.updates or 2**62)


def _iterations(budget: BudgetConfig, prompts: int, per_prompt: int) -> tuple[int, int]:
    """Iterations until the prompts, and until the episodes, are used up."""
    by_prompts = math.ceil((budget.prompts or 2**62) / prompts)
    return by_prompts, math.ceil((budget.episodes or 2**62) / (prompts * per_prompt))
