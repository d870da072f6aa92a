"""Runs code in a process with eight virtual devices, since a backend starts only once.

For the tests on meshes in tests/model, learner, rollout and system.
"""

import os
import subprocess
import sys

from helpers.paths import TESTS

# Without LLVM's optimizations programs compile in two thirds of the time. What these tests are
# about is decided before: by the partitioner, whose programs stay the same.
FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"


def printed(*arguments: str) -> list[str]:
    """The lines that `python ARGUMENTS` prints in tests/: `-c` and a program, or `-m` and a module.

    Warnings are errors. Raises AssertionError with the end of standard error if Python fails.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(
        command, cwd=TESTS, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()
