"""Makes `report.html`, one file that shows a training run, from curves to single continuations.

`vinejax/records/read.py` loads the files of the run. `curves`, `timing`, `bench`, `comparison` and
`vine_view` prepare the data for a template, with which `build` renders the page. Nothing here needs
a device or a network. README.md describes how the pages are made.
"""
