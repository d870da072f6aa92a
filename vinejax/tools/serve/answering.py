"""Answers checked requests: submits their branches to the scheduler and collects the results."""

import asyncio
import contextlib
import dataclasses
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vinejax.core.text import MAX_TAG, Tokenizer, decode, opens_thinking
from vinejax.engine.branches import Grown
from vinejax.model.decoder import Decoder, Params
from vinejax.tools.serve.parsing import RequestError
from vinejax.tools.serve.prompts import PromptEncoder
from vinejax.tools.serve.replies import (
    Choice,
    Chunks,
    StreamedText,
    TokenForms,
    counts_of,
    text_reply,
    usage,
)
from vinejax.tools.serve.requests import SEEDS, StepValuesRequest, TextRequest
from vinejax.tools.serve.scheduler import Scheduler, Ticket
from vinejax.tools.serve.scoring import TokenLogprobs, token_logprobs
from vinejax.tools.serve.step_values import StepValuer, shown_values
from vinejax.tools.serve.wanted import Ended, Event, Failed, Tokens, Wanted

VALUE_THREADS = 8  # requests to /v1/step_values that are answered at a time; others wait


@dataclasses.dataclass(frozen=True)
class Answerer:
    """Answers requests with one model."""

    name: str  # of the model
    model: Decoder
    tokenizer: Tokenizer
    scheduler: Scheduler
    encoder: PromptEncoder
    valuer: StepValuer
    timeout_s: float
    threads: ThreadPoolExecutor  # VALUE_THREADS of them
    forms: TokenForms  # of the tokenizer's tokens

    def check_model(self, name: str | None) -> None:
        """Raises RequestError if a request names another model."""
        if name not in (None, self.name):
            raise RequestError(404, f"model: there is only {self.name!r} here", "model")

    async def text(self, request: TextRequest) -> dict[str, Any]:
        """The reply to a request for texts that is not streamed."""
        self.check_model(request.model)
        prompts, wanted = await self._wanted(request)
        grown: list[Grown] = [Grown([], [], "", "length")] * (len(prompts) * request.n)
        sources: dict[str, None] = {}  # of the weights that made the reply, in order
        async for event in self._events(request, wanted):
            if isinstance(event, Ended):
                grown[event.number] = event.grown
                sources[event.source] = None
        rows = [ids for ids in prompts for _ in range(request.n)]
        logprobs: list[TokenLogprobs | None] = [None] * len(rows)
        if request.logprobs is not None:
            logprobs, source = await self._logprobs(request.logprobs, rows, grown)
            sources[source] = None
        texts = [text for text in self._prompt_texts(request, prompts) for _ in range(request.n)]
        thinks = self._thinks(request, rows)
        choices = list(map(Choice, rows, texts, grown, logprobs, thinks))
        source = ", ".join(sources) or self.scheduler.source
        return text_reply(request, self.name, source, choices, self.forms)

    async def streamed(self, request: TextRequest) -> AsyncIterator[bytes]:
        """The events of a streamed reply, the first of which waits for the first token.

        Raises RequestError before the first event for a request that cannot be answered.
        """
        self.check_model(request.model)
        prompts, wanted = await self._wanted(request)
        rows = [ids for ids in prompts for _ in range(request.n)]
        texts = [StreamedText(self.tokenizer, ids, request.stop) for ids in rows]
        thinks = self._thinks(request, rows)
        chunks = Chunks(request, self.name, self.scheduler.source)
        has_begun, choices = set[int](), []
        async for event in self._events(request, wanted, is_streamed=True):
            number = event.number
            chunks.set_source(event.source)
            data = b"" if number in has_begun else chunks.first(number)
            has_begun.add(number)
            if isinstance(event, Tokens):
                part = "" if request.tools else texts[number].part(event.tokens)
                data += chunks.part(number, part) if part else b""
            else:
                grown = event.grown
                choice = Choice(rows[number], "", grown, None, thinks[number])
                if request.tools:
                    data += chunks.whole(number, choice)
                else:
                    data += chunks.part(number, texts[number].last_part(grown), grown.finish)
                choices.append(choice)
            if data:
                yield data
        counts = usage(choices, request)
        counts = counts_of(sum(map(len, prompts)), counts["completion_tokens"])
        yield chunks.last(counts)

    async def step_values(self, request: StepValuesRequest) -> dict[str, Any]:
        """The reply to a request for step values."""
        self.check_model(request.model)
        given_up = threading.Event()
        deadline = time.monotonic() + self.timeout_s
        loop = asyncio.get_running_loop()

        def answered() -> dict[str, Any]:
            values = self.valuer(request, deadline, given_up.is_set)
            return {
                "object": "step_values",
                "created": int(time.time()),
                "model": self.name,
                "system_fingerprint": ", ".join(values.weights) or self.scheduler.source,
                "source": values.source,
                "solutions": shown_values(values, request.continuations, self.tokenizer),
                "usage": counts_of(values.num_prompt_tokens, values.num_tokens),
            }

        try:
            return await loop.run_in_executor(self.threads, answered)
        finally:
            given_up.set()

    async def _wanted(self, request: TextRequest) -> tuple[list[list[int]], list[Wanted]]:
        """(the ids of each prompt, the n branches of each prompt).

        Branch j of every prompt has the request's seed plus j, as in vLLM.
        """
        prompts = await asyncio.to_thread(self.encoder.prompts_of, request)
        seed = secrets.randbelow(SEEDS) if request.seed is None else request.seed
        wanted = []
        for ids in prompts:
            budget = self.encoder.check_room(ids, request.max_tokens)
            for j in range(request.n if budget else 0):
                one = Wanted(ids, len(ids), (seed + j) % SEEDS, budget, None, request.stop)
                wanted.append(one)
        return prompts, wanted

    async def _events(
        self, request: TextRequest, wanted: list[Wanted], is_streamed: bool = False
    ) -> AsyncIterator[Ended | Tokens]:
        """What happens to the branches, until all have ended; leaving early cancels the rest.

        Raises the error with which the engine failed.
        """
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event]()
        newest: dict[int, Tokens] = {}  # of each branch with a `Tokens` in the queue

        def put(event: Event) -> None:
            # A client that reads slowly gets the tokens of several chunks at once. All of them in
            # the queue would take memory that grows with the square of a response's length.
            if isinstance(event, Tokens):
                is_waiting = event.number in newest
                newest[event.number] = event
                if is_waiting:
                    return
            events.put_nowait(event)

        def deliver(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed by a second signal
                loop.call_soon_threadsafe(put, event)

        ticket = Ticket(request.sampling, wanted, deliver, is_streamed)
        self.scheduler.submit(ticket)
        remaining = len(wanted)
        try:
            while remaining:
                event = await events.get()
                if isinstance(event, Failed):
                    raise event.error
                remaining -= isinstance(event, Ended)
                yield newest.pop(event.number) if isinstance(event, Tokens) else event
        finally:
            self.scheduler.cancel(ticket)

    async def _logprobs(
        self, count: int, rows: list[list[int]], grown: list[Grown]
    ) -> tuple[list[TokenLogprobs | None], str]:
        """(the log-probabilities of each prompt with its response, the source of the weights).

        Weights that have come since the responses were drawn may give them.
        """
        sequences = [ids + x.tokens for ids, x in zip(rows, grown, strict=True)]

        def scored(params: Params) -> tuple[list[TokenLogprobs | None], str]:
            source = self.scheduler.source  # on the scheduler's thread, so that of `params`
            return list(token_logprobs(self.model, params, sequences, count)), source

        return await asyncio.wrap_future(self.scheduler.call(scored))

    def _thinks(self, request: TextRequest, rows: list[list[int]]) -> list[bool]:
        """Whether each prompt opens a thinking block; False without tools, whose calls need it."""
        if not request.tools:
            return [False] * len(rows)
        return [bool(opens_thinking(decode(self.tokenizer, ids[-MAX_TAG:]))) for ids in rows]

    def _prompt_texts(self, request: TextRequest, prompts: list[list[int]]) -> list[str]:
        texts = request.prompts or [""]  # those of chats are not shown
        return [
            text if isinstance(text, str) else decode(self.tokenizer, ids)
            for text, ids in zip(texts, prompts, strict=True)
        ]


async def until_gone(
    answer: Awaitable[Any], receive: Callable[[], Awaitable[Any]], timeout_s: float
) -> Any:
    """The result of `answer`, which is cancelled when the client leaves or the time is up.

    `receive` is that of ASGI, after the whole body of the request. Raises RequestError with the
    status 499 if the client leaves, and 504 if the time is up.
    """
    task = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise RequestError(499, "the client has left")
        raise RequestError(504, "the request took longer than serve.timeout_s")
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
