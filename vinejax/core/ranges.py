"""Types of settings, each with the range of its values, which `config/checks.py` checks."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple


class Rule(NamedTuple):
    """A condition for the value of a setting, except for None; `text` is the error message."""

    text: str
    holds: Callable[[Any], bool]


# Besides these rules, every float must be finite.
Count = Annotated[int, Rule("must be at least 1", lambda x: x >= 1)]
Counts = Annotated[
    tuple[int, ...],
    Rule("must be numbers of at least 1, one of them more", lambda x: x and min(x) >= 1 < max(x)),
]
Whole = Annotated[int, Rule("must not be negative", lambda x: x >= 0)]
NotNegative = Annotated[float, Rule("must not be negative", lambda x: x >= 0)]
Positive = Annotated[float, Rule("must be greater than 0", lambda x: x > 0)]
ZeroToOne = Annotated[float, Rule("must be from 0 to 1", lambda x: 0 <= x <= 1)]
BelowOne = Annotated[float, Rule("must be at least 0 and less than 1", lambda x: 0 <= x < 1)]
Share = Annotated[float, Rule("must be over 0 and at most 1", lambda x: 0 < x <= 1)]
AboveOne = Annotated[float, Rule("must be greater than 1", lambda x: x > 1)]
Pair = Annotated[
    tuple[float, ...],
    Rule("must be two numbers greater than 0", lambda x: len(x) == 2 and min(x) > 0),
]
Shift = Annotated[float, Rule("must be from -1 to 1", lambda x: -1 <= x <= 1)]
MaxRatio = Annotated[
    float, Rule("must be over 1, the mean ratio of a policy that has not moved", lambda x: x > 1)
]
# In float32 a much smaller top-p is 0, and logits divided by a much smaller temperature overflow.
LEAST_TEMPERATURE = LEAST_TOP_P = 1e-6
Temperature = Annotated[
    float,
    Rule("must be 0, or at least 1e-6", lambda x: x == 0 or x >= LEAST_TEMPERATURE),
]
TopP = Annotated[float, Rule("must be from 1e-6 to 1", lambda x: LEAST_TOP_P <= x <= 1)]
# JAX keeps 32 bits of a seed and silently drops the rest.
Seed = Annotated[int, Rule("must be from 0 to 2**32 - 1", lambda x: 0 <= x < 2**32)]
MeshSize = Annotated[
    int,
    Rule("must be at least 1, or -1 for whatever devices are left", lambda x: x >= 1 or x == -1),
]
Port = Annotated[Count, Rule("must be at most 65535", lambda x: x <= 65535)]
# A busy host misses heartbeats, for example while it compiles or allocates pinned memory.
Heartbeat = Annotated[
    Count, Rule("must be at most 600, so that a dead host ends the others", lambda x: x <= 600)
]
TokenIds = Annotated[
    tuple[int, ...],
    Rule("must be token ids, which are not negative", lambda x: min(x, default=0) >= 0),
]
Variables = Annotated[
    tuple[str, ...],
    Rule(
        "must be 'name=value' each, such as ('enable_thinking=False',)",
        lambda x: all(text.partition("=")[0].isidentifier() and "=" in text for text in x),
    ),
]
Module = Annotated[str, Rule("must name a task, such as vinejax.tasks.arithmetic", bool)]
