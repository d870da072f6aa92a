"""A continuation has the same text after the end of its prefix as after the whole prefix."""

import functools
import random
from typing import Any
from unittest import mock

import pytest
from helpers import tokenizer_cases
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from vinejax.core.text import (
    added,
    continuation_text,
    cut_at_stop,
    decode,
    prefix_end,
    set_shown,
    special_tokens,
    tail,
    tail_before,
)

# Whole and divided characters of bytes and of ByteFallback, marks of SentencePiece and WordPiece.
PIECES = [
    *("a", "aa", "bc", " ", "\ufffd", "日", "é", ".", "n't", "do not", "x\ufffd"),
    *("▁", "▁a", "▁▁", "a▁", "▁<0x41>", "##", "##a", "##\ufffd", "</w>", "c</w>"),
    *("<0xE6>", "<0x97>", "<0xA5>", "<0x61>", "<0xFF>", "<0x0A>"),
    *("Ġ", "Ġa", "Ċ", "æĹ", "¥", "æ", "æĹ¥a", "ðŁĺ", "Ģ", "aðŁĺ"),
]
SPECIAL = ["<s>", "<think>", "</think>", "<|日|>"]
Space, Fallback = functools.partial(decoders.Replace, "▁", " "), decoders.ByteFallback
FROM_TAIL = {
    "none": None,
    "bytes": decoders.ByteLevel(),
    "bytes, stripped": decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]),
    "gemma": decoders.Sequence([Space(), Fallback(), decoders.Fuse()]),
    "llama": decoders.Sequence(
        [Space(), Fallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0), decoders.Fuse()]
    ),
    "strips letters": decoders.Sequence([Fallback(), decoders.Fuse(), decoders.Strip("a", 3, 0)]),
    "grouped": decoders.Sequence([decoders.Sequence([Space(), Fallback()]), decoders.Fuse()]),
    "fallback alone": Fallback(),
    "metaspace": decoders.Metaspace(),
    "metaspace, first": decoders.Metaspace(prepend_scheme="first"),
    "metaspace, never": decoders.Metaspace(prepend_scheme="never"),
    "fallback, metaspace": decoders.Sequence([Fallback(), decoders.Metaspace()]),
    "wordpiece": decoders.WordPiece(cleanup=False),
    "wordpiece, cleaned": decoders.WordPiece(cleanup=True),
    "bpe": decoders.BPEDecoder(),
    "each token stripped": decoders.Sequence([decoders.Strip("a", 2, 0), decoders.Fuse()]),
    "by pattern": decoders.Sequence([decoders.Replace(Regex("a+|b"), "\ufffd"), Fallback()]),
}
WHOLE = {
    "strips what is unfinished": decoders.Sequence(
        [decoders.ByteLevel(), decoders.Strip("\ufffd", 1, 0)]
    ),
    "replaces across tokens": decoders.Sequence(
        [decoders.Fuse(), decoders.Replace(Regex("^a|a.*bc"), "")]
    ),
    "bytes of a text": decoders.Sequence([decoders.Fuse(), decoders.ByteLevel()]),
    "fallback of a text": decoders.Sequence([decoders.Fuse(), Fallback()]),
    "ctc": decoders.CTC(pad_token="a", word_delimiter_token="▁"),
}


def made(decoder: Any) -> PreTrainedTokenizerFast:
    """A tokenizer of `PIECES` and `SPECIAL` with this decoder."""
    tokenizer = Tokenizer(models.WordLevel({x: i for i, x in enumerate(PIECES)}, unk_token="a"))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(x, special=True) for x in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


def by_whole_prefix(tokenizer: Any, prefix: list[int], ids: list[int]) -> str:
    return added(decode(tokenizer, prefix), decode(tokenizer, prefix + ids))


def assert_same_text(tokenizer: Any, ids: list[int], draw: random.Random) -> int:
    """Cuts `ids` in two at random; returns how many tokens of the prefix were not decoded."""
    at = draw.randint(0, len(ids))
    prefix, rest = ids[:at], ids[at:]
    end = prefix_end(tokenizer, prefix)
    for count in range(len(rest) + 1):
        expected = by_whole_prefix(tokenizer, prefix, rest[:count])
        assert continuation_text(tokenizer, end, rest[:count]) == expected, (prefix, rest[:count])
    response, stop = draw.randint(0, at), ("b" * draw.randint(1, 6),)
    before = by_whole_prefix(tokenizer, prefix[:response], prefix[response:])
    assert tail_before(tokenizer, prefix, response, stop) == tail(before, stop), (prefix, response)
    return at - len(end.ids)


@pytest.mark.parametrize("name", [*FROM_TAIL, *WHOLE])
def test_random_ids_with_any_decoder(name: str):
    """Few different pieces in a text, so that runs of bytes and repeated pieces are frequent."""
    draw, tokenizer = random.Random(name), made((FROM_TAIL | WHOLE)[name])
    left_out = 0
    for skips in (False, True):
        set_shown(tokenizer, skip_special=skips)
        for _ in range(150):
            some = draw.sample(range(len(PIECES) + len(SPECIAL) + 1), draw.randint(1, 6))
            left_out += assert_same_text(tokenizer, draw.choices(some, k=draw.randint(0, 14)), draw)
    assert left_out == 0 if name in WHOLE else left_out > 200


def test_tokens_that_end_a_response_or_have_a_role_are_not_shown():
    tokenizer: Any = made(None)
    ids = tokenizer.convert_tokens_to_ids(["<s>", "<think>", "a", "</think>", "<|日|>"])
    for ends, skips, text in (
        ((), False, "<think> a </think> <|日|>"),
        (ids[-1:], False, "<think> a </think>"),
        ((), True, "a"),
    ):
        set_shown(tokenizer, ends, skips)
        assert decode(tokenizer, ids) == text


@pytest.mark.parametrize(
    "name, before, response, after",
    [
        ("wordpiece", ["\ufffd"], ["##"], ["a"]),  # a token without a text after the first one
        ("each token stripped", ["\ufffd"], ["a"], ["bc"]),
        ("strips letters", ["bc"], ["aa"], ["a", "bc"]),  # a token of fewer letters than stripped
        ("llama", ["bc", "<0xE6>", "<0x97>", "<0xA5>"], ["<0xE6>", "<0x97>", "<0xA5>"], ["a"]),
        ("replaces across tokens", ["é", "a"], [".", "bc", "."], ["a"]),
    ],
)
def test_texts_with_few_characters_of_their_own(
    name: str, before: list[str], response: list[str], after: list[str]
):
    tokenizer: Any = made((FROM_TAIL | WHOLE)[name])
    first, more, rest = (tokenizer.convert_tokens_to_ids(x) for x in (before, response, after))
    prefix = first + more
    text = continuation_text(tokenizer, prefix_end(tokenizer, prefix), rest)
    assert text == by_whole_prefix(tokenizer, prefix, rest)
    expected = by_whole_prefix(tokenizer, first, more)
    for length in range(1, 5):
        stop = ("x" * length,)
        assert tail_before(tokenizer, prefix, len(first), stop) == tail(expected, stop)


@pytest.mark.parametrize("name", tokenizer_cases.NAMES)
def test_random_ids_and_texts_with_real_tokenizers(name: str):
    draw, tokenizer = random.Random(0), tokenizer_cases.load(name)
    set_shown(tokenizer)
    special = list(special_tokens(tokenizer).values()) or [0]
    encoded = [tokenizer.encode(x, add_special_tokens=False) for x in tokenizer_cases.ODD_TEXTS]
    encoded += [tokenizer.encode(x) for x in tokenizer_cases.gsm8k_texts(5)]
    for n in range(120):
        ids = [draw.randrange(len(tokenizer) + 2) for _ in range(draw.randint(1, 20))]
        if n % 2:
            ids = [i for some in draw.sample(encoded, 2) for i in some[-12:]]
        if n % 3 == 0:
            ids.insert(draw.randint(0, len(ids)), draw.choice(special))
        assert_same_text(tokenizer, ids, draw)
    # A long text of whole characters: the last token suffices.
    ids = tokenizer.encode("She has 12 apples and eats 3 of them. " * 20)
    assert 1 <= len(prefix_end(tokenizer, ids).ids) <= 3


def test_a_tokenizer_that_decodes_in_a_way_of_its_own_gets_the_whole_prefix():
    class Reversed(PreTrainedTokenizerFast):
        def _decode(self, token_ids: Any, *args: Any, **kwargs: Any) -> str:
            return super()._decode(token_ids[::-1], *args, **kwargs)

    class Words:
        def decode(self, ids: list[int], **unused: bool) -> str:
            return " ".join(map(str, ids)).replace("1 2", "3")

    fast = Reversed(tokenizer_object=made(None).backend_tokenizer)
    strips_the_end = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)])
    assert prefix_end(made(strips_the_end), [1, 0, 3]).ids == [1, 0, 3]
    tokenizers: list[Any] = [fast, Words()]
    for tokenizer in tokenizers:
        assert prefix_end(tokenizer, [1, 2, 3]).ids == [1, 2, 3]
        for at in range(5):
            assert_same_text(tokenizer, [1, 2, 1, 2][at:] + [3, 1], random.Random(at))


def test_the_search_for_a_stop_string_decodes_few_texts_and_no_prefix():
    tokenizer = tokenizer_cases.load("gpt2")
    prefix, ids = (tokenizer.encode(x) for x in ("Once upon a time. " * 50, "1 2 3 4 5 6 7 8 9"))
    end, fewest = prefix_end(tokenizer, prefix), {(): 1, (" 9",): 2, (" 2",): 5}
    for stop, calls in fewest.items():
        with mock.patch.object(tokenizer, "decode", side_effect=tokenizer.decode) as counted:
            assert cut_at_stop(tokenizer, end, ids, stop).hit == bool(stop)
        assert counted.call_count <= calls
        assert max(len(call.args[0]) for call in counted.call_args_list) <= len(ids) + len(end.ids)
