r"""DAPO-Math-17k: competition problems, rewritten so that every answer is an integer.

Yu et al. 2025, https://arxiv.org/abs/2503.14476, section 3.5. `data.path` is a data set of the hub,
by default BytedTsinghua-SIA/DAPO-Math-17k, a folder with train.parquet, or the file itself.

The published file has 1,791,700 rows: 17,400 distinct problems, about a hundred times each. Of the
problems 3,300 are in Chinese. Rows are in verl's format. `prompt` is a chat of one message, with
the question between two sentences on the form of the answer, and `reward_model.ground_truth` is the
answer. Rows whose `prompt` is the question alone (open-r1/DAPO-Math-17k-Processed) can be read,
too. Questions with more than one answer are left out.

The data has only a train split. Validation and test are held out of it (`tasks/splits.py`), unless
the folder has files for them, such as AIME 2024 in the same format. As in the paper, a solution is
right if the text after its last 'Answer:', on that line or the next, equals the integer. A box
without 'Answer:' does not count. Prompts are for chat models: `data.chat_template=True`.
"""

import dataclasses
import re
from collections import Counter
from typing import Any

from vinejax.core.errors import DataError
from vinejax.core.settings import DataConfig
from vinejax.core.types import Problem
from vinejax.grading.extract import after_thinking
from vinejax.runtime.distributed import is_writer
from vinejax.tasks.answer_sets import AnswerTask
from vinejax.tasks.table import ContextQuestion, RowTask, answer_of, chat_of

HUB_NAME = "BytedTsinghua-SIA/DAPO-Math-17k"
HEAD = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
TAIL = '\n\nRemember to put your answer on its own line after "Answer:".'
# 'Answer:', perhaps bold, with a colon of any width; within quotes it is an echo of the prompt
ANSWER = re.compile(r"(?i)answer[\s*_}]*[:：](?![\"'”’])[\s*_}`]*+(?!\$?answer)")
LINE_END = re.compile(r"(?s)(?:\$\$.*?\$\$|\\\[.*?\\\])?[^\n]*")  # or a display formula
MAX_ANSWER = 1000  # characters that are searched for an answer
INTEGER = re.compile(r"[-+]?\d+")


def make(data: DataConfig) -> "DAPOMath":
    return DAPOMath(dataclasses.replace(data, path=data.path or HUB_NAME))


class DAPOMath(RowTask, AnswerTask):
    """DAPO-Math-17k as a task; `tasks/base.py` documents its methods."""

    name = __name__.rpartition(".")[2]

    def read_source(self, source: str) -> list[Problem]:
        problems = super().read_source(source)
        counts = Counter(problem.question for problem in problems)
        sure = [problem for problem in problems if counts[problem.question] == 1]
        if len(sure) < len(problems) and is_writer():
            doubtful = sum(count > 1 for count in counts.values())
            message = "questions have two answers or more and are left out"
            print(f"{self.path} {source}: {doubtful} {message}")
        return sure

    def _pair(self, row: dict[str, Any]) -> tuple[ContextQuestion, str]:
        question, answer = pair_of(row)
        return ((), question), answer

    def prompt(self, problem: Problem) -> str:
        """The published prompt: the question between the sentences on the form of the answer."""
        return f"{HEAD}{problem.question}{TAIL}"

    def solution(self, problem: Problem) -> str:
        """Raises DataError: the data has no worked solutions."""
        raise DataError(self.path, None, "has no worked solutions, which this run learns from")

    def answer(self, text: str) -> str | None:
        text = after_thinking(text)
        for line in reversed([*ANSWER.finditer(text)]):
            line_end = LINE_END.match(text[line.end() : line.end() + MAX_ANSWER])
            answer = line_end.group().strip(' \t\n\r*_`"') if line_end else ""
            if answer.count("}") > answer.count("{"):
                answer = answer.rstrip("}. ")  # \textbf{Answer: 5}
            if re.search(r"\w", answer):
                return answer
        return None


def pair_of(row: dict[str, Any]) -> tuple[str, str]:
    """The question and answer of a row. Raises ValueError if either is missing or malformed."""
    context, question = chat_of(row, "prompt")
    question = question.removeprefix(HEAD).removesuffix(TAIL).strip()
    if context:
        raise ValueError("column 'prompt' has messages before the user's; take vinejax.tasks.table")
    if not question:
        raise ValueError("column 'prompt' holds no question")
    answer = answer_of(row, "reward_model.ground_truth")
    if not INTEGER.fullmatch(answer):
        message = f"must be an integer, found {answer!r:.60}"
        raise ValueError(f"column 'reward_model.ground_truth' {message}")
    digits = answer.lstrip("+-").lstrip("0") or "0"  # int() would fail on thousands of digits
    return question, f"-{digits}" if answer.startswith("-") and digits != "0" else digits
