"""SALT: GRPO, in which a turn that solutions share has the mean of their advantages.

    A_t = mean of A over the problem's turns like t    A = (R - mean R) / (std R + 1e-8)

Turns are alike that lead with one action from one state to one state, with one reward. A state is
the environment's key, or else what it said last.

Source: https://arxiv.org/abs/2510.20022 (read in another's account).

Departs: history is no part of a state.
"""

from collections.abc import Hashable, Iterator

from vinejax.contrib.methods.equations.turn_returns import group_means
from vinejax.contrib.methods.turn_actions import moves_of, per_move
from vinejax.core.settings import Config
from vinejax.core.types import Episode, Rollout
from vinejax.credit.assign import Credit, compared, group_numbers
from vinejax.methods.base import OF_GROUPS, Method


def edges_of(episode: Episode) -> Iterator[Hashable]:
    """What the turns like each move have in common; None for a move that was cut."""
    moves = moves_of(episode)
    for move, turn in zip(moves, episode.turns, strict=False):
        after = turn.observation if turn.key is None else turn.key
        yield move.anchor, turn.action, after, turn.reward
    yield from [None] * (len(moves) - len(episode.turns))


def merged_advantages(rollout: Rollout, cfg: Config) -> Credit:
    """The advantages above."""
    episodes = rollout.episodes
    groups, wholes = group_numbers(episodes).tolist(), compared(rollout, "grpo", cfg).tolist()
    edges, values, ends = [], [], []
    for row, episode in enumerate(episodes):
        found = list(edges_of(episode))
        edges += [(groups[row], edge or row) for edge in found]
        values += [wholes[row]] * len(found)
        ends.append(len(values))
    means = group_means(values, edges)
    return per_move(rollout, [means[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)])


METHOD = Method(
    merged_advantages, reads=OF_GROUPS, defaults={"reward.scale": "group"}, flags={"groups"}
)
