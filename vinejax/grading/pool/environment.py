"""The environment of child processes."""

import os
from pathlib import Path


def child_environment() -> dict[str, str]:
    """This process's environment, in which a child finds this package."""
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
