"""From drawn tokens to what grew: texts, stop strings, and how each branch ended."""

from collections.abc import Iterable, Sequence
from typing import Any

from vinejax.rollout.branches import Branch, Grown, OnGrown
from vinejax.rollout.decode import EOS, STOP
from vinejax.rollout.phase import Drawn
from vinejax.runtime.distributed import is_mine, shared_work
from vinejax.text import Cut, Tokenizer, added, cut_at_stop, decode, tail


class Ending:
    """Reads the branches of a phase as they end. Of several hosts, each reads its own."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...],
        trunks: Sequence[list[int]],
        branches: Sequence[Branch],
        on_grown: OnGrown | None,
    ):
        self._tokenizer, self._stop, self._on_grown = tokenizer, stop, on_grown
        self._trunks, self._branches = trunks, branches
        self._texts: dict[tuple[int, int], str] = {}

    def take(self, drawn: Iterable[Drawn], results: list[Grown]) -> list[Drawn]:
        """Fills in `results` by branch; gives back those that the devices cut short, by branch.

        Results and what is given back are the same on every host.
        """
        everything: dict[int, Drawn] = {}
        own: dict[int, Any] = {}
        for one in drawn:
            everything[one.branch] = one
            if not is_mine(one.branch):
                continue
            own[one.branch] = told = self._read(one)
            if told is not None and self._on_grown is not None:
                self._on_grown(one.branch, _grown(one, Cut(*told)))
        cut_short = []
        for i, told in sorted(shared_work(own).items()):
            if told is None:
                cut_short.append(everything[i])
            else:
                results[i] = _grown(everything[i], Cut(*told))
        return cut_short

    def _read(self, drawn: Drawn) -> Cut | None:
        """What is kept; None where the decoded text has no stop string after all."""
        branch = self._branches[drawn.branch]
        prefix = self._trunks[branch.trunk][: branch.position]
        text, before = self._text(branch.trunk, branch.position), ""
        if self._stop and branch.response is not None:
            before = tail(added(self._text(branch.trunk, branch.response), text), self._stop)
        cut = cut_at_stop(self._tokenizer, prefix, text, drawn.tokens, self._stop, before)
        return None if drawn.ended == STOP and not cut.hit else cut

    def _text(self, trunk: int, end: int) -> str:
        """That of a trunk's first `end` tokens, decoded once."""
        if (trunk, end) not in self._texts:
            self._texts[trunk, end] = decode(self._tokenizer, self._trunks[trunk][:end])
        return self._texts[trunk, end]


def _grown(drawn: Drawn, cut: Cut) -> Grown:
    finish = "stop" if cut.hit else "eos" if drawn.ended == EOS else "length"
    kept = slice(cut.kept)
    return Grown(drawn.tokens[kept], drawn.logprobs[kept], cut.text, finish, cut.overlap)
