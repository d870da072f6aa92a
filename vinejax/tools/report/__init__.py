"""`report.html`: one file that shows a training run, from its curves down to single continuations.

`vinejax/records/read.py` loads the files of the run. `curves`, `timing`, `bench`, `comparison` and
`vine_view` make views of the data, and `build` renders the views with one autoescaping template.
Nothing here needs a device or a network. README.md says how the pages are made.
"""
