"""Values of given tokens, by the reward model of a run; the bytes of tokens in replies."""

import dataclasses

import numpy as np
import pytest
from helpers.model_oracles import random_model
from helpers.tokenizer_cases import ODD_TEXTS, load

from vinejax.core.text import UNFINISHED, token_text
from vinejax.model.decoder import Decoder
from vinejax.model.hf.weights import RewardModel
from vinejax.tools.serve.replies import TokenForms
from vinejax.tools.serve.scoring import values_after


def test_what_shapes_logits_does_not_change_values():
    """Granite divides its logits by a number, and Gemma 2 bounds them."""
    model, params, _ = random_model()
    kernel = np.random.default_rng(0).normal(size=model.cfg.width)
    scorer = RewardModel(model, params, kernel, bias=0.25)
    cfg = dataclasses.replace(model.cfg, logit_divisor=8.0, logit_softcap=0.5)
    rows = [[3, 1, 4, 1, 5], [9, 2]]
    expected = values_after(scorer, rows)
    found = values_after(scorer._replace(model=Decoder(cfg, compute=model.compute)), rows)
    assert [len(x) for x in found] == [5, 2] and np.std(expected[0]) > 0.1
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), rtol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "mistral_7b_v1"])
def test_the_bytes_of_tokens_make_whole_characters(name: str):
    """Byte-level BPE and ByteFallback spread characters over tokens, whose texts lack the bytes."""
    tokenizer = load(name)
    forms, texts = TokenForms(tokenizer, token_text(tokenizer)), ""
    for text in (*ODD_TEXTS, "🪿"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(forms.bytes_of, ids)).decode().lstrip(" ") == text.lstrip(" ")
        texts += "".join(map(forms.text_of, ids))
    assert UNFINISHED in texts
