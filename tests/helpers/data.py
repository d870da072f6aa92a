"""The files under tests/data, whose README names their sources. For tests of every folder."""

import gzip
import json
import lzma
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from helpers.paths import TESTS

DATA = TESTS / "data"
_unpacked = tempfile.TemporaryDirectory(prefix="vinejax-tokenizers-")


def path(name: str) -> Path:
    """A file or folder of the shipped data; `name` is relative to tests/data."""
    found = DATA / name
    assert found.exists(), f"{found} is missing: this checkout is not whole"
    return found


def rows(name: str) -> list[dict[str, Any]]:
    """The objects of a file `name`.jsonl.gz, one a line."""
    with gzip.open(path(f"{name}.jsonl.gz"), "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@cache
def tokenizer(name: str) -> Path:
    """A folder with the tokenizer.json of a real model, unpacked once a process."""
    folder = Path(_unpacked.name) / name
    folder.mkdir()
    packed = path(f"tokenizers/{name}.json.xz").read_bytes()
    (folder / "tokenizer.json").write_bytes(lzma.decompress(packed))
    config = DATA / f"tokenizers/{name}_config.json"
    if config.exists():
        (folder / "tokenizer_config.json").write_bytes(config.read_bytes())
    return folder
