"""Trees of the methods that grow them, without a run."""

from typing import Any

from helpers.applied import sampler
from vinejax.contrib.methods import spo_tree, tree_grpo, treepo, treerl
from vinejax.contrib.methods.sampling import tree_sampling
from vinejax.core.settings import Config
from vinejax.core.types import Episode, PromptedProblem
from vinejax.tasks.graded import GradedTask

# Growth rules, and whether tokens that leaves share are trained on once.
TREES = {
    "spo_tree": (spo_tree.levels, True),
    "treepo": (treepo.fixed_width, False),
    "treerl": (treerl.surprising_tokens, False),
    "tree_grpo": (tree_grpo.random_steps, False),
}


def sample_trees(
    engine: Any,
    params: Any,
    graded: GradedTask,
    problems: list[PromptedProblem],
    cfg: Config,
    iteration: int = 0,
) -> list[Episode]:
    """The leaves of the trees of the configured method."""
    growth, once = TREES[cfg.method]
    branching = sampler(engine, graded, cfg, iteration)
    return tree_sampling.sample_trees(branching, params, problems, growth, once)
