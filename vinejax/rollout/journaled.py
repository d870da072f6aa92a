"""An engine whose finished calls are in the run's journal, and are not sampled again."""

import dataclasses
import hashlib
from typing import Any

import numpy as np

from vinejax.core.settings import SampleConfig
from vinejax.engine.branches import Growing, Grown, Stream, Work
from vinejax.engine.engine import Engine
from vinejax.engine.stats import EngineStats
from vinejax.model.decoder import Params
from vinejax.runtime.journal import Entry, Journal, Kept


class JournaledEngine(Engine):
    """An `Engine` that looks into a journal first; each call of `stream` or `grow` is an entry.

    A call that is read gives its pairs in the branches' order, and adds to `stats` what it added
    when it was computed.
    """

    def __init__(self, journal: Journal, *args: Any, **settings: Any):
        """`args` and `settings` are those of `Engine`."""
        super().__init__(*args, **settings)
        self._journal = journal

    def _grow(self, params: Params, work: Work, scored: bool, int8: bool) -> Growing:
        if not self._journal:
            return (yield from super()._grow(params, work, scored, int8))
        entry = self._journal.entry("wave", _digest(work, (self.sample_config, scored, int8)))
        if entry.kept is not None:
            grown, logprobs, counts = _unpacked(entry.kept)
            self.stats.add(counts)
            yield from enumerate(grown)
            return logprobs
        return (yield from self._kept(entry, super()._grow(params, work, scored, int8)))

    def _kept(self, entry: Entry, growing: Growing) -> Growing:
        """The same pairs; writes them as the entry when the last has come."""
        before, grown = dataclasses.replace(self.stats), {}
        stream = Stream(lambda: growing)
        for i, one in stream:
            grown[i] = one
            yield i, one
        in_order = [grown[i] for i in range(len(grown))]
        _keep(entry, in_order, stream.trunk_logprobs, self.stats.minus(before))
        return stream.trunk_logprobs


def _digest(work: Work, settings: tuple[SampleConfig, bool, bool]) -> str:
    """Tells a call of the engine with its settings from others, beside the weights."""
    places = [
        (b.trunk, b.position, -1 if b.response is None else b.response) for b in work.branches
    ]
    parts = (
        *_joined(work.trunks, np.int32),
        np.array(places, np.int64),
        np.array([branch.seed for branch in work.branches], np.uint64),
        np.array(work.budgets, np.int64),
    )
    found = hashlib.blake2b(repr(settings).encode(), digest_size=16)
    for part in parts:
        found.update(repr(part.shape).encode())
        found.update(part.tobytes())
    return found.hexdigest()


def _keep(
    entry: Entry, grown: list[Grown], trunk_logprobs: list[np.ndarray], counts: EngineStats
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
