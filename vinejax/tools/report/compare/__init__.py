"""Makes `compare.html`, which shows several runs of one task side by side.

`read_runs` loads the runs. `run_groups` groups runs that differ only in their seed. `record`
compares the groups. `shared_problems` finds problems that several runs have sampled. `page` renders
and writes the page. Nothing here needs a device.
"""
