"""The method of a run: its record, with stages that the options of the run wrap.

The record is composed once, when the run starts, so no stage asks which options are set. An option
is a module, here or in `vinejax/contrib/`, with a function `composed(method, cfg)` that returns the
method with other stages.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from vinejax.core.accessories import contributed_module
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config
from vinejax.core.types import Episode, PromptedProblem, Rollout, RunState, TrainState
from vinejax.credit.assign import Credit
from vinejax.credit.labels import with_labels
from vinejax.methods import adaptive_kl, group_filter
from vinejax.methods.base import Method
from vinejax.methods.credit_by_role import credit_by_role, has_roles
from vinejax.methods.known import find_method
from vinejax.methods.stages import ENTROPY
from vinejax.methods.vineppo import vine
from vinejax.rollout.overlong import penalised_episodes
from vinejax.runtime.distributed import barrier
from vinejax.session.iteration import Iteration, Solutions
from vinejax.session.session import Session

PRIOR = "prior_function"  # the option of a `values.prior` that is the dotted path of a function


def method_of(cfg: Config) -> Method:
    """The method that `cfg.method` names, changed by the contributed options that are set.

    Raises the errors of `find_method`, and ConfigError if an option does not fit the method.
    """
    method = find_method(cfg.method)
    for name in options_of(cfg):
        if option := contributed_module("OPTIONS", name):
            method = option.composed(method, cfg)
    if method.credit is vine and has_roles(cfg):
        method = dataclasses.replace(method, credit=credit_by_role)
    if cfg.credit.labels != "off" and method.credit is not None:
        method = dataclasses.replace(method, credit=functools.partial(_labelled, method.credit))
    return method


def _labelled(credit: Callable[[Rollout, Config], Credit], rollout: Rollout, cfg: Config) -> Credit:
    """The result of the method's function `credit`, with labels."""
    return with_labels(credit(rollout, cfg), rollout, cfg)


def options_of(cfg: Config) -> list[str]:
    """The names of the contributed options that a configuration sets."""
    names = [*cfg.sections]
    if cfg.values.prior not in ("", "probe"):
        if contributed_module("OPTIONS", PRIOR) is None:
            raise ConfigError("values.prior", "must be '' or 'probe'", repr(cfg.values.prior))
        names.append(PRIOR)
    return names


def composed(method: Method, cfg: Config) -> Method:
    """The method that `method_of` returned, with stages that follow the options of the run.

    `cfg` must come from `Method.resolve`. After sampling, `sample` filters and penalises solutions.
    `score` keeps the outputs that the method's state reads. `update` updates this state before the
    policy, and adapts the KL's coefficient to `kl.target`. These stages and `values` are timed.
    """
    if not method.is_policy_gradient:
        return method
    reads = method.state.reads(cfg) | ({ENTROPY} if cfg.credit.mask == "top_entropy" else set())
    reference = method.reads_reference(cfg)
    score = functools.partial(method.score, keep=frozenset(reads), has_reference=reference)
    method = dataclasses.replace(method, score=score)
    method = group_filter.composed(method, cfg)
    method = adaptive_kl.composed(method, cfg)
    return dataclasses.replace(
        method,
        sample=staged("rollout", functools.partial(_sample, method), after=_record_sampling),
        values=staged("value", method.values, after=_release),
        score=staged("score", functools.partial(_score, method)),
        update=staged("train", functools.partial(_update, method), after=_record_episodes),
    )


def fresh_run(session: Session, policy: TrainState) -> RunState:
    """The state of a run before the first iteration."""
    kept = session.method.state.fresh(session)
    return RunState(policy, kept, adaptive_kl.fresh(session.cfg))


def staged(
    name: str, stage: Callable[..., Any], after: Callable[..., None] | None = None
) -> Callable[..., Any]:
    """A function that runs `stage`, times it as `timing_s/<name>`, and then calls `after`.

    `stage` takes the iteration, the run's state and the results of earlier stages. `after` takes
    the iteration, the result of `stage` and the results of earlier stages.
    """

    def timed(iteration: Iteration, state: RunState, *earlier: Any) -> Any:
        with iteration.log.stage(name):
            result = stage(iteration, state, *earlier)
        if after is not None:
            after(iteration, result, *earlier)
        return result

    return timed


def _sample(
    method: Method, iteration: Iteration, state: RunState, problems: list[PromptedProblem]
) -> Solutions:
    """The method's solutions, in which overlong solutions have their penalties."""
    solutions = method.sample(iteration, state, problems)
    episodes = penalised_episodes(solutions.episodes, iteration.cfg)
    return solutions._replace(episodes=episodes)


def _score(
    method: Method, iteration: Iteration, state: RunState, episodes: list[Episode]
) -> Rollout:
    """The rollout of `episodes` with log-probabilities and, if the method has any, learned values.

    The method's state, for instance PPO's critic, gives the learned values.
    """
    rollout = method.score(iteration, state, episodes)
    return method.state.valued(iteration, state.kept, rollout)


def _update(
    method: Method, iteration: Iteration, state: RunState, rollout: Rollout, credit: Credit
) -> RunState:
    """The state after updates, first of what the method keeps and then of the policy."""
    # Stops the run if hosts have sampled different solutions, before they update together.
    barrier("train", [(episode.tokens, episode.rewards) for episode in rollout.episodes])
    state = method.state.learn(iteration, state, rollout, credit)
    return method.update(iteration, state, rollout, credit)


def _record_sampling(iteration: Iteration, solutions: Solutions, *_: Any) -> None:
    iteration.record_sampling(solutions.sampled)


def _release(iteration: Iteration, *_: Any) -> None:
    iteration.session.engine.release()


def _record_episodes(
    iteration: Iteration, state: RunState, rollout: Rollout, credit: Credit
) -> None:
    iteration.record_episodes(rollout.episodes, credit)
