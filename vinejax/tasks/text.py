"""Sampled ids to text, and the search for stop strings in it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNFINISHED = "\ufffd"  # what a decoder shows for a character whose last bytes are still to come


def decode(tokenizer: "PreTrainedTokenizerBase", ids: list[int]) -> str:
    """Text without special tokens, spaces as they are; ids that the tokenizer lacks give ''."""
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def continuation_text(
    tokenizer: "PreTrainedTokenizerBase", prefix: list[int], prefix_text: str, ids: list[int]
) -> str:
    """What `ids` add to the text of `prefix`.

    Decoded together, because a token's text can depend on what stands before it (SentencePiece
    strips a leading space, a character can be spread over tokens).
    """
    return decode(tokenizer, prefix + ids)[len(prefix_text.rstrip(UNFINISHED)) :]


def cut_at_stop(
    tokenizer: "PreTrainedTokenizerBase",
    prefix: list[int],
    prefix_text: str,
    ids: list[int],
    stop: tuple[str, ...],
) -> tuple[int, str, bool]:
    """(tokens kept, text, whether a stop string was hit) of a continuation.

    Tokens are kept up to the one that completes the stop string, the text ends before it.
    """
    text = continuation_text(tokenizer, prefix, prefix_text, ids)
    starts = [text.find(s) for s in stop if s in text]
    if not starts:
        return len(ids), text, False
    low, high = 1, len(ids)  # the fewest tokens whose text has a stop string lie in low .. high
    while low < high:
        middle = (low + high) // 2
        part = continuation_text(tokenizer, prefix, prefix_text, ids[:middle])
        if any(s in part for s in stop):
            high = middle
        else:
            low = middle + 1
    kept = continuation_text(tokenizer, prefix, prefix_text, ids[:low])
    return low, kept[: min(kept.find(s) for s in stop if s in kept)], True
