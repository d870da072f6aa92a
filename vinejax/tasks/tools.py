"""Calls of tools in the texts of a policy, and functions that answer them.

A task with an attribute `tools`, a list of JSON schemas, has them written into its prompts by the
chat template, as `tokenizer.apply_chat_template(tools=...)` does. The policy calls a tool in the
format that its template asks for, and `read_calls` reads the call:

    <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>    Qwen, Hermes
    {"name": "add", "parameters": {"a": 1, "b": 2}}    Llama 3, also after <|python_tag|>
    <|python_tag|>1 + 2    Llama 3: a program, the call of a tool `python`

`Tools` makes the schemas of Python functions, and the results of their calls. An environment
returns these as `Observation.results`, and each becomes a tool message of the chat template.
"""

import functools
import inspect
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from vinejax.core.errors import UserError
from vinejax.tasks.environment import Observation

OPEN, CLOSE = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
PYTHON, CODE = "python", "code"  # name and argument of the tool that a bare program calls
# A call in Llama's format. Another JSON object is an answer.
_BARE = re.compile(r'\{\s*"(?:name|type|function)"\s*:.*"(?:parameters|arguments)"\s*:', re.DOTALL)
_SPACE = re.compile(r"\s*")
_BETWEEN = re.compile(r"[\s;,]*")  # between two calls in Llama's format
MOST = 300  # characters of an error that the policy reads
MAX_READ = 64  # calls that are read in a text
MAX_CALLS = 8  # calls of a turn that are answered, because a turn has a time limit


class ToolCall(NamedTuple):
    """A call of a tool, or with `error` a text that is meant as one and cannot be read."""

    name: str
    arguments: Mapping[str, Any]
    error: str = ""  # what is wrong, in one line


def read_calls(text: str, most: int = MAX_READ) -> list[ToolCall]:
    """The calls of tools in the text of a turn, in order; [] if there is none.

    The text should not have what the policy thinks. A text of more than `most` calls has an error
    in place of the later ones.
    """
    before, tag, after = text.partition(PYTHON_TAG)
    body = (after if tag else text).strip()
    found: Iterable[ToolCall] = ()
    if _is_bare_call(body):
        found = _bare_calls(body)
    elif OPEN in before:
        found = _tagged_calls(text)
    elif tag:
        found = [ToolCall(PYTHON, {CODE: body})]  # the program may begin with a dict
    calls = list(itertools.islice(found, most + 1))
    if len(calls) > most:
        calls[most:] = [ToolCall("", {}, f"only {most} calls are read, and not the later ones")]
    return calls


class Tools:
    """Python functions that a policy may call.

    `schemas` are their JSON schemas, from type hints and docstrings in Google's style, as
    transformers makes them. A task has them as its attribute `tools`.

    Raises UserError for an async function, for two functions of one name, for a function without
    type hints, and for one with an argument that its docstring does not describe.
    """

    def __init__(self, *functions: Callable[..., Any]):
        for function in filter(inspect.iscoroutinefunction, functions):
            message = "is async, and calls are not awaited; call `asyncio.run` in it"
            raise UserError(f"tool {function.__name__}: {message}")
        self._functions = {}
        for function in functions:
            if self._functions.setdefault(function.__name__, function) is not function:
                message = "two functions have this name, by which the policy calls them"
                raise UserError(f"tool {function.__name__}: {message}; rename one")

    @functools.cached_property
    def schemas(self) -> list[dict[str, Any]]:
        from transformers.utils.chat_template_utils import (
            get_json_schema,
        )  # takes seconds to import

        schemas = []
        for name, function in self._functions.items():
            try:
                schemas.append(get_json_schema(function))
            except Exception as error:
                reason = " ".join(str(error).split())
                raise UserError(f"tool {name}: {reason}") from error
        return schemas

    def answered(self, action: str) -> Observation | None:
        """The results of the calls in an action, as an observation; None if there is no call.

        A call that cannot be read, that fits no tool, or whose tool raises an exception has one
        line that begins with 'error: ' as its result, and so have all calls after the first
        MAX_CALLS together. A UserError of a tool is raised.
        """
        calls = read_calls(action, MAX_CALLS)
        if not calls:
            return None
        results = tuple(_encodable(self._result(call)) for call in calls)
        return Observation("\n".join(results), results=results)

    def _result(self, call: ToolCall) -> str:
        if call.error:
            return _error(call.error)
        function = self._functions.get(call.name)
        if function is None:
            return _error(f"there is no tool {call.name!r}, only {', '.join(self._functions)}")
        try:
            inspect.signature(function).bind(**call.arguments)
        except TypeError as error:
            return _error(f"{call.name}: {error}")
        try:
            result = function(**call.arguments)
            if isinstance(result, str):
                return result
            return json.dumps(result, ensure_ascii=False, default=str)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            return _error(f"{call.name}: {type(error).__name__}: {error}")


def _tagged_calls(text: str) -> Iterable[ToolCall]:
    """The calls between <tool_call> and </tool_call>, of which the text's end may lack the last."""
    place = text.find(OPEN)
    while place >= 0:
        value, end, error = _decoded(text, place + len(OPEN))
        end = _SPACE.match(text, end).end()  # pyright: ignore[reportOptionalMemberAccess]
        if not error and end < len(text) and not text.startswith(CLOSE, end):
            error = f"the call has text between its JSON object and {CLOSE}"
        yield _call(value, error)
        if error:  # a JSON string may have the tags, but here it is not known where strings end
            end = text.find(CLOSE, end)
            end = len(text) if end < 0 else end
        place = text.find(OPEN, end)


def _is_bare_call(body: str) -> bool:
    """Whether a text begins with a call in Llama's format, or with what is meant as one."""
    if not _BARE.match(body):
        return False
    value, _, error = _decoded(body, 0)
    if error or isinstance(value.get("function"), dict):
        return True
    has_name = isinstance(value.get("name", value.get("function")), str)
    return has_name and ("arguments" in value or "parameters" in value)


def _bare_calls(body: str) -> Iterable[ToolCall]:
    """The calls of a text that consists of JSON objects."""
    end, error = 0, ""
    while end < len(body) and not error:
        value, end, error = _decoded(body, end)
        yield _call(value, error)
        end = _BETWEEN.match(body, end).end()  # pyright: ignore[reportOptionalMemberAccess]


def _decoded(text: str, start: int) -> tuple[Any, int, str]:
    """(the JSON value that begins at `start`, its end, what is wrong)."""
    start = _SPACE.match(text, start).end()  # pyright: ignore[reportOptionalMemberAccess]
    try:
        return *_DECODER.raw_decode(text, start), ""
    except RecursionError:
        return None, start, "the call is nested too deeply"
    except ValueError as error:
        where = max(getattr(error, "pos", start) - start, 0)
        reason = getattr(error, "msg", str(error))
        return None, start, f"the call is no JSON object: {reason} at character {where}"


def _finite(number: str) -> float:
    if not math.isfinite(found := float(number)):
        raise ValueError(f"the number {number:.20} is not finite")
    return found


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def _call(value: Any, error: str) -> ToolCall:
    """The call that a JSON value describes; `error` is a reason why there is no value."""
    if not error and not isinstance(value, dict):
        error = f"the call is no JSON object, but {type(value).__name__}"
    if error:
        return ToolCall("", {}, error)
    if isinstance(value.get("function"), dict):  # OpenAI's form
        value = value["function"]
    name = value.get("name", value.get("function"))
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(name, str) or not name:
        return ToolCall("", {}, "the call has no name of a tool")
    if isinstance(arguments, str):  # OpenAI's form, too
        arguments, _, error = _decoded(arguments, 0)
        if error:
            return ToolCall(name, {}, f"{name}: the arguments are no JSON object")
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, f"{name}: the arguments must be a JSON object")
    return ToolCall(name, arguments)


def _error(text: str) -> str:
    return f"error: {' '.join(text.split())}"[:MOST]


def _encodable(text: str) -> str:
    """The text with '?' for halves of surrogate pairs: JSON may have them, tokenizers take none."""
    return text.encode("utf-8", "replace").decode()
