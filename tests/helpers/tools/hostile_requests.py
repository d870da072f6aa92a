"""Malformed and hostile requests to the server, by path: bodies as bytes or as values of JSON."""

from typing import Any

Body = bytes | dict[str, Any]
COMPLETIONS, CHATS, VALUES = "/v1/completions", "/v1/chat/completions", "/v1/step_values"
PROMPT: dict[str, Any] = {"prompt": "1+1="}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "1+1="}]}
PROBLEM: dict[str, Any] = {"problem": "1+1", "answer": "#### 2"}

# Bodies that are no JSON object, for any path.
NO_OBJECTS = [
    b"",
    b" ",
    b"{",
    b"}",
    b"{]",
    b"[]",
    b"null",
    b"true",
    b"17",
    b'"text"',
    b"NaN",
    b'{"prompt": }',
    b"{'prompt': 'a'}",
    b'{"prompt": "a",}',
    b'{"prompt": "a"} {"prompt": "b"}',
    b'{"prompt": "a"',
    b'{"prompt": "a\n"}',
    b'{"prompt": "\xff"}',
    b"\xef\xbb\xbf{}",
    b"\x00\x01\x02",
    b'{"prompt": "a", "prompt": "b"}',
    b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": "a", "temperature": Infinity}',
    b'{"prompt": "a", "temperature": -Infinity}',
    b'{"prompt": "a", "temperature": 1e999}',
    b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}",
    b'{"prompt": "a", "temperature": 0.' + b"1" * 5000 + b"}",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"prompt": ' + b"[" * 80 + b"1" + b"]" * 80 + b"}",
    b"prompt=a&n=1",
    b"<prompt>a</prompt>",
    b"GET / HTTP/1.1\r\n\r\n",
]
WRONG_NUMBERS: list[Any] = [-1, 0, 1.5, "1", True, [], {}, 10**9, 10**30, -(10**30)]
# Wrong values of fields of completions, beside a right prompt.
OF_COMPLETIONS: list[dict[str, Any]] = [
    *({"n": value} for value in WRONG_NUMBERS),
    *({"max_tokens": value} for value in WRONG_NUMBERS),
    *({"logprobs": value} for value in (-1, 21, 1.5, "1", True, [], {})),
    *({"temperature": value} for value in (-0.1, 2.1, "1", True, [], {}, 10**30)),
    *({"top_p": value} for value in (0, -0.1, 1.1, "1", False, [], {})),
    *({"top_k": value} for value in (-2, 1.5, "1", True, [], 10**9)),
    *({"seed": value} for value in (1.5, "1", True, [], {}, 2**64, -(2**63) - 1)),
    *({"stop": value} for value in (1, True, {}, [1], [""], "", ["a"] * 17, ["a" * 257], [[]])),
    *({"stop": value} for value in ("\ud800", ["a", None])),
    *({"stream": value} for value in (1, "true", [], {})),
    *({"echo": value} for value in (1, "true", [], {})),
    *({"model": value} for value in (1, True, [], {}, "\ud800")),
    *({"best_of": value} for value in (0, 2, "1", True)),
    *({"stream_options": value} for value in (1, "a", [], {"x": 1}, {"include_usage": 1})),
    *({"frequency_penalty": value} for value in (1, -1, "a", {})),
    *({"presence_penalty": value} for value in (0.5, "a", [])),
    *({"logit_bias": value} for value in ({"1": 1}, 1, "a")),
    *({"suffix": value} for value in ("a", 1)),
    {"stream": True, "echo": True},
    {"stream": True, "logprobs": 1},
    {"response_format": {"type": "json_object"}},
    {"max_token": 5},
    {"temprature": 1.0},
    {"__proto__": {}},
    {"": 1},
    {"x" * 10_000: 1},
    {"\ud800": 1},
    {"messages": []},
]
PROMPTS: list[Any] = [
    None, 1, True, {}, [], [[]], [[], []], ["a", 1], [["a"]], [[1, "a"]], [[1.5]], [[-1]],
    [[10**6]], [[2**70]], [-1], [10**6], [True], [[[1]]], [None], ["a"] * 129, [[1]] * 129,
    "\ud800", ["\udfff"], "1" * 400_000, [[1] * 5000], "1+" * 400,
]  # fmt: skip
MESSAGES: list[Any] = [
    None, 1, "a", {}, [], [1], ["a"], [None], [[]], [{}], [{"role": "user"}],
    [{"content": "a"}], [{"role": "root", "content": "a"}], [{"role": 1, "content": "a"}],
    [{"role": "user", "content": 1}], [{"role": "user", "content": {}}],
    [{"role": "user", "content": [1]}], [{"role": "user", "content": [{"type": "image_url"}]}],
    [{"role": "user", "content": [{"type": "text", "text": 1}]}],
    [{"role": "user", "content": "\ud800"}], [{"role": "user", "content": "1" * 400_000}],
]  # fmt: skip
OF_CHATS: list[dict[str, Any]] = [
    *({"tools": value} for value in (1, "a", {}, [1], [{}], [{"function": 1}])),
    *({"tool_choice": value} for value in ("required", {"type": "function"}, 1)),
    *({"top_logprobs": value} for value in (1, 21, -1, "1")),
    *({"logprobs": value} for value in (1, "true", [])),
    *({"chat_template_kwargs": value} for value in (1, "a", [])),
    *({"max_completion_tokens": value} for value in (0, -1, 10**9, "1")),
    {"functions": [{}]},
    {"prompt": "a"},
    {"echo": True},
]
OF_VALUES: list[dict[str, Any]] = [
    *({"problem": value} for value in (None, 1, [], {}, "", " \n", "\ud800", "1" * 400_000)),
    *({"k": value} for value in WRONG_NUMBERS),
    *({"n": value} for value in WRONG_NUMBERS),
    *({"solution": value} for value in (1, {}, [1], ["a", "b"], "", "\ud800", "1" * 400_000)),
    *({"solutions": value} for value in (1, {}, [1], [""], ["a"] * 129)),
    *({"answer": value} for value in (1, [], {}, True)),
    *({"positions": value} for value in (1, "os.system", "no", [], "vinejax.x.y")),
    *({"every": value} for value in (0, -1, "1")),
    *({"num_states": value} for value in (0, -1, "1")),
    *({"temperature": value} for value in (-1, 3, "a")),
    *({"top_p": value} for value in (0, 2, "a")),
    *({"seed": value} for value in (1.5, "a", 2**64)),
    *({"continuations": value} for value in (1, "true")),
    {"solution": "a", "solutions": ["b"]},
    {"solution": "a", "n": 2},
    {"task": "os"},
]


def hostile_requests() -> list[tuple[str, Body]]:
    """(path, body) of every case."""
    paths = (COMPLETIONS, CHATS, VALUES)
    cases: list[tuple[str, Body]] = [(paths[i % 3], body) for i, body in enumerate(NO_OBJECTS)]
    cases += [(COMPLETIONS, PROMPT | fields) for fields in OF_COMPLETIONS]
    cases += [(COMPLETIONS, {"prompt": prompt}) for prompt in PROMPTS]
    cases += [(CHATS, {"messages": messages}) for messages in MESSAGES]
    cases += [(CHATS, CHAT | fields) for fields in OF_CHATS]
    cases += [(VALUES, PROBLEM | fields) for fields in OF_VALUES]
    return cases
