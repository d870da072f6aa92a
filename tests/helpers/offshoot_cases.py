"""Continuations of the states of `fed_cases`, which begin on solutions under way, or ended."""

from typing import Any

import numpy as np

from helpers import fed_cases as cases
from vinejax.engine.branches import Branch, Fed, Feed, Grown, Offshoot
from vinejax.engine.engine import Engine


def age_of(i: int, branch: Branch) -> int:
    """The tokens of solution i before this branch."""
    return branch.position - len(cases.PROMPTS[cases.FIRST[i].trunk])


def drawn(engine: Engine, params: Any, budget: int = 300) -> dict[int, Grown]:
    """All solutions, and a continuation of every state, begun as soon as it is reached."""
    begun: dict[int, list[int]] = {}  # seeds of the offshoots of each solution
    seeds: list[int] = []  # of the branches after the solutions
    ended: list[int] = []
    texts: dict[int, Grown] = {}
    num_fed = 0

    def offshoots(of_solutions: dict[int, np.ndarray]) -> list[Offshoot]:
        found = []
        for i, tokens in of_solutions.items():
            of_all = cases.after(i, Grown(tokens.tolist(), [], "", ""))
            for branch in of_all.branches:
                age = age_of(i, branch)
                if branch.seed not in begun.setdefault(i, []) and age < len(tokens):
                    found.append(Offshoot(i, age, branch.seed, cases.MOST - age))
                    begun[i].append(branch.seed)
        seeds.extend(x.seed for x in found)
        return found

    def more() -> Fed | None:
        nonlocal num_fed
        if num_fed == len(cases.FIRST):
            return None
        num_fed += len(ended)
        parts = []
        for i in ended:
            trunks, branches, _, _ = cases.after(i, texts[i])
            left = [branch for branch in branches if branch.seed not in begun.get(i, [])]
            parts.append(Fed(trunks, left, [cases.MOST - age_of(i, branch) for branch in left]))
            seeds.extend(branch.seed for branch in left)
        ended.clear()
        return cases.joined(parts)

    feed = Feed(more, len(cases.FIRST), budget, 14 + cases.MOST, offshoots=offshoots)
    stream = engine.stream(params, cases.PROMPTS, cases.FIRST, cases.MOST, feed=feed)
    count = len(cases.FIRST)
    for i, grown in stream:
        texts[i if i < count else seeds[i - count]] = grown
        if i < count:
            ended.append(i)
    return texts


def assert_same(found: dict[int, Grown], expected: dict[int, Grown]) -> None:
    """What began at a token that a stop string then took from its solution is left out."""
    for key, other in expected.items():
        one = found[key]
        same = (one.tokens, one.text, one.finish)
        assert same == (other.tokens, other.text, other.finish), key
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
    assert found.keys() >= expected.keys()


def of_whole(engine: Engine, params: Any) -> dict[int, Grown]:
    """The oracle: by the numbers of solutions, and by the seeds of continuations."""
    texts = dict(engine.stream(params, cases.PROMPTS, cases.FIRST, cases.MOST))
    for i in range(len(cases.FIRST)):
        trunks, branches, _, _ = cases.after(i, texts[i])
        budgets = [cases.MOST - age_of(i, branch) for branch in branches]
        grown = engine.grow(params, trunks, branches, budgets)
        texts |= {branch.seed: one for branch, one in zip(branches, grown, strict=True)}
    return texts
