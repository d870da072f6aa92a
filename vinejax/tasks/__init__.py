"""Tasks: one module each, and what tasks have in common (`base.py`, `graded.py`, `steps.py`)."""

from vinejax.core.accessories import TaskFinder

TaskFinder.install()  # contributed tasks are modules of this package, too
