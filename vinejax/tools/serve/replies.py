"""The JSON of replies, in the form of OpenAI's interface."""

import dataclasses
import json
import re
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from vinejax.core.text import (
    UNFINISHED,
    Tokenizer,
    continuation_text,
    prefix_end,
    without_thinking,
)
from vinejax.engine.branches import Grown
from vinejax.tasks.tools import OPEN, PYTHON_TAG, read_calls
from vinejax.tools.serve.requests import TextRequest
from vinejax.tools.serve.scoring import TokenLogprobs

FINISH = {"eos": "stop", "stop": "stop", "length": "length"}
TOOL_CALLS = "tool_calls"  # why a response with calls of tools ended
LEAST_LOGPROB = -9999.0  # JSON has no infinity
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")  # a token that ByteFallback decodes as a byte
# The byte that each character of byte-level BPE stands for.
_BYTE_OF = {character: byte for byte, character in bytes_to_unicode().items()}


@dataclasses.dataclass(frozen=True)
class Choice:
    """A response to one of a request's prompts."""

    prompt: list[int]
    prompt_text: str  # as the request gives it
    grown: Grown
    logprobs: TokenLogprobs | None  # of prompt and response; None: not requested
    thinks: bool = False  # whether the prompt opens a thinking block


@dataclasses.dataclass(frozen=True)
class TokenForms:
    """What replies show of a token: its text and its bytes."""

    tokenizer: Tokenizer
    text_of: Callable[[int], str]

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token, which may be a part of a character.

        The text of such a token has U+FFFD in the place of its bytes.
        """
        text = self.text_of(token)
        if UNFINISHED in text:
            name: Any = self.tokenizer.convert_ids_to_tokens(token)
            if byte := _BYTE_TOKEN.fullmatch(name):
                return bytes.fromhex(byte[1])
            if all(character in _BYTE_OF for character in name):
                return bytes(_BYTE_OF[character] for character in name)
        return text.encode()


def text_reply(
    request: TextRequest,
    model: str,
    source: str,
    choices: Sequence[Choice],
    forms: TokenForms,
) -> dict[str, Any]:
    """The reply to a request for texts."""
    shown = []
    for index, choice in enumerate(choices):
        logprobs = None
        if choice.logprobs is not None and request.is_chat:
            logprobs = _chat_logprobs(request, choice, forms)
        elif choice.logprobs is not None:
            logprobs = _logprobs(request, choice, forms.text_of)
        one = {"index": index, "finish_reason": FINISH[choice.grown.finish], "logprobs": logprobs}
        if request.is_chat:
            said = said_by(request, choice.grown.text, choice.thinks)
            one["message"] = {"role": "assistant", "refusal": None, **said}
            if "tool_calls" in said:
                one["finish_reason"] = TOOL_CALLS
        else:
            one["text"] = (choice.prompt_text if request.echo else "") + choice.grown.text
        shown.append(one)
    kind = "chat.completion" if request.is_chat else "text_completion"
    return {
        **_head(request, kind, model, source),
        "choices": shown,
        "usage": usage(choices, request),
    }


def said_by(request: TextRequest, text: str, thinks: bool = False) -> dict[str, Any]:
    """The fields `content` and, if a response calls tools of the request, `tool_calls`.

    A response with a call that cannot be read, or of another tool, is only a text. What is thought
    is no call; with `thinks` the response begins within thinking that its prompt opens.
    """
    names = [tool["function"].get("name") for tool in request.tools]
    spoken = without_thinking(text, thinks)
    calls = read_calls(spoken) if names else []
    if not calls or any(call.error or call.name not in names for call in calls):
        return {"content": text}
    before = min((spoken.partition(tag)[0] for tag in (OPEN, PYTHON_TAG)), key=len)
    if spoken.lstrip().startswith("{"):  # a call without tags
        before = ""
    called = spoken[len(before) :]
    if text.endswith(called):
        before = text.removesuffix(called)  # with what was thought
    shown = [
        {
            "id": f"call_{uuid.uuid4().hex}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for call in calls
    ]
    return {"content": before.strip() or None, "tool_calls": shown}


def _head(request: TextRequest, kind: str, model: str, source: str) -> dict[str, Any]:
    return {
        "id": f"{'chatcmpl' if request.is_chat else 'cmpl'}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": source,
    }


def usage(choices: Sequence[Choice], request: TextRequest) -> dict[str, int]:
    """The numbers of tokens; a prompt counts once for all of its choices."""
    prompts = sum(len(choice.prompt) for choice in choices[:: request.n])
    drawn = sum(len(choice.grown.tokens) for choice in choices)
    return counts_of(prompts, drawn)


def counts_of(prompts: int, drawn: int) -> dict[str, int]:
    """The field `usage` of a reply."""
    return {"prompt_tokens": prompts, "completion_tokens": drawn, "total_tokens": prompts + drawn}


def _logprobs(
    request: TextRequest, choice: Choice, text_of: Callable[[int], str]
) -> dict[str, Any]:
    """The field `logprobs` of /v1/completions: of the response and, with `echo`, of the prompt."""
    assert choice.logprobs is not None and request.logprobs is not None
    tokens, prompt = choice.prompt + choice.grown.tokens, len(choice.prompt)
    own, best, best_logprobs = (x.tolist() for x in choice.logprobs)
    texts, own_logprobs, alternatives, offsets = [], [], [], []
    offset = 0 if request.echo else len(choice.prompt_text)
    for t in range(0 if request.echo else prompt, len(tokens)):
        text = text_of(tokens[t])
        offsets.append(offset)
        offset += len(text)
        texts.append(text)
        own_logprobs.append(_finite(own[t]) if t else None)
        pairs = zip(best[t][: request.logprobs], best_logprobs[t], strict=False)
        by_text = {text: _finite(own[t])}
        for token, logprob in pairs:
            text = text_of(token)  # several tokens may have one text
            by_text[text] = max(_finite(logprob), by_text.get(text, LEAST_LOGPROB))
        alternatives.append(by_text if t else None)
    return {
        "tokens": texts,
        "token_logprobs": own_logprobs,
        "top_logprobs": alternatives,
        "text_offset": offsets,
    }


def _chat_logprobs(request: TextRequest, choice: Choice, forms: TokenForms) -> dict[str, Any]:
    """The field `logprobs` of /v1/chat/completions."""
    assert choice.logprobs is not None and request.logprobs is not None
    own, best, best_logprobs = (x.tolist() for x in choice.logprobs)

    def shown(token: int, logprob: float) -> dict[str, Any]:
        text, shown_bytes = forms.text_of(token), list(forms.bytes_of(token))
        return {"token": text, "logprob": _finite(logprob), "bytes": shown_bytes}

    content = []
    for t, token in enumerate(choice.grown.tokens, start=len(choice.prompt)):
        pairs = zip(best[t][: request.logprobs], best_logprobs[t], strict=False)
        content.append({**shown(token, own[t]), "top_logprobs": [shown(*pair) for pair in pairs]})
    return {"content": content, "refusal": None}


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


class StreamedText:
    """The text of a response that is sent in parts while it is drawn.

    An incomplete character, and an end of the text that may begin a stop string, are held back.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: tuple[str, ...]):
        self._tokenizer, self._stop = tokenizer, stop
        self._end = prefix_end(tokenizer, list(prompt))
        self._sent = ""

    def part(self, tokens: list[int]) -> str:
        """The next part of the text of a response with these tokens so far."""
        text = continuation_text(self._tokenizer, self._end, tokens)
        text = text.rstrip(UNFINISHED)
        for stop in self._stop:
            text = text.partition(stop)[0]
        held = max((_overlap(text, stop) for stop in self._stop), default=0)
        return self._send(text[: len(text) - held])

    def last_part(self, grown: Grown) -> str:
        """The rest of the text of a whole response."""
        return self._send(grown.text)

    def _send(self, text: str) -> str:
        if not text.startswith(self._sent):
            return ""  # what was sent cannot be taken back
        part, self._sent = text[len(self._sent) :], text
        return part


def _overlap(text: str, stop: str) -> int:
    """The number of last characters of a text with which `stop` begins."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)


class Chunks:
    """The server-sent events of a streamed reply."""

    def __init__(self, request: TextRequest, model: str, source: str):
        kind = "chat.completion.chunk" if request.is_chat else "text_completion"
        self._request = request
        self._head = _head(request, kind, model, source)

    def set_source(self, source: str) -> None:
        """Names the weights of the events that follow."""
        self._head["system_fingerprint"] = source

    def first(self, index: int) -> bytes:
        """The event that begins a choice of a chat; b'' for completions."""
        if not self._request.is_chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        return self._event([{"index": index, "delta": delta, "finish_reason": None}])

    def part(self, index: int, text: str, finish: str | None = None) -> bytes:
        """The event of a part of a choice's text; `finish` is that of the whole response."""
        one: dict[str, Any] = {"index": index, "finish_reason": FINISH[finish] if finish else None}
        if self._request.is_chat:
            one["delta"] = {"content": text} if text else {}
        else:
            one["text"], one["logprobs"] = text, None
        return self._event([one])

    def whole(self, index: int, choice: Choice) -> bytes:
        """The event of a choice that is sent only once it has ended, because it may call tools."""
        grown = choice.grown
        said, finish = said_by(self._request, grown.text, choice.thinks), FINISH[grown.finish]
        if calls := said.get("tool_calls"):
            finish = TOOL_CALLS
            said["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
        return self._event([{"index": index, "delta": said, "finish_reason": finish}])

    def last(self, counts: dict[str, int]) -> bytes:
        """The events that end a stream."""
        done = b"data: [DONE]\n\n"
        return self._event([], usage=counts) + done if self._request.with_usage else done

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return event_of({**self._head, "choices": choices, **more})


def event_of(value: dict[str, Any]) -> bytes:
    """A server-sent event with a JSON value."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
