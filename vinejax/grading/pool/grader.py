"""Grading in processes that can be killed: a pair that hangs or crashes harms no other pair.

    with Grader(workers=2, timeout_s=5) as grader:
        verdicts = grader.grade_many([("\\frac{1}{2}", "0.5"), ("x+1", "1+x")])

Cheap pairs (equal strings, plain numbers, all that the mode decides without sympy) are answered
here. Other pairs go to workers, which start on first use and stay. A worker has one pair at a
time, so each pair has the full time limit. Signals and threads, which other graders use, cannot
interrupt a hanging sympy, and a process that runs JAX must not be forked.
"""

import contextlib
import dataclasses
import os
import selectors
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from vinejax.core.errors import UserError
from vinejax.grading.extract import Style, extract_answer, reference_gsm8k
from vinejax.grading.pool.jobs import Job, Mode, characters_of, cheap_verdict
from vinejax.grading.pool.process import WorkerProcess
from vinejax.grading.reference.compare import bare_answers, equal_gsm8k, reference_answers

START_ATTEMPTS = 3
LONGEST_CACHED = 1000  # characters of a job; longer jobs are rare, and would fill the memory
ALARM_SLACK_S = 10.0  # a worker ends itself this long after the pool should have ended it


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`correct` is False unless the comparison finished ('ok') and found the answers equal.

    `score` is 1 for a correct answer, else the answer's partial credit. Only `score_many` gives
    partial credit.

    Example:
      >>> vinejax.Verdict(correct=True)
      Verdict(correct=True, status='ok')
    """

    correct: bool
    status: Literal["ok", "timeout", "error"] = "ok"
    partial: float = dataclasses.field(default=0.0, repr=False)

    @property
    def score(self) -> float:
        return 1.0 if self.correct else self.partial


@dataclasses.dataclass
class GraderStats:
    """Counts since a grader was made; `pairs`, `timeouts` and `errors` count repeated pairs too."""

    pairs: int = 0
    compared: int = 0  # pairs that workers compared
    timeouts: int = 0
    errors: int = 0
    started: int = 0  # workers that were started, also as replacements


class Grader(contextlib.AbstractContextManager["Grader"]):
    """A pool of workers; a context manager, usable from several threads, one call at a time.

    `timeout_s` is the wall-clock time for one pair, from when a worker starts on the pair. When
    this time is over, the worker gets SIGTERM, and SIGKILL `grace_s` later. `memory_mb` limits a
    worker's address space, `recycle` is the number of pairs after which a worker is replaced, and
    `cache` is the number of verdicts that are kept. Raises ValueError for invalid settings.

    Example:
      >>> with vinejax.Grader(workers=1, timeout_s=5) as grader:
      ...     [verdict.correct for verdict in grader.grade_many([("7", "7.0"), ("7", "8")])]
      [True, False]
    """

    def __init__(
        self,
        workers: int = 2,
        timeout_s: float = 5.0,
        mode: Mode = "strict",
        style: Style = "math",
        *,
        memory_mb: int = 2048,
        grace_s: float = 1.0,
        recycle: int = 10_000,
        cache: int = 50_000,
    ):
        if mode not in ("strict", "reference") or style not in ("math", "gsm8k"):
            raise ValueError(f"no mode {mode!r} with style {style!r}")
        if min(workers, timeout_s, memory_mb, recycle) <= 0 or min(grace_s, cache) < 0:
            raise ValueError("workers, timeout_s, memory_mb and recycle must be positive")
        self.mode: Mode = mode
        self.style: Style = style
        self.workers, self.timeout_s = workers, timeout_s
        self.grace_s, self.recycle, self.cache = grace_s, recycle, cache
        self.stats = GraderStats()
        alarm_s = timeout_s + grace_s + ALARM_SLACK_S
        self._settings = {"memory_mb": memory_mb, "alarm_s": alarm_s}
        self._verdicts: OrderedDict[Job, Verdict] = OrderedDict()
        self._lock = threading.Lock()
        self._failed_starts = 0
        self._closed = False
        self._own_new_workers()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers. A closed grader grades no more."""
        with self._lock:
            self._closed = True
            self._finalizer()

    def _own_new_workers(self) -> None:
        """Begin with no workers.

        A forked child also calls this method, because its parent owns the existing workers.
        """
        self._live: list[WorkerProcess] = []
        self._dying: list[tuple[WorkerProcess, float]] = []
        self._pid = os.getpid()
        arguments = (self._live, self._dying, self._pid, self.grace_s)
        # This also ends the workers when the interpreter ends, if nobody closes the grader.
        self._finalizer = weakref.finalize(self, _end_all, *arguments)

    def grade_many(self, pairs: Iterable[tuple[str | None, str]]) -> list[Verdict]:
        """The verdicts on pairs (prediction, gold) of answers, in order. Answers may be boxed.

        A prediction of None is wrong. No text in a pair can raise an exception. Raises UserError
        when workers cannot be started at all, ValueError for an answer that is no text, such as the
        number 7, and after `close`.
        """
        pairs = list(pairs)
        _check_texts(gold for _, gold in pairs)
        _check_texts(prediction for prediction, _ in pairs if prediction is not None)
        return self._grade([self._job(prediction, gold) for prediction, gold in pairs])

    def readable_many(self, golds: Iterable[str]) -> list[Verdict]:
        """Verdicts on `golds`, a data set's answers; `correct` means that an answer is readable.

        Mode 'strict' reads words, numbers, formulas and e.g. lists of these, but no text that could
        only equal itself. In mode 'reference' VinePPO's extraction must find answers, and none of
        them may be blank. An answer that takes too long to read is not readable.
        """
        golds = list(golds)
        _check_texts(golds)
        if self.mode == "reference" and self.style == "gsm8k":
            return [Verdict(bool(gold.strip())) for gold in golds]
        return self._grade([(self.mode, None, gold) for gold in golds])

    def grade_responses(self, items: Iterable[tuple[str, str, str]]) -> list[Verdict]:
        """The verdicts on (response, gold, problem), in order, by the rules of `grade_response`."""
        items = list(items)
        _check_texts(text for item in items for text in item)
        return self._grade([self._response_job(*item) for item in items])

    def score_many(self, items: Iterable[tuple[str | None, str]]) -> list[float]:
        """The scores of answers, from 0 to 1, by the rules of their data sets, in order.

        Each of `items` is (answer, `packed` of `gym.score`). The score is 0 if the answer is None,
        if scoring takes too long, or if the data set's rule raises an error.
        """
        jobs: list[Job | bool] = [
            False if answer is None else ("score", answer, entry) for answer, entry in items
        ]
        return [verdict.score for verdict in self._grade(jobs)]

    def _job(self, prediction: str | None, gold: str) -> Job | bool:
        """The job that compares a pair, or the verdict if a comparison of strings is enough."""
        if prediction is None:
            return False
        if self.mode == "strict":
            return ("strict", prediction, gold)
        if self.style == "gsm8k":
            return equal_gsm8k(prediction, gold)
        if prediction == gold:
            return True  # equal texts have equal lists of answers
        return ("reference", tuple(bare_answers(prediction)), tuple(bare_answers(gold)))

    def _response_job(self, response: str, gold: str, problem: str) -> Job | bool:
        if self.mode == "strict":
            return self._job(extract_answer(response, self.style), gold)
        if self.style == "gsm8k":
            return self._job(reference_gsm8k(response), reference_gsm8k(gold) or gold)
        answers, golds = reference_answers(response, gold, problem)
        return ("reference", tuple(answers), tuple(golds))

    def _grade(self, jobs: Sequence[Job | bool]) -> list[Verdict]:
        with self._lock:
            if self._closed:
                raise ValueError("this grader is closed")
            known: dict[Job | bool, Verdict] = {True: Verdict(True), False: Verdict(False)}
            hard: list[Job] = []
            for job in dict.fromkeys(jobs):
                if isinstance(job, bool):
                    continue
                verdict = self._without_worker(job)
                if verdict is None:
                    hard.append(job)
                else:
                    known[job] = verdict
            if hard:
                known |= self._compare(hard)
            verdicts = [known[job] for job in jobs]
            self.stats.pairs += len(verdicts)
            self.stats.timeouts += sum(verdict.status == "timeout" for verdict in verdicts)
            self.stats.errors += sum(verdict.status == "error" for verdict in verdicts)
            return verdicts

    def _without_worker(self, job: Job) -> Verdict | None:
        if job in self._verdicts:
            self._verdicts.move_to_end(job)
            return self._verdicts[job]
        correct = cheap_verdict(job)
        return None if correct is None else Verdict(correct)

    def _compare(self, jobs: list[Job]) -> dict[Job, Verdict]:
        """Gives distinct jobs to the workers and returns their verdicts."""
        if os.getpid() != self._pid:
            self._finalizer.detach()
            self._own_new_workers()
        pending, verdicts = deque(jobs), {}
        try:
            while len(verdicts) < len(jobs):
                self._hand_out(pending)
                for job, verdict in self._collect():
                    verdicts[job] = verdict
                    self._remember(job, verdict)
        except BaseException:
            # Also for Ctrl-C: a worker's late reply must not be taken for that on another pair.
            _end_all(self._live, self._dying, self._pid, self.grace_s)
            raise
        self.stats.compared += len(jobs)
        return verdicts

    def _hand_out(self, pending: deque[Job]) -> None:
        for worker in [w for w in self._live if w.ready and w.job is None and w.ended()]:
            self._lose(worker, "error")
        busy = sum(worker.job is not None for worker in self._live)
        while len(self._live) < min(self.workers, busy + len(pending)):
            kinds = sorted({job[0] for job in pending})
            self._live.append(WorkerProcess({**self._settings, "kinds": kinds}))
            self.stats.started += 1
        for worker in self._live:
            if pending and worker.ready and worker.job is None:
                worker.give(pending.popleft(), self.timeout_s)

    def _collect(self) -> list[tuple[Job, Verdict]]:
        """Wait until a worker replies, dies or reaches its deadline, and act on this event.

        Returns the jobs that are thereby done, with their verdicts.
        """
        now = time.monotonic()
        moments = [w.deadline for w in self._live if w.job or not w.ready]
        moments += [kill_at for _, kill_at in self._dying]
        with selectors.DefaultSelector() as selector:
            for worker in self._live:
                selector.register(worker, selectors.EVENT_READ, worker)
            events = selector.select(max(0.0, min(moments) - now))
        done = [result for key, _ in events for result in self._receive(key.data)]
        now = time.monotonic()
        for worker in [w for w in self._live if w.deadline <= now and (w.job or not w.ready)]:
            done += self._lose(worker, "timeout")
        for worker, kill_at in list(self._dying):
            if worker.ended() or kill_at <= now:
                self._dying.remove((worker, kill_at))
                worker.finish(grace_s=0)
        return done

    def _receive(self, worker: WorkerProcess) -> list[tuple[Job, Verdict]]:
        try:
            reply = worker.receive()
        except (EOFError, ValueError):
            return self._lose(worker, "error")
        if reply is None:
            return []
        if worker.job is None:
            if "fatal" in reply:
                raise UserError(f"a grader's worker cannot start: {reply['fatal']}")
            worker.ready = True
            self._failed_starts = 0
            return []
        job, worker.job = worker.job, None
        worker.graded += 1
        if worker.graded >= self.recycle:
            self._lose(worker, "error")  # it has no job, so the status is not used
        status = "error" if "error" in reply else "ok"
        score = reply.get("score", 0.0)
        return [(job, Verdict(score >= 1, status, score if score < 1 else 0.0))]

    def _lose(
        self, worker: WorkerProcess, status: Literal["timeout", "error"]
    ) -> list[tuple[Job, Verdict]]:
        """End a worker. Returns its job, if it has one, with a verdict of this `status`."""
        self._live.remove(worker)
        worker.terminate()
        self._dying.append((worker, time.monotonic() + self.grace_s))
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= START_ATTEMPTS:
                raise UserError("a grader's worker cannot start: it ends or hangs while importing")
        return [] if worker.job is None else [(worker.job, Verdict(False, status))]

    def _remember(self, job: Job, verdict: Verdict) -> None:
        """Cache the verdict on a job.

        Jobs with long texts are not cached, nor are errors, because an error may not recur.
        """
        if verdict.status == "error" or sum(map(characters_of, job[1:])) > LONGEST_CACHED:
            return
        self._verdicts[job] = verdict
        while len(self._verdicts) > self.cache:
            self._verdicts.popitem(last=False)


def _check_texts(texts: Iterable[Any]) -> None:
    """Raises ValueError for the first entry that is no text."""
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"answers and responses are texts, and {text!r} is none: use str(...)")


def _end_all(
    live: list[WorkerProcess], dying: list[tuple[WorkerProcess, float]], pid: int, grace_s: float
) -> None:
    """End every worker in `live` and `dying`, if this process has the id `pid`.

    Does nothing in any other process: that is a forked child, and its parent owns the workers.
    """
    if os.getpid() != pid:
        return
    workers = [*live, *(worker for worker, _ in dying)]
    live.clear()
    dying.clear()
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.finish(grace_s)
