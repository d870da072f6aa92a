"""The tokenizer that spells every text, and the warning about one that does not."""

from typing import Any

import pytest
from helpers import loop_cases as cases
from helpers.tokenizer_cases import NAMES, ODD_TEXTS, load

from vinejax.core.text import decode
from vinejax.model.hf.weights import load_tokenizer
from vinejax.tasks.prompts import adds_bos, encode_prompt, encode_response
from vinejax.tasks.spelling import byte_tokenizer, unspelled, warn_unspelled


def test_the_byte_tokenizer_spells_everything_before_and_after_it_is_saved(tmp_path: Any):
    made = byte_tokenizer()
    made.save_pretrained(tmp_path)
    assert len(made) == 258 and (made.bos_token_id, made.eos_token_id) == (0, 1)
    for tokenizer in (made, load_tokenizer(tmp_path)):
        assert adds_bos(tokenizer) and unspelled(tokenizer, ODD_TEXTS) == (0, [])
        assert decode(tokenizer, list(range(258))).startswith("!")
        for text in ODD_TEXTS:
            prompt = encode_prompt(tokenizer, "Q: 🍎", False)
            response = encode_response(tokenizer, text)
            assert decode(tokenizer, prompt + response) == "Q: 🍎" + text
            assert len(response) == len(text.encode()) + 1


def test_characters_that_a_tokenizer_lacks_are_found():
    texts = ["1+2=", "Reverse: 12\n", "x"]
    assert unspelled(cases.tokenizer(), texts) == (2, sorted(set("Reverse:x")))
    assert unspelled(cases.tokenizer(), []) == (0, [])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gpt_neox_20b"])
def test_tokenizers_of_bytes_lack_nothing(name: str):
    assert unspelled(load(name), ODD_TEXTS) == (0, [])


def test_one_line_says_it(capsys: pytest.CaptureFixture[str]):
    warn_unspelled(cases.tokenizer(), ["1+2="], "train prompts")
    assert capsys.readouterr().out == ""
    warn_unspelled(cases.tokenizer(), ["1+2=", "abcdefghij"], "train prompts")
    assert capsys.readouterr().out == (
        "warning: the tokenizer cannot spell 1 of 2 train prompts: it lacks 'a', 'b', 'c', 'd', "
        "'e', 'f', 'g', 'h', ...; choose another (docs/tasks.md, 'A tokenizer for a new model')\n"
    )
