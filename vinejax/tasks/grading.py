"""Former place of `vinejax.grading`, kept so that tasks that import from here still do."""

from vinejax.grading import *  # noqa: F403
