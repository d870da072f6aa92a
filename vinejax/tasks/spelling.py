"""The characters that a tokenizer cannot spell, and a tokenizer that spells all, for new models."""

import os
from collections.abc import Sequence
from typing import Any

from vinejax.core.text import Tokenizer
from vinejax.runtime.distributed import is_writer

BOS, EOS = "<bos>", "<eos>"
NAMED = 8  # maximum number of missing characters that the warning names


def byte_tokenizer() -> Tokenizer:
    """A tokenizer of 258 tokens, BOS, EOS and all bytes, which spells every text.

    It puts BOS in front of a text. A task returns it from its method `tokenizer`, so that a new
    model can be trained on the task. English text has one token per character.
    """
    # Otherwise every run prints that torch, which no run needs, is missing.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
    from tokenizers import Tokenizer as Rules
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([BOS, EOS, *alphabet])}
    rules = Rules(models.BPE(vocab, []))
    rules.add_special_tokens([AddedToken(x, special=True, normalized=False) for x in (BOS, EOS)])
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rules.decoder = decoders.ByteLevel()
    rules.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS}:1 $B:1", special_tokens=[(BOS, vocab[BOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=rules,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        clean_up_tokenization_spaces=False,
    )


def unspelled(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[int, list[str]]:
    """(the number of texts that the tokenizer cannot spell, the characters that it lacks, sorted).

    A character is lacking if it is encoded as the unknown token, or as nothing.
    """
    unknown: Any = tokenizer.unk_token_id

    def lacks(character: str) -> bool:
        ids = tokenizer.encode(character, add_special_tokens=False, verbose=False)
        return not ids or unknown in ids

    characters = {character for text in texts for character in text}
    lacking = {character for character in characters if lacks(character)}
    return sum(not lacking.isdisjoint(text) for text in texts), sorted(lacking)


def warn_unspelled(tokenizer: Tokenizer, texts: Sequence[str], what: str) -> None:
    """Prints a warning if the tokenizer cannot spell some of the texts; `what` names the texts."""
    count, lacking = unspelled(tokenizer, texts)
    if count and is_writer():
        names = ", ".join(map(repr, lacking[:NAMED])) + (", ..." if len(lacking) > NAMED else "")
        print(
            f"warning: the tokenizer cannot spell {count} of {len(texts)} {what}: it lacks {names};"
            " choose another (docs/tasks.md, 'A tokenizer for a new model')"
        )
