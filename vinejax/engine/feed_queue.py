"""What a caller adds to a stream while it runs: checked here, and kept where a phase has no room.

A phase takes it after each chunk of decode steps. No draw depends on the phase, the shard or the
slot that decodes a branch, so the tokens are those of a call of its own.
"""

from collections.abc import Callable

from vinejax.engine.branches import BranchSet, Feeder, StreamInput


class FeedQueue:
    """The work that a stream is still given; `check` makes it of what a caller feeds.

    Raises what `check` raises, and ValueError from `rest` for a feed that neither gives work nor
    ends.
    """

    def __init__(self, feed: Feeder | None, check: Callable[[StreamInput], BranchSet]):
        self.feed, self._check = feed, check
        self.is_open = feed is not None  # more may come
        self._waiting: BranchSet | None = None

    @property
    def holds(self) -> bool:
        """Whether work waits for a following phase; what comes after it waits too."""
        return self._waiting is not None

    def take(self) -> BranchSet | None:
        """What the caller adds now; None if that is nothing."""
        if self.feed is None or not self.is_open:
            return None
        fed = self.feed.more()
        self.is_open = fed is not None
        return self._check(fed) if fed and len(fed.trunks) else None

    def hold(self, branch_set: BranchSet) -> None:
        """Keeps work for a following phase: the running one has no room for it."""
        if self._waiting is None:
            self._waiting = branch_set
        else:
            self._waiting.add(branch_set)

    def rest(self) -> BranchSet | None:
        """The work of the following phase; None: there is no more."""
        if (branch_set := self.take()) is not None:
            self.hold(branch_set)
        if self.is_open and not self.holds:
            rule = "no branch is under way and `more` gave none; None ends a feed"
            raise ValueError(f"feed: {rule}")
        waiting, self._waiting = self._waiting, None
        return waiting
