"""Tokenizers and texts of the tests on prompts and steps: two made here, five real ones."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
REAL = {
    "gpt2": "tokenizers/gpt2",
    "gpt_neox_20b": "tokenizers/gpt_neox_20b",
    "minimind_6400": "tokenizers/minimind_6400",
    "mistral_7b_v1": "tokenizers/mistral_7b_v1",
    "stories260K": "tiny_model/stories260K/hf",
}
NAMES = ["byte_level", "sentencepiece", *REAL]
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


def shared(path: str) -> Path:
    """A file of the shared test data; skips the test, loudly, where it is absent."""
    if not (SHARED / path).exists():
        pytest.skip(f"test data is absent: {SHARED / path}")
    return SHARED / path


def gsm8k_texts(count: int) -> list[str]:
    """Worked answers of GSM8K with emoji and CJK strewn in."""
    lines = shared("gsm8k/train.jsonl").read_text(encoding="utf-8").split("\n")[:count]
    answers = [json.loads(line)["answer"] for line in lines]
    swaps = [("\n", "🎉\n"), (" is ", " 是 "), (". ", "。"), ("the", "👩‍👩‍👧"), ("e", "é")]
    return [f"\n{a.replace(*swaps[i % len(swaps)])}\n" for i, a in enumerate(answers)]


@functools.cache
def load(name: str) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if name == "byte_level":
        return PreTrainedTokenizerFast(tokenizer_object=_byte_level(), eos_token="<eos>")
    if name == "sentencepiece":
        marks = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        return PreTrainedTokenizerFast(tokenizer_object=_sentencepiece(), **marks)
    folder = shared(REAL[name])
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
    """ASCII letters after a space or not, byte fallback for the rest, Llama's (de)normalizers."""
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
    return tokenizer
