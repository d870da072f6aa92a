"""Calls of tools: read in the formats of models, answered in the markup of chat templates."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from helpers import turn_cases as cases
from helpers.refusals import refuses
from helpers.tokenizer_cases import load
from helpers.tool_templates import LLAMA, QWEN

from vinejax.core.errors import UserError
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.engine.branches import Branch, Grown
from vinejax.tasks.checked import CheckedTask
from vinejax.tasks.environment import EnvRules, EnvStart, Observation, TurnTask, start_environment
from vinejax.tasks.prompts import (
    ChatTurns,
    encode_prompt,
    encode_within,
    load_problems,
    template_variables,
    tools_of,
)
from vinejax.tasks.tools import ToolCall, Tools, read_calls

CHAT = DataConfig(chat_template=True)


def add(a: int, b: int = 0) -> int:
    """Adds two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def say(what: str) -> Any:
    """Repeats a text, or does something else.

    Args:
        what: The text.
    """
    if what == "fail":
        raise ValueError("two\nlines")
    if what == "leave":
        raise SystemExit(1)
    if what == "stop":
        raise UserError("the sandbox is gone")
    return {"list": [1, "é"], "none": None}.get(what, what)


TOOLS = Tools(add, say)
ADD = ToolCall("add", {"a": 1, "b": 2})
TAGGED = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
BARE = '{"name": "add", "parameters": {"a": 1, "b": 2}}'


# --- calls in texts


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (TAGGED, [ADD]),
        (f"I add.\n{TAGGED}\n", [ADD]),
        (TAGGED.replace("\n", ""), [ADD]),
        (TAGGED.removesuffix("\n</tool_call>"), [ADD]),  # the turn ended there
        (f"{TAGGED}\n{TAGGED.replace('1', '5')}", [ADD, ToolCall("add", {"a": 5, "b": 2})]),
        ('<tool_call>{"name": "f", "arguments": {}}</tool_call>', [ToolCall("f", {})]),
        (
            '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>{"}}</tool_call>',
            [ToolCall("f", {"x": "</tool_call>{"})],
        ),
        (
            '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}</tool_call>',
            [ADD],
        ),
        (
            '<tool_call>{"type": "function", "function": {"name": "add", "arguments": '
            '{"a": 1, "b": 2}}}</tool_call>',
            [ADD],
        ),
        (BARE, [ADD]),
        (f"<|python_tag|>{BARE}", [ADD]),
        (f"Let me add.<|python_tag|>{BARE}", [ADD]),
        (f" {BARE}; {BARE}\n", [ADD, ADD]),
        ('{"type": "function", "name": "add", "parameters": {"a": 1, "b": 2}}', [ADD]),
        ("<|python_tag|>print(1)\n", [ToolCall("python", {"code": "print(1)"})]),
        ("The answer is 3.", []),
        ("", []),
        ('{"a": 1}', []),
        ("{1, 2}", []),
        ('{"name": "Bob", "age": 3}', []),
        ('{"type": "circle"}', []),
        ('{"type": "circle", "parameters": {"r": 1}}', []),
        ('{"name": "Bob", "note": {"arguments": 3}}', []),
        ('{"name": "f", "text": "see \\"arguments\\": 1"}', []),
        (
            '{"name": "f", "parameters": {"x": "<tool_call>"}}',
            [ToolCall("f", {"x": "<tool_call>"})],
        ),
        ("<|python_tag|>'<tool_call>'", [ToolCall("python", {"code": "'<tool_call>'"})]),
        (
            '<tool_call>{"name": "f", "arguments": {"x": "<|python_tag|>"}}</tool_call>',
            [ToolCall("f", {"x": "<|python_tag|>"})],
        ),
        (
            "<|python_tag|>{'name': 1}['name']",
            [ToolCall("python", {"code": "{'name': 1}['name']"})],
        ),
        (f"It was {BARE}", []),  # Llama calls before it says anything
    ],
)
def test_calls_of_qwen_hermes_and_llama(text: str, calls: list[ToolCall]):
    assert read_calls(text) == calls


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<tool_call>", "no JSON object: Expecting value at character 0"),
        ("<tool_call>add(1, 2)</tool_call>", "no JSON object: Expecting value"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>', "Expecting ','"),
        ('<tool_call>{"name": "add"}}</tool_call>', "text between its JSON object and </tool_call"),
        ("<tool_call>[1]</tool_call>", "no JSON object, but list"),
        ('<tool_call>{"arguments": {}}</tool_call>', "no name of a tool"),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', "no name of a tool"),
        ('<tool_call>{"name": "add"}</tool_call>', "add: the arguments must be a JSON object"),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "must be a JSON object"),
        ('<tool_call>{"name": "add", "arguments": "1 2"}</tool_call>', "must be a JSON object"),
        ('<tool_call>{"name": "add", "arguments": "{"}</tool_call>', "are no JSON object"),
        ("<tool_call>" + "[" * 200_000, "nested too deeply"),
        ('<tool_call>{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}", "no JSON object"),
        ('{"name": "add", "parameters": {"a": 1}', "no JSON object"),
        ('{"name": "add", "parameters": 5}', "must be a JSON object"),
        ('<tool_call>{"name": "add", "arguments": {"a": NaN}}', "NaN is not finite"),
        ('<tool_call>{"name": "add", "arguments": {"a": -Infinity}}', "-Infinity is not finite"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1e999}}', "1e999 is not finite"),
    ],
)
def test_a_malformed_call_is_one_line(text: str, error: str):
    (call,) = read_calls(text)
    assert error in call.error
    observed = TOOLS.answered(text)
    assert observed is not None and observed.text.startswith("error: ")
    assert "\n" not in observed.text and len(observed.text) <= 300 and not observed.done


def test_a_call_after_a_malformed_one_is_read():
    assert [call.error == "" for call in read_calls(f"<tool_call>x</tool_call> {TAGGED}")] == [
        False,
        True,
    ]


@pytest.mark.parametrize("text", [TAGGED, "<tool_call></tool_call>", f"{BARE};"])
def test_only_the_first_of_very_many_calls_are_read(text: str):
    """A policy that repeats itself may fill its whole turn with calls."""
    calls = read_calls(text * (1_000_000 // len(text)))
    assert calls[:64] == read_calls(text) * 64
    assert len(calls) == 65 and calls[64].error.startswith("only 64 calls are read")


def test_a_turn_runs_few_calls():
    ran = []

    def note() -> None:
        """Notes a call."""
        ran.append(1)

    observed = Tools(note).answered(call("note") * 50)
    assert observed is not None and len(ran) == 8
    assert observed.results == ("null",) * 8 + (
        "error: only 8 calls are read, and not the later ones",
    )


# --- results


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (call("add", a=1, b=2), "3"),
        (call("add", a=1), "1"),
        (call("say", what="two\nlines"), "two\nlines"),
        (call("say", what="list"), '[1, "é"]'),
        (call("say", what="none"), "null"),
        (call("say", what="\ud800x"), "?x"),
        (call("say", what="fail"), "error: say: ValueError: two lines"),
        (call("say", what="leave"), "error: say: SystemExit: 1"),
        (call("add"), "error: add: missing a required argument: 'a'"),
        (call("add", a=1, c=2), "error: add: got an unexpected keyword argument 'c'"),
        (call("add", a="x", b=1), "error: add: TypeError: "),
        (call("sub", a=1), "error: there is no tool 'sub', only add, say"),
        (call("\ud800"), "error: there is no tool '\\ud800', only add, say"),
        (call("__init__"), "error: there is no tool"),
    ],
)
def test_results_and_errors_of_tools(text: str, result: str):
    observed = TOOLS.answered(text)
    assert observed is not None and observed.results == (observed.text,)
    assert observed.text.startswith(result)
    if not result.endswith(": ") and "no tool" not in result:
        assert observed.text == result


def test_several_calls_have_several_results_and_an_answer_has_none():
    observed = TOOLS.answered(call("add", a=1) + call("nothing") + call("say", what="b"))
    assert observed is not None and observed.results[::2] == ("1", "b")
    assert observed.text == "\n".join(observed.results) and "there is no tool" in observed.text
    assert TOOLS.answered("It is 3.") is None


def test_an_error_of_the_set_up_ends_the_run():
    with pytest.raises(UserError, match="sandbox is gone"):
        TOOLS.answered(call("say", what="stop"))


def test_an_async_tool_is_refused_because_its_result_would_be_a_coroutine():
    async def wait(seconds: int) -> int:
        return seconds

    with pytest.raises(UserError, match="^tool wait: is async, and calls are not awaited"):
        Tools(wait)


def test_two_tools_of_one_name_are_refused():
    def other() -> None: ...

    other.__name__ = "add"
    with pytest.raises(UserError, match="^tool add: two functions have this name"):
        Tools(add, other)


def test_schemas_are_those_of_transformers():
    (schema, _) = TOOLS.schemas
    assert schema["function"]["name"] == "add"
    assert schema["function"]["parameters"]["required"] == ["a"]

    def bad(x):  # pyright: ignore
        """Has no type.

        Args:
            x: Anything.
        """

    with pytest.raises(UserError, match="^tool bad: [^\n]+$"):
        Tools(bad).schemas  # noqa: B018


# --- chat templates


TEMPLATES = {"qwen": QWEN, "llama": LLAMA}
SAID = {"qwen": TAGGED, "llama": BARE}
RESULTS = ['3 "x"\n\\boxed{é}', "4"]


def tokenizer_with(template: str | None, monkeypatch: pytest.MonkeyPatch, name: str = "gpt2"):
    tokenizer = load(name)
    if template is not None:
        monkeypatch.setattr(tokenizer, "chat_template", template)
    return tokenizer


@pytest.mark.parametrize("results", [RESULTS, RESULTS[:1]], ids=["two calls", "one call"])
@pytest.mark.parametrize("form", ["qwen", "llama", "minimind"])
def test_a_call_and_its_results_have_the_ids_of_the_chat_template(
    form: str, results: list[str], monkeypatch: pytest.MonkeyPatch
):
    """The real template of minimind has Qwen's form."""
    name = "minimind_6400" if form == "minimind" else "gpt2"
    tokenizer = tokenizer_with(TEMPLATES.get(form), monkeypatch, name)
    variables = template_variables(tokenizer, CHAT, TOOLS.schemas)
    prompt = encode_prompt(tokenizer, "How many?", True, variables=variables)
    said = encode_within(tokenizer, SAID.get(form, TAGGED))
    chat = ChatTurns.of(tokenizer, CHAT, TOOLS.schemas)
    observed = encode_within(tokenizer, chat.around("", said[-1], results))
    chat_of = [("user", "How many?"), ("assistant", SAID.get(form, TAGGED))]
    messages = [{"role": role, "content": text} for role, text in chat_of]
    messages += [{"role": "tool", "content": text} for text in results]
    expected = tokenizer.apply_chat_template(
        messages, tools=TOOLS.schemas, tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(prompt + said + observed) == expected
    assert json.dumps(TOOLS.schemas[0]["function"]["description"]) in tokenizer.decode(prompt)


def test_the_token_that_ended_the_turn_is_not_repeated(monkeypatch: pytest.MonkeyPatch):
    tokenizer = tokenizer_with(LLAMA, monkeypatch)
    chat = ChatTurns.of(tokenizer, CHAT, TOOLS.schemas)
    chat = chat._replace(special={7: "<|eot_id|>", 8: "<|eom_id|>", 9: "<|other|>"})
    texts = [chat.around("", last, ["3"]) for last in (7, 8, 9, 1)]
    assert texts[0] == texts[1] and texts[0].startswith("<|start_header_id|>ipython")
    assert texts[2] == texts[3] == f"<|eot_id|>{texts[0]}"
    assert chat.around("Hm?", 7).startswith("<|start_header_id|>user")


class Sum(TurnTask):
    """A sum, for which the policy may use tools."""

    name, max_turns = "sum", 4

    @property
    def tools(self) -> Any:
        return TOOLS.schemas

    def load(self, split: str) -> Any:
        return [Problem(f"{split}/{i}", f"{i}+1", str(i + 1)) for i in range(3)]

    def prompt(self, problem: Any) -> str:
        return problem.question

    def env(self) -> Any:
        return Sums()


class Sums:
    def reset(self, problem: Any, seed: int) -> str:
        self.answer = problem.answer
        return ""

    def step(self, action: str) -> Observation:
        return TOOLS.answered(action) or Observation("", float(action == self.answer), done=True)


@pytest.mark.parametrize(
    ("template", "data"),
    [
        (QWEN, DataConfig()),
        (QWEN.replace("tools", "others"), CHAT),
        (QWEN.replace("{{ message.content }}", ""), CHAT),
        (QWEN.replace("{{ message.content }}", "{{ message.content | upper }}"), CHAT),
    ],
    ids=["no chat", "no tools", "no results", "changed results"],
)
def test_what_a_task_with_tools_needs(
    template: str, data: DataConfig, monkeypatch: pytest.MonkeyPatch
):
    tokenizer = tokenizer_with(template, monkeypatch)
    with refuses("data.chat_template"):
        load_problems(Sum(), tokenizer, "train", data)


def test_prompts_of_a_task_with_tools_have_them(monkeypatch: pytest.MonkeyPatch):
    tokenizer = tokenizer_with(QWEN, monkeypatch)
    task: Any = CheckedTask(Sum())
    data = dataclasses.replace(CHAT, max_prompt_tokens=1000)
    found, _ = load_problems(task, tokenizer, "train", data)
    assert "Adds two numbers." in tokenizer.decode(found[0][1])
    with pytest.raises(UserError, match="`tools` is .* needed is a list of JSON schemas"):
        CheckedTask(type("Bad", (Sum,), {"tools": [add]})())
    bare: Any = type("Bare", (Sum,), {"tools": None})()  # as in tasks that may have tools
    assert tools_of(bare) == tools_of(CheckedTask(bare)) == []


# --- episodes


def test_results_of_an_environment_are_checked():
    def started(result: Any) -> Any:
        class Task(Sum):
            def env(self) -> Any:
                return type("Env", (Sums,), {"step": lambda self, action: result})()

        start = EnvStart(Task().load("train")[0], 1)
        return start_environment(Task(), start, EnvRules(60.0))[0]

    answer = started(Observation("unused", results=["a\x1b[1m", "b"])).step("x")  # pyright: ignore
    assert answer == Observation("a\nb", results=("a", "b"))
    for results in ("ab", [1], None):
        with pytest.raises(UserError, match="perhaps results: texts"):
            started(Observation("", results=results)).step("x")  # pyright: ignore


class Calling(cases.PolicyEngine):
    """Calls a tool twice in its first turn, badly in its second, and then answers."""

    def __init__(self, tokenizer: Any):
        super().__init__(context=2000)
        self.tokenizer = tokenizer

    def _drawn(self, trunk: list[int], branch: Branch, budget: int) -> Grown:
        turn = self.tokenizer.decode(trunk).count("<tool_response>")
        said = {0: call("add", a=1) + call("say", what="<b>"), 2: call("add", x="\ud800")}
        ids = self.tokenizer.encode(text := said.get(turn, "1"), add_special_tokens=False)
        ids = [*ids, self.tokenizer.eos_token_id]
        return Grown(ids, [-1.0] * len(ids), text, "eos")


def test_an_episode_with_tools_has_the_drawn_ids_and_the_templates_markup(
    monkeypatch: pytest.MonkeyPatch,
):
    tokenizer = tokenizer_with(QWEN, monkeypatch, "byte_level")
    data = {"chat_template": True, "max_prompt_tokens": 1500}
    limits = {"sample": {"max_tokens": 500}, "env": {"observed": 500}}
    cfg = cases.config(data=data, **limits, rollout={"prompts": 1, "per_prompt": 1})
    (episode,) = cases.sampled(cfg, Calling(tokenizer), Sum())
    assert episode.reward == 1.0 and episode.finished and len(episode.turns) == 3
    first, second, last = episode.turns
    assert first.observation == "1\n<b>" and last.observation == ""
    assert second.observation == "error: add: missing a required argument: 'a'"
    text = tokenizer.decode(episode.response)
    assert text.count("<|im_start|>user\n<tool_response>\n") == 2
    assert "<tool_response>\n1\n</tool_response>\n<tool_response>\n<b>\n</tool_response>" in text
    drawn = np.array(episode.logprobs) == -1.0
    np.testing.assert_array_equal(drawn, episode.is_drawn)
