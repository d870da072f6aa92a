"""Reasoning steps: the boundaries of a response's steps, in characters and then in tokens."""

import bisect

from vinejax.core.text import UNFINISHED, Tokenizer, decode
from vinejax.tasks.math_steps import split_math

STYLES = ("math", "gsm8k", "lines")
ANSWER_LINE = "\n#### "
PATIENCE = 32  # tokens in a row without complete text, after which whole prefixes are decoded


def split_steps(text: str, style: str = "math") -> list[int]:
    """Character boundaries [0, ..., len(text)]: step c is text[boundaries[c]:boundaries[c + 1]].

    Any string has at least one step, and steps lose no character. Boundaries rise strictly, except
    for '', which is one empty step, [0, 0]. A line includes the newline before it.

    'math': sentences, lines and lines of formulas; parts of over 100 characters are broken at a
      comma or the like; see `tasks/math_steps.py`.
    'gsm8k': one step per line. Blank lines at the start join the first line that is not blank;
      everything from the last '\\n#### ' on belongs to the step of the last line before it that is
      not blank; other blank lines are steps. Follows `split_solution_into_intermediate_steps` in
      `src/treetune/tasks/gsm8k.py` of McGill-NLP/VinePPO, which raises if there are two
      answer lines and gives a text of only blank lines an empty first step.
    'lines': one step per line that is not blank; blank lines join the next such line, those at the
      end of the text the last such line.

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
    filled = [c for c in range(len(starts)) if text[starts[c] : ends[c]].strip()]
    if style == "lines":
        inner = [ends[c] for c in filled[:-1]]
    else:
        first = filled[0] if filled else 0
        last = (filled[-1] if filled else 0) if marker >= 0 else len(starts) - 1
        inner = [i for i in starts[first + 1 : last + 1] if i > 0]
    return [0, *inner, len(text)]


def every_n_tokens(num_tokens: int, n: int) -> list[int]:
    """[C] step ends n, 2n, ..., num_tokens, for a task's `step_ends`: steps of n tokens.

    The last step may be shorter; without tokens there is no step. Raises ValueError for n < 1.
    """
    if n < 1:
        raise ValueError(f"a step needs at least one token, not {n}")
    return [*range(n, num_tokens, n), num_tokens] if num_tokens else []


def step_ends(
    tokenizer: Tokenizer, prompt: list[int], response: list[int], boundaries: list[int], text: str
) -> list[int]:
    """[C] response token index one past each step; [] for an empty response.

    `boundaries` are the step boundaries in `text`, the response as graded, which may be shorter
    than the decoded tokens (a stop string is cut off). A boundary inside a token moves to the
    token's end, equal boundaries merge, and the last step has all tokens that are left, EOS
    included.
    """
    if not response:
        return []
    decoded, ends = token_ends(tokenizer, prompt, response)
    # Text that was decoded without its prompt may lack the space that SentencePiece strips.
    shift = max(0, decoded.find(text))
    inner = {bisect.bisect_left(ends, b + shift) + 1 for b in boundaries[1:-1] if b > 0}
    return sorted(t for t in inner if t < len(response)) + [len(response)]


def token_ends(
    tokenizer: Tokenizer, prompt: list[int], response: list[int]
) -> tuple[str, list[int]]:
    """The decoded response, and for each of its tokens the characters that are complete at its end.

    ends[t - 1] = len(decode(prompt + response[:t])) - len(decode(prompt)); an unfinished character
    does not count.
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
    """The ends of ids[first:] in linear time: each token is decoded after a few known tokens.

    The known tokens end where the text is complete. The text that a token adds must continue
    `decoded` there; None if it does not for PATIENCE tokens in a row, as with bytes that never form
    a character, or with a decoder that needs the whole text before a token.
    """
    # ids[start:known] alone decode to `head` characters; decoded[:done] is the text before `known`.
    start, known, done = 0, first, 0
    ends = []
    for end in range(first + 1, len(ids) + 1):
        if end - known > PATIENCE:
            return None
        piece = decode(tokenizer, ids[start:end])[head:]
        if not _is_complete(piece, decoded, done):
            ends.append(done)
            continue
        ends.append(done + len(piece))
        if piece:  # after a head without text the next token would lose its leading space
            start, known, done = known, end, done + len(piece)
            head = len(decode(tokenizer, ids[start:known]))
    return ends


def _whole_ends(
    tokenizer: Tokenizer, ids: list[int], first: int, head: int, decoded: str
) -> list[int]:
    """The ends of ids[first:] by their definition, which decodes every prefix."""
    ends, done = [], 0
    for end in range(first + 1, len(ids) + 1):
        text = decode(tokenizer, ids[:end])[head:]
        done = len(text) if _is_complete(text, decoded, 0) else done
        ends.append(done)
    return ends


def _is_complete(piece: str, decoded: str, done: int) -> bool:
    return decoded.startswith(piece, done) and not piece.endswith(UNFINISHED)
