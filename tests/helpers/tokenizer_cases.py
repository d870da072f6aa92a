"""Tokenizers and texts: two tokenizers made here, five real ones. For tests/tasks and rollout."""

import functools
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from helpers import data

REAL = ["gpt2", "gpt_neox_20b", "minimind_6400", "mistral_7b_v1"]
NAMES = ["byte_level", "sentencepiece", *REAL, "stories260K"]
SPECIAL = {
    "gpt2": {"eos_token": "<|endoftext|>"},
    "gpt_neox_20b": {"eos_token": "<|endoftext|>"},
    "mistral_7b_v1": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
}
# Emoji of several code points, CJK, combining marks, control characters, odd spaces.
ODD_TEXTS = [
    "\n🎉",
    "🎉🎉\n🎉",
    "\n👩‍👩‍👧 has 3 🍎.\n她有三个苹果。\n#### 3",
    " leads with a space\n  and two\n",
    "e\u0301 é à ñ\n\t\u200b\u2028x\r\ny",
    "日本語\n日本語\n\n日本語",
    "\n\n\n",
    "a",
]


def gsm8k_texts(count: int) -> list[str]:
    """Worked answers of GSM8K with emoji and CJK strewn in."""
    answers = [row["answer"] for row in data.rows("gsm8k/train")[:count]]
    swaps = [("\n", "🎉\n"), (" is ", " 是 "), (". ", "。"), ("the", "👩‍👩‍👧"), ("e", "é")]
    return [f"\n{a.replace(*swaps[i % len(swaps)])}\n" for i, a in enumerate(answers)]


@functools.cache
def load(name: str) -> Any:
    """The tokenizer of this name, one of `NAMES`."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if name == "byte_level":
        return PreTrainedTokenizerFast(tokenizer_object=_byte_level(), eos_token="<eos>")
    if name == "sentencepiece":
        marks = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        return PreTrainedTokenizerFast(tokenizer_object=_sentencepiece(), **marks)
    folder = data.path("stories260K/hf") if name == "stories260K" else data.tokenizer(name)
    if name in SPECIAL:
        file = str(folder / "tokenizer.json")
        return PreTrainedTokenizerFast(tokenizer_file=file, **SPECIAL[name])
    return AutoTokenizer.from_pretrained(str(folder))


def _byte_level() -> Tokenizer:
    """Bytes, and a few merges: ' is', full stop and newline, half an emoji."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("i", "s"), ("Ġ", "is"), (".", "Ċ"), ("Ċ", "Ċ"), ("ð", "Ł"), ("Ġ", "ðŁ")]
    vocab = {token: i for i, token in enumerate(alphabet)}
    vocab |= {a + b: len(vocab) + i for i, (a, b) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece() -> Tokenizer:
    """ASCII letters after a space or not, byte fallback for the rest, Llama's (de)normalizers.

    As Llama's, it puts BOS in front of a text.
    """
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁"]
    tokens += [chr(i) for i in range(33, 127)]
    merges = [("▁", chr(i)) for i in range(97, 123)] + [("▁", "▁")]
    vocab = {token: i for i, token in enumerate(tokens + [a + b for a, b in merges])}
    bpe = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(bpe)
    prepend, replace = normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([prepend, replace])
    space, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse(), strip])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocab["<s>"])]
    )
    return tokenizer
