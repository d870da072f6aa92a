"""`report.html`: one file that shows a training run, from its curves down to single continuations.

`read` loads the files of the run, `curves`, `timing`, `bench` and `vine_view` turn them into view
models, and `build` renders these with one autoescaping template. Nothing here needs a device or a
network.
"""
