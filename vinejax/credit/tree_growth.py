"""Growth rules: where the solutions of a problem branch, for methods that sample trees.

A rule takes (number of the wave from 0, the paths so far, Config, random numbers) and gives the
branches of that wave; none: the tree is complete. Every wave is one call of the engine. A path that
ended because of a branch's budget, and that nothing continues, is cut short there and graded so.
"""

from collections.abc import Sequence

import numpy as np

from vinejax.core.settings import Config
from vinejax.credit.tree_paths import Path, Shoot, open_ends, trees


def levels(wave: int, paths: Sequence[Path], cfg: Config, rng: np.random.Generator) -> list[Shoot]:
    """SPO-tree: b_0 branches at the prompt, b_l at the end of every segment of level l - 1.

    Segments have `spo_tree.segment` tokens, those of the last level go on to the end. b is
    `spo_tree.branching`. Source: https://arxiv.org/abs/2505.23564.
    """
    branching = cfg.spo_tree.branching
    if wave >= len(branching):
        return []
    budget = cfg.spo_tree.segment if wave + 1 < len(branching) else None
    if wave == 0:
        return [Shoot(None, 0, branching[0], budget)]
    return [Shoot(i, len(paths[i].tokens), branching[wave], budget) for i in open_ends(paths)]


def fixed_width(
    wave: int, paths: Sequence[Path], cfg: Config, rng: np.random.Generator
) -> list[Shoot]:
    """TreePO: segments, of which the open ones are divided until `rollout.per_prompt` leaves exist.

        n = min(w - finished, d·(open + finished in the last wave))    w = `rollout.per_prompt`

    n branches are divided evenly over the open ends; d = `treepo.divisor`, and 2 to 8 branches, at
    random, begin at the prompt. Where no end is open and leaves are missing, each begins anew at a
    random segment's end, or start, of a random finished path. Source: https://arxiv.org/abs/2508.17445
    and its code, which can also divide by the paths' probabilities.
    """
    segment, wanted = cfg.treepo.segment, cfg.rollout.per_prompt
    if wave == 0:
        return [Shoot(None, 0, min(wanted, int(rng.integers(2, 9))), segment)]
    ends = open_ends(paths)
    finished = [i for i, path in enumerate(paths) if path.is_over]
    missing = wanted - len(finished)
    if not ends:
        shoots = []
        for _ in range(max(missing, 0)):
            i = int(rng.choice(finished))
            boundaries = range(0, len(paths[i].tokens), segment)
            shoots.append(Shoot(i, int(rng.choice(boundaries)), 1, segment))
        return shoots
    just_finished = sum(paths[i].wave == wave - 1 for i in finished)
    total = min(missing, cfg.treepo.divisor * (len(ends) + just_finished))
    share, extra = divmod(max(total, len(ends)), len(ends))
    return [
        Shoot(i, len(paths[i].tokens), share + (n < extra), segment) for n, i in enumerate(ends)
    ]


def surprising_tokens(
    wave: int, paths: Sequence[Path], cfg: Config, rng: np.random.Generator
) -> list[Shoot]:
    """TreeRL's EPTree: T branches in place of the N least likely tokens of each tree, L times.

    M = `rollout.per_prompt` trees begin as one solution each; N, T and L are `treerl.forks`,
    `branches` and `rounds`. Places that have branched already are left out.

    Source: https://github.com/THUDM/TreeRL. There tokens after the words of a conclusion and near
    the length limit are left out, too.
    """
    if wave == 0:
        return [Shoot(None, 0, cfg.rollout.per_prompt)]
    if wave > cfg.treerl.rounds:
        return []
    shoots, branched = [], {(path.parent, path.start) for path in paths}
    for tree in trees(paths):
        places = [
            (paths[i].logprobs[t], i, t)
            for i in tree
            for t in range(paths[i].start + 1, len(paths[i].tokens))
            if (i, t) not in branched
        ]
        for _, i, t in sorted(places)[: cfg.treerl.forks]:
            shoots.append(Shoot(i, t, cfg.treerl.branches))
    return shoots


def random_steps(
    wave: int, paths: Sequence[Path], cfg: Config, rng: np.random.Generator
) -> list[Shoot]:
    """Tree-GRPO: k branches at N random step ends of each tree, L times.

    M = `rollout.per_prompt` trees begin as one solution each; N, k and L are `tree_grpo.forks`,
    `branches` and `rounds`. Source: https://arxiv.org/abs/2509.21240, whose steps are the turns of
    an agent.
    """
    if wave == 0:
        return [Shoot(None, 0, cfg.rollout.per_prompt)]
    if wave > cfg.tree_grpo.rounds:
        return []
    shoots = []
    for tree in trees(paths):
        places = [
            (i, end)
            for i in tree
            for end in paths[i].step_ends
            if paths[i].start < end < len(paths[i].tokens)
        ]
        for n in rng.permutation(len(places))[: cfg.tree_grpo.forks]:
            i, end = places[n]
            shoots.append(Shoot(i, end, cfg.tree_grpo.branches))
    return shoots
