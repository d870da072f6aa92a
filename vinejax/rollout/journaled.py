"""Sampling and grading with the run's journal: finished results are read, not computed again."""

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vinejax.core.errors import WorkdirError
from vinejax.core.settings import GraderConfig, RewardConfig
from vinejax.core.types import Problem
from vinejax.engine.branches import Fed, Feed, Growing, Grown, Stream
from vinejax.engine.engine import Engine
from vinejax.engine.stats import EngineStats
from vinejax.model.decoder import Params
from vinejax.runtime.distributed import exchange, is_writer, shared_work
from vinejax.runtime.journal import FOLDER, Entry, Journal, Kept
from vinejax.tasks.base import Task
from vinejax.tasks.graded import BackgroundGrading, GradedTask, GradingStats
from vinejax.tasks.rewards import Reward


class JournaledEngine(Engine):
    """An `Engine` that looks into a journal first; each call of `stream` or `grow` is an entry.

    A call that is read gives its pairs in the branches' order, and adds to `stats` what it added
    when it was computed. A stream whose feed does not repeat is none.
    """

    def __init__(self, journal: Journal, *args: Any, **settings: Any):
        """`args` and `settings` are those of `Engine`."""
        super().__init__(*args, **settings)
        self._journal = journal

    def _stream(self, params: Params, given: Fed, feed: Feed | None) -> Stream:
        is_kept = bool(self._journal) and (feed is None or feed.repeats)
        fed = _Fed(feed) if is_kept and feed else None
        noted = feed if fed is None else fed.noted()
        computed = super()._stream(params, given, noted)
        if not is_kept:
            return computed
        settings = (self.sample_config, given.scored, *([] if feed is None else ["fed"]))
        key = _digest(given, settings)
        return Stream(functools.partial(self._read_or_kept, key, computed, fed))

    def _read_or_kept(self, key: str, computed: Stream, fed: "_Fed | None") -> Growing:
        entry = self._journal.entry("wave", key)
        if entry.kept is not None:
            grown, logprobs, counts = _unpacked(entry.kept)
            self.stats.add(counts)
            yield from (
                enumerate(grown) if fed is None else fed.again(entry.kept.facts["fed"], grown)
            )
            return logprobs
        before = dataclasses.replace(self.stats)
        by_branch: dict[int, Grown] = {}
        if fed is not None:
            fed.events.clear()
        for i, grown in computed:
            by_branch[i] = grown
            if fed is not None:
                fed.events.append(i)
            yield i, grown
        in_order = [by_branch[i] for i in range(len(by_branch))]
        counts = self.stats.minus(before)
        _keep(entry, in_order, computed.trunk_logprobs, counts, [] if fed is None else fed.events)
        return computed.trunk_logprobs


class _Fed:
    """What was fed to a stream: its events are numbers of branches that were handed out, in order,
    and between them the digests of what the caller gave when it was asked for more."""

    def __init__(self, feed: Feed):
        self._feed = feed
        self.events: list[int | str] = []

    def noted(self) -> Feed:
        """The feed, with events of its own."""
        return dataclasses.replace(self._feed, more=self._more)

    def _more(self) -> Fed | None:
        fed = self._feed.more()
        self.events.append("" if fed is None else _digest(fed, fed.scored))
        return fed

    def again(self, events: list[int | str], grown: list[Grown]) -> Iterator[tuple[int, Grown]]:
        """The pairs of an earlier process in their order; the caller has to feed what it fed then.

        Raises WorkdirError if it does not.
        """
        for event in events:
            if isinstance(event, int):
                yield event, grown[event]
                continue
            self._more()
            if self.events[-1] != event:
                rule = "was fed other branches than those of this run; remove it, and start again"
                raise WorkdirError(f"{FOLDER}: a stream in the journal {rule}")


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

    def add(self, i: int, problem: Problem, response: str, ids: list[int], kind: str = "") -> None:
        content = repr((problem.id, response, ids)).encode()
        name = self._names[i] = hashlib.blake2b(content, digest_size=8).hexdigest()
        known, reward = self._kept.get(i, ("", ()))
        if known == name:
            self._read[i] = Reward(*reward)
        else:
            super().add(i, problem, response, ids, kind)

    def of(self, numbers: Sequence[int]) -> dict[int, Reward]:
        return super().of(numbers) | {i: self._read[i] for i in numbers if i in self._read}

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
    """Identifies a call of the engine, or what is fed to one, by all but the weights."""
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
    fed: list[int | str],
) -> None:
    tokens, lengths = _joined([one.tokens for one in grown], np.int32)
    logprobs, _ = _joined([one.logprobs for one in grown], np.float32)
    of_trunks, trunk_lengths = _joined(trunk_logprobs, np.float32)
    texts = [(one.text, one.finish, one.overlap) for one in grown]
    entry.keep(
        {"texts": texts, "counts": dataclasses.asdict(counts), "fed": fed},
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
