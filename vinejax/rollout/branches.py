"""What the engine is asked for, and what it gives: branches, and what grew on them."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, SupportsIndex

import numpy as np

from vinejax.model.decoder import DecoderConfig
from vinejax.settings import SampleConfig

# Integers are Python's or NumPy's, sequences lists, tuples or arrays.
Ids = Sequence[SupportsIndex] | np.ndarray
Trunks = Sequence[Ids] | np.ndarray
MaxTokens = SupportsIndex | Ids | None


@dataclasses.dataclass(frozen=True)
class Branch:
    """A continuation to be drawn after the first `position` tokens of trunk number `trunk`.

    It may go on with a response that began after `response` of them: a stop string can then begin
    in what the trunk has of it. None: the response begins with the branch.
    """

    trunk: int
    position: int  # 1 <= position <= len(trunk)
    seed: int  # 0 <= seed < 2**64; draw n (absolute token index) uses fold_in(row key, n)
    response: int | None = None  # 0 <= response <= position


@dataclasses.dataclass(frozen=True)
class Grown:
    """What grew on a branch."""

    tokens: list[int]
    logprobs: list[float]  # temperature-scaled, full softmax
    text: str  # ends before a stop string
    finish: str  # 'eos' | 'stop' | 'length'
    overlap: int = 0  # characters of the stop string that the response had before the branch


OnGrown = Callable[[int, Grown], None]


class Work(NamedTuple):
    """What a phase is to do, checked. All but the trunks: an entry a branch."""

    trunks: list[list[int]]  # as far as they are to be computed
    trunk: list[int]
    position: list[int]
    seed: list[int]
    budget: list[int]
    last: list[int]  # token of the trunk before the branch
    match: list[int]  # how much of a stop string the response ends with there: see `stop.py`


def as_lists(trunks: Trunks) -> list[list[int]]:
    """The trunks as lists of Python's integers; ValueError naming one that has others."""
    lists = []
    for i, trunk in enumerate(trunks):
        ids = np.asarray(trunk)
        if ids.size and (ids.ndim != 1 or ids.dtype.kind not in "iu"):
            raise ValueError(f"trunk {i} is no sequence of token ids, which are integers")
        lists.append(ids.tolist())
    return lists


def check_sampling(cfg: SampleConfig) -> None:
    """ValueError for settings that nothing can be drawn with."""
    if not (0 <= cfg.temperature < math.inf and 0 < cfg.top_p <= 1 and cfg.top_k >= 0):
        raise ValueError(f"{cfg}: temperature >= 0, 0 < top_p <= 1 and top_k >= 0 are needed")
    if isinstance(cfg.stop, str):
        raise ValueError(f"stop = {cfg.stop!r} must be a tuple of strings: ({cfg.stop!r},)")
    if "" in cfg.stop:
        raise ValueError(f"stop = {cfg.stop!r} holds an empty string, which stops every text")


def check(trunks: list[list[int]], branches: Sequence[Branch], cfg: DecoderConfig) -> None:
    """ValueError naming a trunk or a branch that a model of `cfg` cannot grow."""
    for i, trunk in enumerate(trunks):
        if not trunk:
            raise ValueError(f"trunk {i} is empty")
        if len(trunk) > cfg.context:
            context = f"{cfg.context}{cfg.context_reason}"
            raise ValueError(f"trunk {i} has {len(trunk)} tokens, the context is {context}")
        if min(trunk) < 0 or max(trunk) >= cfg.vocab_size:
            raise ValueError(f"trunk {i} has ids outside 0 .. {cfg.vocab_size - 1}")
    for i, branch in enumerate(branches):
        if not 0 <= branch.trunk < len(trunks):
            raise ValueError(f"branch {i}: no trunk {branch.trunk} among {len(trunks)}")
        if not 1 <= branch.position <= len(trunks[branch.trunk]):
            raise ValueError(
                f"branch {i}: position {branch.position} is outside "
                f"1 .. {len(trunks[branch.trunk])}, the length of trunk {branch.trunk}"
            )
        if not 0 <= branch.seed < 2**64:
            raise ValueError(f"branch {i}: seed {branch.seed} is not a 64-bit number")
        if branch.response is not None and not 0 <= branch.response <= branch.position:
            began = f"branch {i}: response {branch.response} is outside 0 .. {branch.position}"
            raise ValueError(f"{began}, its position")


def budgets_of(branches: Sequence[Branch], max_tokens: MaxTokens, context: int) -> list[int]:
    """Tokens that each branch may take: its bound, and what the context leaves."""
    limits = np.asarray(max_tokens)
    if limits.size and limits.dtype.kind not in "iu":
        raise ValueError(f"max_tokens = {max_tokens!r} must be an integer, or one a branch")
    if limits.ndim and limits.shape != (len(branches),):
        raise ValueError(f"{len(limits)} entries of max_tokens for {len(branches)} branches")
    each = np.broadcast_to(limits, len(branches)).tolist()
    return [int(min(n, context - b.position)) for n, b in zip(each, branches, strict=True)]


def work_of(
    trunks: list[list[int]],
    branches: Sequence[Branch],
    budgets: list[int],
    match: list[int],
    scored: bool,
) -> Work:
    """The branches' fields; of each trunk only what is to be computed, [] for nothing."""
    needed = [len(trunk) if scored else 0 for trunk in trunks]
    for branch, budget in zip(branches, budgets, strict=True):
        if budget > 0:
            needed[branch.trunk] = max(needed[branch.trunk], branch.position)
    return Work(
        [trunk[:length] for trunk, length in zip(trunks, needed, strict=True)],
        [b.trunk for b in branches],
        [b.position for b in branches],
        [b.seed for b in branches],
        budgets,
        [trunks[b.trunk][b.position - 1] for b in branches],
        match,
    )
