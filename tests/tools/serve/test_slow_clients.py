"""Clients that do not read what they asked for, without an engine."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `serve` is missing")
pytest.importorskip("uvicorn", reason="the extra `serve` is missing")

from vinejax.tools.serve import app  # noqa: E402


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
