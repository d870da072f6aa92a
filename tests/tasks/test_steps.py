"""Steps in text compared with the reference's cases, and in tokens with their definition."""

import json
import random
import subprocess
import sys
from typing import Any

import pytest
from helpers import data
from helpers.tokenizer_cases import NAMES, ODD_TEXTS, gsm8k_texts, load
from hypothesis import given, settings
from hypothesis import strategies as st

from vinejax.core.text import decode
from vinejax.tasks.prompts import encode_prompt, encode_response
from vinejax.tasks.steps import every_n_tokens, split_steps, step_ends, token_ends

PROMPT = "[MATH_TASK] Problem:\nHow many?\n\nSolution:"
any_text = st.text() | st.lists(st.sampled_from(["\n", " ", "#### ", "\n#### ", "x", "🎉"])).map(
    "".join
)


# --- characters


def test_gsm8k_style_equals_the_reference_on_its_cases():
    cases = json.loads(data.path("grading/vineppo_splitter_cases.json").read_text(encoding="utf-8"))
    cases = [c for c in cases if c["name"].startswith("G") and c["indices"] is not None]
    assert len(cases) == 10
    assert {c["name"]: split_steps(c["input"], "gsm8k") for c in cases} == {
        c["name"]: c["indices"] for c in cases
    }


def test_gsm8k_style_equals_the_reference_on_real_solutions():
    cases = data.rows("grading/vineppo_oracle_gsm8k")
    assert len(cases) > 400
    for case in cases:
        assert split_steps(case["solution"], "gsm8k") == case["indices"]


@pytest.mark.parametrize(
    "text, steps",
    [
        ("\nA\nB\n#### 5", ["\nA", "\nB\n#### 5"]),
        ("\nA\n\nB\n#### 5\n", ["\nA", "\n", "\nB\n#### 5\n"]),
        ("\n\nA\n#### 2\nB\n\n#### 5\nC", ["\n\nA", "\n#### 2", "\nB\n\n#### 5\nC"]),
        (
            "\nA\nB\n\n",
            ["\nA", "\nB", "\n", "\n"],
        ),  # no answer: blank lines stay steps
        (" \nA #### 2", [" \nA #### 2"]),
        ("\n \n", ["\n ", "\n"]),
        ("\n#### ", ["\n#### "]),
    ],
)
def test_gsm8k_style_by_hand(text: str, steps: list[str]):
    boundaries = split_steps(text, "gsm8k")
    assert [text[a:b] for a, b in zip(boundaries, boundaries[1:], strict=False)] == steps


@pytest.mark.parametrize(
    "text, steps",
    [
        ("\n\nA\n\nB\n \n", ["\n\nA", "\n\nB\n \n"]),
        ("A\nB\n#### 5", ["A", "\nB", "\n#### 5"]),
        ("\n \n", ["\n \n"]),
    ],
)
def test_lines_style_by_hand(text: str, steps: list[str]):
    boundaries = split_steps(text, "lines")
    assert [text[a:b] for a, b in zip(boundaries, boundaries[1:], strict=False)] == steps


@pytest.mark.parametrize("style", ["gsm8k", "lines"])
@settings(max_examples=150, deadline=None)
@given(text=any_text)
def test_splitter_is_total(style: str, text: str):
    boundaries = split_steps(text, style)
    if text:
        assert boundaries[0] == 0 and boundaries[-1] == len(text)
        assert all(a < b for a, b in zip(boundaries, boundaries[1:], strict=False))
    else:
        assert boundaries == [0, 0]
    if style == "lines" and text.strip():
        assert all(text[a:b].strip() for a, b in zip(boundaries, boundaries[1:], strict=False))


def test_unknown_style_names_the_known_ones():
    with pytest.raises(ValueError, match="'maths'.*'math', 'gsm8k', 'lines'"):
        split_steps("x", "maths")


def test_the_default_style_is_math():
    text = "\nThe sum is three. The product is two."
    assert split_steps(text) == split_steps(text, "math") == [0, 38]
    text = "\nThe sum of both is three. The product of both is two."
    assert split_steps(text) == [0, 26, 54] != split_steps(text, "gsm8k")


def test_importing_steps_is_light():
    code = (
        "import sys, vinejax.tasks.steps; print({'jax', 'transformers', 'numpy'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --- tokens


@pytest.mark.parametrize(
    "num_tokens, n, ends",
    [(7, 3, [3, 6, 7]), (6, 3, [3, 6]), (2, 3, [2]), (3, 1, [1, 2, 3]), (1, 1, [1]), (0, 4, [])],
)
def test_steps_of_n_tokens(num_tokens: int, n: int, ends: list[int]):
    assert every_n_tokens(num_tokens, n) == ends


@pytest.mark.parametrize("n", [0, -3])
def test_a_step_has_a_token(n: int):
    with pytest.raises(ValueError, match=f"at least one token, not {n}"):
        every_n_tokens(5, n)


def defined_ends(tokenizer: Any, prompt: list[int], response: list[int]) -> list[int]:
    """The ends by their definition, in quadratic time: every prefix is decoded."""
    base = len(decode(tokenizer, prompt).rstrip("\ufffd"))
    whole = decode(tokenizer, prompt + response)[base:]
    ends = [0]
    for t in range(1, len(response) + 1):
        text = decode(tokenizer, prompt + response[:t])[base:]
        finished = whole.startswith(text) and not text.endswith("\ufffd")
        ends.append(len(text) if finished or t == len(response) else ends[-1])
    return ends[1:]


@pytest.mark.parametrize("name", NAMES)
def test_token_ends_are_as_defined_on_real_texts(name: str):
    tokenizer = load(name)
    prompt = encode_prompt(tokenizer, PROMPT, chat_template=False)
    texts = ODD_TEXTS if name in ("byte_level", "sentencepiece") else ODD_TEXTS + gsm8k_texts(10)
    for text in texts:
        response = encode_response(tokenizer, text)
        decoded, ends = token_ends(tokenizer, prompt, response)
        assert decoded == decode(tokenizer, prompt + response)[len(decode(tokenizer, prompt)) :]
        assert ends == defined_ends(tokenizer, prompt, response), repr(text)


@pytest.mark.parametrize("name", NAMES)
def test_token_ends_are_as_defined_on_random_ids(name: str):
    """A model can sample ids of no text: broken characters, special tokens, doubled spaces."""
    tokenizer = load(name)
    draw = random.Random(name)
    text = encode_response(tokenizer, "\n🎉 is 她\n🍎. #### 5")[:-1]
    specials = [i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None]
    for _ in range(40):
        pool = [text, specials, range(len(tokenizer))]
        ids = [draw.choice(draw.choices(pool, [8, 1, 3])[0]) for _ in range(draw.randint(2, 60))]
        cut = draw.randrange(1, len(ids))
        prompt, response = ids[:cut], ids[cut:]
        _, ends = token_ends(tokenizer, prompt, response)
        assert ends == defined_ends(tokenizer, prompt, response), (prompt, response)
        assert ends == sorted(ends)


@pytest.mark.parametrize("name", NAMES)
def test_steps_in_tokens_decode_to_the_steps(name: str):
    tokenizer = load(name)
    prompt = encode_prompt(tokenizer, PROMPT, chat_template=False)
    before = decode(tokenizer, prompt)
    text = "\nShe has 3 🍎🍎\n她有三个\n3 + 4 = 7 🎉\n#### 7\n"
    response = encode_response(tokenizer, text)
    boundaries = split_steps(text, "gsm8k")
    assert len(boundaries) == 4
    ends = step_ends(tokenizer, prompt, response, boundaries, text)
    assert ends[-1] == len(response)
    prefixes = [decode(tokenizer, prompt + response[:t])[len(before) :] for t in ends]
    assert prefixes == [text[:b] for b in boundaries[1:]]


def test_a_boundary_inside_a_token_moves_to_its_end_and_equal_ones_merge():
    tokenizer = load("byte_level")
    prompt, response = tokenizer.encode("Q:"), tokenizer.encode("a.\n\n\nb")
    assert [tokenizer.decode([i]) for i in response] == ["a", ".\n", "\n\n", "b"]
    text = "a.\n\n\nb"
    #             inside '.\n', inside '\n\n', its end
    assert step_ends(tokenizer, prompt, response, [0, 2, 4, 5, 6], text) == [2, 3, 4]
    assert step_ends(tokenizer, prompt, response, [0, 3, 6], text) == [2, 4]
    assert step_ends(tokenizer, prompt, response, [0, 1, 2, 3, 6], text) == [1, 2, 4]
    assert step_ends(tokenizer, prompt, response[:2], [0, 2, 3], "a.\n") == [2]
    assert step_ends(tokenizer, prompt, response, [0, 0, 3, 6, 6], text) == [2, 4]


def test_an_unfinished_character_belongs_to_the_token_that_completes_it():
    tokenizer = load("byte_level")
    response = tokenizer.encode("x 🎉\ny")
    assert len(response) == 6  # x, ' ' with two bytes, two more bytes, newline, y
    prompt = tokenizer.encode("Q:")
    assert step_ends(tokenizer, prompt, response, [0, 2, 3, 5], "x 🎉\ny") == [4, 6]
    assert step_ends(tokenizer, prompt, response, [0, 1, 5], "x 🎉\ny") == [1, 6]


def test_the_last_step_takes_eos_and_what_a_stop_string_cut():
    tokenizer = load("byte_level")
    prompt, eos = tokenizer.encode("Q:"), tokenizer.eos_token_id
    assert step_ends(tokenizer, prompt, tokenizer.encode("a\nb") + [eos], [0, 1, 3], "a\nb") == [
        1,
        4,
    ]
    response = tokenizer.encode("a\nb\n\n\nProblem:")
    assert step_ends(tokenizer, prompt, response, [0, 1, 3], "a\nb") == [1, len(response)]


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
def test_short_responses(name: str):
    tokenizer = load(name)
    prompt = tokenizer.encode("Q:", add_special_tokens=False)
    eos = tokenizer.eos_token_id
    assert step_ends(tokenizer, prompt, [], [0, 0], "") == []
    assert step_ends(tokenizer, prompt, [eos], [0, 0], "") == [1]
    one = encode_response(tokenizer, "a")[:-1]
    assert step_ends(tokenizer, prompt, one, [0, 1], "a") == [1]


def test_text_decoded_without_its_prompt_is_found_again():
    """SentencePiece strips the first space of any text that it decodes."""
    tokenizer = load("sentencepiece")
    prompt = tokenizer.encode("Q:", add_special_tokens=False)
    response = tokenizer.convert_tokens_to_ids(["▁a", "b", "<0x0A>", "c"])
    assert decode(tokenizer, response) == "ab\nc"
    assert decode(tokenizer, prompt + response) == "Q: ab\nc"
    assert step_ends(tokenizer, prompt, response, [0, 3, 5], " ab\nc") == [2, 4]
    assert step_ends(tokenizer, prompt, response, [0, 2, 4], "ab\nc") == [2, 4]


def test_a_decoder_that_only_knows_whole_texts_is_followed_exactly():
    """The decoder needs the whole text: upper case from the start to the first 'x'."""

    class Whole:
        added_tokens_decoder = special_tokens_map = {}

        def decode(self, ids: list[int], **_: Any) -> str:
            shout, mark, rest = "".join(map(chr, ids)).partition("x")
            return shout.upper() + mark + rest

    whole: Any = Whole()
    prompt, response = [ord("p"), ord("x")], [ord(c) for c in "q" * 50 + "\nr"]
    _, ends = token_ends(whole, prompt, response)
    assert ends == list(range(1, 53))


def test_long_responses_are_decoded_in_linear_work():
    tokenizer = load("byte_level")
    decoded_tokens = 0

    class Counting:
        added_tokens_decoder = special_tokens_map = {}

        def decode(self, ids: list[int], **options: Any) -> str:
            nonlocal decoded_tokens
            decoded_tokens += len(ids)
            return tokenizer.decode(ids, **options)

    counting: Any = Counting()
    prompt, response = tokenizer.encode("Q:"), tokenizer.encode("ab 🎉\n" * 200)
    token_ends(counting, prompt, response)
    assert len(response) > 1000
    assert decoded_tokens < 20 * len(response)


def test_a_tokenizer_that_lists_no_special_tokens():
    """A tokenizer may be any object that encodes and decodes, without a list of special tokens."""

    class Letters:
        eos_token_id = 0

        def decode(self, ids: list[int], skip_special_tokens: bool, **_: Any) -> str:
            return "".join(
                "." if i == 0 else chr(96 + i) for i in ids if i or not skip_special_tokens
            )

    letters: Any = Letters()
    assert decode(letters, [1, 2, 0]) == "ab"
    assert step_ends(letters, [3], [1, 2, 0], [0, 1, 2], "ab") == [1, 3]
