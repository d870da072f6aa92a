"""An update on a mesh: the numbers of one device, one program, and no needless collective."""

import pytest
from helpers import eight_devices
from helpers.mesh_training import CHECKS


@pytest.mark.slow
def test_eight_devices_train_as_one():
    assert eight_devices.printed("mesh_training.py") == [check.__name__ for check in CHECKS]
