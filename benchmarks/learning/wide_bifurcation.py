"""`bifurcation` with 0 to 48 free lines in equal shares; the task's own start has seen up to 24.

One start for all doses of `variants.py`, made in some four minutes on two CPU cores:

    PYTHONPATH=benchmarks/learning python -m vinejax.main --config=configs/bifurcation.py:48 \\
        --mode=sft --workdir=runs/dose_start --config.model.path= --config.model.context=192 \\
        --config.data.task=wide_bifurcation --config.data.free_steps=none
"""

from vinejax.core.settings import DataConfig
from vinejax.tasks.bifurcation import RANGE, Bifurcation
from vinejax.tasks.generated import numbers_of_free_steps

FREE_LINES = tuple(range(49))


def make(data: DataConfig) -> Bifurcation:
    return Bifurcation(numbers_of_free_steps(data, FREE_LINES, *RANGE))
