"""Warns of a run that has learned nothing for several iterations in a row, or ends it."""

import math

from etils import epath

from vinejax.core.errors import DivergedError
from vinejax.runtime.host_arrays import save_arrays
from vinejax.runtime.log import RunLog
from vinejax.session.iteration import Iteration

MOST_FAILED = 3  # iterations in a row whose updates were all skipped, before an error
SAME_REWARD = 5  # iterations in a row with one reward for all solutions, before a warning


class Health:
    """Counts the iterations in a row from which this process has learned nothing."""

    def __init__(self, workdir: epath.Path, log: RunLog):
        self._workdir = workdir
        self._log = log
        self._failed = 0
        self._same = 0
        self._reward = math.nan  # the one reward of all solutions of the last iteration
        self._not_finite: list[str] = []  # metrics that were not finite when one was first found

    def look(self, iteration: Iteration) -> None:
        """Counts a finished iteration; all hosts call `look`.

        Prints a line if all solutions of `SAME_REWARD` iterations in a row had the same reward and
        their steps had none, or if a metric is not finite. If all updates of `MOST_FAILED`
        iterations in a row were skipped, writes a batch of the last iteration to a file and raises
        DivergedError.
        """
        self._look_at_rewards(iteration)
        self._look_at_numbers(iteration)
        self._failed = self._failed + 1 if iteration.failed_batch is not None else 0
        if self._failed == MOST_FAILED:
            file = self._workdir / "not_finite.npz"
            save_arrays(file, iteration.failed_batch)
            failure = f"all updates of {MOST_FAILED} iterations in a row were skipped"
            reason = f"losses or gradients are not finite; the batch of the last is in {file}"
            raise DivergedError(f"iteration {iteration.number + 1}: {failure}: {reason}")

    def _look_at_rewards(self, iteration: Iteration) -> None:
        metrics = iteration.metrics
        # A method may have no rewards. Steps may have rewards that differ, beside equal outcomes.
        if metrics.get("reward/std") != 0 or metrics.get("reward/steps", 0) != 0:
            self._same = 0
            return
        reward = float(metrics["reward/mean"])
        self._same = self._same + 1 if reward == self._reward else 1
        self._reward = reward
        if self._same == SAME_REWARD:
            self._log.message(
                f"warning: all solutions of {SAME_REWARD} iterations had the reward {reward:g}:"
                " nothing can be learned from them; look at some in the folder episodes/"
            )

    def _look_at_numbers(self, iteration: Iteration) -> None:
        """Prints a line at the first iteration with a metric that is not finite."""
        if self._not_finite:
            return
        numbers = iteration.metrics.items()
        self._not_finite = [name for name, x in numbers if not math.isfinite(x)]
        if self._not_finite:
            self._log.message(
                f"warning: iteration {iteration.number + 1}: {', '.join(self._not_finite)} not"
                " finite: the weights diverge, or will; lower optimizer.learning_rate"
            )
