"""The settings of `--mode=credit`."""

from vinejax.core.ranges import Count
from vinejax.core.sections import Section


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
