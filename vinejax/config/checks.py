"""Every check of the configuration: the rules of core/settings.py, and how fields fit together."""

import dataclasses
import importlib.util
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from vinejax.config.load import SECTIONS, not_read
from vinejax.core.errors import ConfigError
from vinejax.core.settings import PROJECTIONS, Config, GraderConfig, MethodSettings, flatten
from vinejax.credit.rules import check_rules
from vinejax.methods import METHODS, find_method
from vinejax.methods.base import Method
from vinejax.methods.judged import PROBE, find_prior
from vinejax.tasks.rewards import TASK, find_rewards

DEFAULTS = dict(flatten(Config()))  # of the fields that all methods share, by dotted name


class Need(NamedTuple):
    """What has to be so that fields have an effect; where it is not, they are refused."""

    fields: tuple[str, ...]
    holds: Callable[[Config], Any]  # of a configuration that its method was applied to
    words: str


NEEDS = (
    Need(("reset.at",), lambda c: c.reset.source != "none", "reset.source other than 'none'"),
    Need(("reset.share",), lambda c: c.reset.source == "gold", "reset.source = 'gold'"),
    Need(
        ("reset.target",),
        lambda c: c.reset.source not in ("none", "gold") or c.reset.at == "edge",
        "reset.source = 'solved', 'failed' or 'both', or reset.at = 'edge'",
    ),
    Need(("reset.k",), lambda c: c.reset.at == "edge", "reset.at = 'edge'"),
    Need(
        tuple(f"optimizer.{name}" for name in ("b1", "b2", "eps")),
        lambda c: c.optimizer.name == "adamw",
        "optimizer.name = 'adamw'",
    ),
    Need(
        ("model.lora_alpha", "model.lora_targets"), lambda c: c.model.lora_rank, "model.lora_rank"
    ),
    Need(("ppo.shift_mean",), lambda c: c.ppo.whiten != "none", "ppo.whiten other than 'none'"),
    Need(
        tuple(f"grader.{name}" for name, _ in flatten(GraderConfig())),
        lambda c: not c.reward.functions or TASK in c.reward.functions,
        f"{TASK!r} in reward.functions",
    ),
    Need(
        ("values.prior_timeout_s",),
        lambda c: c.values.prior not in ("", PROBE),
        "a function as values.prior",
    ),
    Need(("log.wandb_name", "log.wandb_group"), lambda c: c.log.wandb, "log.wandb"),
)


def check_config(cfg: Config, given: Collection[str] = ()) -> None:
    """Refuses an impossible configuration, before anything is loaded or written.

    `given` names the fields that were set, as `config.fields_set` lists them: a field that the
    method does not read is refused even at its default. Raises ConfigError, which names the first
    field that is wrong, its value, and the values that are allowed.
    """
    _check_rules(cfg)
    method = find_method(cfg.method)

    def is_set(name: str, value: Any) -> bool:
        return value != DEFAULTS[name] or name in given

    _check_method(cfg, method, is_set, given)
    check_rules(method.applied_to(cfg), is_set)
    find_rewards(cfg.reward)
    find_prior(cfg.values)
    _check_read(cfg, method, is_set)
    _check_resets(cfg, method)
    _check_sampling(cfg)
    _check_chat(cfg)
    _check_batches(cfg)
    _check_model(cfg)
    _check_adapters(cfg, method)
    _check_run(cfg)
    _check_devices(cfg)


def _check_rules(section: Any, prefix: str = "") -> None:
    """Refuses the first value that breaks its field's rule, or holds a float that is not finite."""
    for name, hint in get_type_hints(type(section), include_extras=True).items():
        value, dotted = getattr(section, name), prefix + name
        entries = value if isinstance(value, tuple) else (value,)
        if isinstance(value, MethodSettings):
            _check_rules(value, f"{value.section}.")
        elif dataclasses.is_dataclass(value):
            _check_rules(value, f"{dotted}.")
        elif isinstance(value, dict):
            for key, row in value.items():
                _check_rules(row, f"{dotted}.{key}.")
        elif any(isinstance(x, float) and not math.isfinite(x) for x in entries):
            raise ConfigError(dotted, "must be a finite number", repr(value))
        elif value is not None:
            parts = (hint, *get_args(hint))  # of `Count`, or of `Count | None`
            rules = [rule for part in parts for rule in getattr(part, "__metadata__", ())]
            for rule in rules:
                if not rule.holds(value):
                    raise ConfigError(dotted, rule.text, repr(value))


def _check_method(
    cfg: Config, method: Method, is_set: Callable[[str, Any], bool], given: Collection[str]
) -> None:
    """Refuses fields that the method does not read, and groups of 1 if it compares solutions."""
    shared = {section for record in METHODS.values() for section in record.reads}
    for name, value in flatten(cfg):
        section = name.partition(".")[0]
        if section in shared and section not in method.reads and is_set(name, value):
            raise not_read(name, value, cfg.method)
        if {section, name} & set(method.ignores) and value != DEFAULTS[name]:
            rule = f"is not read by method = {cfg.method!r}; leave it out"
            raise ConfigError(name, rule, repr(value))
    for name in given:
        section = name.partition(".")[0]
        if section in SECTIONS and section != method.settings.section:
            defaults = dict(flatten(SECTIONS[section](), f"{section}."))
            raise not_read(name, defaults[name], cfg.method)
    if method.needs_groups and cfg.rollout.per_prompt < 2:
        rule = (
            f"must be at least 2 for method = {cfg.method!r}: a solution is compared, or paired, "
            "with the others of its problem"
        )
        raise ConfigError("rollout.per_prompt", rule, repr(cfg.rollout.per_prompt))
    if cfg.own is not None and type(cfg.own) is not method.settings:
        rule = f"is {type(cfg.own).__name__}, not {method.settings.__name__}; leave it out"
        raise ConfigError("own", f"{rule}, or set those of method = {cfg.method!r}")
    method.settings.of(cfg).check(cfg)


def _check_read(cfg: Config, method: Method, is_set: Callable[[str, Any], bool]) -> None:
    """Refuses fields that have no effect beside the others."""
    applied, values = method.applied_to(cfg), dict(flatten(cfg))
    for need in NEEDS:
        for field in need.fields:
            if is_set(field, values[field]) and not need.holds(applied):
                raise ConfigError(field, f"needs {need.words}; leave it out", repr(values[field]))


def _check_resets(cfg: Config, method: Method) -> None:
    """Refuses resets that the method or a rule cannot have."""
    reset = cfg.reset
    is_any = reset.source != "none"
    is_own = is_any and reset.source != "gold"
    if is_any and (not method.is_policy_gradient or method.has_own_sampling):
        rule = f"must be 'none' for method = {cfg.method!r}, which samples in a way of its own"
        raise ConfigError("reset.source", rule, repr(reset.source))
    chosen = f"for reset.source = {reset.source!r}, whose solutions are chosen by their reward"
    if is_own and cfg.values.reuse:
        raise ConfigError("values.reuse", f"must be False {chosen}", "True")


def _check_sampling(cfg: Config) -> None:
    if cfg.sample.temperature <= 0:
        rule = (
            "must be greater than 0: argmax makes all solutions of a problem, and all continuations"
            " of a state, equal, so there is nothing to learn from (eval.temperature may be 0)"
        )
        raise ConfigError("sample.temperature", rule, repr(cfg.sample.temperature))
    if "" in cfg.sample.stop:
        raise ConfigError("sample.stop", "holds an empty string, which stops every text at once")


def _check_chat(cfg: Config) -> None:
    """Refuses what only a chat template reads where there is none."""
    for name in ("system", "template_vars"):
        value = getattr(cfg.data, name)
        if value and not cfg.data.chat_template:
            raise ConfigError(f"data.{name}", "needs data.chat_template; leave it out", repr(value))


def _check_batches(cfg: Config) -> None:
    ppo = cfg.ppo
    if ppo.microbatch and ppo.minibatch % ppo.microbatch:
        rule = f"must divide ppo.minibatch = {ppo.minibatch}"
        raise ConfigError("ppo.microbatch", rule, repr(ppo.microbatch))
    if ppo.microbatch and cfg.sft.batch % ppo.microbatch:
        rule = f"must be a multiple of ppo.microbatch = {ppo.microbatch}"
        raise ConfigError("sft.batch", rule, repr(cfg.sft.batch))
    if ppo.share_prefixes == "on" and not ppo.packing:
        raise ConfigError("ppo.share_prefixes", "needs ppo.packing; leave it out", "'on'")
    episodes, group = cfg.budget.episodes, cfg.rollout.per_prompt
    if episodes is not None and episodes < group:
        rule = f"must be at least rollout.per_prompt = {group}: only whole groups are sampled"
        raise ConfigError("budget.episodes", rule, repr(episodes))


def _check_model(cfg: Config) -> None:
    model = cfg.model
    if model.architecture and not Path(model.architecture).expanduser().is_file():
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


def _check_adapters(cfg: Config, method: Method) -> None:
    """Refuses adapters on what is no projection, and where all weights are needed."""
    model = cfg.model
    if not model.lora_rank:
        return
    unknown = [name for name in model.lora_targets if name not in PROJECTIONS]
    if unknown or not model.lora_targets:
        rule = f"must be some of {', '.join(PROJECTIONS)}"
        raise ConfigError("model.lora_targets", rule, repr(model.lora_targets))
    if method.state.has_critic:
        rule = f"must be 0 for method = {cfg.method!r}, whose critic is trained with all weights"
        raise ConfigError("model.lora_rank", rule, repr(model.lora_rank))
    if cfg.offload.reference:
        rule = "must be False with model.lora_rank: the reference is a part of the policy"
        raise ConfigError("offload.reference", rule, "True")


def _check_run(cfg: Config) -> None:
    if cfg.profile:
        start, colon, stop = cfg.profile.partition(":")
        whole = colon and start.isdecimal() and stop.isdecimal()
        if not (whole and int(start) < min(int(stop), cfg.iterations)):
            rule = "must be 'start:stop' with start < stop and start < iterations, or '': no trace"
            raise ConfigError("profile", rule, repr(cfg.profile))
    if cfg.log.wandb and importlib.util.find_spec("wandb") is None:
        rule = "needs the wandb package: pip install 'vinejax[wandb]', or set log.wandb to ''"
        raise ConfigError("log.wandb", rule, repr(cfg.log.wandb))


def _check_devices(cfg: Config) -> None:
    layouts = {"mesh": cfg.mesh} | {f"meshes.{name}": row for name, row in cfg.meshes.items()}
    for group, mesh in layouts.items():
        sizes = {"data": mesh.data, "fsdp": mesh.fsdp, "tensor": mesh.tensor}
        if list(sizes.values()).count(-1) > 1:
            raise ConfigError(group, "at most one of data, fsdp and tensor may be -1", str(sizes))
    minibatch, batch = cfg.ppo.minibatch, cfg.sft.batch
    for name, row in cfg.meshes.items():
        if row.microbatch is not None and (
            row.microbatch < 1 or math.gcd(minibatch, batch) % row.microbatch
        ):
            both = f"ppo.minibatch = {minibatch} and sft.batch = {batch}"
            rule = f"must be at least 1, and divide {both}"
            raise ConfigError(f"meshes.{name}.microbatch", rule, repr(row.microbatch))
