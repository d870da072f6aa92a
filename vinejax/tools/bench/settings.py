"""The settings of `--mode=credit`."""

from typing import Any, ClassVar

from vinejax.core.errors import ConfigError
from vinejax.core.ranges import Count
from vinejax.core.sections import Section

BRANCHES = ("off", "first", "all", "fork")  # kinds of branches.py
UNIFORM_POSITION = "vinejax.tools.bench.branches.uniform_position"


class BenchConfig(Section, section="bench"):
    """`--mode=credit`: the error and the cost of credit estimators, see docs/credit_bench.md."""

    may_change: ClassVar[bool] = True
    estimators: tuple[
        str, ...
    ] = ()  # names in tools/bench/estimators.py; (): all estimators that the run can have
    problems: Count = 32  # problems of the train split, the same in every repeat
    repeats: Count = 20  # batches of `rollout.per_prompt` solutions per problem
    exact: Count = 4  # number of repeats, from the first on, that measure estimator 'exact'
    reference: Count = 20_000  # solutions from which the reference gradient is estimated
    truth: Count = 256  # rollouts whose mean return is a true value
    states: Count = 512  # states whose values are compared with true values
    ranked: Count = 128  # states whose next steps are ranked
    branches: str = "off"  # estimator 'run': 'first', 'all', 'fork', see tools/bench/branches.py

    def check(self, cfg: Any) -> None:
        """Raises ConfigError if `branches` is unknown, or does not fit other fields."""
        if self.branches not in BRANCHES:
            message = f"must be {', '.join(map(repr, BRANCHES))}"
            raise ConfigError("bench.branches", message, repr(self.branches))
        values = cfg.values
        rule = UNIFORM_POSITION if self.branches == "fork" else "tokens"
        needs = {
            "method = 'vineppo'": cfg.method == "vineppo",
            "values.budget = 'left'": values.budget == "left",
            "credit.labels = 'off'": cfg.credit.labels == "off",
            f"values.positions = {rule!r}": values.positions == rule,
            "values.dedup = False": not values.dedup,
            "values.reuse = False": not values.reuse,
            "all states": (values.max_states, values.num_states, values.merge) == (None, None, 1),
            "ppo.gamma = 1": cfg.ppo.gamma == 1,
            "rollout.per_prompt of at least 2": cfg.rollout.per_prompt > 1,
        }
        for needed, is_met in needs.items():
            if self.branches != "off" and not is_met:
                raise ConfigError("bench.branches", f"needs {needed}", repr(self.branches))
