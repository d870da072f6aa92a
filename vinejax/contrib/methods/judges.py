"""Judges, functions that compare two responses: the default one, and the calls of any.

A judge takes four lists of equal length: questions, correct answers, first and second responses. It
returns a number from 0 to 1 for each pair, the chance that the first response is the better one; ½
is a draw. Each batch of pairs has a process, this module's `main`. A process that takes too long is
killed, and the pairs of its batch have no chance.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from vinejax.core.errors import UserError
from vinejax.core.plugins import (
    failure,
    find_function,
    finite_number,
    listed,
    place_of,
    source_of,
)


class JudgedPair(NamedTuple):
    """Two responses that the judge compares."""

    question: str
    answer: str  # correct answer
    first: str
    second: str


def last_word(
    questions: Sequence[str], answers: Sequence[str], firsts: Sequence[str], seconds: Sequence[str]
) -> list[float]:
    """A response whose last word is the correct answer is better than one whose is not."""

    def is_right(text: str, answer: str) -> bool:
        return text.split()[-1:] == [answer]

    pairs = zip(answers, firsts, seconds, strict=True)
    return [(1 + is_right(x, answer) - is_right(y, answer)) / 2 for answer, x, y in pairs]


def compared(
    path: str, pairs: Sequence[JudgedPair], batch: int, timeout_s: float
) -> list[float | None]:
    """The chance that the first of each pair is the better one; None where time ran out.

    Raises UserError, with file and line, if the judge fails or returns anything but chances.
    """
    chances: list[float | None] = []
    for start in range(0, len(pairs), batch):
        part = pairs[start : start + batch]
        found = _answer(path, [list(column) for column in zip(*part, strict=True)], timeout_s)
        chances += found or [None] * len(part)
    return chances


def _answer(path: str, columns: list[list[str]], timeout_s: float) -> list[float] | None:
    """The judge's chances, from a process of its own; None if its time runs out."""
    paths = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    arguments = [sys.executable, "-m", "vinejax.contrib.methods.judges"]
    with subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,  # so that processes of the judge are killed with it
    ) as child:
        try:
            reply, _ = child.communicate(pickle.dumps((path, columns)), timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
    kind: str = "error"
    result: Any = f"its process ended with status {child.returncode}"
    if reply:
        kind, result = pickle.loads(reply)
    if kind == "error":
        raise UserError(f"judge.function: {path} failed: {result}")
    return list(result)


def checked_call(path: str, function: Any, columns: list[list[str]]) -> tuple[str, Any]:
    """Calls the judge: ('chances', list), or ('error', message with file and line)."""
    try:
        found = listed(function(*columns))
    except Exception as error:
        return "error", failure(error, source_of(path.rpartition(".")[0]))
    chances = [finite_number(x) for x in found or ()]
    if len(chances) != len(columns[0]) or any(x is None or not 0 <= x <= 1 for x in chances):
        message = f"gave {found!r:.200}; needed are {len(columns[0])} numbers from 0 to 1"
        return "error", f"{place_of(function)}: {message}"
    return "chances", chances


def main() -> None:
    """The process of a judge, which answers one batch.

    It reads (path of the judge, its four lists) from standard input and writes the result of
    `checked_call` to standard output. The judge's own prints go to standard error.
    """
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    path, columns = pickle.load(sys.stdin.buffer)
    pickle.dump(checked_call(path, find_function(path), columns), replies)
    replies.close()


if __name__ == "__main__":
    main()
