"""The sections of the configuration that belong to one method each, VinePPO's own aside.

`settings.py` has all other sections, and `Config`, which holds these too.
"""

import dataclasses
from typing import Literal

from vinejax.ranges import BelowOne, Count, Counts, NotNegative, Positive, Shift, Whole, ZeroToOne


@dataclasses.dataclass(frozen=True)
class CriticConfig:
    """Method 'ppo': a second model that predicts the return at every token."""

    lam: ZeroToOne = 1.0  # λ of the generalised advantage estimates; 1: return minus value
    clip: Positive = 0.2  # a value moves no further from the old one in the loss
    learning_rate: Positive = 1e-6
    warmup_iterations: Whole = 0  # at the start of the run, which train the critic alone


@dataclasses.dataclass(frozen=True)
class SPOTreeConfig:
    """Method 'spo_tree'. The solutions of a problem: the product of `branching`, at most."""

    branching: Counts = (6, 6, 6)  # branches at the prompt, and at each segment's end
    segment: Count = 100  # tokens of a segment; those of the last level go on to the end
    normalise: Literal["rloo", "grpo"] = "rloo"  # 'grpo': divided by the std of the siblings
    drop: bool = True  # nodes that do not change the value are not trained on


@dataclasses.dataclass(frozen=True)
class TreePOConfig:
    """Method 'treepo'. The solutions of a problem: rollout.per_prompt."""

    segment: Count = 512  # tokens between two places where a solution may branch
    divisor: Count = 2  # branches of an open path, as long as solutions are missing
    weighting: Literal["average", "group_size"] = "average"  # of the depths


@dataclasses.dataclass(frozen=True)
class TreeRLConfig:
    """Method 'treerl'. Trees of a problem: rollout.per_prompt."""

    forks: Count = 2  # least likely tokens of a tree that are drawn again, per round
    branches: Count = 2  # draws of each
    rounds: Count = 1


@dataclasses.dataclass(frozen=True)
class TreeGRPOConfig:
    """Method 'tree_grpo'. Trees of a problem: rollout.per_prompt."""

    forks: Count = 2  # step ends of a tree that are branched from, per round
    branches: Count = 3  # from each
    rounds: Count = 1


@dataclasses.dataclass(frozen=True)
class DAPOConfig:
    """Method 'dapo'."""

    rounds: Count = 4  # rounds of sampling per iteration, at most, to find groups with spread
    overlong: BelowOne = 0.2  # last part of sample.max_tokens, which costs a solution up to 0.5


@dataclasses.dataclass(frozen=True)
class OPMDConfig:
    tau: NotNegative = 1.0  # for method 'opmd': weight of the squared log-ratio of a solution


@dataclasses.dataclass(frozen=True)
class AsymREConfig:
    shift: Shift = -0.1  # for method 'asymre': added to the group's mean to make the baseline


@dataclasses.dataclass(frozen=True)
class SingleStreamConfig:
    """Method 'single_stream', whose rollout.per_prompt is 1."""

    start_count: Positive = 8.0  # pseudo-counts behind a problem's first value
    start_samples: Whole = 0  # solutions per problem that it is estimated from; 0: it is 0.5
    explore: Positive = 0.05  # added to √(v(1 - v)), the weight of a problem in the draw


@dataclasses.dataclass(frozen=True)
class RestEMConfig:
    """Method 'restem'. Solutions per problem: rollout.per_prompt."""

    problems: Count | None = None  # sampled per iteration; None: the whole train split
    keep: Count = 10  # correct solutions per problem, at most
    epochs: Count = 8  # at most: see eval_every
    # Updates between validations; the first that is no better than the last ends the iteration.
    eval_every: Count = 500


@dataclasses.dataclass(frozen=True)
class DPOConfig:
    """Method 'dpo_positive'. Solutions per problem: rollout.per_prompt."""

    problems: Count | None = None  # sampled per iteration; None: the whole train split
    pairs: Count = 64  # per problem, at most; an update takes ppo.minibatch of them
    beta: Positive = 0.1
    penalty: NotNegative = 50.0  # λ: on a correct solution less likely than it was at the start
    epochs: Count = 3
