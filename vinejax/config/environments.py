"""What a configuration and a task with an environment, or without one, ask of each other."""

from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config, EnvConfig, flatten
from vinejax.methods.base import Method
from vinejax.tasks.base import StepRewarded, Task
from vinejax.tasks.environment import MultiTurn


def check_environment(cfg: Config, method: Method, task: Task) -> None:
    """Refuses settings of environments for a task without one, and what a multi-turn task cannot.

    `cfg` is a configuration that its method was applied to. Raises ConfigError.
    """
    if not isinstance(task, MultiTurn):
        _check_without(cfg, task)
        return
    if isinstance(task, StepRewarded):
        rule = "its environment gives the rewards of turns: leave out `step_rewards` or `env`"
        raise ConfigError("data.task", rule, repr(cfg.data.task))
    if method.has_own_sampling and "turns" not in method.flags:
        rule = f"samples in a way of its own, and task {task.name} has turns; take another"
        raise ConfigError("method", rule, repr(cfg.method))
    if cfg.reward.functions:
        rule = f"must be () for task {task.name}, whose environment gives the rewards"
        raise ConfigError("reward.functions", rule, repr(cfg.reward.functions))
    if not cfg.env.observed:
        rule = f"must be at least 1 for task {task.name}: what its environment says takes tokens"
        raise ConfigError("env.observed", rule, "0")


def _check_without(cfg: Config, task: Task) -> None:
    defaults = dict(flatten(EnvConfig(), "env."))
    for name, value in flatten(cfg.env, "env."):
        if value != defaults[name]:
            rule = f"task {task.name} has no environment; leave it out"
            raise ConfigError(name, rule, repr(value))
    if cfg.values.positions == "turns":
        rule = f"task {task.name} has no turns; leave it out"
        raise ConfigError("values.positions", rule, "'turns'")
