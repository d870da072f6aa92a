"""`compare.html`: several runs of one task side by side.

`read` loads the runs, `groups` puts those together that differ in their seed alone, `charts` and
`tables` turn them into view models, and `page` renders and writes. Nothing needs a device.
"""

from vinejax.report.compare.page import compare_runs

__all__ = ["compare_runs"]
