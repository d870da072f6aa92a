"""Scores answers by the rules of reasoning-gym's data sets, in a process of its own.

Its scorers evaluate answers as Python (`n_queens`) or by sympy's parser, which does the same
(`simple_integration`), so no answer is scored where a run trains. An entry, which may hold any
object, crosses as a pickle in base64; only the workers of a grader open it.
"""

import base64
import difflib
import functools
import importlib
import json
import math
import os
import pickle
import sys
from typing import Any

PACKAGE = "reasoning_gym"
READS = ("os.listdir", "os.scandir")  # what imports do
HARMFUL = ("os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "signal.")

_is_scoring = False


@functools.cache
def data_set(spec: str) -> Any:
    """The data set of a JSON list: name, config, size and seed.

    Raises ValueError, TypeError or AssertionError for one that the package does not have.
    """
    name, config, size, seed = json.loads(spec)
    gym = importlib.import_module(PACKAGE)
    known = importlib.import_module(f"{PACKAGE}.factory").DATASETS
    names = [name, *(part["name"] for part in config.get("datasets", ()))]
    for wrong in [x for x in names if x not in known]:
        near = difflib.get_close_matches(wrong, known, n=1, cutoff=0.0)[0]
        raise ValueError(f"no data set {wrong!r}; the nearest is {near!r}")
    if name == "composite":
        made = importlib.import_module(f"{PACKAGE}.composite").DatasetSpec
        parts = [made(**{"weight": 1.0, "config": {}, **part}) for part in config["datasets"]]
        config = {**config, "datasets": parts}
    return gym.create_dataset(name, size=size, seed=seed, **config)


def score(answer: str, packed: str) -> float:
    """The score of an answer from 0 to 1 by the rule of its data set, 0 if the rule fails on it.

    `packed` is (spec of the data set, entry). Call it only in a process that can be killed, after
    `guard`.
    """
    global _is_scoring
    spec, entry = pickle.loads(base64.b64decode(packed))
    scorer = data_set(spec)
    _is_scoring = True
    try:
        value = float(scorer.score_answer(answer, entry))
    except MemoryError:
        raise
    except Exception:  # some check the form of an answer by failing
        return 0.0
    finally:
        _is_scoring = False
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


def guard() -> None:
    """Imports the package, and from then on refuses what no scorer needs while one runs.

    Refused are writing files, starting processes, the network, and changes of the system. It holds
    against an answer that happens to be a command, not against an attacker.
    """
    importlib.import_module(PACKAGE)
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if not _is_scoring or event in READS:
        return
    writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event.startswith(HARMFUL):
        raise PermissionError(event)
