"""From drawn tokens to what grew: texts, stop strings, and how each branch ended."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vinejax.rollout.branches import Branch, Grown, OnGrown
from vinejax.rollout.decode import EOS, STOP
from vinejax.rollout.phase import Drawn
from vinejax.runtime.distributed import is_mine, shared_work
from vinejax.tasks.text import Cut, added, cut_at_stop, decode, tail

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Ending:
    """Reads the branches of a phase as they end. Of several hosts, each reads its own."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        stop: tuple[str, ...],
        trunks: Sequence[list[int]],
        branches: Sequence[Branch],
        on_grown: OnGrown | None,
    ):
        self._tokenizer, self._stop, self._on_grown = tokenizer, stop, on_grown
        self._trunks, self._branches = trunks, branches
        self._texts: dict[tuple[int, int, int | None], tuple[str, str]] = {}

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
        text, before = self._before(branch, prefix)
        cut = cut_at_stop(self._tokenizer, prefix, text, drawn.tokens, self._stop, before)
        return None if drawn.ended == STOP and not cut.hit else cut

    def _before(self, branch: Branch, prefix: list[int]) -> tuple[str, str]:
        """The text before a branch, and the end of it in which a stop string can have begun."""
        place = (branch.trunk, branch.position, branch.response)
        if place not in self._texts:
            text, before = decode(self._tokenizer, prefix), ""
            if self._stop and branch.response is not None:
                prompt_text = decode(self._tokenizer, prefix[: branch.response])
                before = tail(added(prompt_text, text), self._stop)
            self._texts[place] = text, before
        return self._texts[place]


def _grown(drawn: Drawn, cut: Cut) -> Grown:
    finish = "stop" if cut.hit else "eos" if drawn.ended == EOS else "length"
    kept = slice(cut.kept)
    return Grown(drawn.tokens[kept], drawn.logprobs[kept], cut.text, finish, cut.overlap)
