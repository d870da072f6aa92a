"""The HTTP layer: paths, the key, limits on bodies and requests, and errors in one line."""

# pyright: reportMissingImports=false
# The packages are those of the extra `serve`.

import asyncio
import contextlib
import hmac
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from vinejax.core.errors import UserError
from vinejax.tools.serve.answering import Answerer, until_gone
from vinejax.tools.serve.parsing import RequestError, parse_object
from vinejax.tools.serve.replies import event_of
from vinejax.tools.serve.requests import (
    Limits,
    TextRequest,
    chat_request,
    completion_request,
    shown_error,
    step_values_request,
)

BODY_S = 30.0  # seconds within which a body must arrive
LAST_EVENT_S = 5.0  # seconds within which a client must make room for the last event of a stream
RETRY = {"retry-after": "1"}
FAILURE = "the server failed; its log has the reason"


class Service:
    """The endpoints of a server, and the number of requests that they answer.

    Args:
      answerer: Answers checked requests.
      limits: What a request may ask for.
      key: What clients must send as a bearer token; "": nothing.
      body_bytes: The most bytes of a body.
      most_requests: The most requests at a time.
    """

    def __init__(
        self, answerer: Answerer, limits: Limits, key: str, body_bytes: int, most_requests: int
    ):
        self.answerer, self._limits, self._key = answerer, limits, key.encode()
        self._body_bytes, self._most_requests = body_bytes, most_requests
        self.num_requests = 0  # requests that are being answered
        self.is_draining = False  # whether no further requests are answered

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/health", self._health),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._models),
            Route("/v1/completions", self._completions, methods=["POST"]),
            Route("/v1/chat/completions", self._chats, methods=["POST"]),
            Route("/v1/step_values", self._step_values, methods=["POST"]),
        ]
        handlers: Mapping[Any, Any] = {HTTPException: _http_error, Exception: _failure}
        return Starlette(routes=routes, exception_handlers=handlers)

    async def _health(self, request: Request) -> Response:
        status = 503 if self.is_draining else 200
        return JSONResponse({"status": "draining" if self.is_draining else "ok"}, status)

    async def _models(self, request: Request) -> Response:
        try:
            self._check_key(request)
            self.answerer.check_model(request.path_params.get("name"))
        except RequestError as error:
            return _error(error)
        limits = self._limits
        one = {
            "id": self.answerer.name,
            "object": "model",
            "created": 0,
            "owned_by": "vinejax",
            "max_model_len": min(limits.context, limits.prompt_tokens + limits.max_tokens),
            "root": self.answerer.scheduler.source,
        }
        if "name" in request.path_params:
            return JSONResponse(one)
        return JSONResponse({"object": "list", "data": [one]})

    async def _completions(self, request: Request) -> Response:
        async def answered(values: dict[str, Any]) -> Response:
            return await self._texts(request, completion_request(values, self._limits))

        return await self._answer(request, answered)

    async def _chats(self, request: Request) -> Response:
        async def answered(values: dict[str, Any]) -> Response:
            return await self._texts(request, chat_request(values, self._limits))

        return await self._answer(request, answered)

    async def _step_values(self, request: Request) -> Response:
        async def answered(values: dict[str, Any]) -> Response:
            wanted = step_values_request(values, self._limits)
            answer = self.answerer.step_values(wanted)
            reply = await until_gone(answer, request.receive, self.answerer.timeout_s)
            return JSONResponse(reply)

        return await self._answer(request, answered)

    async def _texts(self, request: Request, wanted: TextRequest) -> Response:
        timeout_s = self.answerer.timeout_s
        if not wanted.stream:
            answer = self.answerer.text(wanted)
            return JSONResponse(await until_gone(answer, request.receive, timeout_s))
        deadline = time.monotonic() + timeout_s
        events = self.answerer.streamed(wanted)
        # The response begins with the first event, so that an error before it has a status.
        first = await until_gone(anext(events), request.receive, timeout_s)
        self.num_requests += 1  # the response goes on when `_answer` has ended
        return EventStream(first, events, deadline - time.monotonic(), self._end_of_stream)

    def _end_of_stream(self) -> None:
        self.num_requests -= 1

    async def _answer(
        self, request: Request, answer: Callable[[dict[str, Any]], Awaitable[Response]]
    ) -> Response:
        """The response of `answer` to the body of a request, or that to an error."""
        try:
            self._check_key(request)
            if self.is_draining:
                raise RequestError(503, "the server is stopping")
            values = parse_object(await self._body(request))
            if self.num_requests >= self._most_requests:
                raise RequestError(429, f"{self.num_requests} requests are being answered")
            self.num_requests += 1
            try:
                return await answer(values)
            finally:
                self.num_requests -= 1
        except RequestError as error:
            return _error(error)
        except UserError as error:  # of the engine: too little memory, weights that diverged
            return _error(RequestError(500, str(error)))

    def _check_key(self, request: Request) -> None:
        """Raises RequestError unless the request has the server's key."""
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        is_right = kind.lower() == "bearer" and hmac.compare_digest(key.strip().encode(), self._key)
        if self._key and not is_right:
            raise RequestError(401, "the request lacks the server's key (Authorization: Bearer)")

    async def _body(self, request: Request) -> bytes:
        """The body of a request.

        Raises RequestError if the body is no JSON by its content type, too long or too slow, and if
        the client leaves. Pages of other sites cannot send this type without being allowed to, and
        the server never allows.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError(415, "the content type must be application/json")
        length = request.headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            raise RequestError(400, "the content length is no number")
        if int(length) > self._body_bytes:
            raise self._too_long()
        try:
            async with asyncio.timeout(BODY_S):
                body = bytearray()
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self._body_bytes:
                        raise self._too_long()
        except TimeoutError:
            raise RequestError(408, f"the body took longer than {BODY_S:g} seconds") from None
        except ClientDisconnect:
            raise RequestError(499, "the client has left") from None
        return bytes(body)

    def _too_long(self) -> RequestError:
        return RequestError(413, f"the body has more than {self._body_bytes} bytes")


class EventStream(Response):
    """A response of server-sent events, which ends when the client leaves or the time is up."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: bytes,
        events: AsyncIterator[bytes],
        timeout_s: float,
        at_end: Callable[[], None],
    ):
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._first, self._events = first, events
        self._timeout_s, self._at_end = timeout_s, at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = self.raw_headers
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            last = b""
            try:
                await until_gone(self._send(send), receive, self._timeout_s)
            except RequestError as error:
                last = event_of(shown_error(error))
            except UserError as error:
                last = event_of(shown_error(RequestError(500, str(error))))
            except Exception:
                traceback.print_exc()
                last = event_of(shown_error(RequestError(500, FAILURE)))
            # A client that no longer reads would keep the request for ever.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_EVENT_S):
                    await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            self._at_end()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})


def _error(error: RequestError) -> Response:
    headers = RETRY if error.status in (429, 503) else None
    return JSONResponse(shown_error(error), error.status, headers)


async def _http_error(request: Request, error: Any) -> Response:
    """The response to an unknown path or method, for which Starlette raises an HTTPException."""
    message = f"{request.method} {request.url.path[:80]}: {error.detail}"
    response = _error(RequestError(error.status_code, message))
    response.headers.update(error.headers or {})
    return response


async def _failure(request: Request, error: Exception) -> Response:
    """The response to a defect of the server, whose traceback Starlette hands to the log."""
    return _error(RequestError(500, FAILURE))
