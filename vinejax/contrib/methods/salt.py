"""SALT: GRPO in which a turn that several solutions share gets the mean of their advantages.

    A_t = mean of A over the problem's turns equal to t    A = (R - mean R) / (std R + 1e-8)

Two turns are equal if they have the same state before, action, state after and reward. A state is
the environment's key, or without keys its last text.

Source: https://arxiv.org/abs/2510.20022 (known to us from another paper's account).

Departs: the history before a state is no part of it.
"""

from collections.abc import Hashable, Iterator

from vinejax.contrib.methods.equations.turn_returns import group_means
from vinejax.contrib.methods.turn_actions import moves_of, per_move
from vinejax.core.settings import Config
from vinejax.core.types import Episode, Rollout
from vinejax.credit.assign import Credit, compared, group_numbers
from vinejax.methods.base import OF_GROUPS, Method


def edges_of(episode: Episode) -> Iterator[Hashable]:
    """Yields (state, action, state after, reward) of each move; None for a move that was cut."""
    moves = moves_of(episode)
    for move, turn in zip(moves, episode.turns, strict=False):
        after = turn.observation if turn.key is None else turn.key
        yield move.anchor, turn.action, after, turn.reward
    yield from [None] * (len(moves) - len(episode.turns))


def merged_advantages(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages in the module's docstring."""
    episodes = rollout.episodes
    groups, wholes = group_numbers(episodes).tolist(), compared(rollout, "grpo", cfg).tolist()
    edges, values, ends = [], [], []
    for row, episode in enumerate(episodes):
        edges_here = list(edges_of(episode))
        edges += [(groups[row], edge or row) for edge in edges_here]
        values += [wholes[row]] * len(edges_here)
        ends.append(len(values))
    means = group_means(values, edges)
    return per_move(rollout, [means[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)])


METHOD = Method(
    merged_advantages, reads=OF_GROUPS, defaults={"reward.scale": "group"}, flags={"groups"}
)
