"""Moves, which are the turns of an episode, for methods that assign credit to turns."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vinejax.core.types import Episode, Rollout
from vinejax.credit.assign import Credit


class Move(NamedTuple):
    """A turn of an episode. The last turn may have been truncated."""

    end: int  # number of response tokens before the next turn
    reward: float  # sum of the rewards of the turn's steps; the last move's includes the outcome
    # State before: (its key, True), or (the last observation, False); None at the episode's start.
    anchor: tuple[str, bool] | None


def moves_of(episode: Episode) -> list[Move]:
    """The moves of an episode. A response without turns is one move."""
    ends: list[int] = []
    anchors: list[tuple[str, bool] | None] = [None]
    for turn in episode.turns:
        ends.append(turn.end)
        has_key = turn.key is not None
        anchors.append((turn.key if turn.key is not None else turn.observation, has_key))
    if not ends or ends[-1] < len(episode.response):
        ends.append(len(episode.response))
    rewards = np.zeros(len(ends))
    np.add.at(rewards, np.searchsorted(ends, episode.step_ends), episode.rewards)
    rows = zip(ends, rewards.tolist(), anchors, strict=False)
    return [Move(end, reward, anchor) for end, reward, anchor in rows]


def per_move(rollout: Rollout, by_move: Sequence[np.ndarray]) -> Credit:
    """Credit that gives each token the advantage of its move."""
    mask = np.asarray(rollout.batch.mask)
    advantages = np.zeros(mask.shape, np.float32)
    for row, (episode, values) in enumerate(zip(rollout.episodes, by_move, strict=True)):
        lengths = np.diff([0, *(move.end for move in moves_of(episode))])
        start = len(episode.prompt)
        advantages[row, start : start + lengths.sum()] = np.repeat(values, lengths)
    return Credit(np.where(mask, advantages, np.float32(0)))
