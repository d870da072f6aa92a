"""Turns decoded tokens into continuations, whose texts end before a stop string."""

from collections.abc import Generator, Iterable
from typing import Any

from vinejax.core.text import PrefixEnd, StopCut, Tokenizer, cut_at_stop, prefix_end, tail_before
from vinejax.engine.branches import Branch, BranchSet, Grown
from vinejax.engine.collect import DecodedBranch
from vinejax.engine.decode import EOS, STOP
from vinejax.engine.stats import EngineStats
from vinejax.runtime.distributed import is_mine, shared_work


class Reader:
    """Detokenises the branches of a call as they end; each host takes a part of the branches.

    With `reads_all` every host detokenises all branches. A stream with a feed needs this, because
    the feed's input depends on the branches that have ended, and must be the same on all hosts.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...],
        branch_set: BranchSet,
        stats: EngineStats,
        first: int = 0,
        reads_all: bool = False,
    ):
        """`first` is the number of the set's first branch among the branches of the call."""
        self._tokenizer, self._stop = tokenizer, stop
        self._branch_set, self._stats = branch_set, stats
        self._first, self._reads_all = first, reads_all
        self._places: dict[tuple[int, int, int | None], tuple[PrefixEnd, str]] = {}

    def read(
        self, decoded: Iterable[DecodedBranch]
    ) -> Generator[tuple[int, Grown], None, list[DecodedBranch]]:
        """Yields a pair (branch number, Grown) for each branch that was not cut short.

        The branches that this host detokenises come as they end, and those of other hosts come
        last.

        Returns the branches that were cut short: the device ended them at a stop string, but their
        text has none. These branches are sorted by number, and the same on every host.
        """
        by_branch: dict[int, DecodedBranch] = {}
        cuts: dict[int, Any] = {}  # `StopCut` of each branch of this host; None: cut short
        for branch in decoded:
            by_branch[branch.branch] = branch
            if self._reads_all or is_mine(branch.branch):
                cut = cuts[branch.branch] = self._cut(branch)
                if cut is not None:
                    yield self._first + branch.branch, self._grown(branch, cut)
        cut_short = []
        all_cuts = cuts if self._reads_all else shared_work(cuts)
        for i, cut in sorted(all_cuts.items()):
            if cut is None:
                cut_short.append(by_branch[i])
            elif i not in cuts:
                yield self._first + i, self._grown(by_branch[i], StopCut(*cut))
        return cut_short

    def _cut(self, decoded: DecodedBranch) -> StopCut | None:
        """The tokens and text of a branch that are kept; None if it was cut short (see `read`)."""
        branch = self._branch_set.branches[decoded.branch]
        end, before = self._place(branch)
        tokens = decoded.tokens.tolist()
        # The text excludes the token that ended the branch: a token of `sample.stop_ids` has text.
        inner = tokens[:-1] if decoded.ended == EOS else tokens
        cut = cut_at_stop(self._tokenizer, end, inner, self._stop, before)
        if decoded.ended == EOS and not cut.hit:
            return cut._replace(num_tokens=len(tokens))
        return None if decoded.ended == STOP and not cut.hit else cut

    def _place(self, branch: Branch) -> tuple[PrefixEnd, str]:
        """(the end of a branch's prefix, the text before the branch in which a stop may begin).

        Both are computed once for all branches of the same place, and then stored.
        """
        place = branch.trunk, branch.position, branch.response
        if place not in self._places:
            prefix, before = self._branch_set.trunks[branch.trunk][: branch.position], ""
            if branch.response is not None:
                before = tail_before(self._tokenizer, prefix, branch.response, self._stop)
            self._places[place] = prefix_end(self._tokenizer, prefix), before
        return self._places[place]

    def _grown(self, decoded: DecodedBranch, cut: StopCut) -> Grown:
        self._stats.useful_tokens += cut.num_tokens
        finish = "eos" if decoded.ended == EOS else "length"
        if cut.hit:
            finish = "stop"
        kept = slice(cut.num_tokens)
        tokens, logprobs = decoded.tokens[kept].tolist(), decoded.logprobs[kept].tolist()
        return Grown(tokens, logprobs, cut.text, finish, cut.overlap)
