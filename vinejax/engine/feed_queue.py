"""The input that a caller adds to a stream while the stream runs.

A phase takes input after each chunk of decode steps. This queue checks the input, and keeps input
for which the phase has no room. No draw depends on the phase, the shard or the slot that decodes a
branch, so the tokens equal those of a separate call.
"""

from collections.abc import Callable

from vinejax.engine.branches import BranchSet, Feeder, StreamInput


class FeedQueue:
    """The further input of a stream; `check` turns a caller's input into a set of branches.

    The methods that take input raise the errors of `check`. `next_branch_set` raises ValueError if
    the feeder neither returns a branch nor ends the input.
    """

    def __init__(self, feed: Feeder | None, check: Callable[[StreamInput], BranchSet]):
        self.feed, self._check = feed, check
        self.is_open = feed is not None  # whether further input may come
        self.first = 0  # number, in the stream, of the running phase's first branch
        self._waiting_branches: BranchSet | None = None

    @property
    def has_waiting(self) -> bool:
        """Whether branches wait for a following phase. Later input must then wait, too."""
        return self._waiting_branches is not None

    def take(self) -> BranchSet | None:
        """The input that the caller adds now; None if there is none."""
        if self.feed is None or not self.is_open:
            return None
        added = self.feed.more()
        self.is_open = added is not None
        return self._check(added) if added and len(added.trunks) else None

    def hold(self, branch_set: BranchSet) -> None:
        """Keeps branches for a following phase because the running phase has no room for them."""
        if self._waiting_branches is None:
            self._waiting_branches = branch_set
        else:
            self._waiting_branches.add(branch_set)

    def next_branch_set(self) -> BranchSet | None:
        """The branches of the following phase; None if no branches are left."""
        if (branch_set := self.take()) is not None:
            self.hold(branch_set)
        if self.is_open and not self.has_waiting:
            message = "no branch is being decoded and `more` returned none; return None to end it"
            raise ValueError(f"feed: {message}")
        waiting, self._waiting_branches = self._waiting_branches, None
        return waiting
