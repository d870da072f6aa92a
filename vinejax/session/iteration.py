"""The context of one iteration: what all methods draw, count and record."""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import optax

from vinejax.core.settings import Config
from vinejax.core.types import Episode, PromptedProblem, TrainState
from vinejax.credit.assign import Credit
from vinejax.learner.batch import minibatch_rows
from vinejax.learner.update import Objective, Update, num_accepted, train_on
from vinejax.model.decoder import Params
from vinejax.records.episode_rows import episode_rows
from vinejax.rollout.draw import chunks, draw
from vinejax.rollout.sampler import Sampler
from vinejax.runtime.compiles import compiles
from vinejax.runtime.log import RunLog
from vinejax.session import metrics
from vinejax.session.budget import Spent, left
from vinejax.session.session import Session
from vinejax.tasks.rewards import TrainerState


class Solutions(NamedTuple):
    """The result of sampling: problems, and their solutions."""

    problems: list[PromptedProblem]
    episodes: list[Episode]  # to learn from
    sampled: list[Episode]  # these, and those that were discarded


class Iteration:
    """One iteration of a run."""

    def __init__(self, session: Session, log: RunLog, number: int, spent: Spent):
        """`number` counts iterations from 0; `spent` has the run's totals before this one."""
        self.session = session
        self.cfg: Config = session.cfg
        self.log = log
        self.number = number
        self.spent = spent
        self.metrics: dict[str, Any] = {}
        self.drawn = 0  # problems that `draw` has given in this iteration
        self.is_fruitless = False  # updates were tried, and none was made
        self.batch: Any = None  # of the updates, for inspection if none was made
        self._engine_before = session.engine.stats.mark()
        self._graded_before = session.graded.stats
        session.graded.state = TrainerState(number, self.cfg.iterations)
        self._compiles_before = compiles()

    @property
    def left(self) -> int:
        """The rest of the run's budget, in groups of `rollout.per_prompt` solutions."""
        return left(self.cfg, self.spent)

    @functools.cached_property
    def sampler(self) -> Sampler:
        """The sampler of this iteration."""
        return self.session.sampler(self.number)

    def draw(self, count: int | None, weights: np.ndarray | None = None) -> list[PromptedProblem]:
        """`count` train problems (None: all), drawn by `weights` if given, within the budget.

        Another call in the same iteration gives further problems.
        """
        first, last = self.drawn, None if count is None else self.drawn + count
        problems = draw(self.session.problems["train"], last, self.cfg.seed, self.number, weights)
        problems = problems[first:][: self.left]
        self.drawn += len(problems)
        return problems

    @property
    def can_draw(self) -> bool:
        """Whether `draw` has further problems."""
        return self.drawn < len(self.session.problems["train"]) and self.left > 0

    def sample(self, params: Params, problems: list[PromptedProblem]) -> list[Episode]:
        """Graded solutions of the problems, which count as spent."""
        episodes = self.sampler.solutions(params, problems, self.left)
        self.count(problems, len(episodes))
        return episodes

    def count(self, problems: list[PromptedProblem], solutions: int) -> None:
        """Counts problems that were drawn, and solutions of them, as spent."""
        self.spent = self.spent.plus(prompts=len(problems), episodes=solutions)

    def sample_train(
        self, params: Params, count: int | None
    ) -> tuple[list[PromptedProblem], list[Episode]]:
        """`count` train problems and their episodes, `rollout.prompts` problems at a time."""
        problems = self.draw(count)
        episodes: list[Episode] = []
        with self.log.stage("rollout"):
            for part in chunks(problems, self.cfg.rollout.prompts):
                episodes += self.sample(params, part)
                self.log.progress(len(episodes), len(problems) * self.cfg.rollout.per_prompt)
            self.session.engine.release()
        return problems, episodes

    def shown(self, episodes: list[Episode]) -> list[Episode]:
        """The episodes that are written to a file: the first `rollout.prompts` problems'."""
        return episodes[: self.cfg.rollout.prompts * self.cfg.rollout.per_prompt]

    def num_minibatches(self, episodes: list[Episode]) -> int:
        """Minibatches of an epoch: those that one row per solution from the prompt would make."""
        problems = len({episode.problem_id for episode in episodes})
        return math.ceil(problems * self.cfg.rollout.per_prompt / self.cfg.ppo.minibatch)

    def minibatch_rows(self, episodes: list[Episode]) -> int:
        """Rows of each of `num_minibatches` minibatches that together hold all episodes."""
        return minibatch_rows(len(episodes), self.num_minibatches(episodes), self.cfg.ppo.minibatch)

    def train(
        self,
        objective: Objective,
        optimizer: optax.GradientTransformation,
        policy: TrainState,
        batches: Iterator[Any],
        total: int,
    ) -> tuple[TrainState, list[Update]]:
        """Updates on the `total` batches, which are counted."""

        def noted(batch: Any) -> Any:
            self.batch = batch
            return batch

        with self.log.stage("train"):
            policy, updates = train_on(
                objective,
                optimizer,
                policy,
                map(noted, batches),
                self.session.base,
                lambda done: self.log.progress(done, total),
            )
        self.count_made(updates, self.batch)
        self.spent = self.spent.plus(updates=len(updates))
        return policy, updates

    def count_made(self, updates: Sequence[Update], batch: Any) -> None:
        """Notes whether all updates of the iteration were skipped; `batch` is what they were on.

        If so, losses or gradients are not finite: the ratio guard never skips all, since the first
        update's ratio is 1.
        """
        self.is_fruitless = bool(updates) and num_accepted(updates) == 0
        self.batch = batch if self.is_fruitless else None

    def record_sampling(self, solutions: Solutions, credit: Credit | None = None) -> None:
        """Writes the episodes to learn from to a file; takes the metrics of all that were sampled.

        `credit` has a row for each episode to learn from.
        """
        session = self.session
        problems, episodes, sampled = solutions
        by_step, values = (credit.by_step, credit.values) if credit else (None, None)
        rows = episode_rows(
            session.tokenizer,
            problems,
            episodes,
            by_step,
            self.number,
            self.cfg.log.vines,
            values,
            session.graded.failure,
        )
        self.log.episodes(self.number, rows)
        stats = session.engine.stats.minus(self._engine_before)
        graded = session.graded.stats.minus(self._graded_before)
        self.metrics |= metrics.episode_metrics(sampled) | metrics.value_metrics(episodes, by_step)
        self.metrics |= self.sampler.metrics(sampled)
        self.metrics |= metrics.engine_metrics(stats, episodes, self.log.timings)
        self.metrics |= metrics.grading_metrics(graded)
        self.spent = self.spent.plus(tokens=stats.decoded_tokens)

    def record(self, step: int) -> Spent:
        """Writes the iteration's line of metrics; returns the run's new totals.

        `step` counts the policy's updates.
        """
        self.spent = self.spent.timed(self.log.timings)
        made = compiles().since(self._compiles_before)
        compiled = {"perf/compiles": made.programs, "perf/compile_s": made.seconds}
        values = self.metrics | self.log.timings | compiled | self.spent.metrics()
        self.log.metrics(self.number, step, "train", values)
        return self.spent
