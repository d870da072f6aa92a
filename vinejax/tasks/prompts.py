"""Texts to token ids: prompts, worked responses, and the problems of a split.

Sampled responses are never encoded; their ids are used as they were sampled. In tasks of several
turns each observation is encoded once, with the markup of a chat if there is a template.
"""

import ast
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vinejax.core.errors import ConfigError, DataError, ModelError, UserError
from vinejax.core.settings import DataConfig
from vinejax.core.text import THINKING, Tokenizer, opens_thinking, special_tokens
from vinejax.core.types import Problem
from vinejax.runtime.clock import CLOCK
from vinejax.tasks.base import Split, Task
from vinejax.tasks.environment import MultiTurn
from vinejax.tasks.files import check_text

# A response is encoded after one of these texts. One of them keeps its tokens whatever follows,
# because a letter does not merge with a newline, space or digit, nor a newline with a letter.
ANCHORS = ("a", "\n")
# A template calls `strftime_now`; this macro in front of it returns a pinned time instead.
STANDING_CLOCK = (
    "{% macro strftime_now(format) %}{% set found = namespace(text=format) %}"
    "{% for code, text in pinned_time.items() %}"
    "{% set found.text = found.text.replace(code, text) %}"
    "{% endfor %}{{ found.text }}{% endmacro %}\n"
)
TIME_CODES = [f"%{flag}{x}" for x in "aAbBcdDeFfHIjmMpRSTuUwWxXyYzZ" for flag in ("-", "")]
OTHER_DIGITS = str.maketrans("0123456789", "1234567890")
LONGEST_TOKEN = 256  # maximum number of characters of a token of the supported models


def encode_prompt(
    tokenizer: Tokenizer,
    text: str,
    chat_template: bool,
    context: Sequence[tuple[str, str]] = (),
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """The ids of a prompt as transformers encodes it, so that an exported model sees the same ids.

    Without `chat_template` they are the ids of `tokenizer(text)`: BOS in front if the tokenizer
    puts it there (`adds_bos`), and no EOS at the end. A text that begins with BOS gets no second
    one.

    With `chat_template` they are the ids of `tokenizer.apply_chat_template`, up to the place where
    the assistant's turn begins. `text` is the user's message. The template decides whether BOS is
    in front. It receives the messages of `context`, (role, text), before the user's message, the
    `variables`, and the time of `runtime/clock.py`.

    A prompt that would have no ids is BOS alone.

    Raises ConfigError if the tokenizer has no chat template, or if the template fails or leaves out
    a message. Raises ModelError if the prompt has no id and the tokenizer no BOS.
    """
    whole = prompt_text(tokenizer, text, chat_template, context, variables)
    return prompt_ids(tokenizer, whole, chat_template)


def prompt_text(
    tokenizer: Tokenizer,
    text: str,
    chat_template: bool,
    context: Sequence[tuple[str, str]] = (),
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The text whose ids are those of `encode_prompt`, with the markup of the chat template.

    Raises ConfigError as `encode_prompt` does.
    """
    if not chat_template:
        return text
    return _render(tokenizer, [*context, ("user", text)], variables or {})


def prompt_ids(tokenizer: Tokenizer, text: str, chat_template: bool) -> list[int]:
    """The ids of a prompt, whose `text` is as the chat template writes it if there is one.

    Raises ModelError as `encode_prompt` does.
    """
    bos: Any = tokenizer.bos_token_id
    ids = _encode(tokenizer, text)
    if not chat_template and adds_bos(tokenizer) and ids[:1] != [bos]:
        ids = [bos, *ids]
    if ids:
        return ids
    if bos is None:
        raise ModelError("the tokenizer has no BOS token, which a prompt without text needs")
    return [bos]


def adds_bos(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer puts BOS in front of a text, as those of Llama and Gemma do.

    Tokenizers such as GPT-2's and Phi-3's have BOS, but their models never saw it in front.
    """
    bos: Any = tokenizer.bos_token_id
    return bos is not None and list(tokenizer.encode("", verbose=False))[:1] == [bos]


def _render(
    tokenizer: Tokenizer, chat: Sequence[tuple[str, str]], variables: Mapping[str, Any]
) -> str:
    """The chat as the tokenizer's template writes it.

    Raises ConfigError if there is no template, if the template fails, or if it leaves out a message
    that is not the assistant's.
    """
    field = "data.chat_template"
    if tokenizer.chat_template is None:
        raise ConfigError(field, "the tokenizer has no chat template", "True")

    def rendered(template: str, **more: Any) -> str:
        messages = [{"role": role, "content": text} for role, text in chat]
        prompt = tokenizer.apply_chat_template(
            messages,
            chat_template=template,
            tokenize=False,
            add_generation_prompt=True,
            **more,
            **variables,
        )
        return str(prompt)

    try:
        template = str(tokenizer.get_chat_template(tools=variables.get("tools")))
        if "strftime_now" not in template:
            prompt = rendered(template)
        else:
            template = STANDING_CLOCK + template
            pinned = {code: CLOCK.time.strftime(code) for code in TIME_CODES}
            prompt = rendered(template, pinned_time=pinned)
            other = {code: x.swapcase().translate(OTHER_DIGITS) for code, x in pinned.items()}
            if not CLOCK.was_asked and rendered(template, pinned_time=other) != prompt:
                CLOCK.note_asked()
    except Exception as error:  # jinja2's errors, or any error of an expression in the template
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        message = f"the tokenizer's chat template fails: {reason}"
        raise ConfigError(field, message, "True") from error
    for role, text in chat:
        # Templates may leave the thoughts out of an assistant's earlier messages, and write the
        # results of tools as JSON.
        if role in ("assistant", "tool"):
            continue
        if "".join(text.split()) not in "".join(prompt.split()):
            message = f"the tokenizer's chat template leaves out, or changes, the {role}'s message"
            raise ConfigError(field, f"{message} {text.strip()!r:.60}", "True")
    return prompt


def writes_tools(template: str) -> bool:
    """Whether a chat template has a place for tools; others leave them out without an error."""
    return "tools" in template


def tools_of(task: Any) -> list[dict[str, Any]]:
    """The JSON schemas of the tools of a task, which is [] for most tasks."""
    return list(getattr(task, "tools", None) or ())


def template_variables(
    tokenizer: Tokenizer, data: DataConfig, tools: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """The values that `data.template_vars` gives to variables of the chat template, by name.

    If there are `tools`, they are the value of `tools`. The result is empty if `data.chat_template`
    is off.

    Raises ConfigError for a variable that the chat template does not read, and for tools without a
    chat template.
    """
    variables = {}
    if not data.chat_template:
        if tools:
            message = "must be True: the task has tools, which the chat template writes"
            raise ConfigError("data.chat_template", message, "False")
        return variables
    if tools and tokenizer.chat_template is not None:
        variables["tools"] = list(tools)
        if not writes_tools(str(tokenizer.get_chat_template(tools=variables["tools"]))):
            message = "the tokenizer's chat template writes no tools, which the task has"
            raise ConfigError("data.chat_template", message, "True")
    for setting in data.template_vars:
        name, value = template_variable(setting)
        if not re.search(rf"\b{name}\b", str(tokenizer.chat_template)):
            message = f"the tokenizer's chat template reads no {name!r}; leave it out"
            raise ConfigError("data.template_vars", message, repr(data.template_vars))
        variables[name] = value
    return variables


def template_variable(setting: str) -> tuple[str, Any]:
    """Name and value of an entry of `data.template_vars`, such as 'enable_thinking=False'.

    'true' and 'false', as in JSON and in Jinja, are no texts: templates would take both for true.
    """
    name, _, value = setting.partition("=")
    if value in ("true", "false"):
        return name, value == "true"
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def encode_response(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a response that follows a prompt: those of `encode_within`, and EOS at the end.

    VinePPO's code encodes prompt and response as one text. Here no token spans the boundary between
    them, where generation starts.

    Raises ModelError if the tokenizer has no EOS token.
    """
    eos: Any = tokenizer.eos_token_id
    if eos is None:
        raise ModelError("the tokenizer has no EOS token, so no response could ever end")
    return [*encode_within(tokenizer, text), eos]


def encode_within(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text inside a sequence, without BOS.

    SentencePiece puts a space before every text that it encodes, which inside a sequence is one
    space too many. The text is therefore encoded with another text, the anchor, in front, whose
    tokens are then removed. After any ids `before`, decode(before + ids) is thus
    decode(before) + text. If the text changes the tokens of every anchor in ANCHORS, it is encoded
    without an anchor, which is right for byte-level BPE.
    """
    for anchor in ANCHORS:
        anchor_ids, ids = _encode(tokenizer, anchor), _encode(tokenizer, anchor + text)
        if ids[: len(anchor_ids)] == anchor_ids:
            return ids[len(anchor_ids) :]
    return _encode(tokenizer, text)


def worked_response(problem: Problem, solution: str) -> str:
    """A worked solution as the response to the problem's prompt.

    A solution without thinking follows the end of the thinking that the prompt opens, written as
    chat templates write empty thinking. A solution with thinking of its own does not open it again.
    """
    tag = problem.opening
    first = THINKING.search(solution)
    if not tag or not solution.strip() or (first and first[1]):
        return solution
    if first and not solution[: first.start()].strip():
        return solution[first.end() :].lstrip()
    return f"\n{tag[0]}/{tag[1:]}\n\n{solution}"


class ToolMarkup(NamedTuple):
    """The markup around the results of tools that follow an assistant's turn."""

    before: str  # markup from the end of the assistant's text to the first result
    between: str  # markup between two results
    after: str  # markup from the last result to the assistant's next text
    is_json: bool  # whether the template writes a result as a JSON string, as Llama's does

    @classmethod
    def of(cls, tokenizer: Tokenizer, variables: Mapping[str, Any]) -> "ToolMarkup":
        """The markup around tool messages after an assistant's turn, from the chat template.

        Raises ConfigError if the template leaves out a result, or changes it otherwise.
        """
        action, results = "vinejaxSaid", ('vinejax"First', 'vinejax"Second')
        chat = [("user", "vinejaxAsked"), ("assistant", action), *(("tool", x) for x in results)]
        _, has_action, following = _render(tokenizer, chat, variables).partition(action)
        for is_json in (False, True):
            first, second = (json.dumps(x) if is_json else x for x in results)
            before, has_first, rest = following.partition(first)
            between, has_second, after = rest.partition(second)
            if has_action and has_first and has_second:
                return cls(before, between, after, is_json)
        message = "the tokenizer's chat template leaves out, or changes, the results of tools"
        raise ConfigError("data.chat_template", message, "True")

    def joined(self, results: Sequence[str]) -> str:
        """The results as the template writes them, without the markup before and after them."""
        as_json = (json.dumps(x, ensure_ascii=False) for x in results)
        return self.between.join(as_json if self.is_json else results)


class ChatTurns(NamedTuple):
    """The markup around what follows an assistant's turn: a user's message or results of tools."""

    before: str  # markup from the end of the assistant's text to the user's message
    after: str  # markup from the message to the assistant's next text
    variables: Mapping[str, Any]  # variables of the template
    special: Mapping[int, str]  # texts of special tokens, by id
    tool: ToolMarkup | None = None  # None: the task has no tools

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, data: DataConfig, tools: Sequence[dict[str, Any]] = ()
    ) -> "ChatTurns":
        """The markup of the chat template; that of results only if there are `tools`.

        Raises ConfigError if the template leaves out a message.
        """
        variables = template_variables(tokenizer, data, tools)
        action, observation = "vinejaxSaid", "vinejaxObserved"
        chat = [("user", "vinejaxAsked"), ("assistant", action), ("user", observation)]
        _, has_action, following = _render(tokenizer, chat, variables).partition(action)
        before, has_observation, after = following.partition(observation)
        if not has_action or not has_observation:
            message = "the tokenizer's chat template leaves out an assistant's earlier message"
            raise ConfigError("data.chat_template", message, "True")
        special = {i: text for text, i in special_tokens(tokenizer).items()}
        tool = ToolMarkup.of(tokenizer, variables) if tools else None
        return cls(before, after, variables, special, tool)

    def around(self, text: str, last: int, results: Sequence[str] = ()) -> str:
        """The user's message `text` in its markup, to follow a turn whose last token is `last`.

        If there are `results`, and the task has tools, tool messages take the place of the user's.
        If `last` is the token with which the markup would end that turn, it is not repeated.
        """
        last_text, before, after = self.special.get(last), self.before, self.after
        if results and self.tool:
            before, after, text = self.tool.before, self.tool.after, self.tool.joined(results)
        # Llama ends a turn that calls a tool by <|eom_id|> where its template may have <|eot_id|>.
        end = {"<|eom_id|>": "<|eot_id|>"}.get(last_text or "", last_text)
        for written in (last_text, end):
            if written and before.lstrip().startswith(written):
                before = before.lstrip().removeprefix(written)
                break
        return before + text + after


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        end = text[: error.start + 1][-40:]
        raise UserError(f"{end!r} ends in half a character, which no UTF-8 text has") from None
    # Without warnings, because too long texts are dropped and reported later.
    return list(tokenizer.encode(text, add_special_tokens=False, verbose=False))


def load_problems(
    task: Task,
    tokenizer: Tokenizer,
    split: Split,
    data: DataConfig,
    skip_special: bool = False,
) -> tuple[list[tuple[Problem, list[int]]], list[str]]:
    """(the problems with their prompts' token ids, the ids of problems with too long prompts).

    A problem whose prompt ends in a tag such as `<think>` gets this tag as `opening`, unless the
    tag is a special token and `skip_special` hides such tokens in the texts of responses.

    With a chat template a problem without a system message gets that of `data.system`. A prompt of
    more than `LONGEST_TOKEN` characters per allowed token counts as too long without being encoded:
    to encode a hundred megabytes would take minutes.

    Raises DataError if no problem is left, for a prompt with a lone surrogate, and for equal ids,
    from which the random numbers of rollouts are derived. Raises ConfigError if the chat template
    cannot make a prompt, or is missing where a problem has messages before its question.
    """
    limit, as_chat = data.max_prompt_tokens, data.chat_template
    variables = template_variables(tokenizer, data, tools_of(task))
    hidden = special_tokens(tokenizer) if skip_special else ()
    if as_chat and isinstance(task, MultiTurn):
        ChatTurns.of(tokenizer, data, tools_of(task))
    problems = task.load(split)
    if not problems:
        raise DataError(f"{task.name} {split}", None, "the task gave no problems")
    ids_in_use = set()
    prompted, dropped = [], []
    for problem in problems:
        if problem.id in ids_in_use:
            message = f"two problems have the id {problem.id!r}"
            raise DataError(f"{task.name} {split}", None, message)
        ids_in_use.add(problem.id)
        if problem.context and not as_chat:
            message = f"must be True: problem {problem.id} has messages before its question"
            raise ConfigError("data.chat_template", message, "False")
        if as_chat and data.system and "system" not in dict(problem.context):
            context = (("system", data.system), *problem.context)
            problem = dataclasses.replace(problem, context=context)
        text = task.prompt(problem)
        length = len(text) + sum(len(content) for _, content in problem.context)
        ids = []
        if length <= LONGEST_TOKEN * limit:
            text = prompt_text(tokenizer, text, as_chat, problem.context, variables)
            check_text(text, f"the prompt of problem {problem.id}", f"{task.name} {split}", None)
            ids = prompt_ids(tokenizer, text, as_chat)
        if ids and len(ids) <= limit:
            problem = dataclasses.replace(problem, opening=opens_thinking(text, hidden))
            prompted.append((problem, ids))
        else:
            dropped.append(problem.id)
    if not prompted:
        most = f"data.max_prompt_tokens = {limit} tokens"
        message = f"none of {len(problems)} prompts has at most {most}"
        raise DataError(f"{task.name} {split}", None, message)
    return prompted, dropped
