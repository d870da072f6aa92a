"""An update on a mesh: the numbers of one device, one program, and no needless collective."""

import os
import subprocess
import sys

import pytest
from mesh_training import CHECKS


@pytest.mark.slow
def test_eight_devices_train_as_one():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, os.path.join(os.path.dirname(__file__), "mesh_training.py")],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.stdout.split() == [check.__name__ for check in CHECKS], done.stderr[-3000:]
