"""The requests of clients, checked and with their defaults; needs no engine.

The names and the defaults are those of OpenAI's interface.
"""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from vinejax.core.plugins import listed
from vinejax.core.ranges import LEAST_TEMPERATURE, LEAST_TOP_P
from vinejax.credit.rules import POSITIONS
from vinejax.tools.serve.parsing import Fields, RequestError, parse_object

MAX_TEMPERATURE = 2.0  # OpenAI's
MAX_LOGPROBS = 20  # most alternatives per token, OpenAI's for chats
MAX_STOPS, MAX_STOP_LENGTH = 16, 256  # stop strings of a request, and characters of one
COMPLETION_TOKENS = 16  # default of `max_tokens` for /v1/completions, OpenAI's
SEEDS = 2**64
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def _is(*values: Any):
    """A function that says whether a value is one of `values`."""
    return lambda value: value in values


# Fields of OpenAI's interface that this server does not have, with the values that change nothing.
UNSUPPORTED = {
    "frequency_penalty": _is(0),
    "presence_penalty": _is(0),
    "logit_bias": _is({}),
    "store": _is(False),
    "response_format": _is({"type": "text"}),
    "user": None,
    "metadata": None,
    "service_tier": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
}
OF_COMPLETIONS = {"suffix": _is("")}
OF_CHATS = {
    "parallel_tool_calls": None,
    "modalities": _is(["text"]),
    "function_call": _is("auto", "none"),
    "functions": _is([]),
}


class Limits(NamedTuple):
    """The most that a request may ask for."""

    max_tokens: int  # tokens of a response
    prompt_tokens: int  # tokens of a prompt, or of a prompt with a solution
    context: int  # tokens of a prompt with its response
    vocab_size: int
    choices: int
    continuations: int


class Sampling(NamedTuple):
    """What one decode program draws with; all branches of a stream share it."""

    temperature: float
    top_p: float
    top_k: int = 0  # 0: off

    @classmethod
    def of(cls, temperature: float, top_p: float, top_k: int = 0) -> "Sampling":
        """The sampling of these settings, of which temperature 0 reads no other.

        A temperature below LEAST_TEMPERATURE counts as 0, and a top-p below LEAST_TOP_P as this.
        """
        if temperature < LEAST_TEMPERATURE:
            return cls(0.0, 1.0, 0)
        return cls(temperature, max(top_p, LEAST_TOP_P), top_k)


@dataclasses.dataclass(frozen=True)
class TextRequest:
    """A request to /v1/completions or /v1/chat/completions."""

    model: str | None
    prompts: tuple[str | tuple[int, ...], ...]  # texts or token ids; (): `messages` are the prompt
    sampling: Sampling
    n: int  # choices per prompt
    max_tokens: int | None  # None: as many as the limits allow
    seed: int | None
    stop: tuple[str, ...]
    logprobs: int | None  # number of alternatives per token; None: no log-probabilities
    echo: bool = False
    stream: bool = False
    with_usage: bool = False  # the last event of a stream has the counts of tokens
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    template_vars: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_chat(self) -> bool:
        return bool(self.messages)


@dataclasses.dataclass(frozen=True)
class StepValuesRequest:
    """A request to /v1/step_values. A field that is None has the default of the run."""

    model: str | None
    problem: str
    solutions: tuple[str, ...]  # (): `n` solutions are sampled
    n: int
    answer: str | None  # None: the values of the run's probe or critic
    k: int | None  # continuations per state
    positions: str | None  # a name of `credit.rules.POSITIONS`
    every: int | None  # tokens between two states, with positions 'tokens'
    num_states: int | None  # most states per solution, not counting the prompt's end
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    seed: int | None
    continuations: bool  # whether the reply has the texts of the continuations


def completion_request(values: Mapping[str, Any], limits: Limits) -> TextRequest:
    """The request in the body of /v1/completions. Raises RequestError."""
    fields = Fields(values)
    prompts = _prompts(fields, limits)
    echo = fields.boolean("echo")
    least, default = 0 if echo else 1, min(COMPLETION_TOKENS, limits.max_tokens)
    request = TextRequest(
        prompts=prompts,
        max_tokens=fields.integer("max_tokens", default, least, limits.max_tokens),
        logprobs=fields.integer("logprobs", None, 0, MAX_LOGPROBS),
        echo=echo,
        **_common(fields, limits),
    )
    best_of = fields.integer("best_of", request.n, 1, limits.choices)
    if best_of != request.n:
        raise fields.error("best_of", "must equal n; rank choices by /v1/step_values")
    fields.neutral(UNSUPPORTED | OF_COMPLETIONS)
    return _checked(fields, request, limits)


def chat_request(values: Mapping[str, Any], limits: Limits) -> TextRequest:
    """The request in the body of /v1/chat/completions. Raises RequestError."""
    fields = Fields(values)
    messages = fields.required("messages")
    if not isinstance(messages, list) or not messages:
        raise fields.error("messages", "must be a list of at least one message")
    name = "max_completion_tokens" if fields.has("max_completion_tokens") else "max_tokens"
    max_tokens = fields.integer(name, None, 1, limits.max_tokens)
    fields.neutral({"max_tokens": None, "max_completion_tokens": None})
    with_logprobs = fields.boolean("logprobs")
    alternatives = fields.integer("top_logprobs", 0, 0, MAX_LOGPROBS)
    if alternatives and not with_logprobs:
        raise fields.error("top_logprobs", "needs logprobs: true")
    template_vars = fields.read("chat_template_kwargs", {})
    if not isinstance(template_vars, dict):
        raise fields.error("chat_template_kwargs", "must be an object")
    request = TextRequest(
        prompts=(),
        messages=tuple(_message(message, i) for i, message in enumerate(messages)),
        tools=_tools(fields),
        template_vars=template_vars,
        max_tokens=max_tokens,
        logprobs=alternatives if with_logprobs else None,
        **_common(fields, limits),
    )
    choice_of_tools = _is("auto") if request.tools else _is("auto", "none")
    fields.neutral(UNSUPPORTED | OF_CHATS | {"tool_choice": choice_of_tools})
    return _checked(fields, request, limits)


def step_values_request(values: Mapping[str, Any], limits: Limits) -> StepValuesRequest:
    """The request in the body of /v1/step_values. Raises RequestError."""
    fields = Fields(values)
    one = fields.texts("solution", 1, sum(limits[:2]) * 256)
    several = fields.texts("solutions", limits.choices, sum(limits[:2]) * 256)
    if one and several:
        raise fields.error("solutions", "leave it out beside solution")
    if (one or several) and fields.has("n"):
        raise fields.error("n", "samples solutions; leave it out where they are given")
    request = StepValuesRequest(
        model=fields.text("model"),
        problem=fields.text("problem", ""),
        solutions=one or several,
        n=fields.integer("n", 1, 1, limits.choices),
        answer=fields.text("answer"),
        k=fields.integer("k", None, 1, limits.continuations),
        positions=fields.text("positions", None, tuple(POSITIONS)),
        every=fields.integer("every", None, 1, limits.max_tokens),
        num_states=fields.integer("num_states", None, 1, limits.max_tokens),
        temperature=_optional(fields, "temperature", MAX_TEMPERATURE),
        top_p=_optional(fields, "top_p", 1.0, is_open=True),
        max_tokens=fields.integer("max_tokens", None, 1, limits.max_tokens),
        seed=_seed(fields),
        continuations=fields.boolean("continuations"),
    )
    if not request.problem.strip():
        raise fields.error("problem", "is missing or empty")
    fields.check_all_read()
    return request


def _optional(fields: Fields, name: str, high: float, is_open: bool = False) -> float | None:
    return fields.number(name, high, 0.0, high, is_open) if fields.has(name) else None


def _seed(fields: Fields) -> int | None:
    """The seed modulo 2**64, so that a negative seed stands for 2**64 plus the seed."""
    seed = fields.integer("seed", None, -(2**63), SEEDS - 1)
    return None if seed is None else seed % SEEDS


def _common(fields: Fields, limits: Limits) -> dict[str, Any]:
    """The fields that completions and chats share."""
    options = fields.read("stream_options", {})
    if not isinstance(options, dict) or not all(
        name in ("include_usage", "include_obfuscation") for name in options
    ):
        raise fields.error("stream_options", "must be an object with include_usage")
    return {
        "model": fields.text("model"),
        "sampling": Sampling.of(
            fields.number("temperature", 1.0, 0.0, MAX_TEMPERATURE),
            fields.number("top_p", 1.0, 0.0, 1.0, is_open=True),
            max(fields.integer("top_k", 0, -1, limits.vocab_size), 0),  # vLLM's; -1: off
        ),
        "n": fields.integer("n", 1, 1, limits.choices),
        "seed": _seed(fields),
        "stop": fields.texts("stop", MAX_STOPS, MAX_STOP_LENGTH),
        "stream": fields.boolean("stream"),
        "with_usage": Fields(options, "stream_options.").boolean("include_usage"),
    }


def _checked(fields: Fields, request: TextRequest, limits: Limits) -> TextRequest:
    fields.check_all_read()
    count = max(len(request.prompts), 1) * request.n
    if count > limits.choices:
        message = f"{count} choices over all prompts, of which at most {limits.choices} are allowed"
        raise fields.error("n", message)
    if request.stream and request.echo:
        raise fields.error("echo", "is not supported in a stream")
    if request.stream and request.logprobs is not None:
        raise fields.error("logprobs", "is not supported in a stream")
    return request


def _prompts(fields: Fields, limits: Limits) -> tuple[str | tuple[int, ...], ...]:
    """A prompt or several, each a text or a list of token ids. Raises RequestError."""
    value = fields.required("prompt")
    if isinstance(value, str) or _is_ids(value):
        value = [value]
    if not isinstance(value, list) or not value:
        raise fields.error("prompt", "must be a text, a list of texts, or lists of token ids")
    if len(value) > limits.choices:
        raise fields.error("prompt", f"has {len(value)} prompts, at most {limits.choices} may be")
    prompts = []
    for i, prompt in enumerate(value):
        if isinstance(prompt, str):
            prompts.append(Fields({"prompt": prompt}).text("prompt"))
        elif _is_ids(prompt):
            if not all(0 <= token < limits.vocab_size for token in prompt):
                message = f"prompt {i} has token ids outside 0 .. {limits.vocab_size - 1}"
                raise fields.error("prompt", message)
            prompts.append(tuple(prompt))
        else:
            raise fields.error("prompt", f"prompt {i} is neither a text nor a list of token ids")
    return tuple(prompts)


def _is_ids(value: Any) -> bool:
    """Whether a value is a list of at least one whole number."""
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _message(message: Any, i: int) -> dict[str, Any]:
    """A message of a chat as the chat template reads it: its content is a text."""
    if not isinstance(message, dict):
        raise RequestError(400, f"messages[{i}]: must be an object", f"messages[{i}]")
    fields = Fields(message, f"messages[{i}].")
    role = fields.text("role", None, ROLES)
    if role is None:
        raise fields.error("role", "is missing")
    content = fields.read("content")
    if isinstance(content, list):
        content = "".join(_part(fields, part) for part in content)
    if content is None and not fields.has("tool_calls"):
        raise fields.error("content", "is missing")
    content = Fields({"content": content}, f"messages[{i}].").text("content", "")
    message = {**message, "role": role, "content": content}
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [_given_call(fields, call) for call in listed(calls) or [None]]
    return message


def _given_call(fields: Fields, call: Any) -> dict[str, Any]:
    """A call of a tool in an earlier message, with arguments as an object for the template.

    An empty text stands for no arguments, as clients keep it that join the parts of streams.
    """
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str):
        with contextlib.suppress(RequestError):
            arguments = parse_object((arguments.strip() or "{}").encode("utf-8", "replace"))
    if function is None or not isinstance(arguments, dict):
        message = "must be a list of {function: {name, arguments}}, with arguments as JSON"
        raise fields.error("tool_calls", message)
    return {**call, "function": {**function, "arguments": arguments}}


def _part(fields: Fields, part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise fields.error("content", "this server reads parts of type 'text' alone")
    return Fields(part, "messages.content.").text("text", "")


def _tools(fields: Fields) -> tuple[dict[str, Any], ...]:
    tools = fields.read("tools", [])
    is_right = isinstance(tools, list) and all(
        isinstance(tool, dict) and isinstance(tool.get("function"), dict) for tool in tools
    )
    if not is_right:
        raise fields.error("tools", "must be a list of {type: 'function', function: {...}}")
    return tuple(tools)


def shown_error(error: RequestError) -> dict[str, Any]:
    """An error in the form of OpenAI's interface."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    message, field = (
        text and text.encode("utf-8", "replace").decode() for text in (str(error), error.field)
    )
    return {"error": {"message": message, "type": kind, "param": field, "code": error.status}}
