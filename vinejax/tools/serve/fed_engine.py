"""An engine whose branches join the server's running stream.

The samplers of training get it in the place of an engine, so that step values are computed by the
very functions that compute them in training.
"""

import queue
import time
from collections.abc import Callable
from typing import TypeVar

from vinejax.core.errors import UserError
from vinejax.core.settings import SampleConfig
from vinejax.core.text import Tokenizer
from vinejax.engine.branches import (
    Branches,
    Feeder,
    Grown,
    MaxTokens,
    Stream,
    StreamPairs,
    Trunks,
    as_lists,
    budgets_of,
    check_branches,
)
from vinejax.engine.engine import Engine
from vinejax.model.decoder import Decoder, Params
from vinejax.tools.serve.parsing import RequestError
from vinejax.tools.serve.requests import Sampling
from vinejax.tools.serve.scheduler import Scheduler, Ticket
from vinejax.tools.serve.wanted import Ended, Event, Failed, Wanted

T = TypeVar("T")
POLL_S = 0.25  # seconds between two looks at whether the client has left


class FedEngine(Engine):
    """Streams branches through a scheduler, for one request.

    Args:
      scheduler: Decodes the branches.
      model: The model that the scheduler's engines have.
      sample_config: Temperature, top-p, stop strings and the default budget.
      tokenizer: Decodes tokens.
      deadline: Time of `time.monotonic` at which the request is given up.
      is_given_up: Whether the client has left.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        model: Decoder,
        sample_config: SampleConfig,
        tokenizer: Tokenizer,
        deadline: float,
        is_given_up: Callable[[], bool],
    ):
        self.model, self.sample_config, self.tokenizer = model, sample_config, tokenizer
        self._scheduler, self._deadline, self._is_given_up = scheduler, deadline, is_given_up
        self.num_tokens = 0  # tokens drawn so far
        self.weights: dict[str, None] = {}  # the names of the weights that drew them, in order

    @property
    def scores_as_learner(self) -> bool:
        return False

    def stream(
        self,
        params: Params,
        trunks: Trunks,
        branches: Branches,
        max_tokens: MaxTokens = None,
        scored: bool = False,
        feed: Feeder | None = None,
    ) -> Stream:
        """The pairs of `Engine.stream` by the scheduler's weights; `params` are not read.

        Log-probabilities of trunks and feeds are not supported. Raises ValueError as an engine
        does. The loop over the stream raises RequestError once the client has left or the deadline
        has passed. If the scheduler's stream failed, it raises a RequestError for a UserError, and
        any other error as it is.
        """
        if scored or feed is not None:
            raise ValueError("a fed engine has neither scored trunks nor a feed")
        lists, cfg = as_lists(trunks), self.model.cfg
        check_branches(lists, branches, cfg)
        most = self.sample_config.max_tokens if max_tokens is None else max_tokens
        budgets = budgets_of(branches, most, cfg.context)
        numbers = [i for i, budget in enumerate(budgets) if budget > 0]
        wanted = [
            Wanted(
                trunk=lists[branches[i].trunk],
                position=branches[i].position,
                seed=branches[i].seed,
                budget=budgets[i],
                response=branches[i].response,
                stop=self.sample_config.stop,
            )
            for i in numbers
        ]
        without_tokens = [i for i, budget in enumerate(budgets) if budget <= 0]
        return Stream(lambda: self._pairs(wanted, numbers, without_tokens))

    def call(self, function: Callable[[Params], T]) -> T:
        """The result of `function(weights)`, computed where the scheduler computes."""
        return self._scheduler.call(function).result()

    def _pairs(
        self, wanted: list[Wanted], numbers: list[int], without_tokens: list[int]
    ) -> StreamPairs:
        """The pairs of the wanted branches, numbered by `numbers`, and of those of budget 0."""
        for i in without_tokens:
            yield i, Grown([], [], "", "length")
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        sample = self.sample_config
        sampling = Sampling.of(sample.temperature, sample.top_p, sample.top_k)
        ticket = self._scheduler.submit(Ticket(sampling, wanted, events.put))
        try:
            for _ in wanted:
                ended = self._next(events)
                self.num_tokens += len(ended.grown.tokens)
                self.weights[ended.source] = None
                yield numbers[ended.number], ended.grown
        finally:
            self._scheduler.cancel(ticket)
        return []

    def _next(self, events: "queue.SimpleQueue[Event]") -> Ended:
        while True:
            if self._is_given_up():
                raise RequestError(499, "the client has left")
            if time.monotonic() > self._deadline:
                raise RequestError(504, "the request took longer than serve.timeout_s")
            try:
                event = events.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if isinstance(event, Failed) and isinstance(event.error, UserError):
                raise RequestError(500, str(event.error)) from event.error
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Ended):
                return event
