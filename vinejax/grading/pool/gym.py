"""Scores answers by the rules of reasoning-gym's data sets, in a process of its own.

The package's scorers evaluate answers as Python (`n_queens`) or by sympy's parser, which does the
same (`simple_integration`), so no answer is scored in a process that trains. An entry, which may
hold any object, is sent as a pickle in base64, and only a grader's workers unpickle it.
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
READS = ("os.listdir", "os.scandir")  # events of imports
HARMFUL = ("os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "signal.")

_is_scoring = False


@functools.cache
def data_set(spec: str) -> Any:
    """The data set that `spec` describes, a JSON list of its name, config, size and seed.

    Raises ValueError, TypeError or AssertionError for a list that reasoning-gym does not accept.
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
    """The score of an answer, from 0 to 1, by the rule of its data set; 0 if the rule fails.

    `packed` is (spec of the data set, entry), pickled and in base64. Call this function only after
    `guard`, in a process that can be killed.
    """
    global _is_scoring
    spec, entry = pickle.loads(base64.b64decode(packed))
    scorer = data_set(spec)
    _is_scoring = True
    try:
        value = float(scorer.score_answer(answer, entry))
    except MemoryError:
        raise
    except Exception:  # some scorers raise for an answer of the wrong form
        return 0.0
    finally:
        _is_scoring = False
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


def guard() -> None:
    """Imports reasoning-gym. From then on, while `score` scores, harmful operations are refused.

    Harmful are writing files, starting processes, the network, and changes of the system. The guard
    stops an answer that happens to be a command, but no attacker.
    """
    importlib.import_module(PACKAGE)
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if not _is_scoring or event in READS:
        return
    writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event.startswith(HARMFUL):
        raise PermissionError(event)
