"""The sets of problems that `--sets` names: where each is, and how its rows are read.

Hub names, configurations and splits are those of public evaluations: lighteval's tasks `gsm8k`,
`math_500` and `aime24` (huggingface/lighteval, src/lighteval/tasks), lm-evaluation-harness's `mbpp`
and `humaneval`, and, for the data sets that those two lack, the repositories of reasoning models
that load `math-ai/aime25`, `ChilleD/SVAMP`, `math-ai/minervamath` and `Hothan/OlympiadBench`
(configuration OE_TO_maths_en_COMP: open-ended, text only, English). Columns are those of the data
sets' cards and files.

Two tasks grade: `table`, which takes an answer after '####', in a box or announced in words, and
`code`, which runs a program with the row's tests in the sandbox.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from vinejax.tasks import olympiad, svamp
from vinejax.tasks.table import answer_of, chat_of, column

Row = dict[str, Any]
TABLE, CODE = "vinejax.tasks.table", "vinejax.tasks.code"
DEGREES = re.compile(r"\s*(\^\s*(\\circ|\{\\circ\})|°)$")


def text_and_answer(row: Row, question: str, answer: str) -> tuple[str, str]:
    """(question, answer) of a row whose answer stands in a column of its own."""
    return chat_of(row, question)[1], answer_of(row, answer)


def after_marker(row: Row, question: str, answer: str) -> tuple[str, str]:
    """(question, answer) of a row whose worked solution ends with the answer after '####'."""
    text, solution = text_and_answer(row, question, answer)
    _, marker, marked = solution.rpartition("####")
    if not marker or not marked.strip():
        raise ValueError(f"column {answer!r} has no answer after '####'")
    return text, marked.strip()


def whole_number(row: Row, question: str, answer: str) -> tuple[str, str]:
    """(question, answer) of a row of AIME, as '073' or, in copies of AIME 2025, '336^\\circ'."""
    text, number = text_and_answer(row, question, answer)
    number = DEGREES.sub("", number)
    if not number.isdecimal():
        raise ValueError(f"column {answer!r} must be a whole number, found {number!r:.60}")
    return text, str(int(number))


def body_and_question(row: Row, question: str, answer: str) -> tuple[str, str]:
    """(body and question, answer) of a row of SVAMP; the hub's copy has numbers as texts."""
    number = answer_of(row, answer)
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"column {answer!r} must be a number, found {number!r:.60}") from None
    texts = {"Body": chat_of(row, "Body")[1], "Question": chat_of(row, question)[1]}
    return svamp.question_and_answer(texts | {"Answer": value})


def several_answers(row: Row, question: str, answer: str) -> tuple[str, str]:
    """(question, final answers joined by commas) of a row of OlympiadBench, without the unit."""
    texts = {"question": chat_of(row, question)[1], "final_answer": column(row, answer)}
    return olympiad.question_and_answer(texts)


class NamedSet(NamedTuple):
    """A set of problems: its data set on the hub, and the columns of its rows."""

    path: str  # name on the hub
    subset: str  # configuration there; '': its only one
    split: str
    question: str  # column
    answer: str  # column of answers, of worked solutions or of tests
    # (row, `question`, `answer`) -> (question, reference answer). Raises ValueError for the fault
    # of a row. The task `code` reads rows itself.
    read: Callable[[Row, str, str], tuple[str, str]] = text_and_answer
    task: str = TABLE  # the task that grades responses


SETS = {
    "gsm8k": NamedSet("openai/gsm8k", "main", "test", "question", "answer", after_marker),
    "math500": NamedSet("HuggingFaceH4/MATH-500", "", "test", "problem", "answer"),
    "aime24": NamedSet("HuggingFaceH4/aime_2024", "", "train", "problem", "answer", whole_number),
    "aime25": NamedSet("math-ai/aime25", "", "test", "problem", "answer", whole_number),
    "svamp": NamedSet("ChilleD/SVAMP", "", "test", "Question", "Answer", body_and_question),
    "minerva": NamedSet("math-ai/minervamath", "", "test", "question", "answer"),
    "olympiadbench": NamedSet(
        *("Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train"),
        *("question", "final_answer", several_answers),
    ),
    "humaneval": NamedSet("openai/openai_humaneval", "", "test", "prompt", "test", task=CODE),
    "mbpp": NamedSet(
        "google-research-datasets/mbpp", "full", "test", "text", "test_list", task=CODE
    ),
}
