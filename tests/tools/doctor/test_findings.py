"""Broken set-ups, as made-up looks: each is named in one line, and few stop a run."""

import dataclasses
from typing import Any

import pytest
from helpers import loop_cases as cases
from helpers.tokenizer_cases import load

from vinejax.core.types import Problem
from vinejax.tasks.graded import GradingStats
from vinejax.tools.doctor.finding import Finding
from vinejax.tools.doctor.findings import findings_of
from vinejax.tools.doctor.look import Case, KnownSolution, Look, Sample
from vinejax.tools.doctor.show import report

RIGHT = Sample([3, 4, 1], "#### 4", "eos", 1.0, 1.0, "4", 0.5)
WRONG = Sample([3, 5, 1], "#### 5", "eos", 0.0, 0.0, "5", 0.5)
CUT = Sample([3] * 16, "1+2-3=0", "length", 0.0, 0.0, None, 0.5)
SILENT = Sample([3, 1], "I do not know", "eos", 0.0, 0.0, None, 0.5)
EMPTY = Sample([1], "", "eos", 0.0, 0.0, None, 0.5)
KNOWN = KnownSolution("1+3=4\n#### 4", 12, 1.0, 1.0, "4", False)
WITH_CHAT = load("minimind_6400")


def look(
    samples: tuple[Sample, ...] = (RIGHT, WRONG),
    known: KnownSolution | None = KNOWN,
    text: str = "1+3=",
    prompt: tuple[int, ...] = (0, 5, 6, 7),
    **fields: Any,
) -> Look:
    """A sound look at four problems; `fields` replace those of `Look`.

    Two samples that are the same object get tokens that differ.
    """
    if samples[0] is samples[1]:
        samples = (samples[0], samples[1]._replace(tokens=[9, *samples[1].tokens[1:]]))
    case = Case(Problem("train/3", "1+3", "4"), [*prompt], text, "4", [*samples], known)
    plain: dict[str, Any] = {
        **{"cfg": cases.config(), "cases": [case] * 4, "further": [], "vocab_size": 20},
        **{"tokenizer": cases.tokenizer(), "context": 48, "model_eos_ids": (1,), "end_ids": (1,)},
        **{"stop": (), "prompt_lengths": [4, 15, 9]},
    }
    return Look(**plain | fields)


def config(**sections: Any) -> dict[str, Any]:
    return {"cfg": cases.config(**sections)}


def with_eos(text: str, **changes: Any) -> Any:
    """The arithmetic tokenizer with another EOS."""
    tokenizer = cases.tokenizer()
    fields = {"eos_token": text, "eos_token_id": changes["eos_token_id"]}
    fields |= {"bos_token_id": 0, "chat_template": None, "added_tokens_decoder": {}}
    return type("Tokenizer", (), {**fields, "decode": tokenizer.decode, "encode": tokenizer.encode})


LONG = [(40, 16), (44, 12)]
FALSE = KNOWN._replace(reward=0.0, whole_reward=0.0, answer="12")
CHAT = {"tokenizer": WITH_CHAT, "vocab_size": 6400, "model_eos_ids": (2,), "end_ids": (2,)}
CHATS = CHAT | config(data={"chat_template": True})
STOP = config(sample={"stop": ("\n",)})
JUDGED = config(reward={"functions": ("a.b",)})
BROKEN: dict[str, tuple[Look, str, bool]] = {
    "no token ends a response": (
        look((CUT, CUT), end_ids=(), tokenizer=with_eos("", eos_token_id=None)),
        "EOS cannot be drawn: neither the tokenizer nor the model names an EOS",
        True,
    ),
    "EOS outside the vocabulary": (
        look((CUT, CUT), end_ids=(25,)),
        "EOS cannot be drawn: its id 25 is not below 20",
        True,
    ),
    "another EOS in the generation config": (
        look(model_eos_ids=(7,), end_ids=(1, 7)),
        "is none of the model's (7): a response ends at any of them here",
        False,
    ),
    "a budget below the data's own solutions": (
        look((CUT, CUT), known_lengths=LONG),
        "all 8 responses are cut at the budget of sample.max_tokens = 16 tokens and earn"
        " 0 (reward.truncated): so would be all of the data's own solutions, of 40 tokens and"
        " more; raise it",
        False,
    ),
    "a model that goes on after its answer": (
        look((CUT, CUT._replace(tokens=[9] * 16, reward=1.0, answer="4"))),
        "4 of them have the right answer and go on after it; set sample.stop",
        False,
    ),
    "a model that is not told to be brief": (
        look((CUT, CUT), known_lengths=[*LONG, (12, 16)]),
        "earn 0 (reward.truncated): raise it, or teach the model how a response ends",
        False,
    ),
    "a stop string that ends the data's own solutions": (
        look((WRONG, WRONG), FALSE._replace(whole_reward=1.0, text="1+3=4", answer=None), **STOP),
        "sample.stop = ('\\n',) ends it too early, after '1+3=4'; choose another text",
        True,
    ),
    "a stop string with which each response begins": (
        look((EMPTY._replace(finish="stop"),) * 2, None, stop=("\n",), **STOP),
        "all 8 responses are empty: sample.stop = ('\\n',) ends each before its first word",
        True,
    ),
    "a prompt that ends in EOS": (
        look((EMPTY, EMPTY), prompt=(0, 5, 1)),
        "all 8 responses are empty: the prompt itself ends in EOS",
        True,
    ),
    "the wrong column of answers": (
        look((WRONG, WRONG), FALSE),
        "all 4 of the data's own solutions earn less than 1 (the first 0): the answer read from it"
        " is '12' and the data's is '4'; look at the columns",
        True,
    ),
    "solutions in another form than the task reads": (
        look((SILENT, SILENT), FALSE._replace(answer=None)),
        "no answer can be read from it, which ends in '1+3=4\\n#### 4'",
        True,
    ),
    "a few false solutions": (
        look(further=[FALSE]),
        "1 of 5 of the data's own solutions earn less than 1 (the first 0)",
        False,
    ),
    "reward functions that never give 1": (
        look((WRONG, SILENT._replace(earned=0.2)), FALSE, **JUDGED),
        "reward.functions (a.b) give it to '1+3=4\\n#### 4'; rewards from 1 on count as correct",
        False,
    ),
    "responses without the form of an answer": (
        look((SILENT, SILENT)),
        "no answer can be read from any of 8 responses, as from one that ends in 'I do not know':"
        " the data's own solution ends in '1+3=4\\n#### 4'; ask for that form in the prompt",
        False,
    ),
    "a right answer that earns nothing": (
        look((WRONG._replace(answer="4"), SILENT), None),
        "4 responses have the data's answer and earn less than 1, as train/3: read '4', the data's"
        " '4', reward 0",
        True,
    ),
    "a start at 0%": (
        look((WRONG, WRONG._replace(tokens=[3]))),
        "all rewards are equal: all 8 responses earn 0, while the data's own solutions earn 1;"
        " training begins where some responses succeed",
        False,
    ),
    "problems that are always solved": (
        look((RIGHT, RIGHT._replace(tokens=[3]))),
        "all rewards are equal: all 8 responses earn 1, so there is nothing to learn",
        False,
    ),
    "a chat model without its template": (
        look((SILENT, SILENT._replace(tokens=[7])), **CHAT),
        "the tokenizer has a chat template, which data.chat_template = False leaves out",
        False,
    ),
    "a system message that no template shows": (
        look(**CHAT | config(data={"system": "Be brief."})),
        "the chat template is not applied, although data.system can only have an effect with it:"
        " the prompt is '1+3='; set data.chat_template=True",
        False,
    ),
    "a template around a text that has it already": (
        look(text="<|im_start|>user\n1+3=<|im_end|>\n", **CHATS),
        "the chat template is applied to a text that has a template's markup already:"
        " '<|im_start|>'",
        False,
    ),
    "the markup of another model": (
        look(text="<start_of_turn>user\n1+3="),
        "'<start_of_turn>' in the prompt '<start_of_turn>user\\n1+3=' looks like a chat template's",
        False,
    ),
    "a turn that ends with a token that is not EOS": (
        look(**CHATS | {"end_ids": (0,), "model_eos_ids": (2, 0)}),
        "the chat template ends the assistant's turn with '<|im_end|>', which ends no response",
        False,
    ),
    "BOS twice": (
        look(prompt=(0, 0, 5, 6)),
        "BOS is doubled: '<bos>' twice in front of '1+3='",
        False,
    ),
    "prompts near the context's end": (
        look(prompt_lengths=[4, 40, 33]),
        "prompts are near the context's end: 2 of 3 train prompts leave less than"
        " sample.max_tokens = 16 of the model's 48 tokens, 8 at the least",
        False,
    ),
    "samples that do not differ": (
        look((WRONG, WRONG._replace(earned=0.5)), **config(sample={"top_k": 1})),
        "the responses to each of 4 problems are the same, token for token",
        False,
    ),
    "weights that were never trained": (
        look((RIGHT._replace(surprise=2.9), WRONG._replace(surprise=2.95))),
        "the policy draws tokens nearly at random: 2.92 nats per token, and chance is 3.00",
        False,
    ),
    "a grader without time": (
        look(grading=GradingStats(16, 5, 0, 1.0)),
        "5 of 16 comparisons of answers took longer than grader.timeout_s = 5 and count as wrong",
        False,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_set_up_is_named_in_one_line(name: str):
    broken, line, stops = BROKEN[name]
    found = findings_of(broken)
    assert len(found) == 1, found
    assert line in found[0].line and "\n" not in found[0].line
    assert found[0].stops == stops
    assert "; " in found[0].line or ": raise it" in found[0].line  # what to do


def test_thinking_that_never_ends_is_the_cause():
    case = look((CUT, CUT), tokenizer=cases.tokenizer()).cases[0]
    opened = case._replace(problem=dataclasses.replace(case.problem, opening="<think>"))
    (found,) = findings_of(look(cases=[opened] * 4))
    assert "the prompt opens '<think>', which none of them ends" in found.line
    ended = [sample._replace(text="1 </think> 2") for sample in opened.samples]
    (found,) = findings_of(look(cases=[opened._replace(samples=ended)] * 4))
    assert "opens" not in found.line and not found.stops


def test_what_may_be_sound_is_not_stopped():
    """Rewards below 0, judges that read no answer, demonstrations that are mostly wrong."""
    below = (WRONG._replace(earned=-5.0, reward=-5.0), WRONG._replace(earned=-1.0, tokens=[3]))
    assert not any(x.stops for x in findings_of(look(below, FALSE)))
    judged = (SILENT._replace(earned=0.2), SILENT._replace(earned=0.7, tokens=[5]))
    assert findings_of(look(judged, None)) == []
    assert [x.stops for x in findings_of(look(known=FALSE, further=[KNOWN]))] == [False]
    assert findings_of(look()) == []


def test_episodes_that_run_out_are_no_cut_responses():
    (found,) = findings_of(look((CUT, CUT), None, is_multi_turn=True))
    assert "all 8 episodes run out of tokens or turns and earn 0; raise sample.max" in found.line


def test_a_template_without_the_assistants_turn():
    """The end of the user's turn, with EOS, is no beginning of another."""
    text = "How many?"
    ids = WITH_CHAT.encode(f"<|im_start|>user\n{text}<|im_end|>\n", add_special_tokens=False)
    header = WITH_CHAT.encode("<|im_start|>assistant\n", add_special_tokens=False)
    assert findings_of(look(text=text, prompt=(*ids, *header), **CHATS)) == []
    (found,) = findings_of(look(text=text, prompt=tuple(ids), **CHATS))
    assert "writes nothing after the user's message" in found.line


def test_the_prompt_of_a_blank_question_is_not_searched():
    """Its task may have all that it says in the messages before."""
    header = WITH_CHAT.encode("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")
    blank = look(text=" ", prompt=tuple(header), **CHATS)
    assert findings_of(blank) == []
    ids = WITH_CHAT.encode("<|im_start|>user\nHow many?<|im_end|>\n")
    unfinished = blank.cases[0]._replace(text="How many?", prompt=list(ids))
    (found,) = findings_of(dataclasses.replace(blank, cases=[*blank.cases[1:], unfinished]))
    assert "writes nothing after the user's message" in found.line


def test_causes_that_stop_come_first():
    broken = look((WRONG, WRONG), FALSE, prompt_lengths=[40], model_eos_ids=(7,), end_ids=(1, 7))
    assert [x.stops for x in findings_of(broken)] == [True, False, False]


def test_the_report_shows_a_problem_and_its_response():
    samples = (RIGHT._replace(text="#### 4\x1b[2J"), CUT._replace(reward=1.0, answer="4"))
    long = look(samples, prompt=(0, *[5, 6] * 300))
    lines = "\n".join(report(long, [Finding("a cause; a remedy")], "the start")).splitlines()
    text = "\n".join(lines)
    assert lines[0] == (
        "doctor: 2 responses to each of 4 train problems, by the start, at temperature 0.8"
    )
    assert "train/3, 601 tokens, special ones in [[ ]]" in text
    assert "[[<bos>]]" in text and "[[0]]" in text and "... 561 ids ..." in text
    assert "characters ..." not in text or max(map(len, lines)) < 700
    assert "3 tokens, ended by EOS" in text and "[[<eos>]]" in text
    assert "read '4', the data's '4', reward 1, the data's own solution earns 1" in text
    assert "4 ended by EOS; 4 cut at the budget; 8 of 8 with an answer" in text
    assert "4 of 4 own solutions earn 1; 12 tokens" in text
    assert lines[-1] == "doctor: warning: a cause; a remedy" and "\x1b" not in text
