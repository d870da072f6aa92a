"""Reasoning steps: the boundaries of a response's steps in characters, and their ends in tokens."""

import bisect

from vinejax.core.text import UNFINISHED, Tokenizer, decode
from vinejax.tasks.math_steps import split_math

STYLES = ("math", "gsm8k", "lines")
ANSWER_LINE = "\n#### "
PATIENCE = 32  # tokens in a row without complete text before whole prefixes are decoded


def split_steps(text: str, style: str = "math") -> list[int]:
    """Character boundaries [0, ..., len(text)]: step c is text[boundaries[c]:boundaries[c + 1]].

    Any string has at least one step, and the steps together are the whole string. Boundaries
    increase strictly, except for '', which is one empty step, [0, 0]. A line includes the newline
    before it.

    'math': sentences, lines and lines of formulas. Parts of over 100 characters are broken at a
      comma or the like; see `tasks/math_steps.py`.
    'gsm8k': one step per line. Blank lines at the start join the first line that is not blank.
      Everything from the last '\\n#### ' on belongs to the step of the last line before it that is
      not blank. Other blank lines are steps. Follows `split_solution_into_intermediate_steps` in
      `src/treetune/tasks/gsm8k.py` of McGill-NLP/VinePPO, which raises if there are two
      answer lines and gives a text of only blank lines an empty first step.
    'lines': one step per line that is not blank. Blank lines join the next such line; at the end of
      the text they join the last such line.

    Raises ValueError for another style.

    Example:
      >>> text = "7+8=15\\n15-4=11"
      >>> vinejax.split_steps(text, style="lines")
      [0, 6, 14]
    """
    if style not in STYLES:
        raise ValueError(f"unknown style {style!r}; known: {', '.join(map(repr, STYLES))}")
    if style == "math":
        return split_math(text)
    marker = text.rfind(ANSWER_LINE) if style == "gsm8k" else -1
    body = len(text) if marker < 0 else marker
    starts = [0] + [i for i in range(body) if text[i] == "\n"]
    ends = starts[1:] + [body]
    not_blank = [c for c in range(len(starts)) if text[starts[c] : ends[c]].strip()]
    if style == "lines":
        inner = [ends[c] for c in not_blank[:-1]]
    else:
        first = not_blank[0] if not_blank else 0
        last = (not_blank[-1] if not_blank else 0) if marker >= 0 else len(starts) - 1
        inner = [i for i in starts[first + 1 : last + 1] if i > 0]
    return [0, *inner, len(text)]


def every_n_tokens(num_tokens: int, n: int) -> list[int]:
    """The ends n, 2n, ..., num_tokens of steps of n tokens each, [C].

    A task can return this list from its method `step_ends`.

    The last step may be shorter, and without tokens there is no step. Raises ValueError for n < 1.
    """
    if n < 1:
        raise ValueError(f"a step needs at least one token, not {n}")
    return [*range(n, num_tokens, n), num_tokens] if num_tokens else []


def step_ends(
    tokenizer: Tokenizer, prompt: list[int], response: list[int], boundaries: list[int], text: str
) -> list[int]:
    """The index one past the last token of each of the C steps of a response, [C].

    `boundaries` are the step boundaries in `text`, the response as graded. `text` may be shorter
    than the decoded tokens, because a stop string is cut off. A boundary inside a token moves to
    the token's end, and equal boundaries merge. The last step has all remaining tokens, EOS
    included. An empty response has no steps.
    """
    if not response:
        return []
    decoded, ends = token_ends(tokenizer, prompt, response)
    # SentencePiece strips a space from text that is decoded without its prompt.
    shift = max(0, decoded.find(text))
    inner = {bisect.bisect_left(ends, b + shift) + 1 for b in boundaries[1:-1] if b > 0}
    return sorted(t for t in inner if t < len(response)) + [len(response)]


def token_ends(
    tokenizer: Tokenizer, prompt: list[int], response: list[int]
) -> tuple[str, list[int]]:
    """(the decoded response, the number of complete characters at the end of each token).

    ends[t - 1] = len(decode(prompt + response[:t])) - len(decode(prompt)), without an unfinished
    character.
    """
    ids, first = prompt + response, len(prompt)
    prompt_text = decode(tokenizer, prompt).rstrip(UNFINISHED)
    decoded = decode(tokenizer, ids)[len(prompt_text) :]
    ends = _near_ends(tokenizer, ids, first, len(prompt_text), decoded)
    if ends is None:
        ends = _whole_ends(tokenizer, ids, first, len(prompt_text), decoded)
    ends[-1] = len(decoded)
    return decoded, ends


def _near_ends(
    tokenizer: Tokenizer, ids: list[int], first: int, head: int, decoded: str
) -> list[int] | None:
    """The ends of ids[first:] as `token_ends` defines them, computed in linear time.

    `decoded` is the text of ids[first:], after the `head` characters of ids[:first]. Each token is
    decoded with only a few tokens before it, the last of which ends with a whole character. The
    text that it adds must continue `decoded`. If this fails for PATIENCE tokens in a row, the
    result is None: bytes form no character, or the decoder needs all of the text before a token.
    """
    # ids[start:known_end] alone decode to `head` characters. decoded[:num_chars] is the text of all
    # tokens before `known_end`.
    start, known_end, num_chars = 0, first, 0
    ends = []
    for end in range(first + 1, len(ids) + 1):
        if end - known_end > PATIENCE:
            return None
        piece = decode(tokenizer, ids[start:end])[head:]
        if not _is_complete(piece, decoded, num_chars):
            ends.append(num_chars)
            continue
        ends.append(num_chars + len(piece))
        if piece:  # after tokens without text the next token would lose its leading space
            start, known_end, num_chars = known_end, end, num_chars + len(piece)
            head = len(decode(tokenizer, ids[start:known_end]))
    return ends


def _whole_ends(
    tokenizer: Tokenizer, ids: list[int], first: int, head: int, decoded: str
) -> list[int]:
    """The ends that `_near_ends` seeks, with the same arguments, found by decoding every prefix."""
    ends, num_chars = [], 0
    for end in range(first + 1, len(ids) + 1):
        text = decode(tokenizer, ids[:end])[head:]
        num_chars = len(text) if _is_complete(text, decoded, 0) else num_chars
        ends.append(num_chars)
    return ends


def _is_complete(piece: str, decoded: str, offset: int) -> bool:
    """Whether `piece` continues `decoded` at `offset` and ends with a whole character."""
    return decoded.startswith(piece, offset) and not piece.endswith(UNFINISHED)
