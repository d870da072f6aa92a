"""What is compared, and both comparisons: the cheap one, for anywhere, the full one, for a worker.

A job is (mode, prediction, gold). In mode 'strict' prediction and gold are strings, in mode
'reference' tuples of strings: the answers that the reference extracts from each side.
"""

from typing import Any, Literal

from vinejax.tasks.grading import strict
from vinejax.tasks.grading.reference import cheap_reference, equal_reference

Mode = Literal["strict", "reference"]
Answer = str | tuple[str, ...]
Job = tuple[Mode, Answer, Answer]

# No gold of any data set here has a tenth of it; a job must also fit into a pipe at once.
LONGEST_ANSWER = 5000


def cheap(job: Job) -> bool | None:
    """The verdict where it takes no time: same strings, plain numbers, easy rules; else None."""
    _, prediction, gold = job
    if isinstance(prediction, str) and isinstance(gold, str):
        return _cheap_strict(prediction.strip(), gold.strip())
    if prediction == gold:
        return True
    if max(sum(map(len, prediction)), sum(map(len, gold))) > LONGEST_ANSWER:
        return False
    return cheap_reference(list(prediction), list(gold))


def _cheap_strict(prediction: str, gold: str) -> bool | None:
    if not prediction or not gold:
        return False
    if prediction == gold:
        return True
    if max(len(prediction), len(gold)) > LONGEST_ANSWER:
        return False
    return strict.cheap(prediction, gold)


def full(mode: Mode, prediction: Any, gold: Any) -> bool:
    """The verdict, however long it takes. Only for a process that may be killed."""
    if mode == "reference":
        return equal_reference(list(prediction), list(gold))
    return strict.equal(prediction, gold)
