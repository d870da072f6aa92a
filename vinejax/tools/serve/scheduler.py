"""The thread that owns the engine: branches of all requests join one running stream.

The branches of a stream share a decode program, in which a request's `Sampling` (temperature, top-p
and top-k) is a constant. So requests of one sampling are decoded together, and samplings take
turns: while requests with another sampling wait, a stream takes branches for `TURN_S` seconds. A
stream also ends when newer weights have come, and after `MOST_BRANCHES` branches, whose trunks it
keeps.

Requests take turns, too: each adds up to `PER_TURN` branches at a time, so that a request with
thousands of branches does not keep others waiting.
"""

import functools
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from vinejax.core.text import Tokenizer
from vinejax.engine.branches import Branch, Feeder, StreamInput
from vinejax.engine.engine import Engine
from vinejax.engine.memory import MAX_BATCH
from vinejax.model.decoder import Params
from vinejax.tools.serve.parsing import RequestError
from vinejax.tools.serve.requests import Sampling
from vinejax.tools.serve.stopping import StopSearch, cut_grown
from vinejax.tools.serve.wanted import Ended, Event, Failed, Tokens, Wanted

TURN_S = 2.0
PER_TURN = 8
MOST_BRANCHES = 4000  # of a stream


class Weights(NamedTuple):
    """The weights that are served, and where they are from, such as 'checkpoints/40'."""

    params: Params
    source: str


class Ticket:
    """The branches of a request: which still wait, and whether the client still wants them."""

    def __init__(
        self,
        sampling: Sampling,
        wanted: Sequence[Wanted],
        deliver: Callable[[Event], None],
        is_streamed: bool = False,
    ):
        """`deliver` is called on the scheduler's thread and must not block.

        With `is_streamed` it also gets `Tokens`, after every chunk of decode steps.
        """
        self.sampling, self.deliver, self.is_streamed = sampling, deliver, is_streamed
        self.waiting = deque(enumerate(wanted))
        self.arrived = time.monotonic()
        self.is_cancelled = False


class _Running(NamedTuple):
    """A branch in the engine."""

    ticket: Ticket
    number: int  # of the branch, in its request
    wanted: Wanted
    search: StopSearch | None  # looks for the request's stop strings


class Scheduler:
    """Decodes branches on a thread of its own, from `start` to `close`.

    Args:
      weights: The weights to begin with.
      tokenizer: Decodes tokens, to find stop strings.
      make_engine: Makes the engine of a sampling.
      most: (most tokens of a trunk, most tokens of a branch).
      samplings: The most samplings, each of which has a program of its own.
    """

    def __init__(
        self,
        weights: Weights,
        tokenizer: Tokenizer,
        make_engine: Callable[[Sampling], Engine],
        most: tuple[int, int],
        samplings: int,
    ):
        self._weights = weights
        self._newer: Weights | None = None
        self._tokenizer, self._make_engine = tokenizer, make_engine
        self._longest, self._budget = most
        self._engines: dict[Sampling, Engine] = {}
        self._samplings, self._most_samplings = set[Sampling](), samplings
        self._changed = threading.Condition()
        self._tickets = deque[Ticket]()  # those with waiting branches
        self._calls = deque[tuple[Callable[[Params], Any], Future[Any]]]()
        self._is_closed = False
        # Of the running stream:
        self._running: dict[int, _Running] = {}
        self._over = set[int]()  # numbers of branches that were already given up
        self._numbers = itertools.count()
        self._last: Sampling | None = None
        self._began, self._num_fed = 0.0, 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread once all submitted branches have ended; nothing may be submitted then."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, ticket: Ticket) -> Ticket:
        """Adds the branches of a request.

        Raises RequestError if the request needs one sampling more than `serve.samplings` allows.
        """
        with self._changed:
            is_new = ticket.waiting and ticket.sampling not in self._samplings
            if is_new and len(self._samplings) >= self._most_samplings:
                known = ", ".join(f"({t:g}, {p:g}, {k})" for t, p, k in sorted(self._samplings))
                message = f"serve.samplings = {self._most_samplings} allows no further program;"
                message += f" use a (temperature, top_p, top_k) of {known}"
                raise RequestError(400, message, "temperature")
            if ticket.waiting:
                self._samplings.add(ticket.sampling)
            self._tickets.append(ticket)
            self._changed.notify_all()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Gives up a request: its waiting branches are dropped, and its slots become free."""
        with self._changed:
            ticket.is_cancelled = True
            ticket.waiting.clear()
            self._changed.notify_all()

    def call(self, function: Callable[[Params], Any]) -> Future[Any]:
        """The result of `function(weights)`, which is computed between two chunks of a stream.

        After `close` it is a RequestError.
        """
        future: Future[Any] = Future()
        with self._changed:
            if self._is_closed:  # the thread may have ended, and would never answer
                future.set_exception(RequestError(503, "the server is stopping"))
                return future
            self._calls.append((function, future))
            self._changed.notify_all()
        return future

    def replace_weights(self, weights: Weights) -> None:
        """Serves other weights from the next stream on. Branches that run keep theirs."""
        with self._changed:
            self._newer = weights
            self._changed.notify_all()

    @property
    def source(self) -> str:
        """Where the weights that are served now are from."""
        return self._weights.source

    @property
    def params(self) -> Params:
        """The weights that are served now."""
        return self._weights.params

    @property
    def num_running(self) -> int:
        """The number of branches in the engine."""
        return len(self._running)

    # --- the scheduler's thread ---

    def _run(self) -> None:
        while (sampling := self._next()) is not None:
            try:
                self._stream(sampling)
            except Exception as error:
                self._fail(sampling, error)

    def _next(self) -> Sampling | None:
        """Waits for a request, and returns its sampling; None once the scheduler is closed."""
        while True:
            self._answer_calls()
            with self._changed:
                self._drop_empty()
                if self._newer is not None:
                    self._weights, self._newer = self._newer, None
                if self._tickets:
                    # Another sampling than the last one, if there is one.
                    order = [(x.sampling == self._last, x.arrived, x) for x in self._tickets]
                    return min(order, key=lambda entry: entry[:2])[2].sampling
                if not self._calls:
                    if self._is_closed:
                        return None
                    self._changed.wait()

    def _stream(self, sampling: Sampling) -> None:
        """Decodes the branches of one sampling until its turn is over."""
        self._running, self._over, self._numbers = {}, set(), itertools.count()
        self._last, self._began, self._num_fed = sampling, time.monotonic(), 0
        engine = self._engine(sampling)
        # All phases begin with one branch, so that all have the same shapes.
        first = self._input(sampling, 1)
        if first is None:
            return
        params, source = self._weights
        feed = Feeder(
            more=lambda: self._more(sampling),
            branches=MOST_BRANCHES,
            longest=self._longest,
            at_once=2 * engine.slots,
            budget=self._budget,
            watch=functools.partial(self._watch, source),
        )
        stream = engine.stream(params, *first[:3], feed=feed)
        for number, grown in stream:
            running = self._running.pop(number)
            if not running.ticket.is_cancelled:
                cut = cut_grown(self._tokenizer, running.wanted, grown)
                running.ticket.deliver(Ended(running.number, cut, source))

    def _engine(self, sampling: Sampling) -> Engine:
        """The engine of a sampling; the engines of others give their copy of the weights back."""
        for other, engine in self._engines.items():
            if other != sampling:
                engine.release()
        if sampling not in self._engines:
            self._engines[sampling] = self._make_engine(sampling)
        return self._engines[sampling]

    def _more(self, sampling: Sampling) -> StreamInput | None:
        """The feed's input: further branches, none if others still run, or None to end the stream.

        Waits while there is nothing to decode.
        """
        while True:
            self._answer_calls()
            with self._changed:
                self._drop_empty()
                is_over = self._is_over(sampling)
                room = 0 if is_over else self._room(sampling)
                if room > 0 and (fed := self._input(sampling, room)) is not None:
                    return fed
                if self._running:
                    return StreamInput([], [])
                if is_over:
                    return None
                if not self._calls:
                    self._changed.wait()

    def _room(self, sampling: Sampling) -> int:
        """The number of branches that may enter now, up to two per slot in all.

        While enough branches wait for slots in the engine, further ones enter in prefill batches: a
        prefill of few trunks costs as much as one of a whole batch.
        """
        slots = self._engines[sampling].slots
        waiting = sum(len(x.waiting) for x in self._tickets if x.sampling == sampling)
        if len(self._running) >= slots + slots // 4 and waiting < MAX_BATCH:
            return 0
        return 2 * slots - len(self._running)

    def _is_over(self, sampling: Sampling) -> bool:
        """Whether the stream takes no more branches."""
        if self._newer is not None or self._num_fed >= MOST_BRANCHES:
            return True
        others = [ticket for ticket in self._tickets if ticket.sampling != sampling]
        if len(others) == len(self._tickets) and (others or self._is_closed):
            return True  # nothing of this sampling waits
        return bool(others) and time.monotonic() - self._began > TURN_S

    def _drop_empty(self) -> None:
        self._tickets = deque(ticket for ticket in self._tickets if ticket.waiting)

    def _input(self, sampling: Sampling, room: int) -> StreamInput | None:
        """Up to `room` waiting branches as input of the stream; None if there are none."""
        taken = self._take(sampling, min(room, MOST_BRANCHES - self._num_fed))
        if not taken:
            return None
        trunks: dict[tuple[int, ...], int] = {}
        branches, budgets = [], []
        for ticket, number, wanted in taken:
            trunk = trunks.setdefault(tuple(wanted.trunk), len(trunks))
            branches.append(Branch(trunk, wanted.position, wanted.seed, wanted.response))
            budgets.append(wanted.budget)
            search = StopSearch(self._tokenizer, wanted) if wanted.stop else None
            self._running[next(self._numbers)] = _Running(ticket, number, wanted, search)
        self._num_fed += len(taken)
        return StreamInput([list(trunk) for trunk in trunks], branches, budgets)

    def _take(self, sampling: Sampling, room: int) -> list[tuple[Ticket, int, Wanted]]:
        """Takes up to `room` waiting branches of a sampling, PER_TURN of a request at a time."""
        taken: list[tuple[Ticket, int, Wanted]] = []
        with self._changed:
            while len(taken) < room:
                tickets = (x for x in self._tickets if x.sampling == sampling and x.waiting)
                if (ticket := next(tickets, None)) is None:
                    break
                for _ in range(min(PER_TURN, room - len(taken), len(ticket.waiting))):
                    taken.append((ticket, *ticket.waiting.popleft()))
                self._tickets.remove(ticket)
                if ticket.waiting:
                    self._tickets.append(ticket)  # to the end of the line
        return taken

    def _watch(self, source: str, tokens_by_branch: Iterable[tuple[int, np.ndarray]]) -> set[int]:
        """Sends streamed tokens; returns the branches that are cancelled or have a stop string.

        `source` names the weights of the stream.
        """
        over = {number for number, x in self._running.items() if x.ticket.is_cancelled}
        for number, tokens in tokens_by_branch:
            running = self._running.get(number)
            if running is None or number in over or number in self._over:
                continue
            if running.search is not None and running.search.is_hit(tokens):
                over.add(number)
            if running.ticket.is_streamed:
                running.ticket.deliver(Tokens(running.number, tokens.tolist(), source))
        new = over - self._over
        self._over |= new
        return new

    def _answer_calls(self) -> None:
        """Runs the functions of `call`."""
        while True:
            with self._changed:
                if not self._calls:
                    return
                function, future = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(self._weights.params))
                except Exception as error:
                    future.set_exception(error)

    def _fail(self, sampling: Sampling, error: Exception) -> None:
        """Gives up the requests in the failed stream or, before its start, those that wait."""
        tickets = {id(x.ticket): x.ticket for x in self._running.values()}
        if not tickets:
            with self._changed:  # other threads add requests
                tickets = {id(x): x for x in self._tickets if x.sampling == sampling}
        self._running = {}
        for ticket in tickets.values():
            self.cancel(ticket)
            ticket.deliver(Failed(error))
