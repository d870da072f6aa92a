"""The teacher of the variant `opd`: `labels` on `free_order` with two free steps, 48 iterations.

Twice the iterations of a run of the comparison, at the rate that the sweep of `labels` found on
`free_order`. From the root of the repository, in 95 seconds of one CPU core:

    python -m vinejax.main --config=benchmarks/learning/distil_teacher.py \\
        --workdir=runs/distil_teacher
"""

import sys
from pathlib import Path

from vinejax.config import from_file
from vinejax.config.load import override

sys.path.append(str(Path(__file__).parent))

from variants import SIZES, VARIANTS


def get_config():
    cfg = from_file(__file__, "../../configs/free_order.py:2")
    further = {"iterations": 48, "eval.every": 6, "optimizer.learning_rate": 4.5e-4, "seed": 31}
    override(cfg, {**SIZES, **VARIANTS["labels"], **further})
    return cfg
