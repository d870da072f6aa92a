"""Prompts and worked responses as ids: those of transformers, which decode to the text."""

import dataclasses
import datetime
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.paths import REPO
from helpers.refusals import refuses
from helpers.tokenizer_cases import NAMES, ODD_TEXTS, gsm8k_texts, load

from vinejax.core.errors import ConfigError, DataError, ModelError, UserError
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.model.hf.weights import load_tokenizer
from vinejax.runtime.clock import Clock
from vinejax.tasks import prompts
from vinejax.tasks.arithmetic import Arithmetic
from vinejax.tasks.base import Split
from vinejax.tasks.prompts import (
    adds_bos,
    encode_prompt,
    encode_response,
    encode_within,
    load_problems,
    worked_response,
)

WITH_BOS = ("sentencepiece", "mistral_7b_v1", "stories260K")  # tokenizers that put BOS in front
STARTS = [path.parent for path in sorted(REPO.glob("configs/*_start/tokenizer.json"))]
SHIPPED = sorted(REPO.glob("vinejax/tasks/*_tokenizer")) + STARTS
PROMPTS = ["[MATH_TASK] Problem:\nHow many 🍎?\n\nSolution:", "Q:", "她有", "x\n"]


def decode(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_has_the_ids_that_transformers_gives_it_and_decodes_to_itself(name: str):
    tokenizer = load(name)
    bos = tokenizer.bos_token_id
    for text in PROMPTS:
        ids = encode_prompt(tokenizer, text, chat_template=False)
        assert ids.count(bos) == (name in WITH_BOS) == (ids[0] == bos)
        assert decode(tokenizer, ids) == text
        assert ids == tokenizer(text)["input_ids"]
    if name in WITH_BOS:  # a text with BOS gets no second BOS
        assert encode_prompt(tokenizer, tokenizer.bos_token + "Q:", False).count(bos) == 1


@pytest.mark.parametrize("name", NAMES)
def test_prompt_and_response_decode_to_prompt_and_text(name: str):
    tokenizer = load(name)
    texts = [t for t in ODD_TEXTS if name != "gpt_neox_20b" or "e\u0301" not in t]
    texts += [] if name in ("byte_level", "sentencepiece") else gsm8k_texts(15)
    texts += ["x", " x", "7", ".", "#### 5", "\n", " "]
    for prompt_text in PROMPTS:
        prompt = encode_prompt(tokenizer, prompt_text, chat_template=False)
        for text in texts:
            ids = encode_response(tokenizer, text)
            assert ids[-1] == tokenizer.eos_token_id and tokenizer.eos_token_id not in ids[:-1]
            assert decode(tokenizer, prompt + ids) == prompt_text + text


def test_a_response_gets_no_space_of_its_own():
    """Plain encoding adds a space, which shows that the test above can fail."""
    tokenizer = load("sentencepiece")
    prompt = encode_prompt(tokenizer, "Q:", chat_template=False)
    plain = tokenizer.encode("\nx", add_special_tokens=False)
    assert decode(tokenizer, prompt + plain) == "Q: \nx"


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_response_is_eos(name: str):
    tokenizer = load(name)
    assert encode_response(tokenizer, "") == [tokenizer.eos_token_id]


def test_text_that_merges_with_every_anchor_is_encoded_alone():
    merges_all: Any = SimpleNamespace(encode=lambda text, **_: [len(text)], eos_token_id=0)
    assert encode_response(merges_all, "four") == [4, 0]


def test_a_normalizer_may_change_the_text_but_adds_nothing():
    tokenizer = load("gpt_neox_20b")
    prompt = encode_prompt(tokenizer, "Q:", chat_template=False)
    assert decode(tokenizer, prompt + encode_response(tokenizer, "\ne\u0301")) == "Q:\n\u00e9"


def test_a_real_chat_template_ends_where_the_answer_begins():
    tokenizer = load("minimind_6400")
    ids = encode_prompt(tokenizer, "How many?", chat_template=True)
    text = tokenizer.decode(ids)
    assert text.startswith("<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.bos_token == "<|im_start|>" and ids[0] != ids[1]


@pytest.mark.parametrize(
    ("template", "text"),
    [("<s>[{{ messages[0].content }}]", "<s> [Q]"), ("{{ messages[0].content }}", "Q")],
)
def test_a_chat_template_alone_says_whether_bos_is_in_front(
    template: str, text: str, monkeypatch: Any
):
    tokenizer = load("sentencepiece")
    assert adds_bos(tokenizer)
    monkeypatch.setattr(tokenizer, "chat_template", template)
    ids = encode_prompt(tokenizer, "Q", chat_template=True)
    assert tokenizer.decode(ids) == text
    messages = [{"role": "user", "content": "Q"}]
    theirs = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert ids == theirs["input_ids"]


def test_a_bos_token_that_the_tokenizer_does_not_use_stands_only_for_an_empty_prompt():
    tokenizer = load("minimind_6400")
    assert tokenizer.bos_token == "<|im_start|>" and not adds_bos(tokenizer)
    assert encode_prompt(tokenizer, "Q:", False) == tokenizer("Q:")["input_ids"]
    assert encode_prompt(tokenizer, "", False) == [tokenizer.bos_token_id]


@pytest.mark.parametrize("tokenizer_folder", SHIPPED, ids=lambda folder: folder.name)
def test_the_shipped_tokenizers_put_bos_in_front_and_nothing_at_the_end(tokenizer_folder: Path):
    tokenizer = load_tokenizer(tokenizer_folder)
    assert adds_bos(tokenizer) and tokenizer.unk_token == "<unk>"
    assert tokenizer("1+2=")["input_ids"] == encode_prompt(tokenizer, "1+2=", False)
    assert len(tokenizer("1+2=")["input_ids"]) == 5
    config = tokenizer_folder / "config.json"
    if config.exists():  # a start has the tokenizer that its task ships
        assert json.loads(config.read_text())["bos_token_id"] == tokenizer.bos_token_id
        vocabularies = [load_tokenizer(shipped).get_vocab() for shipped in SHIPPED[:2]]
        assert tokenizer.get_vocab() in vocabularies


def test_what_a_tokenizer_lacks_is_named():
    tokenizer = load("byte_level")
    with refuses("data.chat_template"):
        encode_prompt(tokenizer, "Q:", chat_template=True)
    with pytest.raises(ModelError, match="BOS"):
        encode_prompt(tokenizer, "", chat_template=False)
    endless: Any = SimpleNamespace(eos_token_id=None)
    with pytest.raises(ModelError, match="EOS"):
        encode_response(endless, "x")


# --- chat templates


@pytest.fixture
def templated(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that returns a tokenizer with a chat template; the clock is not set yet."""
    monkeypatch.setattr(prompts, "CLOCK", Clock())

    def with_template(template: Any) -> Any:
        tokenizer = load("byte_level")
        monkeypatch.setattr(tokenizer, "chat_template", template)
        return tokenizer

    return with_template


CONTENT = "{{ messages[0].content }}"


@pytest.mark.parametrize(
    "template, reason",
    [
        ("{{ raise_exception('No system\nmessages.') }}", "TemplateError: No system messages."),
        ("{% for m in messages %}{{ m.content }}", "TemplateSyntaxError: "),
        ("{{ messages[0].content.parts[0].text }}", "UndefinedError: "),
        ("{{ messages[1].content }}", "UndefinedError: "),
        (CONTENT + "{{ 1 // 0 }}", "ZeroDivisionError: "),
        (CONTENT + "{{ messages + 1 }}", "TypeError: "),
        ({"rag": CONTENT, "tools": CONTENT}, "ValueError: This model has multiple"),
        ("Hello!", "leaves out, or changes, the user's message 'Six of 7?'"),
        ("{{ messages[0].role }}", "leaves out, or changes, the user's message"),
        ("{{ messages[0].content[:5] }}", "leaves out, or changes, the user's message"),
        ("{% for m in messages if m.role == 'assistant' %}{{ m.content }}{% endfor %}", "leaves"),
    ],
)
def test_a_template_that_cannot_make_the_prompt_is_one_line(
    template: Any, reason: str, templated: Any
):
    with pytest.raises(ConfigError) as error:
        encode_prompt(templated(template), "Six of 7?\n", True)
    message = str(error.value)
    assert message.startswith("data.chat_template = True: the tokenizer's chat template ")
    assert reason in message and "\n" not in message


@pytest.mark.parametrize(
    "template",
    ["[{{ messages[0].content | trim }}]", "{{ messages[0].content.split() | join(' ') }}"],
)
def test_a_template_may_change_spaces(template: str, templated: Any):
    tokenizer = templated(template)
    text = tokenizer.decode(encode_prompt(tokenizer, " Six\nof  7?\n", True))
    assert "".join(text.split()).strip("[]") == "Sixof7?"


CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def test_system_messages_of_the_data_go_before_that_of_the_setting(templated: Any):
    class Asked(Words):
        def load(self, split: str) -> list[Problem]:
            return [
                Problem("0", "Q?", ""),
                Problem("1", "Q?", "", context=(("system", "Own."),)),
                Problem("2", "Q?", "", context=(("user", "A?"), ("assistant", "B."))),
            ]

    tokenizer = templated(CHAT)

    def texts(**fields: Any) -> list[str]:
        data = DataConfig(chat_template=True, **fields)
        return [
            tokenizer.decode(ids) for _, ids in load_problems(Asked(), tokenizer, "test", data)[0]
        ]

    own, few = "<system>Own.<user>Q?", "<user>A?<assistant>B.<user>Q?"
    assert texts() == ["<user>Q?", own, few]
    assert texts(system="Set.") == ["<system>Set.<user>Q?", own, f"<system>Set.{few}"]
    problems, _ = load_problems(
        Asked(), tokenizer, "test", DataConfig(chat_template=True, system="Set.")
    )
    assert problems[0][0].context == (("system", "Set."),)  # reward functions see it, too
    with refuses("data.chat_template"):
        load_problems(Asked(), tokenizer, "test", DataConfig())
    with refuses("data.chat_template"):
        load_problems(
            Asked(),
            templated("{{ messages[-1].content }}"),
            "test",
            DataConfig(chat_template=True, system="Set."),
        )


def test_variables_reach_the_template(templated: Any):
    template = CONTENT + "{% if thinking is false %}!{% endif %}{{ level }}{{ depth * 2 }}"
    tokenizer = templated(template)
    data = DataConfig(chat_template=True)
    for thinking in ("False", "false"):
        values = (f"thinking={thinking}", "level=high", "depth=3")
        data = dataclasses.replace(data, template_vars=values)
        problems, _ = load_problems(Words(), tokenizer, "test", data)
        assert tokenizer.decode(problems[0][1]) == "Q:!high6"
    wrong = dataclasses.replace(data, template_vars=("thinkin=False",))
    with refuses("data.template_vars"):
        load_problems(Words(), tokenizer, "test", wrong)


@pytest.mark.parametrize(
    ("ending", "opening"),
    [
        ("<think>", "<think>"),
        ("<|assistant|>\n<think>\n", "<think>"),
        ("<think>\n\n</think>\n\n", ""),
        ("<think>\nOkay,", ""),
        ("Think between <think> and </think>.", ""),
        ("", ""),
    ],
)
def test_the_tag_of_a_thinking_block_that_the_prompt_opens(
    ending: str, opening: str, templated: Any
):
    tokenizer = templated(CONTENT + ending.replace("\n", "\\n").join(["{{ '", "' }}"]))
    problems, _ = load_problems(Words(), tokenizer, "test", DataConfig(chat_template=True))
    assert problems[0][0].opening == opening
    assert problems[0][0].opened("so 5") == opening + "so 5"


@pytest.mark.parametrize(
    ("solution", "response"),
    [
        ("2+3=5\n#### 5", "\n</think>\n\n2+3=5\n#### 5"),
        ("so <think>it</think> is 5", "\n</think>\n\nso <think>it</think> is 5"),
        ("Let me see.\n</think>\n\n5", "Let me see.\n</think>\n\n5"),
        ("<think>\nLet me see.\n</think>\n\n5", "Let me see.\n</think>\n\n5"),
        (" \n", " \n"),
    ],
)
def test_a_worked_solution_follows_the_thinking_that_the_prompt_opens(solution: str, response: str):
    problem = Problem("q", "2+3=", "5")
    assert worked_response(problem, solution) == solution
    opened = dataclasses.replace(problem, opening="<think>")
    assert worked_response(opened, solution) == response


def test_a_hidden_tag_opens_nothing(templated: Any, monkeypatch: pytest.MonkeyPatch):
    tokenizer, data = templated(CONTENT + "<think>"), DataConfig(chat_template=True)
    monkeypatch.setattr(prompts, "special_tokens", lambda _: {"<think>": 7, "</think>": 8})
    for is_hidden, opening in ((False, "<think>"), (True, "")):
        problems, _ = load_problems(Words(), tokenizer, "test", data, is_hidden)
        assert problems[0][0].opening == opening


FORMS = ("%d %b %Y", "%S", "%X", "%-d/%m, %A", "%Y-%m-%dT%H:%M:%S.%f", "%p", "%a")


@pytest.mark.parametrize("form", FORMS)
def test_the_clock_of_a_template_stands(
    form: str, templated: Any, capsys: pytest.CaptureFixture[str]
):
    tokenizer = templated(f"{{{{ strftime_now('{form}') }}}}|{CONTENT}")
    before = datetime.datetime.now()
    first = encode_prompt(tokenizer, "Q", True)
    time.sleep(0.01)
    assert encode_prompt(tokenizer, "Q", True) == first
    said = capsys.readouterr().out
    assert said.count("warning: the chat template asks for the time") == 1
    pinned = prompts.CLOCK.time
    assert before <= pinned <= datetime.datetime.now()
    assert tokenizer.decode(first) == f"{pinned.strftime(form)}|Q"


def test_a_template_that_only_could_ask_for_the_time_does_not(
    templated: Any, capsys: pytest.CaptureFixture[str]
):
    """Llama's template takes the date from a variable if there is one."""
    unset = "{% if not date is defined %}{% set date = strftime_now('%d') %}{% endif %}"
    tokenizer = templated(f"\n  {unset}\n {{{{ date }}}}\n{CONTENT}")
    ids = encode_prompt(tokenizer, "Q", True, variables={"date": "26 Jul 2024"})
    assert tokenizer.decode(ids) == "\n 26 Jul 2024\nQ" and capsys.readouterr().out == ""
    assert not prompts.CLOCK.was_asked
    encode_prompt(tokenizer, "Q", True)
    assert prompts.CLOCK.was_asked


class Words:
    """A task of three prompts of 2, 3 and 9 bytes."""

    name = "words"

    def __init__(self, ids: tuple[str, ...] = ("test/0", "test/1", "test/2")):
        self.ids = ids

    def load(self, split: str) -> list[Problem]:
        texts = ("Q:", "Q?:", "Question:")
        return [Problem(i, text, "") for i, text in zip(self.ids, texts, strict=True)]

    def prompt(self, problem: Problem) -> str:
        return problem.question

    def solution(self, problem: Problem) -> str:
        return problem.answer

    def split(self, text: str) -> list[int]:
        return [0, len(text)]

    def answer(self, text: str) -> str | None:
        return None

    def reward(self, problem: Problem, response: str) -> float:
        return 0.0


def test_prompts_that_are_too_long_are_dropped_and_listed():
    tokenizer = load("byte_level")
    problems, dropped = load_problems(Words(), tokenizer, "test", DataConfig(max_prompt_tokens=3))
    assert [(p.id, tokenizer.decode(ids)) for p, ids in problems] == [
        ("test/0", "Q:"),
        ("test/1", "Q?:"),
    ]
    assert dropped == ["test/2"]


class Empty(Words):
    def load(self, split: Split) -> list[Problem]:
        return []


def test_no_prompt_left_and_equal_ids_are_errors():
    tokenizer = load("byte_level")
    with pytest.raises(DataError, match="words test: none of 3 prompts.*max_prompt_tokens = 1 "):
        load_problems(Words(), tokenizer, "test", DataConfig(max_prompt_tokens=1))
    with pytest.raises(DataError, match="^words test: the task gave no problems$"):
        load_problems(Empty(), tokenizer, "test", DataConfig())
    with pytest.raises(DataError, match="two problems have the id 'a'"):
        load_problems(Words(("a", "b", "a")), tokenizer, "test", DataConfig())


class Halved(Words):
    """A task whose second prompt has half a character, as a cut text in JSON may have it."""

    def prompt(self, problem: Problem) -> str:
        return problem.question.replace("?", "\ud83d")


def test_half_a_character_is_an_error_in_one_line():
    tokenizer = load("byte_level")
    with pytest.raises(DataError, match=r"^words test: the prompt of problem test/1 holds '\\ud8"):
        load_problems(Halved(), tokenizer, "test", DataConfig())
    with pytest.raises(UserError, match=r"so \\ud83d' ends in half a character"):
        encode_within(tokenizer, "so \ud83d it")


def test_a_prompt_of_a_hundred_megabytes_is_too_long_without_being_encoded():
    """Encoding such a prompt would take minutes."""
    huge = "word " * 20_000_000

    def encode(text: str, **_: Any) -> list[int]:
        assert len(text) <= 256 * 8
        return [3] * (len(text) // 5)

    tokenizer: Any = SimpleNamespace(bos_token_id=None, encode=encode)
    problems = [Problem("short", "word ", "1"), Problem("huge", huge, "1")]

    class Given(Arithmetic):
        def load(self, split: Split) -> list[Problem]:
            return problems

        def prompt(self, problem: Problem) -> str:
            return problem.question

    kept, dropped = load_problems(Given(), tokenizer, "train", DataConfig(max_prompt_tokens=8))
    assert [problem.id for problem, _ in kept] == ["short"] and dropped == ["huge"]
