"""The option of a run that makes some solutions begin in the middle of known solutions."""

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
    """The method with a sampling stage that has resets, if `reset.source` asks for resets.

    Raises ConfigError if the method has its own way to sample, or resamples groups.
    """
    source = ResetConfig.of(cfg).source
    if source == "none":
        return method
    if not method.is_policy_gradient or method.has_own_sampling:
        message = f"must be 'none' for method = {cfg.method!r}, which has a sampler of its own"
        raise ConfigError("reset.source", message, repr(source))
    if method.resolve(cfg).rollout.zero_variance == "resample":
        message = "must be 'none' with rollout.zero_variance = 'resample', which begins at prompts"
        raise ConfigError("reset.source", message, repr(source))
    return dataclasses.replace(method, sample=functools.partial(_with_resets, method.sample))


def _with_resets(
    sample: Sample, iteration: Iteration, state: RunState, problems: list[PromptedProblem]
) -> Solutions:
    session = iteration.session
    iteration.sampler = ResetSampler(
        session.engine, session.graded, iteration.cfg, iteration.number
    )
    return sample(iteration, state, problems)
