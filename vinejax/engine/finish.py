"""From drawn tokens to continuations: texts, stop strings, and how each branch ended."""

from collections.abc import Generator, Iterable
from typing import Any

from vinejax.core.text import StopCut, Tokenizer, added, cut_at_stop, decode, tail
from vinejax.engine.branches import Grown, Work
from vinejax.engine.collect import Drawn
from vinejax.engine.decode import EOS, STOP
from vinejax.engine.stats import EngineStats
from vinejax.runtime.distributed import is_mine, shared_work


class Reader:
    """Detokenises the branches of a call as they end; each host reads those that are its own.

    What is fed depends on what ended, and all hosts have to feed the same: then each reads all.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...],
        work: Work,
        stats: EngineStats,
        first: int = 0,
        reads_all: bool = False,
    ):
        """`first` is the number of the work's first branch among those of the call."""
        self._tokenizer, self._stop, self._work, self._stats = tokenizer, stop, work, stats
        self._first, self._reads_all = first, reads_all
        self._texts: dict[tuple[int, int], str] = {}

    def read(self, drawn: Iterable[Drawn]) -> Generator[tuple[int, Grown], None, list[Drawn]]:
        """Yields pairs (branch, Grown): this host's own as they end, then all other hosts'.

        Returns the branches that were cut short, whose text lacks the stop string that ended them,
        in order, the same on every host.
        """
        by_branch: dict[int, Drawn] = {}
        cuts: dict[int, Any] = {}  # `StopCut` of each of this host's own branches; None: cut short
        for ended in drawn:
            by_branch[ended.branch] = ended
            if self._reads_all or is_mine(ended.branch):
                cut = cuts[ended.branch] = self._cut(ended)
                if cut is not None:
                    yield self._first + ended.branch, self._grown(ended, cut)
        cut_short = []
        of_all = cuts if self._reads_all else shared_work(cuts)
        for i, cut in sorted(of_all.items()):
            if cut is None:
                cut_short.append(by_branch[i])
            elif i not in cuts:
                yield self._first + i, self._grown(by_branch[i], StopCut(*cut))
        return cut_short

    def _cut(self, drawn: Drawn) -> StopCut | None:
        """The part of a branch to keep; None if its text lacks the stop string that ended it."""
        branch = self._work.branches[drawn.branch]
        prefix = self._work.trunks[branch.trunk][: branch.position]
        text, before = self._text(branch.trunk, branch.position), ""
        if self._stop and branch.response is not None:
            before = tail(added(self._text(branch.trunk, branch.response), text), self._stop)
        tokens = drawn.tokens.tolist()
        inner = tokens[:-1] if drawn.ended == EOS else tokens  # `sample.stop_ids` may have a text
        cut = cut_at_stop(self._tokenizer, prefix, text, inner, self._stop, before)
        if drawn.ended == EOS and not cut.hit:
            return cut._replace(num_tokens=len(tokens))
        return None if drawn.ended == STOP and not cut.hit else cut

    def _text(self, trunk: int, end: int) -> str:
        """The text of a trunk's first `end` tokens, detokenised once."""
        if (trunk, end) not in self._texts:
            self._texts[trunk, end] = decode(self._tokenizer, self._work.trunks[trunk][:end])
        return self._texts[trunk, end]

    def _grown(self, drawn: Drawn, cut: StopCut) -> Grown:
        self._stats.useful_tokens += cut.num_tokens
        finish = "eos" if drawn.ended == EOS else "length"
        if cut.hit:
            finish = "stop"
        kept = slice(cut.num_tokens)
        tokens, logprobs = drawn.tokens[kept].tolist(), drawn.logprobs[kept].tolist()
        return Grown(tokens, logprobs, cut.text, finish, cut.overlap)
