"""The parts that all kinds of iterations share: sampling, counting and recording."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vinejax.core.settings import Config
from vinejax.core.types import Episode, PromptedProblem, RunState
from vinejax.credit.advantages import Credit
from vinejax.learner.batch import minibatch_rows
from vinejax.learner.update import Update, num_accepted
from vinejax.methods import find_method
from vinejax.model.decoder import Params
from vinejax.report.episode_rows import episode_rows
from vinejax.rollout.problems import chunks, draw
from vinejax.rollout.reset_sampling import sample_with_resets
from vinejax.rollout.tree_sampling import sample_trees
from vinejax.runtime.compiles import compiles
from vinejax.runtime.log import RunLog
from vinejax.training import metrics
from vinejax.training.budget import Left, Spent, left
from vinejax.training.session import Session


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
        self.is_fruitless = False  # updates were tried, and none was made
        self.batch: Any = None  # of the updates, for inspection if none was made
        self._engine_before = session.sampler.stats.mark()
        self._graded_before = session.graded.stats
        self._compiles_before = compiles()

    @property
    def left(self) -> Left:
        """The rest of the run's budget."""
        return left(self.cfg, self.spent)

    def draw(self, count: int | None, weights: np.ndarray | None = None) -> list[PromptedProblem]:
        """`count` train problems (None: all), by `weights` if given, or what the budget allows."""
        problems = draw(self.session.problems["train"], count, self.cfg.seed, self.number, weights)
        return problems[: self.left.prompts]

    def sample(self, params: Params, problems: list[PromptedProblem]) -> list[Episode]:
        """Graded solutions of the problems, which count as spent; leaves of trees, by the method.

        A method on trees counts `rollout.per_prompt` per problem, however many leaves it samples.
        """
        session, cfg = self.session, self.cfg
        given = (session.sampler, params, session.graded, problems, cfg, self.number)
        if find_method(cfg.method).tree:
            episodes = sample_trees(*given)
            count = len(problems) * cfg.rollout.per_prompt
        else:
            episodes = sample_with_resets(*given, most=self.left.groups)
            count = len(episodes)
        self.spent = self.spent.plus(prompts=len(problems), episodes=count)
        return episodes

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
            self.session.sampler.release()
        return problems, episodes

    def num_minibatches(self, episodes: list[Episode]) -> int:
        """Minibatches of an epoch: those that one row per solution from the prompt would make."""
        problems = len({episode.problem_id for episode in episodes})
        return math.ceil(problems * self.cfg.rollout.per_prompt / self.cfg.ppo.minibatch)

    def minibatch_rows(self, episodes: list[Episode]) -> int:
        """Rows of each of these minibatches, for all episodes."""
        return minibatch_rows(len(episodes), self.num_minibatches(episodes), self.cfg.ppo.minibatch)

    def count_made(self, updates: Sequence[Update], batch: Any) -> None:
        """Notes whether all updates of the iteration were skipped; `batch` is what they were on.

        An iteration's first ratio is 1, so that not all are skipped by the ratio guard: losses or
        gradients are not finite.
        """
        self.is_fruitless = bool(updates) and num_accepted(updates) == 0
        self.batch = batch if self.is_fruitless else None

    def record_sampling(
        self,
        problems: list[PromptedProblem],
        episodes: list[Episode],
        sampled: list[Episode],
        credit: Credit | None = None,
    ) -> None:
        """Writes `episodes`, those to learn from, to a file; takes the metrics of all `sampled`."""
        session, vines = self.session, self.cfg.log.vines
        by_step, values = (credit.by_step, credit.values) if credit else (None, None)
        rows = episode_rows(
            session.tokenizer, problems, episodes, by_step, self.number, vines, values
        )
        self.log.episodes(self.number, rows)
        stats = session.sampler.stats.minus(self._engine_before)
        graded = session.graded.stats.minus(self._graded_before)
        self.metrics |= metrics.episode_metrics(sampled) | metrics.value_metrics(episodes, by_step)
        if self.cfg.reset.source != "none":
            self.metrics |= metrics.reset_metrics(sampled)
        self.metrics |= metrics.engine_metrics(stats, episodes, self.log.timings)
        self.metrics |= metrics.grading_metrics(graded)
        self.spent = self.spent.plus(tokens=stats.decoded_tokens)

    def record(self, state: RunState) -> Spent:
        """Writes the iteration's line of metrics; returns the run's new totals."""
        self.spent = self.spent.timed(self.log.timings)
        made = compiles().since(self._compiles_before)
        compiled = {"perf/compiles": made.programs, "perf/compile_s": made.seconds}
        values = self.metrics | self.log.timings | compiled | self.spent.metrics()
        self.log.metrics(self.number, int(state.policy.step), "train", values)
        return self.spent
