"""What an iteration samples where resets are configured."""

from typing import Any

from helpers.applied import MANY, applied
from vinejax.contrib.resets.reset_sampler import ResetSampler
from vinejax.core.settings import Config
from vinejax.core.types import Episode, PromptedProblem
from vinejax.rollout import vine
from vinejax.tasks.graded import GradedTask


def sampler(engine: Any, graded: GradedTask, cfg: Config, iteration: int = 0) -> ResetSampler:
    """The sampler of an iteration; its plain solutions are those of `helpers.applied.sampler`."""
    return ResetSampler(engine, graded, applied(cfg), iteration)


def sample_episodes(
    engine: Any,
    params: Any,
    graded: GradedTask,
    problems: list[PromptedProblem],
    cfg: Config,
    iteration: int = 0,
    most: int = MANY,
) -> list[Episode]:
    """Solutions of an iteration, those that resets add among them."""
    return sampler(engine, graded, cfg, iteration).solutions(params, problems, most)


def fill_values(
    engine: Any,
    params: Any,
    graded: GradedTask,
    problems: list[PromptedProblem],
    episodes: list[Episode],
    cfg: Config,
    iteration: int = 0,
) -> list[Episode]:
    """The episodes with values of their states."""
    resets = sampler(engine, graded, cfg, iteration)
    return vine.fill_values(resets, params, problems, episodes)
