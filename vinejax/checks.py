"""Every check of the configuration: what each field may be, and what fits with what."""

import importlib.util
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from vinejax.errors import ConfigError
from vinejax.methods import METHODS, find_method
from vinejax.settings import Config

AT_LEAST_ONE = (
    *(
        "data.max_prompt_tokens",
        "sample.max_tokens",
        "values.k",
        "eval.samples",
        "eval.problems",
    ),
    *("rollout.prompts", "rollout.per_prompt", "rollout.slots", "sft.batch"),
    *("grader.workers", "grader.memory_mb"),
    *("ppo.epochs", "ppo.minibatch", "ppo.microbatch", "checkpoint.every", "checkpoint.keep"),
    *("model.num_layers", "model.width", "model.num_heads", "model.num_kv_heads"),
    *("model.ffn", "model.context", "dapo.rounds", "budget.prompts", "budget.episodes"),
    *("budget.updates", "restem.problems", "restem.keep", "restem.epochs", "restem.eval_every"),
    *("dpo.problems", "dpo.pairs", "dpo.epochs"),
    *("distributed.timeout_s", "distributed.heartbeat_s", "distributed.port"),
    *("plan.timeout_s", "plan.tokens", "plan.steps"),
)
NOT_NEGATIVE = (
    *("iterations", "eval.every", "log.vines", "sample.top_k", "sft.steps", "values.max_states"),
    *("kl.coef", "eval.temperature", "optimizer.weight_decay", "critic.warmup_iterations"),
    *("dpo.penalty", "opmd.tau"),
)
POSITIVE = (
    *("ppo.clip", "optimizer.learning_rate", "sft.learning_rate", "optimizer.eps"),
    *("optimizer.max_grad_norm", "grader.timeout_s", "rollout.memory_gib", "ppo.clip_high"),
    *("critic.clip", "critic.learning_rate", "dpo.beta"),
)
FRACTION = (*("optimizer.warmup_fraction", "sft.warmup_fraction", "optimizer.b1", "optimizer.b2"),)
CHOICES = {
    "model.compute_dtype": ("float32", "bfloat16"),
    "model.attention": ("auto", "xla", "splash", "cudnn"),
    "model.remat": ("none", "dots", "full"),
    "values.budget": ("left", "fresh"),
    "grader.mode": ("strict", "reference"),
    "grader.unreadable": ("drop", "keep"),
    "ppo.whiten": ("method", "iteration", "minibatch", "none"),
    "ppo.reduction": ("method", "token", "sequence", "budget"),
    "sft.reduction": ("token", "sequence"),
    "kl.reduction": ("policy", "token", "sequence"),
    "optimizer.warmup": ("linear", "log"),
}


def check(cfg: Config, given: Collection[str] = ()) -> None:
    """Refuses a configuration that cannot be meant, before anything is loaded or written.

    `given` are fields that were set, as `config.given` has them: one that the method does not read
    is refused even at its default.

    Raises:
      ConfigError: names the first such field, its value, and what it may be.
    """
    values = dict(flatten(cfg))

    def require(names: tuple[str, ...], test: Callable[[Any], bool], rule: str) -> None:
        for name in names:
            if values[name] is not None and not test(values[name]):
                raise ConfigError(name, rule, repr(values[name]))

    # First, so that no other test meets a NaN, for which every comparison is false.
    numbers = tuple(name for name, value in values.items() if isinstance(value, float))
    require(numbers, math.isfinite, "must be a finite number")
    require(AT_LEAST_ONE, lambda x: x >= 1, "must be at least 1")
    require(NOT_NEGATIVE, lambda x: x >= 0, "must not be negative")
    require(POSITIVE, lambda x: x > 0, "must be greater than 0")
    require(FRACTION, lambda x: 0 <= x < 1, "must be at least 0 and less than 1")
    require(("sample.top_p", "eval.top_p"), lambda x: 0 < x <= 1, "must be over 0 and at most 1")
    require(("dapo.overlong",), lambda x: 0 <= x < 1, "must be at least 0 and less than 1")
    require(("asymre.shift",), lambda x: -1 <= x <= 1, "must be from -1 to 1")
    require(("ppo.gamma", "critic.lam"), lambda x: 0 <= x <= 1, "must be from 0 to 1")
    # JAX keeps 32 bits of a seed and drops the rest without a word.
    require(("seed",), lambda x: 0 <= x < 2**32, "must be from 0 to 2**32 - 1")
    for name, choices in CHOICES.items():
        require((name,), choices.__contains__, "must be " + " or ".join(map(repr, choices)))
    _check_method(cfg, given)
    _check_sampling(cfg)
    _check_batches(cfg)
    _check_model(cfg)
    _check_run(cfg)
    _check_devices(cfg)


def flatten(fields: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted names and values of a configuration, in the order of its fields."""
    flat = []
    for name, value in vars(fields).items():
        group = hasattr(value, "__dataclass_fields__")
        flat += flatten(value, f"{prefix}{name}.") if group else [(prefix + name, value)]
    return flat


def _check_method(cfg: Config, given: Collection[str]) -> None:
    """Refuses fields that the method does not read, and groups of one where it compares."""
    method = find_method(cfg.method)
    defaults = dict(flatten(Config()))
    for name, value in flatten(cfg):
        section = name.partition(".")[0]
        owners = [owner for owner, record in METHODS.items() if section in record.sections]
        is_set = value != defaults[name] or name in given
        if owners and section not in method.sections and is_set:
            rule = f"is read by method = {owners[0]!r} alone, and this run has {cfg.method!r}"
            raise ConfigError(name, f"{rule}; leave it out", repr(value))
        if section in method.ignores and value != defaults[name]:
            rule = f"is not read by method = {cfg.method!r}, which has fields of its own for this"
            raise ConfigError(name, f"{rule}; leave it out", repr(value))
    if method.needs_groups and cfg.rollout.per_prompt < 2:
        rule = (
            f"must be at least 2 for method = {cfg.method!r}: a solution is compared, or paired, "
            "with the others of its problem"
        )
        raise ConfigError("rollout.per_prompt", rule, repr(cfg.rollout.per_prompt))


def _check_sampling(cfg: Config) -> None:
    if cfg.sample.temperature <= 0:
        rule = (
            "must be greater than 0: argmax makes all solutions of a problem, and all continuations"
            " of a state, equal, so there is nothing to learn from (eval.temperature may be 0)"
        )
        raise ConfigError("sample.temperature", rule, repr(cfg.sample.temperature))
    if "" in cfg.sample.stop:
        raise ConfigError("sample.stop", "holds an empty string, which stops every text at once")


def _check_batches(cfg: Config) -> None:
    ppo = cfg.ppo
    if ppo.microbatch and ppo.minibatch % ppo.microbatch:
        rule = f"must divide ppo.minibatch = {ppo.minibatch}"
        raise ConfigError("ppo.microbatch", rule, repr(ppo.microbatch))
    if ppo.microbatch and cfg.sft.batch % ppo.microbatch:
        rule = f"must be a multiple of ppo.microbatch = {ppo.microbatch}"
        raise ConfigError("sft.batch", rule, repr(cfg.sft.batch))
    episodes, group = cfg.budget.episodes, cfg.rollout.per_prompt
    if episodes is not None and episodes < group:
        rule = f"must be at least rollout.per_prompt = {group}: only whole groups are sampled"
        raise ConfigError("budget.episodes", rule, repr(episodes))
    if ppo.max_ratio <= 1:
        rule = "must be over 1, the mean ratio of a policy that has not moved"
        raise ConfigError("ppo.max_ratio", rule, repr(ppo.max_ratio))


def _check_model(cfg: Config) -> None:
    model = cfg.model
    if model.architecture and not Path(model.architecture).is_file():
        raise ConfigError("model.architecture", "no such file", repr(model.architecture))
    if model.path:
        return  # the sizes come with the weights
    if model.num_heads % model.num_kv_heads:
        rule = f"must divide model.num_heads = {model.num_heads}"
        raise ConfigError("model.num_kv_heads", rule, repr(model.num_kv_heads))
    if model.width % (2 * model.num_heads):
        rule = (
            f"must be a multiple of 2 * model.num_heads = {2 * model.num_heads}: RoPE turns pairs"
        )
        raise ConfigError("model.width", rule, repr(model.width))


def _check_run(cfg: Config) -> None:
    if not cfg.data.task:
        raise ConfigError("data.task", "names no task; try vinejax.tasks.arithmetic", "''")
    if cfg.profile:
        start, colon, stop = cfg.profile.partition(":")
        whole = colon and start.isdecimal() and stop.isdecimal()
        if not (whole and int(start) < int(stop)):
            rule = "must be 'start:stop', two iterations with start < stop, or '' for no trace"
            raise ConfigError("profile", rule, repr(cfg.profile))
    if cfg.log.wandb and importlib.util.find_spec("wandb") is None:
        rule = "needs the wandb package: pip install 'vinejax[wandb]', or set log.wandb to ''"
        raise ConfigError("log.wandb", rule, repr(cfg.log.wandb))


def _check_devices(cfg: Config) -> None:
    layouts = {"mesh": cfg.mesh} | {f"meshes.{name}": row for name, row in cfg.meshes.items()}
    for group, mesh in layouts.items():
        sizes = {"data": mesh.data, "fsdp": mesh.fsdp, "tensor": mesh.tensor}
        for name, size in sizes.items():
            if size < 1 and size != -1:
                rule = "must be at least 1, or -1 for whatever devices are left"
                raise ConfigError(f"{group}.{name}", rule, repr(size))
        if list(sizes.values()).count(-1) > 1:
            raise ConfigError(group, "at most one of data, fsdp and tensor may be -1", str(sizes))
    minibatch, batch = cfg.ppo.minibatch, cfg.sft.batch
    for name, row in cfg.meshes.items():
        if row.slots is not None and row.slots < 1:
            raise ConfigError(f"meshes.{name}.slots", "must be at least 1", repr(row.slots))
        if row.microbatch is not None and (
            row.microbatch < 1 or math.gcd(minibatch, batch) % row.microbatch
        ):
            both = f"ppo.minibatch = {minibatch} and sft.batch = {batch}"
            rule = f"must be at least 1, and divide {both}"
            raise ConfigError(f"meshes.{name}.microbatch", rule, repr(row.microbatch))
        if row.memory_gib is not None and not 0 < row.memory_gib < math.inf:
            rule = "must be greater than 0"
            raise ConfigError(f"meshes.{name}.memory_gib", rule, repr(row.memory_gib))
    # Heartbeats are lost a few at a time on a busy host; half a minute is what JAX users live with.
    if cfg.distributed.heartbeat_s > 30:
        rule = "must be at most 30, so that a dead host ends the others within a minute"
        raise ConfigError("distributed.heartbeat_s", rule, repr(cfg.distributed.heartbeat_s))
    if cfg.distributed.port > 65535:
        raise ConfigError("distributed.port", "must be at most 65535", repr(cfg.distributed.port))
