"""Calls of tools in replies and in the messages of requests, without an engine."""

import json
import types
from typing import Any

import pytest
from helpers.tokenizer_cases import load

from vinejax.engine.branches import Grown
from vinejax.tools.serve.answering import Answerer
from vinejax.tools.serve.parsing import RequestError
from vinejax.tools.serve.prompts import PromptEncoder
from vinejax.tools.serve.replies import Choice, Chunks, TokenForms, said_by, text_reply
from vinejax.tools.serve.requests import Limits, TextRequest, chat_request

LIMITS = Limits(100, 400, 500, 1000, 4, 4)
ADD = {"type": "function", "function": {"name": "add", "parameters": {}}}
FORMS = TokenForms(load("gpt2"), str)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": "é"}}\n</tool_call>'


def asked(messages: Any = None, **fields: Any) -> TextRequest:
    messages = messages or [{"role": "user", "content": "1+1"}]
    return chat_request({"messages": messages, "tools": [ADD], **fields}, LIMITS)


@pytest.mark.parametrize(
    ("text", "content", "count"),
    [
        (CALL, None, 1),
        (f"I add.\n{CALL}{CALL}", "I add.", 2),
        ('{"name": "add", "parameters": {"a": "é"}}', None, 1),
        (f"<think>hm</think>{CALL}", "<think>hm</think>", 1),
        (f"<think>{CALL}</think>So. {CALL}", f"<think>{CALL}</think>So.", 1),
        ('<think>hm</think>{"name": "add", "parameters": {"a": "é"}}', "<think>hm</think>", 1),
        (f"{CALL}<|python_tag|>", None, 1),
        (f"So. {CALL}<think>hm</think>", "So.", 1),
    ],
)
def test_calls_are_those_of_openai(text: str, content: str | None, count: int):
    said = said_by(asked(), text)
    assert said["content"] == content and len(said["tool_calls"]) == count
    assert len({call["id"] for call in said["tool_calls"]}) == count
    for call in said["tool_calls"]:
        assert call["type"] == "function" and call["function"]["name"] == "add"
        assert json.loads(call["function"]["arguments"]) == {"a": "é"}


@pytest.mark.parametrize(
    "text",
    ["2", "<tool_call>add</tool_call>", CALL.replace("add", "sub"), "<|python_tag|>1", ""]
    + [f"<think>{CALL}</think>2", CALL.replace('"é"', "NaN")],
)
def test_other_texts_stay_texts(text: str):
    assert said_by(asked(), text) == {"content": text}
    assert said_by(asked(tools=[]), CALL) == {"content": CALL}
    assert said_by(asked(tools=[{"function": {"name": []}}]), CALL) == {"content": CALL}


def test_a_call_that_is_only_thought_is_no_call():
    """A template may open the thinking, which a response may not end within its tokens."""
    request, grown = asked(), Grown([5], [-1.0], f"Maybe {CALL}", "length")
    choice = Choice([1], "", grown, None, thinks=True)
    (one,) = text_reply(request, "m", "s", [choice], FORMS)["choices"]
    assert (one["message"]["content"], one["finish_reason"]) == (grown.text, "length")
    event = json.loads(Chunks(request, "m", "s").whole(0, choice)[len("data: ") :])
    assert event["choices"][0]["delta"] == {"content": grown.text}
    said = said_by(request, f"Maybe {CALL}</think>{CALL}", True)
    assert len(said["tool_calls"]) == 1
    answerer: Any = types.SimpleNamespace(tokenizer=load("gpt2"))
    rows = [answerer.tokenizer.encode(text) for text in ("Hi <think>\n", "<think>\n\n</think>\n")]
    assert Answerer._thinks(answerer, request, rows) == [True, False]


def test_a_chat_without_tools_may_choose_none():
    """`none` is then OpenAI's default; with tools, no call may be made, which nothing ensures."""
    for choice in ("auto", "none"):
        assert asked(tools=[], tool_choice=choice) == asked(tools=[])
    assert asked(tool_choice="auto") == asked()
    with pytest.raises(RequestError, match='^tool_choice: "none" is not supported'):
        asked(tool_choice="none")


@pytest.mark.parametrize(("text", "finish"), [(CALL, "tool_calls"), ("2", "stop")])
def test_replies_and_streams_end_by_their_calls(text: str, finish: str):
    request, grown = asked(), Grown([5], [-1.0], text, "eos")
    reply = text_reply(request, "m", "s", [Choice([1], "", grown, None)], FORMS)
    (choice,) = reply["choices"]
    assert choice["finish_reason"] == finish and choice["message"]["role"] == "assistant"
    whole = Chunks(request, "m", "s").whole(0, Choice([1], "", grown, None))
    event = json.loads(whole[len("data: ") :])
    (streamed,) = event["choices"]
    assert streamed["finish_reason"] == finish
    assert streamed["delta"]["content"] == choice["message"]["content"]
    assert [call["index"] for call in streamed["delta"].get("tool_calls", [])] == (
        [0] if finish == "tool_calls" else []
    )


def test_a_chat_goes_on_after_a_call(monkeypatch: pytest.MonkeyPatch):
    """The template gets the arguments of earlier calls as an object."""
    tokenizer = load("gpt2")
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    template += "{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}"
    monkeypatch.setattr(tokenizer, "chat_template", template + "{% endfor %}")
    messages = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", **said_by(asked(), CALL)},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
    ]
    ids = PromptEncoder(tokenizer, LIMITS).prompts_of(asked(messages, tools=[]))[0]
    assert tokenizer.decode(ids) == 'user:1+1assistant:{"a": "é"}tool:2'


@pytest.mark.parametrize("arguments", ["", " ", "{}", {}])
def test_a_call_in_a_chat_may_have_no_arguments(arguments: Any):
    call = {"function": {"name": "add", "arguments": arguments}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    (message,) = asked(messages).messages
    assert message["tool_calls"] == [{"function": {"name": "add", "arguments": {}}}]


def test_tools_that_the_template_leaves_out_are_refused(monkeypatch: pytest.MonkeyPatch):
    tokenizer = load("gpt2")
    encoder = PromptEncoder(tokenizer, LIMITS)
    monkeypatch.setattr(tokenizer, "chat_template", "{{ messages[0].content }}")
    with pytest.raises(RequestError, match="^tools: the model's chat template writes no tools"):
        encoder.prompts_of(asked())
    with_tools = {"default": "x", "tool_use": "{{ tools[0].function.name }}"}
    monkeypatch.setattr(tokenizer, "chat_template", with_tools)
    assert tokenizer.decode(encoder.prompts_of(asked())[0]) == "add"


@pytest.mark.parametrize(
    ("roles", "expected"),
    [("'system'", "system:Be brief."), ("'system', 'developer'", "developer:Be brief.")],
    ids=["unknown", "known"],
)
def test_a_developer_is_the_system_for_a_template_without_this_role(
    roles: str, expected: str, monkeypatch: pytest.MonkeyPatch
):
    """Templates leave out messages of roles that they do not know."""
    tokenizer = load("gpt2")
    template = "{% for m in messages %}{% if m.role in (ROLES, 'user') %}{{ m.role }}:"
    template = template.replace("ROLES", roles) + "{{ m.content }}{% endif %}{% endfor %}"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "1+1"},
    ]
    (ids,) = PromptEncoder(tokenizer, LIMITS).prompts_of(asked(messages, tools=[]))
    assert tokenizer.decode(ids) == f"{expected}user:1+1"


@pytest.mark.parametrize(
    "calls",
    [
        "x",
        5,
        [None],
        [{}],
        [{"function": {"name": "add"}}],
        [{"function": {"name": "add", "arguments": "{"}}],
        [{"function": {"name": "add", "arguments": "[1]"}}],
        [{"function": {"name": "add", "arguments": '{"a": NaN}'}}],
        [{"function": {"name": "add", "arguments": '{"a":' * 5000}}],
    ],
)
def test_calls_that_no_template_could_write_are_refused(calls: Any):
    messages = [{"role": "assistant", "content": None, "tool_calls": calls}]
    with pytest.raises(RequestError, match=r"^messages\[0\].tool_calls: must be a list"):
        asked(messages)


@pytest.mark.parametrize("name", ["chat_template", "truncation", "tools", "add_generation_prompt"])
def test_a_request_brings_no_template_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch):
    """A variable with the name of a parameter of the tokenizer would replace it."""
    tokenizer = load("gpt2")
    monkeypatch.setattr(tokenizer, "chat_template", "{{ messages[0].content }}{{ tail }}")
    encoder = PromptEncoder(tokenizer, LIMITS)
    with pytest.raises(RequestError, match=f"^chat_template_kwargs: '{name}' is no variable"):
        encoder.prompts_of(asked(chat_template_kwargs={name: "{% for i in range(9) %}x"}))
    variables = {"tail": "!", "documents": []}
    (ids,) = encoder.prompts_of(asked(tools=[], chat_template_kwargs=variables))
    assert tokenizer.decode(ids) == "1+1!"
