"""Resets as an option of a run: another sampler in the stage that samples solutions."""

import dataclasses
import functools
from collections.abc import Callable

from vinejax.contrib.resets.reset_sampler import ResetSampler
from vinejax.contrib.resets.settings import ResetConfig
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config
from vinejax.core.types import PromptedProblem, RunState
from vinejax.methods.base import Method
from vinejax.session.iteration import Iteration, Solutions

Sample = Callable[[Iteration, RunState, list[PromptedProblem]], Solutions]


def composed(method: Method, cfg: Config) -> Method:
    """The method, with resets among its solutions if `reset.source` asks for them.

    Raises ConfigError for a method that samples in a way of its own.
    """
    source = ResetConfig.of(cfg).source
    if source == "none":
        return method
    if not method.is_policy_gradient or method.has_own_sampling:
        rule = f"must be 'none' for method = {cfg.method!r}, which samples in a way of its own"
        raise ConfigError("reset.source", rule, repr(source))
    if method.resolve(cfg).rollout.zero_variance == "resample":
        rule = "must be 'none' with rollout.zero_variance = 'resample', which samples from prompts"
        raise ConfigError("reset.source", rule, repr(source))
    return dataclasses.replace(method, sample=functools.partial(_with_resets, method.sample))


def _with_resets(
    sample: Sample, iteration: Iteration, state: RunState, problems: list[PromptedProblem]
) -> Solutions:
    session = iteration.session
    iteration.sampler = ResetSampler(
        session.engine, session.graded, iteration.cfg, iteration.number
    )
    return sample(iteration, state, problems)
