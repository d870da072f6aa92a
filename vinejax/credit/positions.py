"""Positions rules: where the states of a solution are.

A position is the number of response tokens before a state. A rule takes (Episode, a function from a
token's id to its text, ValuesConfig) and returns strictly increasing positions. Position 0 is the
prompt's end. All are below the response's length, because the end is terminal and never a state.
`positions_of` thins the positions of a rule. `with_steps_between` turns the tokens between two
positions into a step.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from vinejax.core.settings import ValuesConfig
from vinejax.core.types import Episode

TextOf = Callable[[int], str]
PositionsRule = Callable[[Episode, TextOf, ValuesConfig], Sequence[int]]


def step_starts(episode: Episode, text_of: TextOf, values: ValuesConfig) -> list[int]:
    """The prompt's end and the boundaries between the steps that the task's splitter finds.

    Source: the paper, section 4.
    """
    return [0, *episode.step_ends][:-1]


def turn_starts(episode: Episode, text_of: TextOf, values: ValuesConfig) -> list[int]:
    """The prompt's end, and the end of each observation that the policy answers."""
    return [0, *(turn.end for turn in episode.turns if turn.end < len(episode.response))]


def after_step_starts(episode: Episode, text_of: TextOf, values: ValuesConfig) -> list[int]:
    """The prompt's end, and the position after the first token of each later step.

    A boundary is often a boundary because of the token that follows it: a line is known to end only
    when the next line begins. Whether a state stands after that token is decided by the tokens
    before the state. So no token is compared with the value of a state whose existence depends on
    the token itself. Splitters that look further ahead stay biased.
    """
    return [0, *(end + 1 for end in episode.step_ends if end + 1 < len(episode.response))]


def blank_lines(episode: Episode, text_of: TextOf, values: ValuesConfig) -> list[int]:
    """The prompt's end, and the position after each token that completes a blank line.

    Two newlines in a row complete a blank line. Newlines that follow directly add no position.
    Source: the splitter `double_new_line_tokens` of kazemnejad/treetuneV, which tests the text of
    single tokens.
    """
    ends, newlines = [0], 0
    for i, token in enumerate(episode.response):
        is_complete = False
        for letter in text_of(token):
            newlines = newlines + 1 if letter == "\n" else 0
            is_complete = is_complete or newlines == 2
        if is_complete:
            ends.append(i + 1)
    return [end for end in ends if end < len(episode.response)]


def thinking_blank_lines(episode: Episode, text_of: TextOf, values: ValuesConfig) -> list[int]:
    """The positions of `blank_lines` up to the first `</think>`; all if there is no such tag.

    Source: `only_split_thinking` of kazemnejad/treetuneV.
    """
    text = ""
    end = len(episode.response)
    for i, token in enumerate(episode.response):
        text = text[-len("</think>") :] + text_of(token)
        if "</think>" in text:
            end = i
            break
    return [position for position in blank_lines(episode, text_of, values) if position <= end]


def every_n_tokens(episode: Episode, text_of: TextOf, values: ValuesConfig) -> list[int]:
    """The positions 0, n, 2n, ... with n = `values.every`.

    Source: `every_n_token` of kazemnejad/treetuneV.
    """
    return list(range(0, len(episode.response), values.every))


def low_probability(episode: Episode, text_of: TextOf, values: ValuesConfig) -> list[int]:
    """The positions before every m-th token whose probability was below `values.below`.

        L = sorted {t : p_t < below}    positions = L[0::m]    m = `values.every`

    p_t is the sampler's probability, at the sampling temperature. Whether a state stands before a
    token depends on that token, which biases the policy gradient. The prompt's end is a state only
    if the first token is in L; otherwise the tokens before the first position have advantage 0.

    Source: SPO-chain, https://arxiv.org/abs/2505.23564. In its code, a state after k response
    tokens has the number k - 1, so its cut c is our position c + 1.
    """
    low = np.flatnonzero(np.exp(np.array(episode.logprobs, np.float32)) < values.below)
    return low[:: values.every].tolist()


def positions_of(
    rule: PositionsRule, episode: Episode, text_of: TextOf, values: ValuesConfig
) -> list[int]:
    """The positions of a rule, thinned by `values.merge` and `values.num_states`.

    If an episode began in mid-solution, with given tokens, the end of the given tokens takes the
    place of the prompt's end, and earlier positions are dropped. A position before a token of an
    observation is dropped too, because the policy decides nothing there.

    `values.merge` and `values.num_states` keep the prompt's end if `rule` returned it. Of the later
    positions, `merge` = k keeps every k-th. If N of them remain and N is more than n =
    `num_states`, n evenly spaced positions are kept: those with the numbers ⌊i·(N + 1) / (n + 1)⌋
    for i = 1..n, counted from 1. `num_states` biases the policy gradient, because the state whose
    value is a token's baseline depends on N, and N depends on what follows the token.
    """
    first = episode.given
    positions = list(rule(episode, text_of, values)) if len(episode.response) > first else []
    if episode.turns:
        is_drawn = episode.is_drawn
        positions = [position for position in positions if is_drawn[position]]
    start = [first] if positions[:1] == [0] or first in positions else []
    return start + thinned([position for position in positions if position > first], values)


def thinned(positions: list[int], values: ValuesConfig) -> list[int]:
    """Those of the `positions` that `values.merge` and `values.num_states` keep.

    All `positions` must be after the prompt's end.
    """
    positions = positions[values.merge - 1 :: values.merge]
    if values.num_states is None or len(positions) <= values.num_states:
        return positions
    n, count = values.num_states, len(positions) + 1
    return [positions[i * count // (n + 1) - 1] for i in range(1, n + 1)]


def with_steps_between(episode: Episode, positions: list[int]) -> Episode:
    """The episode with a step between every two neighbouring positions.

    The new steps replace the steps that the task's splitter found. The reward of each old step goes
    to the new step in which the old step ends.
    """
    if len(episode.response) == episode.given:
        return episode
    ends = [position for position in positions if position > episode.given]
    ends.append(len(episode.response))
    if ends == episode.step_ends:
        return episode
    rewards = episode.step_rewards
    if rewards is not None:
        rewards = rewards_between(ends, episode.step_ends, rewards)
    return dataclasses.replace(episode, step_ends=ends, step_rewards=rewards)


def rewards_between(
    ends: Sequence[int], step_ends: Sequence[int], rewards: Sequence[float]
) -> list[float]:
    """The `rewards` of steps that end at `step_ends`, summed over larger steps that end at `ends`.

    A reward counts in the larger step that contains the end of the reward's step. `ends` and
    `step_ends` are sorted, and no step ends after the last of `ends`.
    """
    totals = np.zeros(len(ends))
    np.add.at(totals, np.searchsorted(ends, step_ends), rewards)
    return totals.tolist()
