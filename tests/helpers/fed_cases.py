"""Solutions and continuations of their states, by two calls of an engine or fed to one stream."""

from typing import Any, NamedTuple

import numpy as np

from vinejax.engine.branches import Branch, Feeder, Grown, StreamInput
from vinejax.engine.engine import Engine

PROMPTS = [np.random.default_rng(n).integers(2, 20, n).tolist() for n in (5, 9, 14, 3)]
EACH = 3  # solutions of a prompt
MOST = 24  # tokens of a solution
STEPS = 5  # between two states
FIRST = [
    Branch(p, len(prompt), p << 32 | n, len(prompt))
    for p, prompt in enumerate(PROMPTS)
    for n in range(EACH)
]


class Texts(NamedTuple):
    """All solutions and continuations, and the scores of trunks."""

    solutions: dict[int, Grown]
    continuations: dict[int, Grown]  # by seed
    scored: dict[tuple[int, ...], np.ndarray]  # by trunk


def after(i: int, solution: Grown) -> StreamInput:
    """The continuations of a solution's states; the budget of its last state is 0."""
    prompt = PROMPTS[FIRST[i].trunk]
    trunk = prompt + solution.tokens
    positions = list(range(len(prompt), len(trunk), STEPS))
    branches = [Branch(0, n, 1 << 40 | i << 20 | n, len(prompt)) for n in positions]
    budgets = [MOST - (n - len(prompt)) for n in positions]
    return StreamInput([trunk], branches, [*budgets[:-1], 0], True)


def joined(parts: list[Any]) -> StreamInput:
    """The input of several solutions, fed at once."""
    branches = [
        Branch(n, b.position, b.seed, b.response)
        for n, part in enumerate(parts)
        for b in part.branches
    ]
    trunks: Any = [part.trunks[0] for part in parts]
    budgets: Any = [n for part in parts for n in part.max_tokens or []]
    return StreamInput(trunks, branches, budgets, [True] * len(trunks))


def texts(first: dict[int, Grown], fed: StreamInput, grown: dict[int, Grown], scored: Any) -> Texts:
    seeds = [branch.seed for branch in fed.branches]
    trunks: list[Any] = [tuple(trunk) for trunk in fed.trunks]  # pyright: ignore
    of_seeds = {seeds[i]: one for i, one in grown.items()}
    return Texts(first, of_seeds, dict(zip(trunks, scored, strict=True)))


def two_calls(engine: Engine, params: Any) -> Texts:
    """The oracle: all solutions, then all continuations."""
    first = dict(engine.stream(params, PROMPTS, FIRST, MOST))
    fed = joined([after(i, first[i]) for i in range(len(FIRST))])
    stream = engine.stream(params, fed.trunks, fed.branches, fed.max_tokens, scored=True)
    grown = dict(stream)
    return texts(first, fed, grown, stream.trunk_logprobs)


def as_fed(engine: Engine, params: Any, branches: int = 300, longest: int = 14 + MOST) -> Texts:
    """The continuations enter when their solution has ended."""
    ended: list[int] = []
    parts: list[StreamInput] = []
    first: dict[int, Grown] = {}
    grown: dict[int, Grown] = {}

    def more() -> StreamInput | None:
        if len(parts) == len(FIRST):
            return None
        new = [after(i, first[i]) for i in ended]
        ended.clear()
        parts.extend(new)
        return joined(new)

    feed = Feeder(more, branches, longest, at_once=len(FIRST))
    stream = engine.stream(params, PROMPTS, FIRST, MOST, feed=feed)
    for i, one in stream:
        if i < len(FIRST):
            first[i] = one
            ended.append(i)
        else:
            grown[i - len(FIRST)] = one
    assert not any(map(len, stream.trunk_logprobs[: len(PROMPTS)]))  # prompts were not to be scored
    return texts(first, joined(parts), grown, stream.trunk_logprobs[len(PROMPTS) :])


def assert_same(found: Texts, expected: Texts) -> None:
    """Equal tokens, texts and ends; log-probabilities but for rounding."""
    for mine, oracle in zip(found[:2], expected[:2], strict=True):
        assert mine.keys() == oracle.keys()
        for key, one in mine.items():
            other = oracle[key]
            same = (one.tokens, one.text, one.finish, one.overlap)
            assert same == (other.tokens, other.text, other.finish, other.overlap), key
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
    assert found.scored.keys() == expected.scored.keys()
    for trunk, logprobs in found.scored.items():
        assert len(logprobs) == len(trunk)
        np.testing.assert_allclose(logprobs, expected.scored[trunk], atol=1e-4)
