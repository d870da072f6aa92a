"""A process of its own with eight virtual devices, since a backend starts only once."""

import os
import subprocess
import sys

from helpers.paths import TESTS

FLAG = "--xla_force_host_platform_device_count=8"


def printed(*arguments: str) -> list[str]:
    """The lines that Python prints, run in tests/ with `-c` and a program, or with a file.

    A warning is an error there too. AssertionError with the end of its errors where it fails.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}"
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments], cwd=TESTS,
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()
