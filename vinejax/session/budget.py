"""The totals of a run, counted in the same way for every method, and the rest of its budget."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from vinejax.core.settings import Config
from vinejax.core.shapes import packed_length
from vinejax.core.types import Episode

NO_BOUND = 2**62  # a bound that no run reaches, where none is set


@dataclasses.dataclass(frozen=True)
class RunTotals:
    """Totals since the start of a run, over all processes that continued it."""

    prompts: int = 0  # problems drawn; a problem counts each time
    episodes: int = 0  # solutions sampled for these problems
    tokens: int = 0  # tokens decoded for solutions and continuations, not for evaluation
    updates: int = 0  # gradient steps of the policy, also the skipped ones
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # by stage

    def plus(self, **more: int) -> "RunTotals":
        """A copy in which each number of `more` is added to the field of its name."""
        return dataclasses.replace(self, **{k: getattr(self, k) + x for k, x in more.items()})

    def timed(self, timings: Mapping[str, float]) -> "RunTotals":
        """A copy with the timings, named `timing_s/<stage>`, added to the seconds of the stages."""
        seconds = dict(self.seconds)
        for name, x in timings.items():
            stage = name.removeprefix("timing_s/")
            seconds[stage] = seconds.get(stage, 0.0) + x
        return dataclasses.replace(self, seconds=seconds)

    def metrics(self) -> dict[str, float]:
        names = ("prompts", "episodes", "tokens", "updates")
        counts = {f"total/{name}": getattr(self, name) for name in names}
        return counts | {f"timing_s/total_{stage}": x for stage, x in self.seconds.items()}


def groups_left(cfg: Config, spent: RunTotals) -> int:
    """The rest of the run's budget, in whole groups of `rollout.per_prompt` episodes.

    The result is NO_BOUND if `cfg.budget.episodes` is None.
    """
    if cfg.budget.episodes is None:
        return NO_BOUND
    return (cfg.budget.episodes - spent.episodes) // cfg.rollout.per_prompt


def num_updates(cfg: Config) -> int:
    """How many updates a policy-gradient run makes; the learning rate decays over this number.

    A method that samples in rounds is assumed to need one round per iteration. If it needs more
    rounds, the budget ends the run before the rate is 0. A run that leaves groups out
    (`rollout.zero_variance` 'drop') makes fewer updates, and also ends before the rate is 0.
    """
    groups = (cfg.budget.episodes or NO_BOUND) // cfg.rollout.per_prompt
    full, rest = divmod(groups, cfg.rollout.prompts)
    if full >= cfg.iterations:
        full, rest = cfg.iterations, 0
    return full * _updates_with(cfg, cfg.rollout.prompts) + _updates_with(cfg, rest)


def longest_sequence(cfg: Config, context: int) -> int:
    """The most tokens of a prompt and its response: the sum of their limits, at most `context`."""
    response = cfg.sample.max_tokens + cfg.env.observed
    return min(cfg.data.max_prompt_tokens + response, context)


def packed_tokens(cfg: Config, context: int, episodes: Sequence[Episode]) -> int:
    """The length of a packed row: enough for every episode, and at least `ppo.row_tokens`."""
    longest = max(len(episode.tokens) for episode in episodes)
    return max(packed_length(longest_sequence(cfg, context), longest), cfg.ppo.row_tokens or 0)


def _updates_with(cfg: Config, prompts: int) -> int:
    """The number of updates of an iteration that samples `prompts` problems."""
    return math.ceil(prompts * cfg.rollout.per_prompt / cfg.ppo.minibatch) * cfg.ppo.epochs
