"""The former module of `vinejax.grading`, kept for tasks that still import from here."""

from vinejax.grading import *  # noqa: F403
