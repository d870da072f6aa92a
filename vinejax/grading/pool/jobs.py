"""Comparison jobs and their verdicts: a cheap verdict in any process, a full verdict in a worker.

A job is (mode, prediction, gold); `gold` is the data set's answer. In mode 'strict' both are
strings, in mode 'reference' tuples of strings: the answers that VinePPO's rules extract from each
side. A prediction of None asks whether `gold`, a string, can be read.
"""

from typing import Any, Literal

from vinejax.grading.reference import compare as reference
from vinejax.grading.strict.compare import cheap_strict, equal_strict, readable_strict

Mode = Literal["strict", "reference"]
Answer = str | tuple[str, ...]
Job = tuple[Mode, Answer | None, Answer]

# Ten times the longest answer of any data set here; a job must also fit into a pipe at once.
LONGEST_ANSWER = 5000


def cheap_verdict(job: Job) -> bool | None:
    """The verdict if it takes no time (equal strings, plain numbers, easy rules); else None."""
    mode, prediction, gold = job
    if prediction is None:
        return _cheap_readable(mode, str(gold))
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
    """The length of an answer, or of all answers of one side; 0 for None."""
    return sum(map(len, answer or ()))


def _cheap_readable(mode: Mode, gold: str) -> bool | None:
    if mode == "reference":
        return reference.readable_reference(gold)
    if not gold.strip() or len(gold) > LONGEST_ANSWER:
        return False
    return True if cheap_strict(gold, "0") is not None else None  # a number


def full_verdict(mode: Mode, prediction: Any, gold: Any) -> bool:
    """The verdict, however long it takes. Call it only in a process that can be killed."""
    if prediction is None:
        return reference.readable_reference(gold) if mode == "reference" else readable_strict(gold)
    if mode == "reference":
        return reference.equal_reference(list(prediction), list(gold))
    return equal_strict(prediction, gold)
