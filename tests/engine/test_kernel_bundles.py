"""The TPU compiler's code for the kernel over pages has few instructions for a short branch."""

import os
import re
import subprocess
import sys

import pytest
from helpers.paths import REPO


@pytest.mark.slow
def test_a_branch_of_one_block_costs_fewer_cycles_than_its_copy():
    """A copy of 256 columns of four heads of 128 takes 960 cycles of a v5e; of 128, 480."""
    pytest.importorskip("libtpu", reason="needs pip install -e '.[tpu]'")
    program = "import kernel_bundles as it; it.main(it.SHAPES[:1])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPO / "benchmarks", capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(REPO)}, timeout=600,
    )  # fmt: skip
    assert (found := re.search(r"page_body .* item (\d+) step (\d+)", done.stdout)), done.stderr
    assert 300 < int(found[1]) < 480 and int(found[2]) < 3000
