"""`compare.html`: several runs of one task side by side.

`read_runs` loads the runs, `groups` puts those together that differ in their seed alone, and `page`
renders and writes. Nothing needs a device.
"""
