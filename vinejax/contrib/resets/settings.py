"""The settings of resets, in which solutions begin in the middle of known solutions."""

from typing import Any, Literal

from vinejax.core.errors import ConfigError
from vinejax.core.ranges import Count, ZeroToOne
from vinejax.core.sections import Section
from vinejax.core.types import Problem
from vinejax.tasks.environment import MultiTurn


class ResetConfig(Section, section="reset"):
    """The settings of resets; a reset begins solutions within a known one (`reset_sampler.py`)."""

    # The known solution. 'gold': the data set's. 'solved': a right one of the iteration, where the
    # pass rate is below `target`. 'failed': a wrong one, where it is above. 'both': either.
    source: Literal["none", "gold", "solved", "failed", "both"] = "none"
    # The number of given tokens: random, or at the edge where the pass rate crosses `target`.
    at: Literal["uniform", "edge"] = "uniform"
    share: ZeroToOne = 1.0  # probability of a reset of a problem with source 'gold'
    target: ZeroToOne = 0.5  # target of the pass rate
    k: Count = 4  # continuations per pass rate of the search for the edge

    def check(self, cfg: Any) -> None:
        """Raises ConfigError for a setting that would have no effect, and for a biased reuse.

        `values.reuse` is biased if `source` chooses the known solutions by their rewards.
        """
        is_known = self.source not in ("none", "gold")
        needs = {
            "at": (self.source != "none", "reset.source other than 'none'"),
            "share": (self.source == "gold", "reset.source = 'gold'"),
            "target": (
                is_known or self.at == "edge",
                "reset.source = 'solved', 'failed' or 'both', or reset.at = 'edge'",
            ),
            "k": (self.at == "edge", "reset.at = 'edge'"),
        }
        for field, (holds, words) in needs.items():
            value = getattr(self, field)
            if value != getattr(type(self)(), field) and not holds:
                raise ConfigError(f"reset.{field}", f"needs {words}; leave it out", repr(value))
        if is_known and cfg.values.reuse:
            message = f"must be False for reset.source = {self.source!r}, which chooses by reward"
            raise ConfigError("values.reuse", message, "True")

    def check_task(self, task: Any, problems: list[Problem]) -> None:
        """Raises ConfigError for a multi-turn task, and for 'gold' without worked solutions.

        If the solution of a single problem is missing, the task's error names the problem.
        """
        name = task.name
        if self.source != "none" and isinstance(task, MultiTurn):
            message = f"must be 'none' for task {name}, whose episodes begin in their environment"
            raise ConfigError("reset.source", message, repr(self.source))
        if self.source == "gold" and problems and not _is_worked(task, problems):
            message = f"task {name} has no worked solutions; choose another source, or 'none'"
            raise ConfigError("reset.source", message, "'gold'")


def _is_worked(task: Any, problems: list[Problem]) -> bool:
    try:
        # A list, so that the solution of every problem is read, not only up to the first.
        return any([task.solution(problem).strip() for problem in problems])
    except NotImplementedError:
        return False
