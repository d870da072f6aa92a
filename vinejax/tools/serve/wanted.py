"""The branches that requests want from the engine, and what the scheduler tells about them."""

import dataclasses
from typing import NamedTuple

from vinejax.engine.branches import Grown


@dataclasses.dataclass(frozen=True, eq=False)
class Wanted:
    """A continuation that a request wants after the first `position` tokens of `trunk`."""

    trunk: list[int]
    position: int
    seed: int
    budget: int  # most tokens, at least 1
    response: int | None = None  # as `Branch.response`
    stop: tuple[str, ...] = ()


class Ended(NamedTuple):
    """The continuation of branch `number` of a request; `source` names its weights."""

    number: int
    grown: Grown
    source: str


class Tokens(NamedTuple):
    """The tokens that branch `number` of a request has drawn so far; `source` names its weights."""

    number: int
    tokens: list[int]
    source: str


class Failed(NamedTuple):
    """The request's stream failed; nothing follows."""

    error: Exception


Event = Ended | Tokens | Failed
