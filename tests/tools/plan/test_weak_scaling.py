"""Weak scaling, counted in the compiled programs: what a device does is the same on 8 and on 256.

Nothing is timed: with as much work a device, and as many collectives of the same size a step, only
the network could be slower.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from helpers.paths import TESTS

pytestmark = pytest.mark.slow
CHILD = TESTS / "helpers" / "tools" / "weak_scaling_child.py"
DEVICES = (8, 256)


@pytest.fixture(scope="module")
def counted() -> dict[int, dict[str, Any]]:
    found = {}
    for devices in DEVICES:
        done = subprocess.run(
            [sys.executable, str(CHILD), str(devices)],
            capture_output=True,
            text=True,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )
        assert done.returncode == 0, done.stderr
        found[devices] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("program", ["decode", "train_step"])
def test_work_a_device_is_the_same(counted, program: str):
    flops = [counted[devices][program]["flops"] for devices in DEVICES]
    print(program, "operations a device:", flops)
    assert flops[0] > 1e4
    assert len(set(flops)) == 1


@pytest.mark.parametrize("program", ["decode", "train_step"])
def test_collectives_a_step_are_the_same(counted, program: str):
    """As many of each kind, and of the same shapes."""
    times = [
        {kind: count for kind, (count, _) in counted[devices][program]["times"].items()}
        for devices in DEVICES
    ]
    print(program, "collectives:", times)
    assert times[0] and times[0] == times[1]
    # Decoding: what every host reads of all slots, after the loop, grows with them.
    which = "looped" if program == "decode" else "shapes"
    shapes = [counted[devices][program][which] for devices in DEVICES]
    assert shapes[0] and shapes[0] == shapes[1]
    sent = [sum(s for _, s in counted[n][program]["times"].values()) for n in DEVICES]
    print(program, "bytes a device sends:", sent)
    assert sent[1] < 2.1 * sent[0], "(n - 1) / n of the same arrays"


def test_decoding_speaks_over_the_tensor_axis_alone_in_its_loop(counted):
    for devices in DEVICES:
        assert {group for *_, group in counted[devices]["decode"]["looped"]} == {2}
