"""Fits a configuration to a task that has an environment, or that has none."""

import dataclasses

from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config, EnvConfig
from vinejax.methods.base import Method
from vinejax.tasks.base import StepRewarded, Task
from vinejax.tasks.environment import MultiTurn


def with_environment(cfg: Config, task: Task) -> Config:
    """The configuration, with `env` at its defaults if the task has no environment.

    With a larger `env.observed` than the default, rows would keep room for observations that the
    task never has.
    """
    if isinstance(task, MultiTurn):
        return cfg
    return dataclasses.replace(cfg, env=EnvConfig())


def check_environment(cfg: Config, method: Method, task: Task) -> None:
    """Raises ConfigError if the method or a setting does not fit the task.

    `MultiTurn` tasks have an environment, other tasks none. `cfg` comes from `method.resolve`.
    """
    if not isinstance(task, MultiTurn):
        if cfg.values.positions == "turns":
            message = f"task {task.name} has no turns; leave it out"
            raise ConfigError("values.positions", message, "'turns'")
        return
    if isinstance(task, StepRewarded):
        message = "its environment gives the rewards of turns: leave out `step_rewards` or `env`"
        raise ConfigError("data.task", message, repr(cfg.data.task))
    if method.has_own_sampling and "turns" not in method.flags:
        message = f"samples in a way of its own, and task {task.name} has turns; take another"
        raise ConfigError("method", message, repr(cfg.method))
    if cfg.reward.functions:
        message = f"must be () for task {task.name}, whose environment gives the rewards"
        raise ConfigError("reward.functions", message, repr(cfg.reward.functions))
    if not cfg.env.observed:
        message = f"must be at least 1 for task {task.name}: what its environment says takes tokens"
        raise ConfigError("env.observed", message, "0")
