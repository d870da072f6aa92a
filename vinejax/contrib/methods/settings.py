"""The settings of contributed methods, each a group of fields of the configuration.

Nothing of the methods themselves is imported here: a configuration is read without them.
"""

import dataclasses
import math
from typing import Literal

from vinejax.core.errors import ConfigError
from vinejax.core.ranges import (
    BelowOne,
    Count,
    Counts,
    NotNegative,
    Positive,
    Share,
    Shift,
    Whole,
    ZeroToOne,
)
from vinejax.core.sections import MethodSettings
from vinejax.core.settings import Config
from vinejax.methods.settings import PairConfig


@dataclasses.dataclass(frozen=True)
class BranchingConfig(MethodSettings):
    """There are `rollout.per_prompt` solutions per problem, those that branch off included."""

    weight: NotNegative = 0.5  # w, of the rise of the entropy
    threshold: ZeroToOne = 0.5  # τ
    branches: Count = 1  # at most so many after an answer, each by chance
    tokens: Count = 20  # first ones of a turn, whose entropy counts


class DirectConfig(MethodSettings, section="direct"):
    beta: Positive = 1.0  # advantage per nat: the smaller, the further a step is to move


class SPOTreeConfig(MethodSettings, section="spo_tree"):
    """The solutions of a problem: at most the product of `branching`."""

    branching: Counts = (6, 6, 6)  # branches at the prompt, and at each segment's end
    segment: Count = 100  # tokens of a segment; those of the last level go on to the end
    normalise: Literal["rloo", "grpo"] = "rloo"  # 'grpo': divided by the std of the siblings
    drop: bool = True  # nodes that do not change the value are not trained on

    def solutions_per_problem(self, cfg: Config) -> int:
        return math.prod(self.branching)


class TreePOConfig(MethodSettings, section="treepo"):
    """There are `rollout.per_prompt` solutions per problem."""

    segment: Count = 512  # tokens between two places where a solution may branch
    divisor: Count = 2  # branches at the end of an open path while solutions are missing
    weighting: Literal["average", "group_size"] = "average"  # of the depths


class TreeRLConfig(MethodSettings, section="treerl"):
    """There are `rollout.per_prompt` trees per problem."""

    forks: Count = 2  # least likely tokens of a tree that are drawn again, per round
    branches: Count = 2  # draws of each
    rounds: Count = 1


class TreeGRPOConfig(MethodSettings, section="tree_grpo"):
    """There are `rollout.per_prompt` trees per problem."""

    forks: Count = 2  # step ends of a tree that are branched from, per round
    branches: Count = 3  # from each
    rounds: Count = 1


class GiGPOConfig(MethodSettings, section="gigpo"):
    omega: NotNegative = 1.0  # ω, of the turn's part
    norm: Literal["std", "mean"] = "std"  # 'mean': nothing divides


class TurnCreditConfig(MethodSettings, section="turn_credit"):
    weight: NotNegative = 0.2  # w, of the turn's part
    gamma: ZeroToOne = 0.0  # γ; 1: all turns up to a reward share it alike


class ARPOConfig(BranchingConfig, section="arpo"):
    initial: Share = 0.5  # of the solutions, those that begin at the prompt


class AEPOConfig(BranchingConfig, section="aepo"):
    weight: NotNegative = 0.2  # w, of the rise of the entropy
    beta: NotNegative = 0.5  # β, of the difference that divides the budget
    penalty: ZeroToOne = 0.05  # c, of branches wave after wave
    alpha: NotNegative = 0.2  # α, of the entropy in advantages


class ScafConfig(MethodSettings, section="scaf"):
    column: str = ""  # of the data, with the hints of a problem; "": the data's solution
    text: str = "\nHint: {hint}\n"  # what follows the question of a problem with a hint
    after: Whole = 0  # iterations before hints are tried


class UnlikelyConfig(MethodSettings, section="unlikely"):
    beta: BelowOne = 0.25  # part of its reward that the likeliest solution of many loses


class DRPOConfig(MethodSettings, section="drpo"):
    lam: Positive = 0.1  # Λ: the smaller, the more goes to the shortest right solution
    tau: Positive = 1.0  # τ: the smaller, the more goes to the likeliest wrong one, in nats


class TRPAConfig(MethodSettings, section="trpa"):
    beta: Positive = 0.1  # β: preference per nat of mean log-ratio
    anisotropy: Positive = 2.5  # factor of β in pairs whose better solution is right


class HAPOConfig(MethodSettings, section="hapo"):
    quantile: ZeroToOne = 0.8  # of log H, above which a token's entropy is high


class OPMDConfig(MethodSettings, section="opmd"):
    tau: NotNegative = 1.0  # weight of the squared log-ratio of a solution


class AsymREConfig(MethodSettings, section="asymre"):
    shift: Shift = -0.1  # added to the group's mean to make the baseline


class SingleStreamConfig(MethodSettings, section="single_stream"):
    start_count: Positive = 8.0  # pseudo-counts behind a problem's first value
    start_samples: Whole = 0  # solutions per problem behind that value; 0: the value is 0.5
    explore: Positive = 0.05  # added to √(v(1 - v)), the weight of a problem in the draw

    def check(self, cfg: Config) -> None:
        if cfg.rollout.per_prompt != 1:
            rule = (
                f"must be 1 for method = {cfg.method!r}: a solution is compared with the value of"
                " its problem in earlier iterations; raise rollout.prompts instead"
            )
            raise ConfigError("rollout.per_prompt", rule, repr(cfg.rollout.per_prompt))
        if not 0 <= cfg.reward.truncated <= 1:
            rule = f"must be from 0 to 1 for method = {cfg.method!r}, which counts rewards as"
            value = repr(cfg.reward.truncated)
            raise ConfigError("reward.truncated", f"{rule} successes", value)


class INPOConfig(PairConfig, section="inpo"):
    eta: Positive = 0.0075  # η: h is drawn to 1 / (2η) nats
    ratio: ZeroToOne = 1 / 3  # τ/η: the reference model's part of the anchor
