"""The settings of single methods: each class is a group of fields of the configuration.

Every configuration is read with these classes, so this module imports nothing of the methods.
"""

from vinejax.core.ranges import Count, NotNegative, Positive, ZeroToOne
from vinejax.core.sections import MethodSettings


class CriticConfig(MethodSettings, section="critic"):
    lam: ZeroToOne = 1.0  # λ of the generalised advantage estimates; 1: return minus value
    clip: Positive = 0.2  # a value moves no further from the old one in the loss
    learning_rate: Positive = 1e-6
    # Scale of the new head's weights, relative to VinePPO's code; 0: the first values are 0.
    head_scale: NotNegative = 1.0


class ProbeConfig(MethodSettings, section="probe"):
    lam: ZeroToOne = (
        1.0  # λ of the average over later values that is the result of a step; 1: the return
    )


class RestEMConfig(MethodSettings, section="restem"):
    """Each problem gets `rollout.per_prompt` sampled solutions."""

    problems: Count | None = None  # sampled per iteration; None: the whole train split
    keep: Count = 10  # correct solutions per problem, at most
    epochs: Count = 8  # at most: see eval_every
    # Updates between validations; the first that is no better than the last ends the iteration.
    eval_every: Count = 500


class DPOConfig(MethodSettings, section="dpo"):
    """Each problem gets `rollout.per_prompt` sampled solutions."""

    problems: Count | None = None  # sampled per iteration; None: the whole train split
    pairs: Count = 64  # per problem, at most; an update takes ppo.minibatch of them
    epochs: Count = 3
    beta: Positive = 0.1
    # λ, the weight of the penalty on correct solutions that become less likely than at the start.
    penalty: NotNegative = 50.0
