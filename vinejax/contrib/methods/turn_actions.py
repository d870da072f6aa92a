"""Shared by methods with credit of turns: the turns of an episode, and their advantages."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vinejax.core.types import Episode, Rollout
from vinejax.credit.assign import Credit


class Move(NamedTuple):
    """A turn of an episode, or the rest of one that was cut in a turn."""

    end: int  # response tokens up to where the next turn begins
    reward: float  # of its steps; the last move's has the outcome's
    anchor: tuple[str, bool]  # the state before it: its key, or what was seen last; is it a key?


def moves_of(episode: Episode) -> list[Move]:
    """The moves of an episode; of one without turns, the response."""
    ends, anchors = [], [("", False)]
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
    """The credit of advantages of each episode's moves."""
    mask = np.asarray(rollout.batch.mask)
    advantages = np.zeros(mask.shape, np.float32)
    for row, (episode, values) in enumerate(zip(rollout.episodes, by_move, strict=True)):
        lengths = np.diff([0, *(move.end for move in moves_of(episode))])
        start = len(episode.prompt)
        advantages[row, start : start + lengths.sum()] = np.repeat(values, lengths)
    return Credit(np.where(mask, advantages, np.float32(0)))
