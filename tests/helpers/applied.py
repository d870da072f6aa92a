"""What a run does with a method, a configuration and an engine, in one call each.

`open_session` applies the method to the configuration; here every function does so itself.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar
from unittest import mock

import pytest

from vinejax.core.settings import Config
from vinejax.core.types import Episode, PromptedProblem, Rollout
from vinejax.credit.assign import Credit
from vinejax.learner.policy import PolicyObjective
from vinejax.methods.base import policy_gradient
from vinejax.methods.compose import method_of
from vinejax.model.decoder import Decoder
from vinejax.rollout import vine
from vinejax.rollout.sampler import Sampler
from vinejax.session.session import Session
from vinejax.tasks.graded import GradedTask
from vinejax.training import loop

Kind = TypeVar("Kind")
MANY = 2**62  # groups of solutions: no bound


def run_instead(patch: pytest.MonkeyPatch, stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """Lets runs call `stand_in(method, it, state)` as an iteration; returns the true function."""
    opened = loop.open_session

    def opened_with(*arguments: Any, **options: Any) -> Session:
        session = opened(*arguments, **options)
        method = dataclasses.replace(session.method, iteration=stand_in)
        return dataclasses.replace(session, method=method)

    patch.setattr(loop, "open_session", opened_with)
    return policy_gradient


def stand_in(kind: type[Kind], **fields: Any) -> Kind:
    """An object that passes for a `kind`, with these attributes alone."""
    found: Any = mock.Mock(spec_set=[*dir(kind), *fields])
    found.__class__ = kind
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def applied(cfg: Config) -> Config:
    """The configuration with its method's choices."""
    return method_of(cfg).resolve(cfg)


def policy_objective(model: Decoder, cfg: Config) -> PolicyObjective:
    """The objective of the configured method."""
    return method_of(cfg).objective(model, applied(cfg))


def assign_credit(rollout: Rollout, cfg: Config, whiten: Any = None) -> Credit:
    """The credit of the configured method; `whiten` replaces `ppo.whiten`, if it is given."""
    cfg = applied(cfg)
    if whiten is not None:
        cfg = dataclasses.replace(cfg, ppo=dataclasses.replace(cfg.ppo, whiten=whiten))
    return method_of(cfg).assign(rollout, cfg)


def sampler(
    engine: Any,
    graded: GradedTask,
    cfg: Config,
    iteration: int = 0,
    kind: type[Sampler] = Sampler,
) -> Sampler:
    """The sampler of an iteration."""
    return kind(engine, graded, applied(cfg), iteration)


def sample_episodes(
    engine: Any,
    params: Any,
    graded: GradedTask,
    problems: list[PromptedProblem],
    cfg: Config,
    iteration: int = 0,
    most: int = MANY,
    kind: type[Sampler] = Sampler,
) -> list[Episode]:
    """Solutions of an iteration."""
    return sampler(engine, graded, cfg, iteration, kind).solutions(params, problems, most)


def fill_values(
    engine: Any,
    params: Any,
    graded: GradedTask,
    problems: list[PromptedProblem],
    episodes: list[Episode],
    cfg: Config,
    iteration: int = 0,
    kind: type[Sampler] = Sampler,
) -> list[Episode]:
    """The episodes with values of their states."""
    found = sampler(engine, graded, cfg, iteration, kind)
    return vine.fill_values(found, params, problems, episodes)
