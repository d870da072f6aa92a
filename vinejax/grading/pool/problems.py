"""The process that makes a data set's problems: `python -m vinejax.grading.pool.problems`.

It reads {"path", "size", "seed"} and writes a list of entries, or a text that says what is wrong.
Some data sets depend on the order of Python's sets, so this process is started with
PYTHONHASHSEED=0 to make the same problems each time. What data sets import and print stays here.
"""

import base64
import importlib
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from vinejax.grading.pool.gym import data_set

# Keys of one right answer in the metadata of data sets with several.
EXAMPLES = ("possible_answer", "example_answer", "example_correct_answer")


def main() -> None:
    """Reads a request from standard input and answers on standard output."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # some data sets print
    asked = json.loads(sys.stdin.read())
    try:
        found = entries_of(asked["path"], asked["size"], asked["seed"])
    except Exception as error:  # an error of the package, or of the YAML file
        found = " ".join(f"{type(error).__name__}: {error}".split())
    json.dump(found, replies)
    replies.close()


def entries_of(path: str, size: int, seed: int) -> list[dict[str, Any]]:
    """`size` entries, as `_row` makes them, of the data set or the YAML file that `path` names."""
    name, config = path, {}
    if path.endswith((".yaml", ".yml")):
        name, config = "composite", _composite(path)
    entries = data_set(json.dumps([name, config, size, seed]))
    parts = config.get("datasets", [{"name": name}])
    scorers = {x["name"]: json.dumps([x["name"], x.get("config", {}), 1, 0]) for x in parts}
    return [_row(entries[i], scorers) for i in range(size)]


def _composite(file: str) -> dict[str, Any]:
    """The data sets of a YAML file in reasoning-gym's form, without seeds and sizes."""
    text = Path(file).expanduser().read_text(encoding="utf-8")
    config = importlib.import_module("yaml").safe_load(text)
    if not isinstance(config, dict) or not isinstance(config.get("datasets"), list):
        raise ValueError("the file has no list `datasets`")
    for section in (config, *(spec.get("config", {}) for spec in config["datasets"])):
        if fixed := {"seed", "size"} & set(section):
            raise ValueError(f"leave out {min(fixed)}: data.size and the split decide it")
    return config


def _row(entry: dict[str, Any], scorers: dict[str, str]) -> dict[str, Any]:
    metadata, answer = entry["metadata"], entry["answer"]
    name = metadata["source_dataset"]
    if answer is None:
        examples = [metadata[name] for name in EXAMPLES if name in metadata]
        answer = next((x if isinstance(x, str) else json.dumps(x) for x in examples), "")
    packed = base64.b64encode(pickle.dumps((scorers[name], entry))).decode("ascii")
    plain = json.loads(json.dumps(metadata, default=str, skipkeys=True))
    return {
        "question": entry["question"],
        "answer": str(answer),
        "metadata": plain,
        "data_set": name,
        "entry": packed,
    }


if __name__ == "__main__":
    main()
