"""The process in which a judge runs: `python -m vinejax.tasks.judge_child`, see `judges.py`.

Reads (path of the judge, its four lists) from standard input, writes what `judges.checked` gives to
standard output. What the judge prints goes to standard error. Imports no jax.
"""

import os
import pickle
import sys

from vinejax.core.plugins import find_function
from vinejax.tasks.judges import checked


def main() -> None:
    """Answers one batch."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    path, columns = pickle.load(sys.stdin.buffer)
    pickle.dump(checked(path, find_function(path), columns), replies)
    replies.close()


if __name__ == "__main__":
    main()
