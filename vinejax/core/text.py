"""Decodes sampled ids to text; finds stop strings, thinking and escape codes in texts."""

import functools
import re
import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer
else:  # transformers takes seconds to import, and most modules only need the name of the type
    Tokenizer = Any

# A tag at the beginning or the end of thinking; group 1 is '/' for the end.
THINKING = re.compile(r"(?i)[<◁](/?)(?:think(?:ing)?|thought|reasoning)[>▷]")
MAX_TAG = 20  # characters of a tag of thinking
# Escape codes of terminals (ECMA-48): colours and moves of the cursor, titles and links, others.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
)
UNFINISHED = "\ufffd"  # the decoded form of a character whose last bytes are still missing


# For each tokenizer the ids that its texts do not show (`set_shown`); None if only the tokenizer
# itself knows which ids are special. Cached, because a tokenizer makes the list anew for each call.
_hidden: weakref.WeakKeyDictionary[Tokenizer, frozenset[int] | None] = weakref.WeakKeyDictionary()


def set_shown(tokenizer: Tokenizer, ends: Collection[int] = (), skip_special: bool = False) -> None:
    """Sets which special tokens the texts of a tokenizer show from now on.

    Tokens with a role (BOS, EOS, PAD, UNK and the like) and those in `ends`, which end a response,
    are never shown. Others, such as `<think>`, are shown unless `skip_special`.
    """
    if not hasattr(tokenizer, "added_tokens_decoder"):
        _hidden[tokenizer] = None
        return
    special, roles = special_tokens(tokenizer), set(tokenizer.special_tokens_map.values())
    _hidden[tokenizer] = frozenset(
        i for text, i in special.items() if skip_special or text in roles or i in ends
    )


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """The id of each special token, by its text; {} for a tokenizer that does not list them."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {token.content: i for i, token in added.items() if token.special}


def decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Decodes token ids, with the special tokens that `set_shown` chose and with all spaces.

    Unknown ids give ''.
    """
    if tokenizer not in _hidden:
        set_shown(tokenizer)
    hidden = _hidden[tokenizer]
    shown = ids if hidden is None else [i for i in ids if i not in hidden]
    skips = hidden is None
    decoded = tokenizer.decode(shown, skip_special_tokens=skips, clean_up_tokenization_spaces=False)
    return str(decoded)


def continuation_text(
    tokenizer: Tokenizer, prefix: list[int], prefix_text: str, ids: list[int]
) -> str:
    """The text that `ids` add to `prefix_text`, the text of `prefix`.

    All ids are decoded together, because a token's text can depend on the tokens before it
    (SentencePiece strips a leading space, and a character can be spread over tokens).
    """
    return added(prefix_text, decode(tokenizer, prefix + ids))


def added(prefix_text: str, text: str) -> str:
    """The part of `text` after `prefix_text`; `prefix_text` may end in an incomplete character."""
    return text[len(prefix_text.rstrip(UNFINISHED)) :]


def without_thinking(text: str, is_thinking: bool = False) -> str:
    """What a text says outside of its thinking.

    Thinking lasts from `<think>` or the like to `</think>`, or to the end of the text. It begins
    before the text if `is_thinking`, or if the text has an end of thinking without a beginning. If
    thinking is removed, the result does not begin with white space.

    >>> without_thinking("<think>1 is too low</think> [10]")
    '[10]'
    """
    said, start, thinks = "", 0, is_thinking
    for tag in THINKING.finditer(text):
        if not thinks:
            said = "" if tag[1] else said + text[start : tag.start()]
        thinks, start = not tag[1], tag.end()
    if start == 0 and not thinks:
        return text
    return (said if thinks else said + text[start:]).lstrip()


def opens_thinking(prompt: str) -> str:
    """The tag at the end of a prompt that opens a thinking block, such as `<think>`; else ''."""
    end = prompt.rstrip()[-MAX_TAG:]
    tags = [*THINKING.finditer(end)]
    is_open = tags and tags[-1].end() == len(end) and not tags[-1][1]
    return tags[-1].group() if is_open else ""


def without_escapes(text: str) -> str:
    """The text without escape codes of terminals, such as colours."""
    return _ESCAPES.sub("", text)


def response_text(tokenizer: Tokenizer, prompt: list[int], tokens: list[int]) -> str:
    """The text of `tokens`, which are the first tokens of a response to `prompt`.

    An incomplete last character is left out.
    """
    if not tokens:
        return ""
    text = continuation_text(tokenizer, prompt, decode(tokenizer, prompt), tokens)
    return text.rstrip(UNFINISHED)


def token_text(tokenizer: Tokenizer) -> Callable[[int], str]:
    """A function from the id of a token to the text that the token adds in the middle of a text.

    It returns '' for ids that texts do not show and for ids that the tokenizer lacks.
    """
    anchor = list(tokenizer.encode("a", add_special_tokens=False))[-1:]
    before = len(decode(tokenizer, anchor))
    return functools.cache(lambda i: decode(tokenizer, [*anchor, i])[before:])


class StopCut(NamedTuple):
    """A continuation, cut at its first stop string if it has one."""

    num_tokens: int  # tokens of the continuation, with the one that completes the stop string
    text: str  # text of the continuation up to the stop string
    overlap: int  # characters of the stop string that come before the continuation
    hit: bool  # whether there is a stop string


def cut_at_stop(
    tokenizer: Tokenizer,
    prefix: list[int],
    prefix_text: str,
    ids: list[int],
    stop: tuple[str, ...],
    before: str = "",
) -> StopCut:
    """Cuts a continuation, the tokens `ids`, at its first stop string.

    The stop string must end in the continuation, but it can begin in `before`. This is the text
    before the continuation; the part that `tail` returns is enough. `prefix` has the tokens before
    `ids`, and `prefix_text` is their text.
    """

    def first(text: str) -> int | None:
        """The index in `text` at which the first stop string begins; None without a stop string.

        The index is negative if the stop string begins in the argument `before` of `cut_at_stop`,
        the text that comes before `text`.
        """
        starts = [(before + text).find(s, max(0, len(before) - len(s) + 1)) for s in stop]
        return min((start - len(before) for start in starts if start >= 0), default=None)

    text = continuation_text(tokenizer, prefix, prefix_text, ids)
    start = first(text)
    if start is None:
        return StopCut(len(ids), text, 0, False)
    low, high = 1, len(ids)  # the least number of tokens whose text has a stop string: low .. high
    middle = high - 1  # first, as a sampled continuation mostly ends with its stop string
    while low < high:
        part = continuation_text(tokenizer, prefix, prefix_text, ids[:middle])
        start_in_part = first(part)
        if start_in_part is None:
            low = middle + 1
        else:
            high, start, text = middle, start_in_part, part
        middle = (low + high) // 2
    return StopCut(low, text[: max(start, 0)], max(-start, 0), True)


def tail(text: str, stop: tuple[str, ...]) -> str:
    """The end of a text, long enough to hold the beginning of any incomplete stop string."""
    text = text.rstrip(UNFINISHED)  # the text of the next token starts there
    longest = max(map(len, stop), default=1) - 1
    return text[max(len(text) - longest, 0) :]
