"""The settings of resets."""

from typing import Any, Literal

from vinejax.core.errors import ConfigError
from vinejax.core.ranges import Count, ZeroToOne
from vinejax.core.sections import Section
from vinejax.core.types import Problem
from vinejax.tasks.environment import MultiTurn


class ResetConfig(Section, section="reset"):
    """Solutions that begin in the middle of a known solution: contrib/resets/reset_sampler.py."""

    # 'gold': of the data set's solution. 'solved', 'failed': of a right or a wrong solution of the
    # iteration, where the problem's pass rate is below or above `target`. 'both': of either.
    source: Literal["none", "gold", "solved", "failed", "both"] = "none"
    # How many tokens: any number, or at the edge, where the pass rate crosses `target`.
    at: Literal["uniform", "edge"] = "uniform"
    share: ZeroToOne = 1.0  # source 'gold': chance that a problem's solutions begin so
    target: ZeroToOne = 0.5  # pass rate
    k: Count = 4  # at 'edge': continuations per pass rate

    def check(self, cfg: Any) -> None:
        """Refuses settings that nothing reads, and reuse of solutions chosen by their reward."""
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
            rule = f"must be False for reset.source = {self.source!r}, whose solutions are chosen"
            raise ConfigError("values.reuse", f"{rule} by their reward", "True")

    def check_task(self, task: Any, problems: list[Problem]) -> None:
        """Refuses resets in an environment, and 'gold' for a task without worked solutions."""
        name, has_turns = task.name, isinstance(task, MultiTurn)
        if self.source != "none" and has_turns:
            rule = f"must be 'none' for task {name}, whose episodes begin with their"
            raise ConfigError("reset.source", f"{rule} environment", repr(self.source))
        if self.source == "gold" and problems and not _is_worked(task, problems):
            rule = f"task {name} has no worked solutions; choose another source, or 'none'"
            raise ConfigError("reset.source", rule, "'gold'")


def _is_worked(task: Any, problems: list[Problem]) -> bool:
    try:
        return any(task.solution(problem).strip() for problem in problems)
    except NotImplementedError:
        return False
