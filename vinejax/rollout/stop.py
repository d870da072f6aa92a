"""Stop strings on the device: an automaton over token texts.

Whether a branch ended at a stop string is decided on the host, in the detokenised text (`text.py`).
The device only ends branches early, so that slots do not decode past a stop string. It runs the
automaton of Aho and Corasick (1975) with the vocabulary as alphabet: one table look-up per token.
"""

import numpy as np

from vinejax.rollout.branches import Work

HIT = -1


def stop_table(stop: tuple[str, ...], texts: list[str]) -> np.ndarray:
    """i32[A, V]: the next state for each pair of state and token; HIT if a stop string is complete.

    A state is the longest suffix of the text that is also a prefix of a stop string; in state 0 it
    is empty. A = 0 without stop strings. A character that is spread over tokens leads to state 0: a
    stop string with such a character may be missed here, never on the host.
    """
    if not stop:
        return np.zeros((0, len(texts)), np.int32)
    prefixes = sorted({s[:n] for s in stop for n in range(len(s) + 1)}, key=len)
    state_of = {prefix: i for i, prefix in enumerate(prefixes)}
    letters = {c: i for i, c in enumerate(sorted(set("".join(stop))))}
    other = len(letters)

    def after(prefix: str, letter: str) -> int:
        text = prefix + letter
        if any(text.endswith(s) for s in stop):
            return HIT
        return max(state_of[text[i:]] for i in range(len(text) + 1) if text[i:] in state_of)

    by_letter = np.zeros((len(prefixes), other + 1), np.int32)
    for prefix, state in state_of.items():
        for letter, i in letters.items():
            by_letter[state, i] = after(prefix, letter)

    longest = max(map(len, texts))
    spelled = np.full((len(texts), longest), other)
    for i, text in enumerate(texts):
        spelled[i, : len(text)] = [letters.get(c, other) for c in text]
    lengths = np.array([len(text) for text in texts])
    table = np.repeat(np.arange(len(prefixes), dtype=np.int32)[:, None], len(texts), axis=1)
    for n in range(longest):
        going = (table != HIT) & (lengths > n)
        table = np.where(going, by_letter[table, spelled[:, n]], table)
    return table


def first_states(table: np.ndarray, work: Work) -> list[int]:
    """The automaton's state at the start of each branch, after its response so far.

    When that response was sampled, the automaton went through the same states. After a stop string
    that ends before the branch it starts again in state 0.
    """
    ends: dict[tuple[int, int], int] = {}  # (trunk, response) -> the last position of a branch
    for b, budget in zip(work.branches, work.budgets, strict=True):
        if b.response is not None and len(table) and budget > 0:
            place = (b.trunk, b.response)
            ends[place] = max(ends.get(place, 0), b.position)
    states: dict[tuple[int, int | None, int], int] = {}
    for (trunk, response), end in ends.items():
        state = states[trunk, response, response] = 0
        for position in range(response, end):
            state = max(int(table[state, work.trunks[trunk][position]]), 0)
            states[trunk, response, position + 1] = state
    return [states.get((b.trunk, b.response, b.position), 0) for b in work.branches]
