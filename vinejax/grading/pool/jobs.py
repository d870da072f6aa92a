"""Comparison jobs and their verdicts: a cheap verdict in any process, a full verdict in a worker.

A job is (kind, prediction, gold); `gold` is the data set's answer. The kind can be a mode. In
'strict' both answers are strings, in 'reference' tuples of the answers that VinePPO's rules extract
from each side. A prediction of None asks whether `gold`, a string, can be read. The kind 'score' is
for an answer that the rule of its data set scores; `gold` is then the packed entry (`gym.py`).
"""

from typing import Any, Literal

from vinejax.grading.pool import gym
from vinejax.grading.reference import compare as reference
from vinejax.grading.strict.compare import cheap_strict, equal_strict, readable_strict

Mode = Literal["strict", "reference"]
Answer = str | tuple[str, ...]
Kind = Mode | Literal["score"]
Job = tuple[Kind, Answer | None, Answer]

# Ten times the longest answer of any data set here; a job must also fit into a pipe at once.
LONGEST_ANSWER = 5000


def cheap_verdict(job: Job) -> bool | None:
    """The verdict if it needs no parser and no sympy, as for equal strings; else None."""
    kind, prediction, gold = job
    if kind == "score":
        return False if characters_of(prediction) > LONGEST_ANSWER else None
    if prediction is None:
        return _cheap_readable(kind, str(gold))
    if isinstance(prediction, str) and isinstance(gold, str):
        prediction, gold = prediction.strip(), gold.strip()
    if prediction == gold:
        return prediction != ""
    if max(characters_of(prediction), characters_of(gold)) > LONGEST_ANSWER:
        return False
    if isinstance(prediction, str) and isinstance(gold, str):
        return cheap_strict(prediction, gold)
    return reference.cheap_reference(list(prediction), list(gold))


def characters_of(answer: Answer | None) -> int:
    """The number of characters of an answer, or of a tuple of answers together; 0 for None."""
    return sum(map(len, answer or ()))


def _cheap_readable(mode: Mode, gold: str) -> bool | None:
    if mode == "reference":
        return reference.readable_reference(gold)
    if not gold.strip() or len(gold) > LONGEST_ANSWER:
        return False
    return True if cheap_strict(gold, "0") is not None else None  # a number


def full_verdict(kind: Kind, prediction: Any, gold: Any) -> float:
    """The score from 0 to 1 for the kind 'score', else the verdict as 0 or 1.

    Has no time limit: call it only in a process that can be killed.
    """
    if kind == "score":
        return gym.score(prediction, gold)
    if prediction is None:
        return reference.readable_reference(gold) if kind == "reference" else readable_strict(gold)
    if kind == "reference":
        return reference.equal_reference(list(prediction), list(gold))
    return equal_strict(prediction, gold)
