"""The environment of child processes."""

import os
from pathlib import Path


def child_environment() -> dict[str, str]:
    """The environment variables of this process, with a PYTHONPATH that has this package."""
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
