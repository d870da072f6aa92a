"""Sampled ids to text, and the search for stop strings in it."""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer
else:  # transformers takes seconds to import, and most of what names a tokenizer never makes one
    Tokenizer = Any

UNFINISHED = "\ufffd"  # what a decoder shows for a character whose last bytes are still to come


def decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Text without special tokens, spaces as they are; ids that the tokenizer lacks give ''."""
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def continuation_text(
    tokenizer: Tokenizer, prefix: list[int], prefix_text: str, ids: list[int]
) -> str:
    """What `ids` add to the text of `prefix`.

    Decoded together, because a token's text can depend on what stands before it (SentencePiece
    strips a leading space, a character can be spread over tokens).
    """
    return added(prefix_text, decode(tokenizer, prefix + ids))


def added(prefix_text: str, text: str) -> str:
    """What the text of some ids has more than `prefix_text`, that of the first of them."""
    return text[len(prefix_text.rstrip(UNFINISHED)) :]


class Cut(NamedTuple):
    """What is left of a continuation that may have met a stop string."""

    kept: int  # tokens, up to the one that completes the stop string
    text: str  # ends before the stop string
    overlap: int  # characters of the stop string that stand before the continuation
    hit: bool


def cut_at_stop(
    tokenizer: Tokenizer,
    prefix: list[int],
    prefix_text: str,
    ids: list[int],
    stop: tuple[str, ...],
    before: str = "",
) -> Cut:
    """A continuation up to the first stop string that ends in it.

    `before` is what stands directly before its text in the same response: a stop string can begin
    there (`tail` says how much of it matters).
    """

    def first(text: str) -> int | None:
        """Where the first stop string begins, less than 0 in `before`; None: there is none."""
        starts = [(before + text).find(s, max(0, len(before) - len(s) + 1)) for s in stop]
        return min((start - len(before) for start in starts if start >= 0), default=None)

    text = continuation_text(tokenizer, prefix, prefix_text, ids)
    start = first(text)
    if start is None:
        return Cut(len(ids), text, 0, False)
    low, high = 1, len(ids)  # the fewest tokens whose text has a stop string lie in low .. high
    while low < high:
        middle = (low + high) // 2
        part = continuation_text(tokenizer, prefix, prefix_text, ids[:middle])
        found = first(part)
        if found is None:
            low = middle + 1
        else:
            high, start, text = middle, found, part
    return Cut(low, text[: max(start, 0)], max(-start, 0), True)


def tail(text: str, stop: tuple[str, ...]) -> str:
    """The end of a response so far in which a stop string can have begun."""
    text = text.rstrip(UNFINISHED)  # what comes next is told from there on
    longest = max(map(len, stop), default=1) - 1
    return text[max(len(text) - longest, 0) :]
