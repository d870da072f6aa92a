"""Sampling and grading with the run's journal: finished results are read, not computed again."""

import dataclasses
import functools
import hashlib
from typing import Any

import numpy as np

from vinejax.core.settings import GraderConfig, RewardConfig
from vinejax.core.types import Problem
from vinejax.engine.branches import Fed, Feed, Growing, Grown, Stream
from vinejax.engine.engine import Engine
from vinejax.engine.stats import EngineStats
from vinejax.model.decoder import Params
from vinejax.runtime.distributed import exchange, is_writer, shared_work
from vinejax.runtime.journal import Entry, Journal, Kept
from vinejax.tasks.base import Task
from vinejax.tasks.graded import BackgroundGrading, GradedTask, GradingStats
from vinejax.tasks.rewards import Reward


class JournaledEngine(Engine):
    """An `Engine` that looks into a journal first; each call of `stream` or `grow` is an entry.

    A call that is read gives its pairs in the branches' order, and adds to `stats` what it added
    when it was computed. A stream that is fed is none.
    """

    def __init__(self, journal: Journal, *args: Any, **settings: Any):
        """`args` and `settings` are those of `Engine`."""
        super().__init__(*args, **settings)
        self._journal = journal

    def _stream(self, params: Params, given: Fed, feed: Feed | None) -> Stream:
        computed = super()._stream(params, given, feed)
        # An environment may answer otherwise in another process: a program that prints the time.
        if not self._journal or feed is not None:
            return computed
        key = _digest(given, (self.sample_config, given.scored))
        return Stream(functools.partial(self._read_or_kept, key, computed))

    def _read_or_kept(self, key: str, computed: Stream) -> Growing:
        entry = self._journal.entry("wave", key)
        if entry.kept is not None:
            grown, logprobs, counts = _unpacked(entry.kept)
            self.stats.add(counts)
            yield from enumerate(grown)
            return logprobs
        before = dataclasses.replace(self.stats)
        by_branch: dict[int, Grown] = {}
        for i, grown in computed:
            by_branch[i] = grown
            yield i, grown
        in_order = [by_branch[i] for i in range(len(by_branch))]
        _keep(entry, in_order, computed.trunk_logprobs, self.stats.minus(before))
        return computed.trunk_logprobs


class JournaledTask(GradedTask):
    """A `GradedTask` that looks into a journal first; each background grading is an entry.

    A grading that is read adds to `stats` what it added when it was computed, on all hosts.
    """

    def __init__(
        self, journal: Journal, task: Task, cfg: GraderConfig, reward: RewardConfig | None = None
    ):
        super().__init__(task, cfg, reward)
        self._journal = journal
        self._read = GradingStats()  # counts of the gradings that were read

    @property
    def stats(self) -> GradingStats:
        return super().stats.plus(self._read)

    def background(self) -> BackgroundGrading:
        if not self._journal:
            return super().background()
        return _JournaledGrading(self, self._journal.entry("rewards", "by response"))

    def count_read(self, stats: GradingStats) -> None:
        """Counts a grading that an earlier process of the run has computed."""
        self._read = self._read.plus(stats)


class _JournaledGrading(BackgroundGrading):
    """A background grading that is read from an entry, or written to it.

    A reward is read for an equal response alone. Others may have its number if a setting that may
    change between two starts, as those of `eval` and `budget`, changes what is sampled.
    """

    def __init__(self, graded: JournaledTask, entry: Entry):
        super().__init__(graded)
        self._task, self._entry, self._before = graded, entry, graded.stats
        rows, self._stats = entry.kept.facts if entry.kept else ([], ())
        self._kept: dict[int, tuple[str, Any]] = {i: (name, x) for i, name, x in rows}
        self._names: dict[int, str] = {}  # of all responses of this host, by their contents
        self._read: dict[int, Reward] = {}

    def add(self, i: int, problem: Problem, response: str, ids: list[int]) -> None:
        content = repr((problem.id, response, ids)).encode()
        name = self._names[i] = hashlib.blake2b(content, digest_size=8).hexdigest()
        known, reward = self._kept.get(i, ("", ()))
        if known == name:
            self._read[i] = Reward(*reward)
        else:
            super().add(i, problem, response, ids)

    def rewards(self) -> dict[int, Reward]:
        graded = super().rewards()
        mine = {i: (name, self._read.get(i)) for i, name in self._names.items()}
        rows: list[tuple[int, str, Any]] = [
            (i, name, graded.get(i, read)) for i, (name, read) in shared_work(mine).items()
        ]
        if self._entry.kept is not None and not graded:
            if is_writer():
                self._task.count_read(GradingStats(*self._stats))
        else:
            by_host = exchange(dataclasses.astuple(self._task.stats.minus(self._before)))
            of_hosts = (GradingStats(*counts) for counts in by_host)
            stats = functools.reduce(GradingStats.plus, of_hosts)
            self._entry.keep([rows, dataclasses.astuple(stats)])
        return {i: Reward(*reward) for i, _, reward in rows}


def _digest(given: Fed, settings: object) -> str:
    """Identifies a call of the engine by all but the weights."""
    trunks, branches, max_tokens, _ = given
    places = [(b.trunk, b.position, -1 if b.response is None else b.response) for b in branches]
    parts = (
        *_joined(trunks, np.int32),
        np.array(places, np.int64),
        np.array([branch.seed for branch in branches], np.uint64),
        np.array([] if max_tokens is None else max_tokens, np.int64),
    )
    found = hashlib.blake2b(repr(settings).encode(), digest_size=16)
    for part in parts:
        found.update(repr(part.shape).encode())
        found.update(part.tobytes())
    return found.hexdigest()


def _keep(
    entry: Entry,
    grown: list[Grown],
    trunk_logprobs: list[np.ndarray],
    counts: EngineStats,
) -> None:
    tokens, lengths = _joined([one.tokens for one in grown], np.int32)
    logprobs, _ = _joined([one.logprobs for one in grown], np.float32)
    of_trunks, trunk_lengths = _joined(trunk_logprobs, np.float32)
    texts = [(one.text, one.finish, one.overlap) for one in grown]
    entry.keep(
        {"texts": texts, "counts": dataclasses.asdict(counts)},
        tokens=tokens,
        logprobs=logprobs,
        lengths=lengths,
        trunk_logprobs=of_trunks,
        trunk_lengths=trunk_lengths,
    )


def _unpacked(kept: Kept) -> tuple[list[Grown], list[np.ndarray], EngineStats]:
    """(continuations, log-probabilities of the trunks, counts), as `_keep` got them."""
    arrays, facts = kept.arrays, kept.facts
    tokens = _parted(arrays["tokens"], arrays["lengths"])
    logprobs = _parted(arrays["logprobs"], arrays["lengths"])
    grown = [
        Grown(ids.tolist(), of_ids.tolist(), *text)
        for ids, of_ids, text in zip(tokens, logprobs, facts["texts"], strict=True)
    ]
    of_trunks = _parted(arrays["trunk_logprobs"], arrays["trunk_lengths"])
    return grown, of_trunks, EngineStats(**facts["counts"])


def _joined(rows: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """(the rows one after the other, their lengths)."""
    parts = [np.asarray(row, dtype) for row in rows]
    return np.concatenate([np.zeros(0, dtype), *parts]), np.array(list(map(len, parts)), np.int32)


def _parted(joined: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """The rows that `_joined` was given."""
    return np.split(joined, np.cumsum(lengths)[:-1]) if len(lengths) else []
