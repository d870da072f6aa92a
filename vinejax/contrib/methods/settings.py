"""The settings of contributed methods, each a group of fields of the configuration.

This file imports none of the methods, so that a configuration is read without them.
"""

import dataclasses
import math
from typing import Any, Literal

from vinejax.core.errors import ConfigError, DataError, UserError
from vinejax.core.plugins import listed
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
from vinejax.methods.settings import DPOConfig


@dataclasses.dataclass(frozen=True)
class BranchingConfig(MethodSettings):
    """Settings of methods in which a problem's solutions may branch off others of them."""

    weight: NotNegative = 0.5  # w, weight of the rise of the entropy
    threshold: ZeroToOne = 0.5  # τ, threshold of the score of a branch
    branches: Count = 1  # largest number of branches after an observation
    tokens: Count = 20  # first tokens of a turn whose entropy counts


class DirectConfig(MethodSettings, section="direct"):
    beta: Positive = 1.0  # β, advantage per nat: a smaller one moves steps further


class SPOTreeConfig(MethodSettings, section="spo_tree"):
    """A problem has at most as many solutions as the product of `branching`."""

    branching: Counts = (6, 6, 6)  # branches at the prompt, then at each segment's end
    segment: Count = 100  # tokens of a segment; on the last level it goes on to the end
    normalise: Literal["rloo", "grpo"] = "rloo"  # 'grpo': division by the std of the siblings
    drop: bool = True  # whether nodes that do not change the value are left out of training

    def solutions_per_problem(self, cfg: Config) -> int:
        return math.prod(self.branching)


class TreePOConfig(MethodSettings, section="treepo"):
    """A problem has `rollout.per_prompt` solutions."""

    segment: Count = 512  # tokens between two places where a solution may branch
    divisor: Count = 2  # branches at the end of an open path while solutions are missing
    weighting: Literal["average", "group_size"] = "average"  # weights of the depths


@dataclasses.dataclass(frozen=True)
class ForkedConfig(MethodSettings):
    """Settings of methods whose trees begin with one solution and then fork in rounds."""

    forks: Count = 2
    branches: Count = 2
    rounds: Count = 1  # rounds of forks

    def solutions_per_problem(self, cfg: Config) -> int:
        return cfg.rollout.per_prompt * (1 + self.forks * self.branches * self.rounds)


class TreeRLConfig(ForkedConfig, section="treerl"):
    """A problem has `rollout.per_prompt` trees."""

    forks: Count = 2  # least likely tokens of a tree that are drawn again, per round
    branches: Count = 2  # new draws per such token


class TreeGRPOConfig(ForkedConfig, section="tree_grpo"):
    """A problem has `rollout.per_prompt` trees."""

    forks: Count = 2  # step ends of a tree from which branches begin, per round
    branches: Count = 3  # branches per such step end


class GiGPOConfig(MethodSettings, section="gigpo"):
    omega: NotNegative = 1.0  # ω, weight of the turn's part
    norm: Literal["std", "mean"] = "std"  # 'mean': no division by the std


class TurnCreditConfig(MethodSettings, section="turn_credit"):
    weight: NotNegative = 0.2  # w, weight of the turn's part
    gamma: ZeroToOne = 0.0  # γ; 1: all turns up to a reward get equal parts of it


class SRGPOConfig(MethodSettings, section="srgpo"):
    weight: NotNegative = 0.5  # w, weight of the turn's part
    group: Count = 16  # turns whose rewards are compared, of any problems of the iteration


class ARPOConfig(BranchingConfig, section="arpo"):
    initial: Share = 0.5  # share of the solutions that begin at the prompt


class AEPOConfig(BranchingConfig, section="aepo"):
    weight: NotNegative = 0.2  # w, weight of the rise of the entropy
    beta: NotNegative = 0.5  # β, slope of the share of solutions that begin at the prompt
    penalty: ZeroToOne = 0.05  # c, penalty per wave in a row that branched
    alpha: NotNegative = 0.2  # α, weight of the entropy in advantages


class ScafConfig(MethodSettings, section="scaf"):
    column: str = ""  # column of the data with the hints; "": lines of the data's solution
    text: str = "\nHint: {hint}\n"  # text after the question of a problem with a hint
    after: Whole = 0  # first iteration in which hints are tried

    def check_task(self, task: Any, problems: list[Any]) -> None:
        """Raises DataError or ConfigError if the hints of a train problem cannot be read."""
        try:
            for problem in problems:
                hints_of(task, problem, self.column)
        except UserError as error:
            if self.column:
                raise
            message = f"name a column of hints, as solutions give none: {error}"
            raise ConfigError("scaf.column", message, "''") from error


def hints_of(task: Any, problem: Any, column: str) -> list[tuple[int, str]]:
    """(tier, hint) for each hint of a problem, from vague to plain.

    Raises DataError if `column` (setting `scaf.column`) does not have a list of tiers.
    """
    if not column:
        lines = task.solution(problem).strip().splitlines()
        return [(0, "\n".join(lines[:n])) for n in range(1, len(lines))]
    tiers = listed(problem.columns.get(column))
    if tiers is None:
        message = f"column {column!r}, which scaf.column names, must be a list of tiers of hints"
        raise DataError(f"{task.name} problem {problem.id}", None, message)
    parts = [[tier] if isinstance(tier, str) else listed(tier) or [] for tier in tiers]
    return [(tier, str(hint)) for tier, hints in enumerate(parts) for hint in hints]


class UnlikelyConfig(MethodSettings, section="unlikely"):
    beta: BelowOne = 0.25  # β, part of its reward that the likeliest of many solutions loses


class DRPOConfig(MethodSettings, section="drpo"):
    lam: Positive = 0.1  # Λ: a smaller one gives more weight to the shortest right solution
    tau: Positive = 1.0  # τ, nats: a smaller one gives more to the likeliest wrong solution


class HAPOConfig(MethodSettings, section="hapo"):
    quantile: ZeroToOne = 0.8  # quantile of log H above which a token's entropy is high


class OPMDConfig(MethodSettings, section="opmd"):
    tau: NotNegative = 1.0  # τ, weight of the squared log-ratio of a solution


class AsymREConfig(MethodSettings, section="asymre"):
    shift: Shift = -0.1  # difference of the baseline from the group's mean


class MDPOConfig(MethodSettings, section="mdpo"):
    step: Positive = 1.0  # t_0, nats per unit of advantage: a larger one lets tokens move further


class POPriConfig(DPOConfig, section="popri"):
    pairs: Count = 1  # pairs per problem, at most: ranks 1 and l, then 2 and l + 1, ...
    epochs: Count = 1
    beta: Positive = 0.01
    penalty: NotNegative = 0.0  # λ of DPO-Positive; 0: DPO
    rank: Count = 5  # l, rank of the rejected solution

    def check(self, cfg: Config) -> None:
        if not 2 <= self.rank <= cfg.rollout.per_prompt:
            message = f"must be from 2 to rollout.per_prompt, {cfg.rollout.per_prompt}"
            raise ConfigError("popri.rank", message, repr(self.rank))


class SingleStreamConfig(MethodSettings, section="single_stream"):
    start_count: Positive = 8.0  # pseudo-counts of a problem's first value
    start_samples: Whole = 0  # solutions per problem for that value; 0: the value is 0.5
    explore: Positive = 0.05  # ε in √(v(1 - v)) + ε, the weight of a problem in the draw

    def check(self, cfg: Config) -> None:
        if cfg.rollout.per_prompt != 1:
            message = (
                f"must be 1 for method = {cfg.method!r}: a solution is compared with the value of"
                " its problem in earlier iterations; raise rollout.prompts instead"
            )
            raise ConfigError("rollout.per_prompt", message, repr(cfg.rollout.per_prompt))
        if not 0 <= cfg.reward.truncated <= 1:
            message = f"must be from 0 to 1 for method = {cfg.method!r}: rewards are successes"
            raise ConfigError("reward.truncated", message, repr(cfg.reward.truncated))


class OPDConfig(MethodSettings, section="opd"):
    teacher: str = ""  # model folder, hub name or workdir of a run, with the policy's tokenizer

    def check(self, cfg: Config) -> None:
        if not self.teacher:
            message = "must name the teacher: a model folder, a name on the hub, or a run's workdir"
            raise ConfigError("opd.teacher", message, repr(self.teacher))


class SDPOConfig(MethodSettings, section="sdpo"):
    # The question that the teacher gets.
    text: str = (
        "{question}\nCorrect solution:\n\n{solution}\n\n"
        "\n\nCorrectly solve the original question.\n"
    )

    def check(self, cfg: Config) -> None:
        for name in ("{question}", "{solution}"):
            if name not in self.text:
                raise ConfigError("sdpo.text", f"must have {name}", repr(self.text))
