"""An update on a mesh has the numbers of one device, one program, and no needless collective."""

import pytest
from helpers import eight_devices
from helpers.mesh_training import CHECKS


@pytest.mark.slow
def test_eight_devices_train_as_one():
    printed = eight_devices.printed("-m", "helpers.mesh_training")
    assert printed == [check.__name__ for check in CHECKS]
