"""Rules on prompts and on what ends a response: template, BOS, EOS, the context's end."""

import re
from collections.abc import Iterator

from vinejax.core.errors import UserError
from vinejax.core.text import special_tokens
from vinejax.tasks.prompts import ChatTurns
from vinejax.tools.doctor.finding import Finding, excerpt
from vinejax.tools.doctor.look import Look

# Markup of the usual chat templates: ChatML, Llama 3, Llama 2, Gemma, Phi 3.
MARKUP = re.compile(r"<\|[a-z_]{2,24}\|>|\[/?INST\]|<(?:start|end)_of_turn>|<</?SYS>>")


def prompt_findings(look: Look) -> Iterator[Finding]:
    """The findings that no response is needed for."""
    yield from _ends(look)
    yield from _turn_end(look)
    yield from _chat(look)
    yield from _markup(look)
    yield from _bos(look)
    yield from _room(look)


def can_end(look: Look) -> bool:
    """Whether a response can end before its budget."""
    return bool(look.stop) or any(i < look.vocab_size for i in look.end_ids)


def _ends(look: Look) -> Iterator[Finding]:
    """No EOS, an EOS outside the vocabulary, or two kinds of EOS."""
    eos = look.tokenizer.eos_token_id
    if not can_end(look):
        ids = ", ".join(map(str, look.end_ids))
        what = f"its id {ids} is not below {look.vocab_size}, the size of the model's vocabulary"
        if not look.end_ids:
            what = "neither the tokenizer nor the model names an EOS, and sample.stop is empty"
        yield Finding(
            f"EOS cannot be drawn: {what}; every response would run to sample.max_tokens ="
            f" {look.cfg.sample.max_tokens}; name its end by sample.stop_ids or sample.stop",
            stops=True,
        )
    elif isinstance(eos, int) and eos >= look.vocab_size:
        yield Finding(
            f"the tokenizer's EOS {look.tokenizer.eos_token!r} has the id {eos}, and the model's"
            f" vocabulary has {look.vocab_size}: it cannot be drawn; tokenizer and weights of"
            " model.path do not belong together"
        )
    elif isinstance(eos, int) and look.model_eos_ids and eos not in look.model_eos_ids:
        yield Finding(
            f"the tokenizer's EOS {look.tokenizer.eos_token!r} ({eos}) is none of the model's"
            f" ({', '.join(map(str, look.model_eos_ids))}): a response ends at any of"
            " them here, but programs that load the export may know the model's alone; name both in"
            " generation_config.json"
        )


def _turn_end(look: Look) -> Iterator[Finding]:
    """The chat template ends the assistant's turn with a token that ends no response."""
    if not look.cfg.data.chat_template:
        return
    try:
        markup = ChatTurns.of(look.tokenizer, look.cfg.data).before.lstrip()
    except UserError:  # the template has no place for a second turn
        return
    special = special_tokens(look.tokenizer)
    text = next((t for t in sorted(special, key=len, reverse=True) if markup.startswith(t)), None)
    if text and special[text] not in look.end_ids and text not in look.stop:
        yield Finding(
            f"the chat template ends the assistant's turn with {text!r}, which ends no response"
            f" here; set sample.stop=({text!r},)"
        )


def _chat(look: Look) -> Iterator[Finding]:
    """Messages are asked for without a template, or the template lacks the assistant's turn."""
    data = look.cfg.data
    asks = [name for name in ("system", "template_vars") if getattr(data, name)]
    if not data.chat_template:
        if asks and look.tokenizer.chat_template:
            fields = " and ".join(f"data.{name}" for name in asks)
            yield Finding(
                f"the chat template is not applied, although {fields} can only have an effect with"
                f" it: the prompt is {excerpt(look.cases[0].text)}; set data.chat_template=True"
            )
        return
    case = next((case for case in look.cases if case.text.strip()), None)
    if case is None:  # nothing marks the place after the user's message
        return
    special = special_tokens(look.tokenizer)
    written = str(look.tokenizer.decode(case.prompt, skip_special_tokens=False))
    after = written.rpartition(case.text.strip())[2]
    for text in (text for text, i in special.items() if i in look.end_ids):
        after = after.replace(text, "")  # the end of the user's own turn
    if not after.strip():
        yield Finding(
            "the chat template writes nothing after the user's message, so the model goes on in the"
            " user's turn; the template must read add_generation_prompt"
        )


def _markup(look: Look) -> Iterator[Finding]:
    """The data's own text has a template's markup."""
    special = special_tokens(look.tokenizer)
    for case in look.cases:
        found = MARKUP.search(case.text)
        if found and look.cfg.data.chat_template:
            yield Finding(
                f"the chat template is applied to a text that has a template's markup already:"
                f" {found[0]!r} in {excerpt(case.text)}; set data.chat_template=False, or take the"
                " markup out of the data or of data.template"
            )
            return
        if found and found[0] not in special:
            yield Finding(
                f"{found[0]!r} in the prompt {excerpt(case.text)} looks like a chat template's, but"
                " is no special token of this tokenizer, which splits it; set"
                " data.chat_template=True and take the markup out of the data"
            )
            return


def _bos(look: Look) -> Iterator[Finding]:
    bos = look.tokenizer.bos_token_id
    doubled = [case for case in look.cases if bos is not None and case.prompt[:2] == [bos, bos]]
    if doubled:
        yield Finding(
            f"BOS is doubled: {look.tokenizer.bos_token!r} twice in front of"
            f" {excerpt(doubled[0].text)}; the tokenizer or the chat template writes one, so take"
            " the other out of the data or of data.template"
        )


def _room(look: Look) -> Iterator[Finding]:
    """Prompts whose responses have less room in the context than `sample.max_tokens`."""
    budget = look.cfg.sample.max_tokens
    rooms = [look.context - length for length in look.prompt_lengths]
    short = [room for room in rooms if room < budget]
    if short:
        yield Finding(
            f"prompts are near the context's end: {len(short):,} of {len(rooms):,} train prompts"
            f" leave less than sample.max_tokens = {budget} of the model's {look.context} tokens,"
            f" {min(short)} at the least, so that their responses are cut earlier; lower"
            f" data.max_prompt_tokens to {max(look.context - budget, 1)}"
        )
