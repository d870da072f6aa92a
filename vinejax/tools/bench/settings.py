"""The settings of `--mode=credit`."""

from typing import Any

from vinejax.core.errors import ConfigError
from vinejax.core.ranges import BelowOne, Count
from vinejax.core.sections import Section

LABELS = ("off", "group", "mixed", "blend")  # kinds of labels.py
BRANCHES = ("off", "first", "all", "fork")  # kinds of branches.py
UNIFORM_POSITION = "vinejax.tools.bench.branches.uniform_position"


class BenchConfig(Section, section="bench"):
    """`--mode=credit`: the error and the cost of credit estimators, see docs/credit_bench.md."""

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
    labels: str = "off"  # estimator 'run': 'group', 'mixed' or 'blend', see tools/bench/labels.py
    # w, the weight of the solution's own token: with 'mixed' wherever a sample passes, with 'blend'
    # where just one passes.
    label_weight: BelowOne = 0.7
    branches: str = "off"  # estimator 'run': 'first', 'all', 'fork', see tools/bench/branches.py

    def check(self, cfg: Any) -> None:
        """Raises ConfigError if `labels` or `branches` is unknown, or does not fit other fields."""
        values = cfg.values
        of_method = {
            "method = 'vineppo'": cfg.method == "vineppo",
            "values.budget = 'left'": values.budget == "left",
        }
        of_labels = {"a values.prior": self.labels != "blend" or bool(values.prior)}
        rule = UNIFORM_POSITION if self.branches == "fork" else "tokens"
        of_branches = {
            "labels = 'off'": self.labels == "off",
            f"values.positions = {rule!r}": values.positions == rule,
            "values.dedup = False": not values.dedup,
            "values.reuse = False": not values.reuse,
            "all states": (values.max_states, values.num_states, values.merge) == (None, None, 1),
            "ppo.gamma = 1": cfg.ppo.gamma == 1,
            "rollout.per_prompt of at least 2": cfg.rollout.per_prompt > 1,
        }
        self._check_kind("labels", LABELS, of_method | of_labels)
        self._check_kind("branches", BRANCHES, of_method | of_branches)

    def _check_kind(self, name: str, known: tuple[str, ...], needs: dict[str, bool]) -> None:
        """Raises ConfigError if the kind is not `known` or, unless it is 'off', needs are unmet."""
        kind = getattr(self, name)
        if kind not in known:
            message = f"must be {', '.join(map(repr, known))}"
            raise ConfigError(f"bench.{name}", message, repr(kind))
        for needed, is_met in needs.items():
            if kind != "off" and not is_met:
                raise ConfigError(f"bench.{name}", f"needs {needed}", repr(kind))
