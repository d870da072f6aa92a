"""The settings of `--mode=plan`."""

from typing import ClassVar

from vinejax.core.ranges import Count
from vinejax.core.sections import Section


class PlanConfig(Section, section="plan"):
    """The assumptions of `--mode=plan`, and its time limit."""

    may_change: ClassVar[bool] = True
    timeout_s: Count = 1800  # maximum seconds to compile one program
    prompt_tokens: Count | None = None  # mean prompt tokens; None: half of data.max_prompt_tokens
    tokens: Count | None = None  # mean response tokens; None: a quarter of sample.max_tokens
    steps: Count = 12  # mean reasoning steps per response
