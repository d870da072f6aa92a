"""Trees of solutions: the leaves among paths, the nodes that they share, and rules of growth."""

from typing import Any

import numpy as np
import pytest
from helpers.refusals import refuses

from vinejax.config.checks import check_config
from vinejax.config.load import from_dict
from vinejax.contrib.methods import spo_tree, tree_grpo, treepo, treerl
from vinejax.contrib.methods.sampling.tree_paths import (
    Shoot,
    TreeLeaf,
    TreePath,
    attached_shoot,
    leaves,
    open_ends,
    trees,
)
from vinejax.core.settings import Config

ROOM = 40  # largest number of tokens of a response


def path(tokens: str, parent: int | None = None, start: int = 0, **fields: Any) -> TreePath:
    ids = [ord(letter) for letter in tokens]
    given = {"wave": 0, "is_over": True} | fields
    return TreePath(ids, [-float(i) for i in range(len(ids))], parent, start, **given)


# Two trees: path 0, with 1 and 2 at its end and 3 inside 2, and path 4.
FOREST = [
    path("abc", is_over=False),
    path("abcd", 0, 3),
    path("abcefgh", 0, 3),
    path("abcefxy", 2, 5),
    path("z"),
]


def test_leaves_and_the_nodes_that_they_share():
    # abc is node 0; d is 1; ef is 2, which gh and xy share.
    assert leaves(FOREST) == [
        TreeLeaf(1, [0, 1], [3, 4]),
        TreeLeaf(2, [0, 2, 3], [3, 5, 7]),
        TreeLeaf(3, [0, 2, 4], [3, 5, 7]),
        TreeLeaf(4, [5], [1]),
    ]
    assert trees(FOREST) == [[0, 1, 2, 3], [4]]


def test_an_open_end_is_a_leaf_until_something_continues_it():
    paths = [path("abc", is_over=False), path("abd", 0, 2)]
    assert open_ends(paths) == [0]
    assert leaves(paths) == [TreeLeaf(0, [0, 1], [2, 3]), TreeLeaf(1, [0, 2], [2, 3])]
    assert open_ends([*paths, path("abcq", 0, 3)]) == []


def test_a_place_belongs_to_the_path_that_drew_the_token_before_it():
    expected = {7: 3, 6: 3, 5: 2, 4: 2, 3: 0, 1: 0, 0: None}
    for position, parent in expected.items():
        shoot = attached_shoot(FOREST, Shoot(3, position, 2, 9))
        assert shoot == Shoot(parent, position, 2, 9)
    assert attached_shoot(FOREST, Shoot(None, 0, 1)) == Shoot(None, 0, 1)


def grown(rule: Any, cfg: Config, seed: int, longest: int = ROOM) -> list[list[TreePath]]:
    """The paths after each wave; without a budget a branch draws up to `longest` tokens."""
    rng, paths, waves = np.random.default_rng(seed), [], []
    for wave in range(100):
        shoots = [attached_shoot(paths, shoot) for shoot in rule(wave, tuple(paths), cfg, rng)]
        if not shoots:
            return waves
        new = []
        for parent, position, count, budget in shoots:
            before = paths[parent] if parent is not None else path("")
            for _ in range(count):
                room = ROOM - position
                length = int(rng.integers(1, min(room, longest) + 1))
                drawn = min(length, budget or room)
                tokens = before.tokens[:position] + rng.integers(0, 99, drawn).tolist()
                logprobs = before.logprobs[:position] + (-rng.random(drawn)).tolist()
                is_over = drawn == length
                ends = list(range(5, len(tokens), 5)) if is_over else []
                new.append(
                    TreePath(tokens, logprobs, parent, position, wave, is_over, step_ends=ends)
                )
        paths = [*paths, *new]
        waves.append(paths)
    raise AssertionError("the tree never ends")


def of_method(method: str, per_prompt: int = 8, **fields: Any) -> Config:
    sections = {"method": method, "rollout": {"per_prompt": per_prompt}}
    return from_dict(sections | ({method: fields} if fields else {}))


def test_levels():
    cfg = of_method("spo_tree", branching=(2, 3, 2), segment=8)
    for seed in range(20):
        waves = grown(spo_tree.levels, cfg, seed)
        final = waves[-1]
        assert len(waves) <= 3 and len(waves[0]) == 2
        for wave, paths in enumerate(waves):
            for i in open_ends(paths):
                assert len(paths[i].tokens) == 8 * (wave + 1) and wave < 2
        for i, parent in enumerate(final):
            children = [p for p in final if p.parent == i]
            assert len(children) == (0 if parent.is_over else (3, 2)[parent.wave])
            assert all(child.start == len(parent.tokens) for child in children)


@pytest.mark.parametrize("wanted", [2, 5, 16])
def test_fixed_width_gives_as_many_leaves_as_wanted(wanted: int):
    cfg = of_method("treepo", wanted, segment=8, divisor=2)
    restarted = 0
    for seed in range(40):
        waves = grown(treepo.fixed_width, cfg, seed, longest=10 if seed % 2 else ROOM)
        final = waves[-1]
        found = leaves(final)
        assert len(found) == wanted and all(final[leaf.number].is_over for leaf in found)
        assert all(p.start % 8 == 0 and len(p.tokens) - p.start <= 8 for p in final)
        assert len(waves[0]) <= min(wanted, 8)
        for wave, paths in enumerate(waves[:-1]):
            finished = [p for p in paths if p.is_over]
            now = sum(p.wave == wave for p in finished)
            ends, more = open_ends(paths), len(waves[wave + 1]) - len(paths)
            if ends:
                due = min(wanted - len(finished), 2 * (len(ends) + now))
                assert more == max(due, len(ends))
                counts = [sum(p.parent == i for p in waves[wave + 1][len(paths) :]) for i in ends]
                assert max(counts) - min(counts) <= 1
            else:
                assert more == wanted - len(finished)
                restarted += 1
    assert restarted > 2 or wanted == 2


def test_surprising_tokens_are_drawn_again():
    cfg = of_method("treerl", 3, forks=2, branches=4, rounds=2)
    for seed in range(20):
        first, second, third = grown(treerl.surprising_tokens, cfg, seed)
        assert len(first) == 3 and all(p.parent is None for p in first)
        for before, after in ((first, second), (second, third)):
            branched = {(p.parent, p.start) for p in before}
            for tree in trees(before):
                inner = [
                    (before[i].logprobs[t], i, t)
                    for i in tree
                    for t in range(before[i].start + 1, len(before[i].tokens))
                    if (i, t) not in branched
                ]
                least = sorted(inner)[:2]
                for _, i, t in least:
                    drawn = [p for p in after[len(before) :] if (p.parent, p.start) == (i, t)]
                    assert len(drawn) == 4
        assert len(second) - len(first) == 4 * sum(min(2, max(0, len(p.tokens) - 1)) for p in first)


def test_random_steps():
    cfg = of_method("tree_grpo", 2, forks=2, branches=3, rounds=1)
    seen = set()
    for seed in range(40):
        waves = grown(tree_grpo.random_steps, cfg, seed)
        first, final = waves[0], waves[-1]
        forks = {(p.parent, p.start) for p in final[2:]}
        for parent, start in forks:
            assert (
                parent is not None
                and start in first[parent].step_ends
                and start < len(first[parent].tokens)
            )
            assert sum((p.parent, p.start) == (parent, start) for p in final) == 3
            seen.add(start)
        inner = [[e for e in p.step_ends if e < len(p.tokens)] for p in first]
        assert len(forks) == sum(min(2, len(ends)) for ends in inner)
    assert len(seen) > 4


def test_a_tree_needs_its_fields():
    for fields, field in (
        ({"branching": ()}, "spo_tree.branching"),
        ({"branching": (3, 0)}, "spo_tree.branching"),
        ({"branching": (1, 1)}, "spo_tree.branching"),
        ({"segment": 0}, "spo_tree.segment"),
    ):
        with refuses(field):
            check_config(from_dict({"method": "spo_tree", "spo_tree": fields}))
