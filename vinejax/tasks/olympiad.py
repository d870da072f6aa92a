"""OlympiadBench: its 675 open-ended English mathematics problems without images.

He et al. 2024, https://arxiv.org/abs/2402.14008. For evaluation only.
"""

from typing import Any

from vinejax.core.settings import DataConfig
from vinejax.tasks.answer_sets import AnswerSet


def make(data: DataConfig) -> AnswerSet:
    return AnswerSet("olympiad", data.path, ("question",), question_and_answer)


def question_and_answer(row: dict[str, Any]) -> tuple[str, str]:
    """(the question of a row, its final answers joined by commas); the unit is ignored."""
    answers = row.get("final_answer")
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise ValueError(f"field 'final_answer' must be a list of strings, found {answers!r}")
    return row["question"].strip(), ", ".join(answers)
