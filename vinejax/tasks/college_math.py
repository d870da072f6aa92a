"""College Math: exercises of university textbooks.

Tang et al. 2024 (MathScale), https://arxiv.org/abs/2403.02884. For evaluation only. VinePPO's
code takes the first 500 of the 2,818 test problems. Here all rows of the file are the test split.
"""

from typing import Any

from vinejax.core.settings import DataConfig
from vinejax.tasks.answer_sets import AnswerSet


def make(data: DataConfig) -> AnswerSet:
    return AnswerSet("college_math", data.path, ("question", "answer"), question_and_answer)


def question_and_answer(row: dict[str, Any]) -> tuple[str, str]:
    return row["question"].strip(), row["answer"].strip()
