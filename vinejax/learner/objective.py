"""What tells the policy-gradient methods apart: the advantage, its scale, and its loss."""

import dataclasses
from typing import NamedTuple

from vinejax.settings import Config, KLConfig, PPOConfig


class Method(NamedTuple):
    """Defaults of a method; `ppo.whiten` and `ppo.reduction` may say otherwise."""

    advantage: str  # 'vine' and 'critic': by values of states; 'return': of the reward itself, KL
    #                 included; otherwise a kind of `group_advantages`
    whiten: str
    reduction: str
    loss: str = "clip"  # or 'opmd', 'reinforce': see rl/losses.py


METHODS = {
    "vineppo": Method("vine", "iteration", "token"),
    "ppo": Method("critic", "iteration", "token"),
    "grpo": Method("grpo", "none", "token"),
    "rloo": Method("rloo", "none", "token"),
    "dr_grpo": Method("mean", "none", "budget"),
    "dapo": Method("grpo", "none", "token"),
    "reinforce++": Method("return", "iteration", "token"),
    "opmd": Method("mean", "none", "token", "opmd"),
    "asymre": Method("mean", "none", "token", "reinforce"),
}
DAPO_CLIP_HIGH = 0.28  # https://arxiv.org/abs/2503.14476


@dataclasses.dataclass(frozen=True)
class Objective:
    """What an update of the policy minimises. Static in compiled programs.

    In `ppo` nothing is left to the method: whitening, reduction and the upper clip are filled in.
    """

    temperature: float
    ppo: PPOConfig
    kl: KLConfig
    loss: str = "clip"
    tau: float = 0.0  # of 'opmd'
    max_tokens: int = 1  # of the reduction 'budget'

    @property
    def clip(self) -> tuple[float, float]:
        """(low, high)"""
        return self.ppo.clip, self.ppo.clip_high or self.ppo.clip


def objective_of(cfg: Config) -> Objective:
    """The objective of a policy-gradient method."""
    method, ppo, kl = METHODS[cfg.method], cfg.ppo, cfg.kl
    if cfg.method == "dapo" and ppo.clip_high is None:
        ppo = dataclasses.replace(ppo, clip_high=DAPO_CLIP_HIGH)
    if ppo.whiten == "method":
        ppo = dataclasses.replace(ppo, whiten=method.whiten)
    if ppo.reduction == "method":
        ppo = dataclasses.replace(ppo, reduction=method.reduction)
    if method.advantage == "return":  # it holds the KL already
        kl = dataclasses.replace(kl, coef=0.0)
    return Objective(
        cfg.sample.temperature, ppo, kl, method.loss, cfg.opmd.tau, cfg.sample.max_tokens
    )
