"""The settings of a user's function as a learned value; `values.prior` is its dotted path."""

from vinejax.core.ranges import Positive
from vinejax.core.sections import Section


class PriorFunctionConfig(Section, section="prior_function"):
    timeout_s: Positive = 600.0  # wall-clock time of a call, for at most 64 states
