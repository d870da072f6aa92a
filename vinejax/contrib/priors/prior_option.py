"""The option of a run that replaces the method's learned value by a user's function."""

import dataclasses
from collections.abc import Callable, Set
from typing import Any

import numpy as np

from vinejax.contrib.priors import platt
from vinejax.contrib.priors.platt import Scaling
from vinejax.contrib.priors.prior_function import find_prior, function_values
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config
from vinejax.core.types import Problem, Rollout
from vinejax.methods.base import Method
from vinejax.methods.learned_value import LearnedValue
from vinejax.model.decoder import Decoder, Params
from vinejax.model.hf.weights import RewardModel
from vinejax.session.session import Session
from vinejax.tasks.base import Task


def composed(method: Method, cfg: Config) -> Method:
    """The method, whose learned value is the user's function that `values.prior` names.

    Raises ConfigError if `values.prior` names no function, or if its module fails.
    """
    if find_prior(cfg.values) is None:
        raise ConfigError("prior_function", "needs a function's path as values.prior; leave it out")
    if not isinstance(method.state, LearnedValue):
        return method  # the check of fields then names `values.*` as unread by the method
    return dataclasses.replace(method, state=FunctionPrior())


class FunctionPrior(LearnedValue):
    """The state of a method whose learned value comes from a user's function.

    The state keeps the `Scaling` of the function's numbers.
    """

    rule = platt

    def reads(self, cfg: Config) -> Set[str]:
        return frozenset()

    def fresh_prior(self, model: Decoder, cfg: Config) -> Scaling:
        return platt.fresh_scaling()

    def features(
        self, session: Session, rollout: Rollout, kept: Scaling, cfg: Config
    ) -> np.ndarray:
        """Logits of the function's numbers, f64[S, 1]. Raises the errors of `function_values`."""
        return platt.logits(function_values(session, rollout, cfg))

    def check_problem(self, cfg: Config, task: Task, problem: Problem) -> None:
        """Raises UserError if the user's function requires an argument that `problem` lacks."""
        prior = find_prior(cfg.values)
        assert prior is not None
        prior.check(problem, task.name, task.prompt)

    def reward_model(
        self, cfg: Config, model: Decoder, params: Params, restore: Callable[[Any], Any]
    ) -> RewardModel | None:
        return None
