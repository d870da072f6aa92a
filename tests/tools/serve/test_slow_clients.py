"""Clients that do not read what they asked for, without an engine."""

import asyncio
import functools
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.applied import stand_in

pytest.importorskip("starlette", reason="the extra `serve` is missing")
pytest.importorskip("uvicorn", reason="the extra `serve` is missing")

from vinejax.engine.branches import Grown  # noqa: E402
from vinejax.tools.serve import answering, app, serve_mode  # noqa: E402
from vinejax.tools.serve.answering import Answerer  # noqa: E402
from vinejax.tools.serve.replies import TokenForms  # noqa: E402
from vinejax.tools.serve.requests import Limits, completion_request  # noqa: E402
from vinejax.tools.serve.scheduler import Scheduler  # noqa: E402
from vinejax.tools.serve.scoring import TokenLogprobs  # noqa: E402
from vinejax.tools.serve.wanted import Ended, Event, Tokens, Wanted  # noqa: E402

COMPLETION = {
    "type": "http",
    "method": "POST",
    "path": "/v1/completions",
    "headers": [(b"content-type", b"application/json")],
}


def service_of(answerer: Answerer) -> app.Service:
    limits = Limits(99, 99, 99, 99, 9, 9)
    return app.Service(answerer, limits, key="", body_bytes=99, most_requests=9)


def test_a_stream_ends_although_its_client_reads_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app, "LAST_EVENT_S", 0.05)
    sent, ended = [], []

    async def events() -> AsyncIterator[bytes]:
        while True:
            yield b"data: {}\n\n"

    async def send(message: Any) -> None:
        sent.append(message["type"])
        if len(sent) > 3:  # as where the buffers of the connection are full
            await asyncio.Event().wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    stream = app.EventStream(b"data: {}\n\n", events(), 0.05, lambda: ended.append(True))
    asyncio.run(asyncio.wait_for(stream({}, receive, send), 10))
    assert ended == [True] and sent[0] == "http.response.start"


def test_a_stream_has_the_time_that_its_first_event_has_left(monkeypatch: pytest.MonkeyPatch):
    clock, limits = SimpleNamespace(now=5.0), []
    monkeypatch.setattr(app, "time", SimpleNamespace(monotonic=lambda: clock.now))

    async def events(_: Any) -> AsyncIterator[bytes]:
        clock.now += 7.0
        yield b"data: {}\n\n"

    async def until_gone(answer: Awaitable[Any], _: Any, timeout_s: float) -> Any:
        limits.append(timeout_s)
        return await answer

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"prompt": "1", "stream": true}'}

    async def send(_: Any) -> None:
        pass

    monkeypatch.setattr(app, "until_gone", until_gone)
    answerer = stand_in(Answerer, timeout_s=10.0, streamed=events)
    asyncio.run(service_of(answerer).app()(COMPLETION, receive, send))
    assert limits == [10.0, 3.0]


class Service:
    """What `answer_requests` reads of an `app.Service`, with one long reply to every request."""

    num_requests = 0
    is_draining = False

    def app(self) -> Any:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x" * 2**26, "more_body": False})

        return answer


def test_the_server_stops_although_a_client_reads_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve_mode, "LAST_REPLIES_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())

        async def serve_and_stop() -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(0.5, client.sendall, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            loop.call_later(1.5, os.kill, os.getpid(), signal.SIGTERM)
            start = time.monotonic()
            await asyncio.wait_for(serve_mode.answer_requests(Service(), listener), 30)
            assert 1.5 < time.monotonic() - start < 20
            client.close()
            await asyncio.sleep(0.1)  # until the server's end of the connection is closed, too

        with client:
            asyncio.run(serve_and_stop())


def test_a_client_that_leaves_while_it_sends_its_body_is_no_failure_of_the_server():
    """A failure would put a traceback into the log."""
    service = service_of(stand_in(Answerer))
    received = [
        {"type": "http.request", "body": b'{"prompt":', "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return received.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(service.app()(COMPLETION, receive, send))
    assert sent[0]["status"] == 499 and service.num_requests == 0


def test_tokens_that_wait_for_a_client_are_those_of_one_chunk():
    """Each event has all tokens so far, so the queue keeps the newest of each branch alone."""
    tickets: list[Any] = []
    scheduler = stand_in(Scheduler, submit=tickets.append, cancel=lambda _: None)
    answerer: Any = stand_in(Answerer, scheduler=scheduler)
    request = completion_request({"prompt": "1", "n": 2}, Limits(99, 99, 99, 99, 9, 9))
    wanted = [Wanted([1], 1, seed, 99) for seed in range(2)]

    async def collected() -> list[Event]:
        events = Answerer._events(answerer, request, wanted, is_streamed=True)
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        for count in range(1, 50):
            for number in range(2):
                tickets[0].deliver(Tokens(number, list(range(count)), "start"))
        ended = [Ended(number, Grown([], [], "", "eos"), "start") for number in range(2)]
        for event in ended:
            tickets[0].deliver(event)
        return [await first, *[event async for event in events]]

    first, second, *ended = asyncio.run(collected())
    assert (first, second) == (Tokens(0, [*range(49)], "start"), Tokens(1, [*range(49)], "start"))
    assert [event.number for event in ended if isinstance(event, Ended)] == [0, 1]
    assert len(ended) == 2


def test_a_reply_names_all_weights_that_made_it(monkeypatch: pytest.MonkeyPatch):
    """Newer ones came between the choices, and before the log-probabilities."""
    request = completion_request({"prompt": "1", "n": 2, "logprobs": 0}, Limits(9, 9, 9, 9, 9, 9))
    scored = TokenLogprobs(np.zeros(2), np.zeros((2, 1), np.int32), np.zeros((2, 1)))

    async def wanted(_: Any) -> Any:
        return [[1]], [Wanted([1], 1, seed, 9) for seed in range(2)]

    async def events(*_: Any) -> AsyncIterator[Ended]:
        for number in range(2):
            yield Ended(number, Grown([2], [0.0], "a", "eos"), f"checkpoints/{number + 1}")

    def call(function: Any) -> Any:
        future: Future[Any] = Future()
        future.set_result(function({}))
        return future

    monkeypatch.setattr(answering, "token_logprobs", lambda *_: [scored, scored])
    scheduler = stand_in(Scheduler, source="checkpoints/3", call=call)
    no_tokenizer: Any = None
    forms = TokenForms(no_tokenizer, str)
    fields = {"model": None, "name": "m", "forms": forms, "scheduler": scheduler}
    answerer: Any = stand_in(Answerer, **fields)
    answerer._wanted, answerer._events = wanted, events
    answerer._prompt_texts = lambda *_: ["1"]
    answerer._thinks = lambda *_: [False, False]
    answerer._logprobs = functools.partial(Answerer._logprobs, answerer)
    reply = asyncio.run(Answerer.text(answerer, request))
    assert reply["system_fingerprint"] == "checkpoints/1, checkpoints/2, checkpoints/3"
    without = completion_request({"prompt": "1", "n": 2}, Limits(9, 9, 9, 9, 9, 9))
    reply = asyncio.run(Answerer.text(answerer, without))
    assert reply["system_fingerprint"] == "checkpoints/1, checkpoints/2"
