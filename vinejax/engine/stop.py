"""Stop strings on the device: an automaton over token texts.

The host decides by the detokenised text whether a branch ended at a stop string (`core/text.py`).
The device only ends branches early, so that slots do not decode past a stop string. It runs the
automaton of Aho and Corasick (1975) with the vocabulary as its alphabet, with one table look-up per
token.
"""

import re
from collections.abc import Sequence

import numpy as np

from vinejax.engine.branches import BranchSet

HIT = -1


def stop_table(stop: tuple[str, ...], texts: Sequence[str]) -> np.ndarray:
    """The table i32[A, V] of the next state for each state and token.

    The next state is HIT if the token completes a stop string. A state is the longest suffix of the
    text so far that is also a prefix of a stop string; in state 0 it is empty. A = 0 without stop
    strings. A character that is spread over several tokens leads to state 0. The device may
    therefore miss a stop string with such a character; the host does not.

    In the tokens' texts, a run of characters that no stop string contains is replaced by one such
    character. Tokens whose texts are then equal share a walk through the automaton, so a large
    vocabulary takes few walks.
    """
    if not stop:
        return np.zeros((0, len(texts)), np.int32)
    letters = {c: i for i, c in enumerate(sorted(set("".join(stop))))}
    by_letter = _letter_table(stop, letters)
    foreign = re.compile(f"[^{re.escape(''.join(letters))}]+")
    other = next(c for c in map(chr, range(len(letters) + 1)) if c not in letters)
    shortened = [foreign.sub(other, text) for text in texts]
    distinct = sorted(set(shortened), key=len, reverse=True)
    numbers = letters | {other: len(letters)}
    walks = np.empty((len(by_letter) - 1, len(distinct)), np.int32)
    walks[:] = np.arange(len(walks))[:, None]
    width = by_letter.shape[1]  # length of a row; index HIT wraps around to the last row
    going = len(distinct)
    for n in range(len(distinct[0]) if distinct else 0):
        while len(distinct[going - 1]) <= n:
            going -= 1
        column = np.fromiter((numbers[text[n]] for text in distinct[:going]), np.int32, going)
        walks[:, :going] = by_letter.take(walks[:, :going] * width + column, mode="wrap")
    place = {text: i for i, text in enumerate(distinct)}
    return walks.take([place[text] for text in shortened], axis=1)


def _letter_table(stop: tuple[str, ...], letters: dict[str, int]) -> np.ndarray:
    """The table i32[A + 1, L + 1] of the next state for each state and character.

    Column i < L belongs to the letter with number i in `letters`. Column L belongs to all
    characters that are not in `letters`. The last row belongs to HIT, whose index is -1. All of its
    entries are HIT.
    """
    texts = {s[:n] for s in stop for n in range(len(s) + 1)}
    prefixes = sorted(texts, key=lambda text: (len(text), text))  # the same on every host
    state_of = {prefix: i for i, prefix in enumerate(prefixes)}

    def after(prefix: str, letter: str) -> int:
        text = prefix + letter
        if text.endswith(stop):
            return HIT
        return next(state_of[text[i:]] for i in range(len(text) + 1) if text[i:] in state_of)

    table = np.zeros((len(prefixes) + 1, len(letters) + 1), np.int32)
    table[HIT] = HIT
    for prefix, state in state_of.items():
        for letter, i in letters.items():
            table[state, i] = after(prefix, letter)
    return table


def first_states(table: np.ndarray, branch_set: BranchSet) -> list[int]:
    """The automaton's state at the start of each branch.

    This is the state after the part of the branch's response that lies before the branch. After a
    stop string that is complete before the branch, the automaton continues in state 0.
    """
    ends: dict[tuple[int, int], int] = {}  # last position of a branch, by (trunk, response)
    for b, budget in zip(branch_set.branches, branch_set.budgets, strict=True):
        if b.response is not None and len(table) and budget > 0:
            place = (b.trunk, b.response)
            ends[place] = max(ends.get(place, 0), b.position)
    states: dict[tuple[int, int | None, int], int] = {}
    for (trunk, response), end in ends.items():
        state = states[trunk, response, response] = 0
        for position in range(response, end):
            state = max(int(table[state, branch_set.trunks[trunk][position]]), 0)
            states[trunk, response, position + 1] = state
    return [states.get((b.trunk, b.response, b.position), 0) for b in branch_set.branches]
