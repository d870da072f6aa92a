"""The context of one iteration, in which all methods draw, count and record."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import optax

from vinejax.core.settings import Config
from vinejax.core.types import Episode, PromptedProblem, TrainState
from vinejax.credit.assign import Credit
from vinejax.learner.batch import minibatch_rows
from vinejax.learner.optimizer import Duration
from vinejax.learner.update import Objective, Update, num_accepted, train_on
from vinejax.model.decoder import Params
from vinejax.records.episode_rows import episode_rows
from vinejax.rollout.draw import chunks, draw
from vinejax.rollout.sampler import Sampler
from vinejax.runtime.compiles import Compiles, compiles
from vinejax.runtime.log import RunLog
from vinejax.session import metrics
from vinejax.session.budget import RunTotals, groups_left
from vinejax.session.session import Session
from vinejax.tasks.graded import GradingStats


class Solutions(NamedTuple):
    """The result of sampling: problems and their solutions."""

    problems: list[PromptedProblem]
    episodes: list[Episode]  # solutions to learn from
    sampled: list[Episode]  # all sampled solutions, with the discarded ones


class StartCounters(NamedTuple):
    """Counters at the start of an iteration, to be subtracted from the counters at its end."""

    spent: RunTotals
    engine: Any  # a mark of `EngineStats`
    grading: GradingStats
    compiles: Compiles


class Iteration:
    """One iteration of a run."""

    def __init__(self, session: Session, log: RunLog, number: int, spent: RunTotals):
        """`number` counts iterations from 0, and `spent` are the totals before this iteration."""
        self.session = session
        self.log = log
        self.number = number
        self.spent = spent
        self.metrics: dict[str, Any] = {}
        self.sampler: Sampler = session.sampler(number)
        self.failed_batch: Any = None  # a batch of updates that were all skipped
        self.at_start = StartCounters(
            spent, session.engine.stats.mark(), session.graded.stats, compiles()
        )
        session.set_progress(number)

    @property
    def cfg(self) -> Config:
        """The configuration of the run, with the method's own choices."""
        return self.session.cfg

    @property
    def left(self) -> int:
        """The rest of the run's budget, in groups of `rollout.per_prompt` solutions."""
        return groups_left(self.cfg, self.spent)

    @property
    def drawn(self) -> int:
        """The number of problems that `draw` has returned in this iteration."""
        return self.spent.prompts - self.at_start.spent.prompts

    @property
    def can_draw(self) -> bool:
        """Whether `draw` has further problems."""
        return self.drawn < len(self.session.problems["train"]) and self.left > 0

    def draw(self, count: int | None, weights: np.ndarray | None = None) -> list[PromptedProblem]:
        """Draws `count` train problems (None: all), or fewer if the budget has no room for more.

        If `weights` are given, problems are drawn with these weights. Each call in an iteration
        returns problems that the calls before it have not returned.
        """
        first = self.drawn
        last = None if count is None else first + count
        problems = draw(self.session.problems["train"], last, self.cfg.seed, self.number, weights)
        problems = problems[first:][: self.left]
        self.spent = self.spent.plus(prompts=len(problems))
        return problems

    def sample(self, params: Params, problems: list[PromptedProblem]) -> list[Episode]:
        """Samples and grades solutions of the problems, and counts the solutions in the budget."""
        episodes = self.sampler.solutions(params, problems, self.left)
        self.count_solutions(len(episodes))
        return episodes

    def count_solutions(self, number: int) -> None:
        """Counts solutions in the budget."""
        self.spent = self.spent.plus(episodes=number)

    def sample_train(self, params: Params, count: int | None) -> list[Episode]:
        """Episodes of `count` train problems (None: all), sampled `rollout.prompts` at a time."""
        problems = self.draw(count)
        episodes: list[Episode] = []
        with self.log.stage("rollout"):
            for part in chunks(problems, self.cfg.rollout.prompts):
                episodes += self.sample(params, part)
                self.log.progress(len(episodes), len(problems) * self.cfg.rollout.per_prompt)
            self.session.engine.release()
        return episodes

    def shown(self, episodes: list[Episode]) -> list[Episode]:
        """The episodes of the first `rollout.prompts` problems, which are written to a file."""
        return episodes[: self.cfg.rollout.prompts * self.cfg.rollout.per_prompt]

    def num_minibatches(self, episodes: list[Episode]) -> int:
        """The number of minibatches of an epoch over the problems of `episodes`.

        Each problem counts as `rollout.per_prompt` rows, however many episodes it has.
        """
        problems = len({episode.problem_id for episode in episodes})
        return math.ceil(problems * self.cfg.rollout.per_prompt / self.cfg.ppo.minibatch)

    def minibatch_rows(self, episodes: list[Episode]) -> int:
        """The rows of each minibatch if `num_minibatches` minibatches are to hold all episodes."""
        return minibatch_rows(len(episodes), self.num_minibatches(episodes), self.cfg.ppo.minibatch)

    def train(
        self,
        objective: Objective,
        optimizer: optax.GradientTransformation,
        policy: TrainState,
        batches: Iterator[Any],
        total: int,
        duration: Duration | None = None,
    ) -> tuple[TrainState, list[Update]]:
        """Updates the policy on `total` batches, and counts the updates.

        `duration` is the argument of `update_step`.
        """
        last: Any = None

        def noted(batch: Any) -> Any:
            nonlocal last
            last = batch
            return batch

        with self.log.stage("train"):
            policy, updates = train_on(
                objective,
                optimizer,
                policy,
                map(noted, batches),
                self.session.base,
                lambda done: self.log.progress(done, total),
                duration,
            )
        self.note_updates(updates, last)
        self.metrics |= metrics.skipped_updates(updates)
        self.spent = self.spent.plus(updates=len(updates))
        return policy, updates

    def note_updates(self, updates: Sequence[Update], batch: Any) -> None:
        """Keeps `batch`, with rows that the updates used, as `failed_batch` if all were skipped.

        The updates are those of the policy or those of a critic; either may be skipped alone. If
        all updates were skipped, losses or gradients are not finite. The other reason to skip an
        update, a large ratio, never skips all updates, because the first update has the ratio 1.
        """
        if updates and num_accepted(updates) == 0:
            self.failed_batch = batch

    def record_sampling(self, sampled: list[Episode]) -> None:
        """Adds the metrics of all sampled solutions, including discarded solutions."""
        self.metrics |= metrics.episode_metrics(sampled) | self.sampler.metrics(sampled)

    def record_episodes(self, episodes: list[Episode], credit: Credit | None = None) -> None:
        """Writes to a file the episodes to learn from; adds metrics of values and sampling.

        `credit` has a row for each episode. Without it, neither file nor metrics have advantages.
        """
        session = self.session
        by_step, values, labels = (
            (credit.by_step, credit.values, credit.labels) if credit else (None, None, None)
        )
        names = {episode.problem_id for episode in episodes}
        rows = episode_rows(
            session.tokenizer,
            [pair for pair in session.problems["train"] if pair[0].id in names],
            episodes,
            by_step,
            self.number,
            self.cfg.log.vines,
            values,
            session.graded.failure,
            labels,
        )
        self.log.episodes(self.number, rows)
        stats = session.engine.stats.minus(self.at_start.engine)
        grading = session.graded.stats.minus(self.at_start.grading)
        self.metrics |= metrics.value_metrics(episodes, by_step, self.cfg.ppo.gamma)
        self.metrics |= metrics.engine_metrics(stats, episodes, self.log.timings)
        self.metrics |= metrics.grading_metrics(grading)
        self.spent = self.spent.plus(tokens=stats.decoded_tokens)

    def record(self, step: int) -> RunTotals:
        """Writes the iteration's line of metrics; returns the run's new totals.

        `step` counts the policy's updates.
        """
        self.spent = self.spent.timed(self.log.timings)
        made = compiles().since(self.at_start.compiles)
        compiled = {"perf/compiles": made.programs, "perf/compile_s": made.seconds}
        values = self.metrics | self.log.timings | compiled | self.spent.metrics()
        self.log.metrics(self.number, step, "train", values)
        return self.spent
