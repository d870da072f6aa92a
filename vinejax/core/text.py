"""Decodes sampled ids to text; finds stop strings, thinking and escape codes in texts."""

import functools
import json
import re
import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer
else:  # transformers takes seconds to import, and most modules only need the name of the type
    Tokenizer = Any

# A tag at the beginning or the end of thinking; group 1 is '/' for the end.
THINKING = re.compile(r"(?i)[<◁](/?)(?:(?:seed:)?think(?:ing)?|thought|reasoning)[>▷]")
MAX_TAG = 20  # characters of a tag of thinking
# Escape codes of terminals (ECMA-48): colours and moves of the cursor, titles and links, others.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
)
UNFINISHED = "\ufffd"  # the decoded form of a character whose last bytes are still missing
# Decoders of the package `tokenizers` that decode each token by itself, or by its position as the
# first or last one, and ByteFallback, which decodes the bytes of a run of byte tokens together.
_BY_TOKEN = ("BPEDecoder", "ByteFallback", "Metaspace", "Replace", "Strip", "WordPiece")
_JOINING = ("ByteLevel", "Fuse")  # decoders that make one text of all tokens
_BYTE = "<0x"  # occurs in every token that ByteFallback decodes as a byte

# For each tokenizer the ids that its texts do not show (`set_shown`); None if only the tokenizer
# itself knows which ids are special. Cached, because a tokenizer makes the list anew for each call.
_hidden: weakref.WeakKeyDictionary[Tokenizer, frozenset[int] | None] = weakref.WeakKeyDictionary()
# For each tokenizer whether a tail of a prefix may begin with an id, for the ids asked for so far;
# None if a tail never suffices (`prefix_end`).
_begins: weakref.WeakKeyDictionary[Tokenizer, dict[int, bool] | None] = weakref.WeakKeyDictionary()


def set_shown(tokenizer: Tokenizer, ends: Collection[int] = (), skip_special: bool = False) -> None:
    """Sets which special tokens the texts of a tokenizer show from now on.

    Tokens with a role (BOS, EOS, PAD, UNK and the like) and those in `ends`, which end a response,
    are never shown. Others, such as `<think>`, are shown unless `skip_special`.
    """
    hidden = None
    if hasattr(tokenizer, "added_tokens_decoder"):
        special, roles = special_tokens(tokenizer), set(tokenizer.special_tokens_map.values())
        hidden = frozenset(
            i for text, i in special.items() if skip_special or text in roles or i in ends
        )
    if tokenizer not in _hidden or _hidden[tokenizer] != hidden:
        _hidden[tokenizer] = hidden
        _begins[tokenizer] = {} if _decodes_tails(tokenizer) else None


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


class PrefixEnd(NamedTuple):
    """The last tokens of a prefix, after which a continuation has the same text as after all."""

    ids: list[int]
    text: str  # text of these tokens alone


def prefix_end(tokenizer: Tokenizer, prefix: list[int]) -> PrefixEnd:
    """The shortest end of `prefix` that begins with a token of whole characters.

    It is the whole prefix if there is no such token, or if the tokenizer's decoder is not known to
    decode a text's end like the end of a longer text (`_decodes_tails`).
    """
    ids, begins = prefix, _known_begins(tokenizer)
    if begins is not None:
        last_first = range(len(prefix) - 1, 0, -1)
        first = next((n for n in last_first if _may_begin(tokenizer, begins, prefix[n])), 0)
        ids = prefix[first:]
    return PrefixEnd(ids, decode(tokenizer, ids))


def _known_begins(tokenizer: Tokenizer) -> dict[int, bool] | None:
    """The tokenizer's entry of `_begins`."""
    if tokenizer not in _begins:
        set_shown(tokenizer)
    return _begins[tokenizer]


def _decodes_tails(tokenizer: Tokenizer) -> bool:
    """Whether tokens add the same text to a prefix as to a tail that `prefix_end` may choose.

    This depends on the decoder that the tokenizer defines. Before its tokens are joined to one
    text, the decoder may only have steps of `_BY_TOKEN`. Afterwards it may only strip characters at
    the beginning of the text. Any other decoder counts as one that can change a text anywhere.
    """
    if not hasattr(tokenizer, "backend_tokenizer"):
        return False
    from transformers import PreTrainedTokenizerFast as Fast

    if any(getattr(type(tokenizer), x) is not getattr(Fast, x) for x in ("decode", "_decode")):
        return False
    decoder: Any = tokenizer.backend_tokenizer.decoder  # pyright: ignore
    if decoder is None:  # spaces between tokens
        return True
    is_joined = False
    for step in _decoder_steps(json.loads(decoder.__getstate__())):
        kind = step["type"]
        if is_joined and kind == "Strip":
            if step["stop"] or step["content"] == UNFINISHED:
                return False
        elif kind not in (("Fuse",) if is_joined else (*_BY_TOKEN, *_JOINING)):
            return False
        is_joined = is_joined or kind in _JOINING
    return True


def _decoder_steps(definition: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of a decoder, without the sequences in which `definition` groups them."""
    if definition["type"] != "Sequence":
        return [definition]
    return [step for part in definition["decoders"] for step in _decoder_steps(part)]


def _may_begin(tokenizer: Tokenizer, begins: dict[int, bool], token: int) -> bool:
    """Whether the token has a text of whole characters, and is not one of ByteFallback's bytes.

    The text is that at the beginning of a text and that after another token, because SentencePiece
    and WordPiece distinguish the two. `begins` stores the answers.
    """
    if token not in begins:
        first, both = decode(tokenizer, [token]), decode(tokenizer, [token, token])  # '' if hidden
        name = tokenizer.convert_ids_to_tokens(token) or ""
        is_whole = UNFINISHED not in both and _BYTE not in name
        begins[token] = is_whole and 0 < len(first) < len(both)
    return begins[token]


def continuation_text(tokenizer: Tokenizer, end: PrefixEnd, ids: list[int]) -> str:
    """The text that `ids` add to the text of a prefix with this `end`.

    The ids are decoded together with those of `end`, because a token's text can depend on the
    tokens before it (SentencePiece strips a leading space, and a character can be spread over
    tokens).
    """
    return added(end.text, decode(tokenizer, end.ids + ids))


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


def opens_thinking(prompt: str, hidden: Collection[str] = ()) -> str:
    """The tag at the end of a prompt that opens a thinking block, such as `<think>`; else ''.

    Also '' for a tag in `hidden`, the special tokens that texts of responses do not show: they do
    not show where such a block ends either.
    """
    end = prompt.rstrip()[-MAX_TAG:]
    tags = [*THINKING.finditer(end)]
    is_open = tags and tags[-1].end() == len(end) and not tags[-1][1]
    return tags[-1].group() if is_open and tags[-1].group() not in hidden else ""


def without_escapes(text: str) -> str:
    """The text without escape codes of terminals, such as colours."""
    return _ESCAPES.sub("", text)


def response_text(tokenizer: Tokenizer, prompt: list[int], tokens: list[int]) -> str:
    """The text of `tokens`, which are the first tokens of a response to `prompt`.

    An incomplete last character is left out.
    """
    if not tokens:
        return ""
    text = continuation_text(tokenizer, prefix_end(tokenizer, prompt), tokens)
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
    end: PrefixEnd,
    ids: list[int],
    stop: tuple[str, ...],
    before: str = "",
) -> StopCut:
    """Cuts a continuation, the tokens `ids`, at its first stop string.

    The stop string must end in the continuation, but it can begin in `before`. This is the text
    before the continuation; the part that `tail` returns is enough. `end` is the end of the tokens
    before `ids`.
    """

    def first(text: str) -> int | None:
        """The index in `text` at which the first stop string begins; None without a stop string.

        The index is negative if the stop string begins in the argument `before` of `cut_at_stop`,
        the text that comes before `text`.
        """
        starts = [(before + text).find(s, max(0, len(before) - len(s) + 1)) for s in stop]
        return min((start - len(before) for start in starts if start >= 0), default=None)

    text = continuation_text(tokenizer, end, ids)
    start = first(text)
    if start is None:
        return StopCut(len(ids), text, 0, False)
    low, high = 1, len(ids)  # the least number of tokens whose text has a stop string: low .. high
    middle = high - 1  # first, as a sampled continuation mostly ends with its stop string
    while low < high:
        part = continuation_text(tokenizer, end, ids[:middle])
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


def tail_before(
    tokenizer: Tokenizer, prefix: list[int], response: int, stop: tuple[str, ...]
) -> str:
    """The `tail` of the text that the tokens from number `response` on add to those before them.

    Only as many of the last tokens are decoded as the result needs.
    """
    count = longest = max(map(len, stop), default=1) - 1
    if _known_begins(tokenizer) is None:  # a longer prefix might have a shorter text
        count = len(prefix)
    while longest:
        first = max(response, len(prefix) - count)
        end = prefix_end(tokenizer, prefix[:first])
        text = tail(continuation_text(tokenizer, end, prefix[first:]), stop)
        is_whole = not end.text.endswith(UNFINISHED)  # or `text` may begin before token `first`
        if first == response or (is_whole and len(text) == longest):
            return text
        count *= 2
    return ""
