"""Whether a run samples continuations beside its solutions."""

from vinejax.engine.cache import Sizes
from vinejax.rollout.early import are_possible
from vinejax.rollout.one_stream import obstacle, obstacle_on_hosts, wanted
from vinejax.tools.plan.case import Case


def has_stream(case: Case, sizes: Sizes) -> bool:
    """Whether a run of this case would have one stream: as `one_stream.has_one_stream`.

    `sizes` are those of the phase of values. A plan reads no data, so a task on several hosts is
    taken for one that rewards no steps.
    """
    cfg = case.cfg
    by_kernel = sizes.storage.read_by_kernel
    if not (case.method.has_plain_values and wanted(cfg, by_kernel) and obstacle(cfg) is None):
        return False
    return case.topology.hosts == 1 or obstacle_on_hosts(cfg, has_steps=False) is None


def begins_early(case: Case, sizes: Sizes) -> bool:
    """Whether continuations begin before their solutions end."""
    return are_possible(case.cfg) and has_stream(case, sizes)
