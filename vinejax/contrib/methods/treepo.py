"""TreePO: a leaf's reward compared with the leaves that share its first nodes.

    A = mean over depths d of r - mean r of the leaves that share the first d nodes

`equations.shared_starts.ancestor_advantages` has the weightings of the depths.

Source: https://arxiv.org/abs/2508.17445; multimodal-art-projection/TreePO at f055523.

Departs: there is no filter of groups, overlong penalty, dual clip or division by probability;
missing leaves begin at random places.
"""

from collections.abc import Sequence

import numpy as np

from vinejax.contrib.methods.equations.shared_starts import ancestor_advantages
from vinejax.contrib.methods.sampling.tree_paths import Shoot, TreePath, open_ends
from vinejax.contrib.methods.settings import TreePOConfig
from vinejax.contrib.methods.trees import by_problem, tree_solutions
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, per_solution
from vinejax.methods.base import OF_RETURNS, Method


def fixed_width(
    wave: int, paths: Sequence[TreePath], cfg: Config, rng: np.random.Generator
) -> list[Shoot]:
    """Plans a wave of segments; waves follow until w = `rollout.per_prompt` leaves are finished.

        n = min(w - finished, d·(open + finished in the last wave))    branches of a wave

    The first wave has a random number of branches, 2 to 8, at the prompt. Later waves divide n
    branches evenly over the open ends, which are the leaves that can go on; d = `treepo.divisor`.
    If no end is open and leaves are missing, each missing leaf begins at a random segment boundary
    of a random finished path.

    The authors' code differs in three points. It begins d copies at each such boundary, and takes
    finished paths in an order that depends on how they ended. It gives the remainder of the
    division to the last open end; here each of the first open ends gets one branch of it. It can
    divide branches by the probabilities of the paths.
    """
    settings = TreePOConfig.of(cfg)
    segment, wanted = settings.segment, cfg.rollout.per_prompt
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
    total = min(missing, settings.divisor * (len(ends) + just_finished))
    share, extra = divmod(max(total, len(ends)), len(ends))
    return [
        Shoot(i, len(paths[i].tokens), share + (n < extra), segment) for n, i in enumerate(ends)
    ]


def ancestor_means(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring."""
    settings = TreePOConfig.of(cfg)
    by_leaf = [
        ancestor_advantages(paths, rewards, settings.weighting)
        for paths, rewards in by_problem(rollout.episodes)
    ]
    return per_solution(rollout, np.concatenate(by_leaf))


METHOD = Method(
    ancestor_means,
    sample=tree_solutions(fixed_width),
    settings=TreePOConfig,
    ignores=OF_RETURNS,
    defaults={"ppo.whiten": "iteration", "ppo.clip_high": 0.28},
    flags={"groups", "trees"},
)
