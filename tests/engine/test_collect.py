"""The counts of a phase's decode steps, against figures counted by hand."""

import dataclasses

import numpy as np

from vinejax.engine.branches import BranchSet
from vinejax.engine.collect import Collector
from vinejax.engine.decode import GOING, LENGTH
from vinejax.engine.stats import EngineStats
from vinejax.engine.trace import HostSteps

NO_BRANCHES = BranchSet([], [], [], 0, [])  # it is read only where logits are not finite


def steps_of(shards: list[list[str]]) -> HostSteps:
    """A chunk's steps from a string for each slot: a letter is the item, a capital its last token.

    A dot is a step in which the slot is idle. The n-th letter of the alphabet is item n.
    """
    letters = np.array([[list(slot) for slot in slots] for slots in shards])
    item = np.vectorize(lambda x: -1 if x == "." else ord(x.lower()) - ord("a"))(letters)
    ended = np.where(np.char.isupper(letters), LENGTH, GOING)
    return HostSteps(item.astype(np.int32), item, item.astype(np.float32), ended)


def counted(stats: EngineStats) -> dict[str, int]:
    return {name: n for name, n in dataclasses.asdict(stats).items() if n}


def test_steps_count_by_what_slots_do_and_whether_a_branch_waits():
    """On shard 0 a branch waits in every step, and on shard 1 in the first, beside an idle slot.

    In the second chunk both slots of shard 0 end their branches at once. The last branch then waits
    for a row, and the steps without a busy slot do not count.
    """
    stats = EngineStats()
    order = [[10, 11, 12, 13, 14], [20, 21]]
    collector = Collector(NO_BRANCHES, order, slots=2, chunk=4, stats=stats, num_accepted=int)
    steps = steps_of([["aAcC", "bbbb"], ["AB..", "...."]])
    assert [branch.branch for branch in collector.add(steps)] == [10, 12, 20, 21]
    assert collector.not_ended.tolist() == [3, 0]
    assert counted(stats) == {
        "decode_steps": 4,  # of shard 0, which took the most
        "slot_steps": 2 * (4 + 2),
        "decoded_tokens": 10,
        "queued_slot_steps": 2 * 4 + 2,
        "queued_tokens": 2 * 4 + 1,
    }
    collector.add(steps_of([["D...", "B..."], ["....", "...."]]))
    collector.add(steps_of([["E...", "...."], ["....", "...."]]))
    assert collector.not_ended.tolist() == [0, 0]
    assert counted(stats) == {
        "decode_steps": 6,
        "slot_steps": 12 + 2 + 2,
        "decoded_tokens": 13,
        "queued_slot_steps": 10 + 2,
        "queued_tokens": 9 + 2,
    }


def test_tokens_before_a_restart_count_as_decoded_and_as_restarted():
    """A branch waits for a step and then begins again; later another one does, in another input."""
    stats = EngineStats()
    collector = Collector(NO_BRANCHES, [[0, 1]], slots=2, chunk=4, stats=stats, num_accepted=int)
    first, second = collector.add(steps_of([["a.aA", "bbbB"]]))
    assert (first.tokens.tolist(), second.tokens.tolist()) == ([0, 0], [1] * 4)
    assert (stats.decoded_tokens, stats.restarted_tokens) == (7, 1)
    collector.add_branches([[7, 8]])
    assert collector.not_ended.tolist() == [2] and collector.place_of(8) == (0, 3)
    assert not [*collector.add(steps_of([["cc.c", "dddd"]]))]
    assert stats.restarted_tokens == 1, "not known before all branches have ended"
    running = [(branch.branch, len(branch.tokens), branch.ended) for branch in collector.running()]
    assert running == [(7, 1, GOING), (8, 4, GOING)]
    assert [branch.branch for branch in collector.add(steps_of([["cC..", "D..."]]))] == [7, 8]
    assert not [*collector.running()]
    assert (stats.decoded_tokens, stats.restarted_tokens) == (7 + 7 + 3, 1 + 2)
