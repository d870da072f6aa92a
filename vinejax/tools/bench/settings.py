"""The settings of `--mode=credit`."""

from vinejax.core.ranges import Count
from vinejax.core.sections import Section


class BenchConfig(Section, section="bench"):
    """`--mode=credit`: what the credit of estimators is worth, see docs/credit_bench.md."""

    estimators: tuple[
        str, ...
    ] = ()  # names of tools/bench/estimators.py; (): all that the run can have
    problems: Count = 32  # of the train split, the same throughout
    repeats: Count = 20  # batches of `rollout.per_prompt` solutions per problem
    exact: Count = 4  # of them, those that estimator 'exact' is measured on
    reference: Count = 20_000  # solutions behind the reference gradient
    truth: Count = 256  # continuations behind a true value
    states: Count = 512  # whose values are compared with the truth
    ranked: Count = 128  # states whose next steps are ranked
