"""What the engine is asked for, and what it gives: branches, and what grew on them."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from vinejax.model.decoder import DecoderConfig


@dataclasses.dataclass(frozen=True)
class Branch:
    """A continuation to be drawn after the first `position` tokens of trunk number `trunk`."""

    trunk: int
    position: int  # 1 <= position <= len(trunk)
    seed: int  # 0 <= seed < 2**64; draw n (absolute token index) uses fold_in(row key, n)


@dataclasses.dataclass(frozen=True)
class Grown:
    """What grew on a branch."""

    tokens: list[int]
    logprobs: list[float]  # temperature-scaled, full softmax
    text: str  # ends before a stop string
    finish: str  # 'eos' | 'stop' | 'length'


OnGrown = Callable[[int, Grown], None]


class Work(NamedTuple):
    """What a phase is to do, checked. All but the trunks: an entry a branch."""

    trunks: list[list[int]]  # as far as they are to be computed
    trunk: list[int]
    position: list[int]
    seed: list[int]
    budget: list[int]
    last: list[int]  # token of the trunk before the branch


def check(trunks: list[list[int]], branches: list[Branch], cfg: DecoderConfig) -> None:
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


def budgets_of(branches: list[Branch], max_tokens: int | list[int], context: int) -> list[int]:
    """Tokens that each branch may take: its bound, and what the context leaves."""
    limits = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(branches)
    if len(limits) != len(branches):
        raise ValueError(f"{len(limits)} entries of max_tokens for {len(branches)} branches")
    return [min(n, context - b.position) for n, b in zip(limits, branches, strict=True)]


def work_of(
    trunks: list[list[int]], branches: list[Branch], budgets: list[int], scored: bool
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
    )
