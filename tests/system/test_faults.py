"""tests/faults/run.py in small: processes that are really killed, and started again."""

import os
import subprocess
import sys

import pytest
from helpers.paths import REPO, TESTS

pytestmark = pytest.mark.slow


def test_a_killed_run_ends_as_if_nothing_had_been():
    command = [sys.executable, str(TESTS / "faults" / "run.py"), "--methods=ppo"]
    done = subprocess.run(
        [*command, "--kills=1", "--seed=1"],
        env=os.environ | {"PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| ppo | 1 (0 after the end) |" in done.stdout
