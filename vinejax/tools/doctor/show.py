"""The doctor's lines for a terminal: one problem with a response, counts of all, and findings."""

import textwrap
from collections import Counter
from collections.abc import Sequence

from vinejax.core.text import Tokenizer, special_tokens, without_escapes
from vinejax.core.types import CORRECT_REWARD, is_correct
from vinejax.tools.doctor.finding import Finding, excerpt, number, span
from vinejax.tools.doctor.look import Case, KnownSolution, Look, Sample

MOST_CHARACTERS = 600  # of a text; a longer one lacks its middle
MOST_IDS = 40
WIDTH = 100
INDENT = 12
ENDS = {"eos": "ended by EOS", "stop": "ended by a stop string", "length": "cut at the budget"}
TURN_ENDS = {"stop": "finished", "length": "out of tokens or turns"}


def report(look: Look, findings: Sequence[Finding], policy: str) -> list[str]:
    """The lines, of which those of texts may have line ends of their own.

    `policy` says which policy was looked at.
    """
    count, per_problem = len(look.cases), len(look.cases[0].samples)
    sample = look.cfg.sample
    head = (
        f"doctor: {per_problem} responses to each of {count} train problems, by {policy}, at"
        f" temperature {number(sample.temperature)}"
    )
    lines = [head, *_shown(look, look.cases[0])]
    lines.append(_item("all", _summary(look)))
    if look.solutions:
        lines.append(_item("data", _known(look.solutions)))
    return [*lines, *(f"doctor: {'wrong' if x.stops else 'warning'}: {x.line}" for x in findings)]


def _shown(look: Look, case: Case) -> list[str]:
    """A problem's prompt and its first response."""
    tokenizer, sample = look.tokenizer, case.samples[0]
    special = _special_ids(tokenizer)
    marked = marked_text(tokenizer, case.prompt, special)
    tokens = f"{len(case.prompt)} tokens, special ones in [[ ]]"
    return [
        _item("prompt", f"{case.problem.id}, {tokens}", marked),
        _item("ids", marked_ids(case.prompt, special)),
        _item(
            "response",
            f"{len(sample.tokens)} tokens, {_end(look, sample)}",
            marked_text(tokenizer, sample.tokens, special),
        ),
        _item("answer", _answer(look, case, sample)),
    ]


def _end(look: Look, sample: Sample) -> str:
    return (TURN_ENDS if look.is_multi_turn else ENDS)[sample.finish]


def _answer(look: Look, case: Case, sample: Sample) -> str:
    parts = []
    if not look.is_multi_turn:
        read, gold = sample.answer, case.gold
        parts.append("none was read" if read is None else f"read {excerpt(read)}")
        parts.append("the data has none" if gold is None else f"the data's {excerpt(gold)}")
    parts.append(f"reward {number(sample.earned)}")
    if sample.reward != sample.earned:
        parts.append(f"and {number(sample.reward)} if it were not cut")
    if case.solution:
        parts.append(f"the data's own solution earns {number(case.solution.reward)}")
    return ", ".join(parts)


def _summary(look: Look) -> str:
    samples = look.samples
    ends = Counter(_end(look, sample) for sample in samples)
    parts = [f"{count} {end}" for end, count in ends.most_common()]
    if not look.is_multi_turn:
        read = sum(sample.answer is not None for sample in samples)
        parts.append(f"{read} of {len(samples)} with an answer")
    earned = [sample.earned for sample in samples]
    mean = number(sum(earned) / len(earned))
    lengths = [len(sample.tokens) for sample in samples]
    parts.append(f"rewards {span(earned)}, mean {mean}")
    parts.append(f"{span(lengths)} tokens")
    return "; ".join(parts)


def _known(solutions: Sequence[KnownSolution]) -> str:
    right = sum(is_correct(solution.reward) for solution in solutions)
    lengths = span([solution.num_tokens for solution in solutions])
    count = f"{right} of {len(solutions)} own solutions earn {number(CORRECT_REWARD)}"
    return f"{count}; {lengths} tokens"


def marked_text(tokenizer: Tokenizer, ids: Sequence[int], special: set[int]) -> str:
    """The text of ids, in which special tokens stand in [[ ]]; a long text lacks its middle."""
    text, start = "", 0
    for i, token in [*enumerate(ids), (len(ids), None)]:
        if token is None or token in special:
            text += _decoded(tokenizer, ids[start:i])
            text += "" if token is None else f"[[{_decoded(tokenizer, [token])}]]"
            start = i + 1
    text = without_escapes(text)
    if len(text) > MOST_CHARACTERS:
        half = MOST_CHARACTERS // 2
        left_out = f"\n... {len(text) - 2 * half:,} characters ...\n"
        text = text[:half] + left_out + text[-half:]
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def marked_ids(ids: Sequence[int], special: set[int]) -> str:
    """The ids, of which special ones stand in [[ ]]; a long list lacks its middle."""
    shown = [f"[[{i}]]" if i in special else str(i) for i in ids]
    if len(shown) > MOST_IDS:
        half = MOST_IDS // 2
        shown = [*shown[:half], f"... {len(ids) - 2 * half:,} ids ...", *shown[-half:]]
    return " ".join(shown)


def _decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return str(
        tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    )


def _special_ids(tokenizer: Tokenizer) -> set[int]:
    return {*special_tokens(tokenizer).values(), *getattr(tokenizer, "all_special_ids", ())}


def _item(name: str, text: str, body: str = "") -> str:
    """A name and its text, wrapped, with the lines of a body below it."""
    first = f"  {name:<{INDENT - 2}}"
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=" " * INDENT, break_long_words=False
    )
    return "\n".join([*lines, *(f"{'':{INDENT}}{line}" for line in body.split("\n") if body)])
