"""GiGPO: an episode is compared with its group, and a turn with turns from the same state.

    A = z(r in the problem) + ω·z(G in turns from one state)    G_t = r_t + γ·G_{t+1}
    z = (x - mean) / (std of the sample + 1e-6) or, with `gigpo.norm` 'mean', x - mean

Two turns of a problem begin in one state if the environment's keys are equal, or, without keys, if
its last texts are equal. γ is `ppo.gamma`. In a task without turns an episode is one turn.

Source: https://arxiv.org/abs/2505.10978; langfengQ/verl-agent, `gigpo/core_gigpo.py`.

Departs: the authors' γ is 0.95; here an episode's start is a state of its own, even if the episode
returns to it. In the problem's mean and std an episode counts once, as in the paper's equation 3;
the code's default (`compute_mean_std_cross_steps`) counts it once per turn. An episode or a turn
that is alone in its group has z = 0; in the code it keeps its reward or return.
"""

import numpy as np

from vinejax.contrib.methods.equations.turn_returns import group_scores
from vinejax.contrib.methods.settings import GiGPOConfig
from vinejax.contrib.methods.turn_actions import moves_of, per_move
from vinejax.core.settings import Config
from vinejax.core.types import Rollout
from vinejax.credit.assign import Credit, group_numbers, solution_rewards
from vinejax.methods.base import Method
from vinejax.rl.values import returns_to_go


def episode_and_turn_credit(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring."""
    settings, episodes = GiGPOConfig.of(cfg), rollout.episodes
    numbers, moves = group_numbers(episodes).tolist(), [moves_of(e) for e in episodes]
    has_std = settings.norm == "std"
    of_episodes = group_scores(solution_rewards(episodes), numbers, has_std)
    rewards = [[move.reward for move in row] for row in moves]
    returns = [returns_to_go(row, cfg.ppo.gamma) for row in rewards]
    states = [(i, m.anchor) for i, row in zip(numbers, moves, strict=True) for m in row]
    of_turns = group_scores(np.concatenate(returns), states, has_std)
    ends = np.cumsum([len(row) for row in moves])[:-1]
    parts = zip(of_episodes, np.split(of_turns, ends), strict=True)
    return per_move(rollout, [whole + settings.omega * turns for whole, turns in parts])


METHOD = Method(episode_and_turn_credit, settings=GiGPOConfig, flags={"groups"})
