"""`report.html`: one file that shows a training run, from its curves down to single continuations.

`read` takes what the run left on disk, `curves` and `vine` turn it into plain view models, and
`build` renders those with one autoescaping template. Nothing here needs jax or a network.
"""

from vinejax.analysis.report.build import build_report

__all__ = ["build_report"]
