"""Episodes of many turns by an engine, fed to one stream or with one call per wave of turns."""

from typing import Any, NamedTuple

import numpy as np

from vinejax.engine.branches import Branch, Feeder, StreamInput
from vinejax.engine.engine import Engine

PROMPTS = [np.random.default_rng(n).integers(2, 20, n).tolist() for n in (5, 9, 14, 3)]
TURNS = 9
DRAWN = 3  # tokens of a turn, at most
LONGEST = 96


class Start(NamedTuple):
    """Where an episode begins: after `position` tokens of a trunk."""

    trunk: int
    position: int
    seed: int


class Played(NamedTuple):
    """The tokens of all episodes, drawn and answered."""

    tokens: list[list[int]]
    logprobs: list[list[float]]  # log-probabilities of the drawn tokens


def solutions(each: int = 3) -> list[Start]:
    """The starts of `each` episodes after each prompt."""
    return [
        Start(p, len(prompt), p << 32 | n) for p, prompt in enumerate(PROMPTS) for n in range(each)
    ]


def states(trunks: list[list[int]]) -> list[Start]:
    """The starts of three continuations each, in the middle and at the end of each trunk."""
    places = [(t, n) for t, trunk in enumerate(trunks) for n in (len(trunk) // 2, len(trunk))]
    return [Start(t, n, t << 40 | n << 8 | k) for t, n in places for k in range(3)]


def answer(tokens: list[int]) -> list[int]:
    """The environment's answer, a function of all tokens before; some are longer than a part."""
    rng = np.random.default_rng(tokens)
    return rng.integers(2, 20, 18 if sum(tokens) % 7 == 0 else 1 + sum(tokens) % 3).tolist()


def played(
    engine: Engine,
    params: Any,
    trunks: list[list[int]],
    starts: list[Start],
    is_fed: bool = True,
    scored: bool = False,
) -> Played:
    """Plays episodes to their ends in one stream, or, unless `is_fed`, in one call per wave."""
    episodes = [[*trunks[start.trunk][: start.position]] for start in starts]
    logprobs: list[list[float]] = [[] for _ in starts]
    left = [TURNS for _ in starts]
    of_branches, ended = [*range(len(starts))], []
    longest = max([len(trunk) for trunk in trunks])

    def take(i: int, grown: Any) -> None:
        tokens = episodes[i] + grown.tokens
        tokens += answer(tokens)
        left[i] -= 1
        episodes[i], logprobs[i] = tokens, logprobs[i] + grown.logprobs
        if len(tokens) + DRAWN > LONGEST:
            left[i] = 0
        ended.append(i)

    def more() -> StreamInput | None:
        going = sorted(i for i in ended if left[i])
        ended.clear()
        of_branches.extend(going)
        if not any(left):
            return None
        numbers: dict[tuple[int, ...], int] = {}  # equal trunks once
        places = [numbers.setdefault(tuple(episodes[i]), len(numbers)) for i in going]
        branches = [
            Branch(place, len(episodes[i]), starts[i].seed)
            for i, place in zip(going, places, strict=True)
        ]
        return StreamInput([*map(list, numbers)], branches, DRAWN)

    first = [Branch(s.trunk, s.position, s.seed) for s in starts]
    fed: StreamInput | None = StreamInput(trunks, first, DRAWN, scored)
    many = len(starts) * TURNS
    feed = Feeder(more, many, max(LONGEST, longest), at_once=len(starts))
    while fed is not None:
        begun = len(of_branches) - len(fed.branches)
        stream = engine.stream(
            params,
            fed.trunks,
            fed.branches,
            fed.max_tokens,
            bool(fed.scored),
            feed=feed if is_fed else None,
        )
        for branch, grown in stream:
            take(of_branches[begun + branch], grown)
        fed = more()
    return Played(episodes, logprobs)


def assert_same(found: Played, expected: Played) -> None:
    """Equal tokens; log-probabilities but for rounding."""
    assert found.tokens == expected.tokens
    for mine, other in zip(found.logprobs, expected.logprobs, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-4)
