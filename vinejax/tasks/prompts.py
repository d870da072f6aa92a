"""Texts to token ids: prompts, worked responses, and the problems of a split.

Sampled responses are never encoded: their ids are used as they were sampled.
"""

from typing import Any

from vinejax.core.errors import ConfigError, DataError, ModelError
from vinejax.core.text import Tokenizer
from vinejax.core.types import Problem
from vinejax.tasks.base import Split, Task

# A response is encoded after one of these texts. One of them keeps its tokens whatever follows:
# a letter does not merge with a newline, space or digit, nor a newline with a letter.
ANCHORS = ("a", "\n")
LONGEST_TOKEN = 256  # characters; no token of the supported models has more


def encode_prompt(tokenizer: Tokenizer, text: str, chat_template: bool) -> list[int]:
    """Ids of a prompt, as transformers encodes it, so that an exported model sees the same prompt.

    Without `chat_template` they are the ids of `tokenizer(text)`: BOS in front if the tokenizer
    puts it there (`adds_bos`), and no EOS at the end. A text that begins with BOS gets no second
    one. With `chat_template`, `text` is the user's message and the ids, those of
    `tokenizer.apply_chat_template`, end where the assistant's turn begins; the template alone says
    whether BOS is in front. Where there would be no id at all, the prompt is BOS.

    Raises ConfigError if the tokenizer has no chat template, ModelError if there would be no token
    at all before the response.
    """
    bos: Any = tokenizer.bos_token_id
    if chat_template:
        ids = _encode(tokenizer, _render(tokenizer, text))
    else:
        ids = _encode(tokenizer, text)
        if adds_bos(tokenizer) and ids[:1] != [bos]:
            ids = [bos, *ids]
    if ids:
        return ids
    if bos is None:
        raise ModelError("the tokenizer has no BOS token, which a prompt without text needs")
    return [bos]


def adds_bos(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer puts BOS in front of a text, as those of Llama and Gemma do.

    Others have a BOS token and do not use it (GPT-2, Phi-3): their models never saw it there.
    """
    bos: Any = tokenizer.bos_token_id
    return bos is not None and list(tokenizer.encode("", verbose=False))[:1] == [bos]


def _render(tokenizer: Tokenizer, text: str) -> str:
    if tokenizer.chat_template is None:
        raise ConfigError("data.chat_template", "the tokenizer has no chat template", "True")
    messages = [{"role": "user", "content": text}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def encode_response(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a response that follows a prompt: no BOS, EOS at the end.

    SentencePiece puts a space before every text it encodes, which inside a sequence is one space
    too many. So the text is encoded with an anchor in front, whose tokens are then removed;
    decode(prompt + ids) is decode(prompt) + text. Unlike VinePPO's code, which encodes prompt and
    response as one text, no token spans the boundary between them, where generation starts. If
    no anchor keeps its tokens, the text is encoded alone, which is right for byte-level BPE.

    Raises ModelError if the tokenizer has no EOS token.
    """
    eos: Any = tokenizer.eos_token_id
    if eos is None:
        raise ModelError("the tokenizer has no EOS token, so no response could ever end")
    for anchor in ANCHORS:
        before, both = _encode(tokenizer, anchor), _encode(tokenizer, anchor + text)
        if both[: len(before)] == before:
            return [*both[len(before) :], eos]
    return [*_encode(tokenizer, text), eos]


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    # Without warnings: texts that are too long are dropped and reported later.
    return list(tokenizer.encode(text, add_special_tokens=False, verbose=False))


def load_problems(
    task: Task, tokenizer: Tokenizer, split: Split, max_prompt_tokens: int, chat_template: bool
) -> tuple[list[tuple[Problem, list[int]]], list[str]]:
    """The problems with their prompts' token ids, and ids of problems whose prompt is too long.

    A prompt of more than `LONGEST_TOKEN` characters per allowed token is not encoded to see that it
    is too long: a hundred megabytes would take minutes.

    Raises DataError if no problem is left, or if two have the same id, from which the random
    numbers of a rollout are derived.
    """
    problems = task.load(split)
    if not problems:
        raise DataError(f"{task.name} {split}", None, "the task gave no problems")
    seen = set()
    kept, dropped = [], []
    for problem in problems:
        if problem.id in seen:
            message = f"two problems have the id {problem.id!r}"
            raise DataError(f"{task.name} {split}", None, message)
        seen.add(problem.id)
        text = task.prompt(problem)
        is_short = len(text) <= LONGEST_TOKEN * max_prompt_tokens
        ids = encode_prompt(tokenizer, text, chat_template) if is_short else []
        if ids and len(ids) <= max_prompt_tokens:
            kept.append((problem, ids))
        else:
            dropped.append(problem.id)
    if not kept:
        limit = f"data.max_prompt_tokens = {max_prompt_tokens}"
        message = f"none of {len(problems)} prompts has at most {limit} tokens"
        raise DataError(f"{task.name} {split}", None, message)
    return kept, dropped
