"""Stop strings of requests, which the host finds in the texts of branches.

In training all branches of an engine have the same stop strings, and an automaton on the device
finds them. Here each request has its own, so the host looks for them after each chunk of decode
steps. The continuation is cut by the same function as in training, and has the same tokens.
"""

import numpy as np

from vinejax.core.text import StopCut, Tokenizer, cut_at_stop, decode, prefix_end, tail_before
from vinejax.engine.branches import Grown
from vinejax.tools.serve.wanted import Wanted

LONGEST_CHARACTER = 4  # most tokens that one character is spread over


class StopSearch:
    """Finds out, as a branch grows, whether its text has a stop string."""

    def __init__(self, tokenizer: Tokenizer, wanted: Wanted):
        self._tokenizer, self._wanted = tokenizer, wanted
        self._num_seen = 0

    def is_hit(self, tokens: np.ndarray) -> bool:
        """Whether the text of a branch with these tokens so far has a stop string.

        Only the end of the text, with the new tokens, is searched before the whole text is.
        """
        wanted = self._wanted
        back = LONGEST_CHARACTER * max(map(len, wanted.stop))
        start = max(self._num_seen - back, 0)
        self._num_seen = len(tokens)
        new = tokens[start:].tolist()
        before = wanted.trunk[: wanted.position] if start == 0 else tokens[:start].tolist()
        end = decode(self._tokenizer, before[-back:] + new)
        if not any(stop in end for stop in wanted.stop):
            return False
        return cut_tokens(self._tokenizer, wanted, tokens.tolist()).hit


def cut_tokens(tokenizer: Tokenizer, wanted: Wanted, tokens: list[int]) -> StopCut:
    """The continuation `tokens` of a branch, cut at its first stop string (`StopCut`)."""
    prefix, before = wanted.trunk[: wanted.position], ""
    if wanted.response is not None:
        before = tail_before(tokenizer, prefix, wanted.response, wanted.stop)
    return cut_at_stop(tokenizer, prefix_end(tokenizer, prefix), tokens, wanted.stop, before)


def cut_grown(tokenizer: Tokenizer, wanted: Wanted, grown: Grown) -> Grown:
    """A continuation as an engine with these stop strings would give it."""
    if not wanted.stop:
        return grown
    is_eos = grown.finish == "eos"
    cut = cut_tokens(tokenizer, wanted, grown.tokens[:-1] if is_eos else grown.tokens)
    if not cut.hit:
        return grown
    kept = slice(cut.num_tokens)
    return Grown(grown.tokens[kept], grown.logprobs[kept], cut.text, "stop", cut.overlap)
