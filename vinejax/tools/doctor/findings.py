"""Rules on a look at a run: from prompts, samples, known solutions and rewards to causes.

A cause stops a run only if training cannot work: no response can end, none has a text, or right
responses earn what all others earn. The other causes are warnings, because a policy can learn its
way out of them, as a start at 0% may.
"""

import math
from collections.abc import Iterator, Sequence

from vinejax.core.text import THINKING
from vinejax.core.types import CORRECT_REWARD, is_correct
from vinejax.tools.doctor.finding import Finding, end_of, excerpt, number, of_all, span
from vinejax.tools.doctor.look import KnownSolution, Look, Sample
from vinejax.tools.doctor.prompt_findings import can_end, prompt_findings

RANDOM = 0.9  # share of a uniform policy's surprise from which weights look random
FEWEST_PAIRS = 4  # pairs of equal samples that are no accident


def findings_of(look: Look) -> list[Finding]:
    """All findings; those that stop a run come first."""
    rewards = [*_known(look), *_denied(look)]
    found = [*prompt_findings(look), *rewards, *_random(look), *_equal_pairs(look)]
    if can_end(look):
        found += _of_responses(look, is_explained=any(x.stops for x in rewards))
    return sorted([*found, *_grading(look)], key=lambda finding: not finding.stops)


def _of_responses(look: Look, is_explained: bool) -> list[Finding]:
    """The first that fits: all are cut, all are empty, no answer can be read, equal rewards.

    With `is_explained` a cause of equal rewards, in the rewards themselves, is named already.
    """
    rules = (_cut, _empty) if is_explained else (_cut, _empty, _unread, _equal)
    return next(filter(None, ([*rule(look)] for rule in rules)), [])


# --- the data's own solutions ---


def _known(look: Look) -> Iterator[Finding]:
    """Solutions that the data has, and that earn less than 1."""
    wrong = [x for x in look.solutions if not is_correct(x.reward)]
    if not wrong:
        return
    is_all = len(wrong) == len(look.solutions)
    most = max(x.reward for x in look.solutions)
    functions = look.cfg.reward.functions
    # Compared with samples, because a task may have rewards below 0, or functions of style alone.
    earned = [s.earned for s in look.samples]
    stops = is_all and not functions and most <= min(earned) == max(earned)
    count = "all" if is_all else f"{len(wrong)} of"
    yield Finding(
        f"{count} {len(look.solutions)} of the data's own solutions earn less than"
        f" {number(CORRECT_REWARD)} (the first {number(wrong[0].reward)}):"
        f" {_why_wrong(look, wrong[0])}",
        stops,
    )


def _why_wrong(look: Look, wrong: KnownSolution) -> str:
    if is_correct(wrong.whole_reward):
        return (
            f"sample.stop = {look.cfg.sample.stop} ends it too early, after {end_of(wrong.text)};"
            " choose another text"
        )
    if look.cfg.reward.functions:
        names = ", ".join(look.cfg.reward.functions)
        return (
            f"reward.functions ({names}) give it to {end_of(wrong.text)}; rewards from 1 on count"
            " as correct, so look at the functions and at reward.weights"
        )
    gold = next((case.gold for case in look.cases if case.solution is wrong), None)
    if wrong.answer is None:
        return (
            f"no answer can be read from it, which ends in {end_of(wrong.text)}; look at the"
            " columns of the data (data.answer, data.solution) and at the form that the task reads"
        )
    return (
        f"the answer read from it is {excerpt(wrong.answer)}"
        + (f" and the data's is {excerpt(gold)}" if gold is not None else "")
        + "; look at the columns of the data (data.answer, data.solution), at grader.mode and at"
        " the task's reward"
    )


def _denied(look: Look) -> Iterator[Finding]:
    """Responses with the data's answer that earn less than 1."""
    equal = [
        (case, sample)
        for case in look.cases
        for sample in case.samples
        if sample.finish != "length" and sample.answer and _same(sample.answer, case.gold)
    ]
    if not equal or any(is_correct(sample.reward) for _, sample in equal):
        return
    case, sample = equal[0]
    stops = not look.solutions and not look.cfg.reward.functions and len(equal) > 1
    where = "reward.functions" if look.cfg.reward.functions else "the task's reward and grader.mode"
    yield Finding(
        f"{len(equal)} responses have the data's answer and earn less than 1, as {case.problem.id}:"
        f" read {excerpt(sample.answer or '')}, the data's {excerpt(case.gold or '')}, reward"
        f" {number(sample.reward)}; look at {where}",
        stops and max(s.reward for _, s in equal) <= 0,
    )


def _same(answer: str, gold: str | None) -> bool:
    return gold is not None and answer.strip() == gold.strip()


# --- samples ---


def _cut(look: Look) -> Iterator[Finding]:
    samples, budget = look.samples, look.cfg.sample.max_tokens
    if any(s.finish != "length" for s in samples):
        return
    earn = f"earn {span([s.earned for s in samples])}"
    if look.is_multi_turn:
        yield Finding(
            f"{of_all(len(samples), 'episodes')} run out of tokens or turns and {earn}; raise"
            f" sample.max_tokens ({budget}), env.observed ({look.cfg.env.observed}) or"
            " env.max_turns, or teach the policy how an episode ends (--mode=sft)"
        )
        return
    lengths = look.known_lengths
    too_long = bool(lengths) and all(length > room for length, room in lengths)
    why = _why_cut(look, samples)
    if too_long:
        shortest = min(length for length, _ in lengths)
        why = (
            f"so would be all of the data's own solutions, of {shortest} tokens and more; raise it"
        )
    yield Finding(
        f"{of_all(len(samples), 'responses')} are cut at the budget of sample.max_tokens = {budget}"
        f" tokens and {earn} (reward.truncated): {why}"
    )


def _why_cut(look: Look, samples: Sequence[Sample]) -> str:
    right = [s for s in samples if is_correct(s.reward)]
    opening = next((case.problem.opening for case in look.cases if case.problem.opening), "")
    if right:
        return (
            f"{len(right)} of them have the right answer and go on after it; set sample.stop to the"
            f" text with which they go on, as in {end_of(right[0].text)}"
        )
    if opening and not any(_ends_thinking(s.text) for s in samples):
        return (
            f"the prompt opens {opening!r}, which none of them ends; raise it, or set"
            " data.template_vars=('enable_thinking=False',) if the template reads that"
        )
    remedy = "raise it, or teach the model how a response ends (--mode=sft, or the method 'sft')"
    return _template_hint(look) or remedy


def _ends_thinking(text: str) -> bool:
    return any(tag[1] for tag in THINKING.finditer(text))


def _empty(look: Look) -> Iterator[Finding]:
    samples = look.samples
    if any(s.text.strip() for s in samples) or look.is_multi_turn:
        return
    ends = {s.finish for s in samples}
    why = "EOS is the first token that is drawn; look at the prompt's last tokens"
    if ends == {"stop"}:
        why = (
            f"sample.stop = {look.cfg.sample.stop} ends each before its first word; choose another"
        )
    elif look.cases[0].prompt[-1] in look.end_ids:
        why = "the prompt itself ends in EOS; take it out of the chat template or of data.template"
    yield Finding(f"{of_all(len(samples), 'responses')} are empty: {why}", stops=True)


def _unread(look: Look) -> Iterator[Finding]:
    samples = [s for s in look.samples if s.finish != "length"]
    if look.is_multi_turn or any(s.answer is not None for s in look.samples):
        return
    has_form = any(x.answer is not None for x in look.solutions)
    has_signal = len({s.earned for s in look.samples}) > 1
    if any(is_correct(s.reward) for s in look.samples) or (has_signal and not has_form):
        return  # the task needs no answer
    if look.solutions and not has_form:
        return  # named by `_known`
    example = next((x for x in look.solutions if x.answer is not None), None)
    form = f"the data's own solution ends in {end_of(example.text, 30)}; " if example else ""
    remedy = (
        "ask for that form in the prompt (data.template, data.system), or teach it (--mode=sft)"
    )
    yield Finding(
        f"no answer can be read from any of {len(look.samples)} responses, as from one that ends in"
        f" {end_of((samples or look.samples)[0].text)}: {form}{_template_hint(look) or remedy}"
    )


def _equal(look: Look) -> Iterator[Finding]:
    earned = {s.earned for s in look.samples}
    if len(earned) > 1:
        return
    (reward,) = earned
    count = of_all(len(look.samples), "responses")
    right = [x for x in look.solutions if is_correct(x.reward)]
    if is_correct(reward):
        yield Finding(
            f"all rewards are equal: {count} earn {number(reward)}, so there is nothing to learn"
            " from them; take harder problems, or look whether the reward is earned too easily"
        )
        return
    solved = ""
    if right:
        solved = f", while the data's own solutions earn {span([x.reward for x in right])}"
    remedy = _template_hint(look) or (
        "training begins where some responses succeed: more of them (rollout.per_prompt), easier"
        " problems, supervised training first (--mode=sft), or another model"
    )
    yield Finding(f"all rewards are equal: {count} earn {number(reward)}{solved}; {remedy}")


def _template_hint(look: Look) -> str:
    """The remedy for a chat model that is prompted without its template; '' for others."""
    if look.cfg.data.chat_template or not look.tokenizer.chat_template:
        return ""
    return (
        "the tokenizer has a chat template, which data.chat_template = False leaves out; set it to"
        " True if the model was tuned on chats"
    )


# --- signs of a wrong model, sampler or grader ---


def _random(look: Look) -> Iterator[Finding]:
    surprises = [s.surprise for s in look.samples if s.tokens]
    limit = math.log(look.vocab_size)  # of a policy that draws every token with equal chance
    mean = sum(surprises) / max(len(surprises), 1)
    if mean >= RANDOM * limit:
        yield Finding(
            f"the policy draws tokens nearly at random: {mean:.2f} nats per token, and chance is"
            f" {limit:.2f} for {look.vocab_size} tokens; look whether model.path has trained"
            f" weights and the tokenizer that belongs to them, and at sample.temperature ="
            f" {number(look.cfg.sample.temperature)}"
        )


def _equal_pairs(look: Look) -> Iterator[Finding]:
    pairs = [case.samples for case in look.cases if len(case.samples) > 1]
    differ = any(a.tokens != b.tokens for a, b, *_ in pairs)
    if len(pairs) < FEWEST_PAIRS or differ or not any(s.text.strip() for s in look.samples):
        return
    sample = look.cfg.sample
    yield Finding(
        f"the responses to each of {len(pairs)} problems are the same, token for token: the policy"
        f" does not explore; raise sample.temperature ({number(sample.temperature)}), top_p"
        f" ({number(sample.top_p)}) or top_k ({sample.top_k})"
    )


def _grading(look: Look) -> Iterator[Finding]:
    stats, cfg = look.grading, look.cfg.grader
    if stats.timeouts:
        yield Finding(
            f"{stats.timeouts} of {stats.pairs} comparisons of answers took longer than"
            f" grader.timeout_s = {number(cfg.timeout_s)} and count as wrong; raise it"
        )
    if stats.errors:
        yield Finding(
            f"{stats.errors} of {stats.pairs} comparisons of answers failed, as at a limit of"
            f" memory, and count as wrong; raise grader.memory_mb = {cfg.memory_mb}"
        )
