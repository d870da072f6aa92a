"""The process that compares answers: `python -m vinejax.grading.pool.worker`, run by the pool.

It reads and writes one JSON object per line. The first line that it reads has the settings. The
first line that it writes says that the imports are done. Then it reads jobs of `jobs.py` as
{"kind", "prediction", "gold"} and writes {"score"} or {"error"}. It never imports jax.
The pool kills a worker that takes too long; if the pool has died by then, an alarm ends the worker.
"""

import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from vinejax.grading.pool import gym
from vinejax.grading.pool.jobs import full_verdict

# Pairs to compare before a worker is ready, so that the first real pair waits for no import.
WARM_UP = {"strict": ("\\frac{x}{2}", "0.5x"), "reference": (["\\frac{x}{2}"], ["0.5x"])}


def main() -> None:
    """Reads the settings, then jobs until standard input ends."""
    replies = os.fdopen(os.dup(1), "wb")
    # Whatever a library prints must not end up among the replies.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    settings = json.loads(sys.stdin.buffer.readline())
    try:
        start(settings)
    except (ImportError, MemoryError, OSError, ValueError) as error:
        send(replies, {"fatal": f"{type(error).__name__}: {error}"})
        return
    os.dup2(silence, 2)
    send(replies, {"ready": True})
    serve(sys.stdin.buffer, replies, full_verdict, settings["alarm_s"])


def start(settings: dict[str, Any]) -> None:
    """Sets the limits, and imports what each kind of job needs, before the first job."""
    limit = settings["memory_mb"] * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)
    for kind in settings["kinds"]:
        if kind == "score":
            gym.guard()
        else:
            full_verdict(kind, *WARM_UP[kind])


def serve(jobs: BinaryIO, replies: BinaryIO, compare: Callable[..., float], alarm_s: float) -> None:
    """Answers each job with its score, or with the error's name if the job fails.

    Exits if memory runs out. An alarm ends the process if a job takes longer than `alarm_s`.
    """
    for line in jobs:
        job = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, alarm_s)
        try:
            reply = {"score": float(compare(job["kind"], job["prediction"], job["gold"]))}
        except MemoryError:
            # The heap may be in any state. The pool counts an error and starts another worker.
            os._exit(1)
        except Exception as error:  # A bug of a library on one pair must not cost the next one.
            reply = {"error": type(error).__name__}
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(replies, reply)


def send(replies: BinaryIO, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    main()
