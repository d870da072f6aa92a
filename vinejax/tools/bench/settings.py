"""The settings of `--mode=credit`."""

from typing import Any

from vinejax.core.errors import ConfigError
from vinejax.core.ranges import BelowOne, Count
from vinejax.core.sections import Section

LABELS = ("off", "group", "mixed", "blend")  # kinds of labels.py
BRANCHES = ("off", "first", "all", "fork")  # kinds of branches.py


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
    # w: labels 'mixed' give the solution's own token this weight, 'blend' where one sample passes.
    label_weight: BelowOne = 0.7
    branches: str = "off"  # estimator 'run': 'first', 'all', 'fork', see tools/bench/branches.py

    def check(self, cfg: Any) -> None:
        """Raises ConfigError if `labels` or `branches` is unknown, or does not fit other fields."""
        kinds = {"labels": LABELS, "branches": BRANCHES}
        for name, known in kinds.items():
            kind = getattr(self, name)
            if kind not in known:
                message = f"must be {', '.join(map(repr, known))}"
                raise ConfigError(f"bench.{name}", message, repr(kind))
            needs = {
                "method = 'vineppo'": cfg.method != "vineppo",
                "values.budget = 'left'": cfg.values.budget != "left",
                "a values.prior": kind == "blend" and not cfg.values.prior,
                "values.dedup = False": name == "branches" and cfg.values.dedup,
                "labels = 'off'": name == "branches" and self.labels != "off",
            }
            for needed, is_missing in needs.items():
                if kind != "off" and is_missing:
                    raise ConfigError(f"bench.{name}", f"needs {needed}", repr(kind))
