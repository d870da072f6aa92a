"""Turn credit: GRPO, with the rewards of turns shared with the turns before them.

    A = (R - mean R) / (std R + 1e-8) + w·c    c_t = Σ_{i≥t} r_i·γ^(i-t) / Σ_{j≤i} γ^(i-j)

R is the reward of the whole solution. r_i is the reward of turn i without the outcome. With γ = 0
a turn keeps its own reward.

Source: PrimeIntellect-ai/prime-rl, pull request 3282; w = 0.2 and γ = 0: NVIDIA-NeMo/RL, 3543.

Departs: in prime-rl A = c.
"""

from vinejax.contrib.methods.equations.turn_returns import shared_rewards
from vinejax.contrib.methods.settings import TurnCreditConfig
from vinejax.contrib.methods.turn_actions import moves_of, per_move
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, against_group
from vinejax.methods.base import OF_GROUPS, OF_RETURNS, Method


def credit_of_turns(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring."""
    settings, episodes = TurnCreditConfig.of(cfg), rollout.episodes
    wholes = against_group(rollout, "grpo", cfg)
    by_move = []
    for episode in episodes:
        rewards = [move.reward for move in moves_of(episode)]
        rewards[-1] -= episode.outcome
        by_move.append(settings.weight * shared_rewards(rewards, settings.gamma))
    return Credit(wholes.advantages + per_move(rollout, by_move).advantages)


METHOD = Method(
    credit_of_turns,
    settings=TurnCreditConfig,
    reads=OF_GROUPS,
    ignores=OF_RETURNS,
    defaults={"reward.scale": "group"},
    flags={"groups"},
)
