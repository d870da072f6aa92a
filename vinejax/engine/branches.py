"""Branches, which are the engine's requests, and their continuations, which are its results."""

import dataclasses
import math
import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple, SupportsIndex

import numpy as np

from vinejax.core.ranges import LEAST_TEMPERATURE, LEAST_TOP_P
from vinejax.core.settings import SampleConfig
from vinejax.model.decoder import DecoderConfig

# Integers may be Python's or NumPy's; sequences may be lists, tuples or arrays.
Ids = Sequence[SupportsIndex] | np.ndarray
Trunks = Sequence[Ids] | np.ndarray
MaxTokens = SupportsIndex | Ids | None


@dataclasses.dataclass(frozen=True)
class Branch:
    """A request for a continuation after the first `position` tokens of trunk number `trunk`.

    A branch may continue a response that begins after the trunk's first `response` tokens. A stop
    string can then begin in the trunk's part of that response. If `response` is None, the response
    begins with the branch.

    Example:
      >>> vinejax.Branch(trunk=0, position=9, seed=1)
      Branch(trunk=0, position=9, seed=1, response=None)
    """

    trunk: int
    position: int  # 1 <= position <= len(trunk)
    seed: int  # 0 <= seed < 2**64; every draw depends on the seed and the token's index alone
    response: int | None = None  # 0 <= response <= position


Branches = Sequence[Branch]


@dataclasses.dataclass(frozen=True)
class Grown:
    """The continuation of a branch."""

    tokens: list[int]  # with the EOS, or with the token that completes the stop string
    logprobs: list[float]  # per token, under the full softmax at the sampling temperature, 1 for 0
    text: str  # ends before a stop string
    finish: str  # 'eos' | 'stop' | 'length'
    overlap: int = 0  # characters of the stop string that lie before the branch


class StreamInput(NamedTuple):
    """Trunks and branches that enter a stream while it runs.

    The trunk numbers in `branches` begin at 0, as in a separate call. The stream yields pairs
    (number of a branch, its continuation). In them and in the stream's `trunk_logprobs`, new
    branches and trunks are numbered after all earlier ones.
    """

    trunks: Trunks
    branches: Branches
    max_tokens: MaxTokens = None
    scored: bool | Sequence[bool] = False  # for all trunks, or one entry per trunk


@dataclasses.dataclass(frozen=True)
class Feeder:
    """The source of further trunks and branches for a running stream, and the limits of this input.

    The engine calls `more` after each chunk of decode steps, once it has yielded the branches that
    ended in the chunk. `more` returns further input, which may be empty, or None if no more input
    will come. While no branch is being decoded, `more` must return at least one branch, or None.
    The limits (`branches`, `longest`, `at_once` and `budget`) determine the array shapes of a
    phase. Input that does not fit these shapes waits for a following phase.

    The engine calls `watch` before the branches that ended in a chunk are yielded. It gets pairs
    (number of a branch, its tokens so far) of the branches that are in slots, and returns the
    numbers of those branches that the caller needs no longer. Such a branch ends with one of its
    next tokens, and the stream yields it with the finish 'length' and all tokens that `watch` got.
    """

    more: Callable[[], StreamInput | None]
    branches: int  # the most branches that `more` returns in all
    longest: int  # the most tokens of a trunk
    at_once: int  # the most branches that are decoded or wait at the same time
    budget: int = 1  # the most tokens of a branch that `more` returns
    watch: Callable[[Iterator[tuple[int, np.ndarray]]], Iterable[int]] | None = None


# A generator of pairs (number of a branch, its continuation) that returns `Stream.trunk_logprobs`.
StreamPairs = Generator[tuple[int, Grown], None, list[np.ndarray]]


class Stream:
    """Iterates over the pairs (number of a branch, Grown) of `Engine.stream`, as branches end.

    The engine computes nothing before the first pair is requested. Leaving the loop early frees the
    caches. A second loop computes everything again.
    """

    def __init__(self, grow: Callable[[], StreamPairs]):
        self._grow = grow
        # f32[length] per trunk: the log-probabilities of the trunk's own tokens, 0 for the first
        # token; f32[0] for a trunk that is not scored. Empty before the loop has ended.
        self.trunk_logprobs: list[np.ndarray] = []

    def __iter__(self) -> Iterator[tuple[int, Grown]]:
        self.trunk_logprobs = yield from self._grow()

    def in_order(self) -> list[Grown]:
        """The continuations in the order of the branches, after all branches have ended."""
        by_branch = dict(self)
        return [by_branch[i] for i in range(len(by_branch))]


@dataclasses.dataclass
class BranchSet:
    """Checked branches, with their trunks and budgets."""

    trunks: list[list[int]]  # token ids, cut after the last token that is needed
    branches: list[Branch]
    budgets: list[int]  # the most tokens of each branch
    longest: int  # the most tokens of a trunk that must be computed
    scored: list[bool]  # whether the log-probabilities of a trunk's own tokens are wanted

    def within(self, columns: int) -> "BranchSet":
        """A copy whose trunks keep only their first `columns` tokens.

        `columns` must be at least `self.longest`, the most tokens of a trunk that must be computed.
        """
        trunks = [trunk[:columns] for trunk in self.trunks]
        return BranchSet(trunks, [*self.branches], [*self.budgets], self.longest, [*self.scored])

    def add(self, more: "BranchSet") -> None:
        """Appends the trunks and branches of another set, numbered after those of this set."""
        first = len(self.trunks)
        self.branches += [dataclasses.replace(b, trunk=first + b.trunk) for b in more.branches]
        self.trunks += more.trunks
        self.budgets += more.budgets
        self.scored += more.scored
        self.longest = max(self.longest, more.longest)


def as_lists(trunks: Trunks) -> list[list[int]]:
    """The trunks as lists of Python integers. Raises ValueError if an element is no integer."""
    lists = []
    for i, trunk in enumerate(trunks):
        ids = np.asarray(trunk)
        if ids.size and (ids.ndim != 1 or ids.dtype.kind not in "iu"):
            raise ValueError(f"trunk {i} is no sequence of token ids (integers)")
        lists.append(ids.tolist())
    return lists


def check_sampling(cfg: SampleConfig, vocab_size: int) -> None:
    """Raises ValueError if `cfg` has a number or token id out of range or a bad stop string."""
    is_warm = LEAST_TEMPERATURE <= cfg.temperature < math.inf
    is_right = (is_warm or cfg.temperature == 0) and LEAST_TOP_P <= cfg.top_p <= 1
    if not (is_right and cfg.top_k >= 0):
        words = "must have temperature 0 or >= 1e-6, 1e-6 <= top_p <= 1 and top_k >= 0"
        raise ValueError(f"{cfg}: {words}")
    if cfg.max_tokens < 1:
        raise ValueError(f"max_tokens = {cfg.max_tokens} must be at least 1")
    if not all(0 <= i < vocab_size for i in cfg.stop_ids):
        raise ValueError(f"stop_ids = {cfg.stop_ids} must be token ids, below {vocab_size}")
    if not isinstance(cfg.stop, tuple):
        as_tuple = (cfg.stop,) if isinstance(cfg.stop, str) else tuple(cfg.stop)
        raise ValueError(f"stop = {cfg.stop!r} must be a tuple of strings: {as_tuple!r}")
    if "" in cfg.stop:
        raise ValueError(f"stop = {cfg.stop!r} has an empty string, which would stop every text")


def check_branches(trunks: list[list[int]], branches: Sequence[Branch], cfg: DecoderConfig) -> None:
    """Raises ValueError if a trunk does not fit the model or a branch does not fit its trunk."""
    for i, trunk in enumerate(trunks):
        if not trunk:
            raise ValueError(f"trunk {i} is empty")
        if len(trunk) > cfg.context:
            context = f"{cfg.context}{cfg.context_reason}"
            raise ValueError(f"trunk {i} has {len(trunk)} tokens, the context is {context}")
        if min(trunk) < 0 or max(trunk) >= cfg.vocab_size:
            raise ValueError(f"trunk {i} has ids outside 0 .. {cfg.vocab_size - 1}")
    for i, branch in enumerate(branches):
        if not isinstance(branch, Branch):
            raise ValueError(f"branch {i}: expected a vinejax.Branch, not {branch!r:.80}")
        for name, value in vars(branch).items():
            if not hasattr(value, "__index__") and (name, value) != ("response", None):
                raise ValueError(f"branch {i}: {name} = {value!r} must be an integer")
        if not 0 <= branch.trunk < len(trunks):
            raise ValueError(f"branch {i}: no trunk {branch.trunk} among {len(trunks)}")
        length = len(trunks[branch.trunk])
        if not 1 <= branch.position <= length:
            message = f"is outside 1 .. {length}, the length of trunk {branch.trunk}"
            raise ValueError(f"branch {i}: position {branch.position} {message}")
        if not 0 <= branch.seed < 2**64:
            raise ValueError(f"branch {i}: seed {branch.seed} is not a 64-bit number")
        if branch.response is not None and not 0 <= branch.response <= branch.position:
            message = f"is outside 0 .. {branch.position}, its position"
            raise ValueError(f"branch {i}: response {branch.response} {message}")


def _with_python_integers(branch: Branch) -> Branch:
    """The branch with Python's integers in all fields, because NumPy's integers overflow."""
    fields = {name: value for name, value in vars(branch).items() if value is not None}
    if all(type(value) is int for value in fields.values()):
        return branch
    integers = {name: operator.index(value) for name, value in fields.items()}
    return dataclasses.replace(branch, **integers)


def budgets_of(branches: Sequence[Branch], max_tokens: MaxTokens, context: int) -> list[int]:
    """The budget of each branch, which is the most tokens that it may have.

    The budget is the branch's `max_tokens` or, if that is smaller, the number of tokens that the
    context still has room for after the branch's position.
    """
    limits = np.asarray(max_tokens)
    if limits.size and limits.dtype.kind not in "iu":
        raise ValueError(f"max_tokens = {max_tokens!r} must be an integer, or one per branch")
    if limits.ndim and limits.shape != (len(branches),):
        raise ValueError(f"{len(limits)} entries of max_tokens for {len(branches)} branches")
    bounds = np.broadcast_to(limits, len(branches)).tolist()
    return [int(min(n, context - b.position)) for n, b in zip(bounds, branches, strict=True)]


def branch_set_of(
    trunks: Trunks,
    branches: Branches,
    max_tokens: MaxTokens,
    cfg: DecoderConfig,
    scored: bool | Sequence[bool],
    reach: int = 0,
) -> BranchSet:
    """The checked branches, their budgets, and the tokens of each trunk that are needed.

    A `scored` trunk needs all of its tokens. Any other trunk needs only the tokens before the
    position of its last branch. After each branch with a budget over 1 the set also keeps the
    trunk's next `reach` tokens, which the branch may accept (`accept.py`). These further tokens
    need not be computed.

    Raises ValueError for trunks and branches that do not fit the model of `cfg`.
    """
    lists = as_lists(trunks)
    check_branches(lists, branches, cfg)
    branches = [*map(_with_python_integers, branches)]
    budgets = budgets_of(branches, max_tokens, cfg.context)
    is_scored = np.broadcast_to(np.array(scored, bool), len(lists)).tolist()
    needed = [len(trunk) if whole else 0 for trunk, whole in zip(lists, is_scored, strict=True)]
    lengths = [*needed]
    for branch, budget in zip(branches, budgets, strict=True):
        position, i = branch.position, branch.trunk
        if budget > 0:
            needed[i] = max(needed[i], position)
            lengths[i] = max(lengths[i], position + reach if budget > 1 else position)
    trimmed = [trunk[:length] for trunk, length in zip(lists, lengths, strict=True)]
    return BranchSet(trimmed, branches, budgets, max(needed, default=0), is_scored)
