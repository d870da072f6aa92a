"""Every check of the configuration: the rules of core/settings.py, and how fields fit together."""

import dataclasses
import importlib.util
import itertools
import math
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from vinejax.config.load import section_of
from vinejax.core.errors import ConfigError
from vinejax.core.sections import MethodSettings, Section
from vinejax.core.settings import PROJECTIONS, Config, GraderConfig, flatten
from vinejax.credit.rules import check_rules
from vinejax.methods.base import Method
from vinejax.methods.compose import method_of
from vinejax.methods.known import METHODS, all_methods, find_method
from vinejax.tasks.rewards import TASK, find_rewards

# Which tokens are trained on is a choice of every policy gradient's, whatever gives its credit.
OF_CREDIT = ("credit.mask", "credit.mask_above", "credit.mask_share")
DEFAULTS = dict(flatten(Config()))  # of the core's fields, by dotted name
# Fields, and groups of fields, that only some methods read.
OF_SOME = {name for method in METHODS.values() for name in method.reads}

OF_LOSS = {  # fields that one of `ppo.loss` reads
    "dual_clip": "clip",
    "gspo_clip": "gspo",
    "cispo_clip": "cispo",
    "sapo_tau": "sapo",
}


class Need(NamedTuple):
    """What has to be so that fields have an effect; where it is not, they are refused."""

    fields: tuple[str, ...]
    holds: Callable[[Config], Any]  # of a configuration that its method was applied to
    words: str


NEEDS = (
    Need(
        tuple(f"optimizer.{name}" for name in ("b1", "b2", "eps")),
        lambda c: c.optimizer.name == "adamw",
        "optimizer.name = 'adamw'",
    ),
    Need(
        ("model.lora_alpha", "model.lora_targets"), lambda c: c.model.lora_rank, "model.lora_rank"
    ),
    Need(
        ("ppo.clip", "ppo.clip_high"),
        lambda c: c.ppo.loss in ("clip", "method"),
        "ppo.loss = 'clip'",
    ),
    *(
        Need((f"ppo.{field}",), lambda c, loss=loss: c.ppo.loss == loss, f"ppo.loss = {loss!r}")
        for field, loss in OF_LOSS.items()
    ),
    Need(
        ("ppo.correction_min", "ppo.correction_max"),
        lambda c: c.ppo.correction != "none",
        "ppo.correction other than 'none'",
    ),
    Need(("ppo.row_tokens",), lambda c: c.ppo.packing, "ppo.packing"),
    Need(("ppo.shift_mean",), lambda c: c.ppo.whiten != "none", "ppo.whiten other than 'none'"),
    Need(
        tuple(f"grader.{name}" for name, _ in flatten(GraderConfig())),
        lambda c: not c.reward.functions or TASK in c.reward.functions,
        f"{TASK!r} in reward.functions",
    ),
    Need(
        ("rollout.flat",),
        lambda c: c.rollout.per_prompt > 1 or c.rollout.flat == "keep",
        "rollout.per_prompt of at least 2",
    ),
    Need(("rollout.rounds",), lambda c: c.rollout.flat == "resample", "rollout.flat = 'resample'"),
    Need(("kl.reduction",), lambda c: c.kl.place == "loss", "kl.place = 'loss'"),
    Need(("kl.target",), lambda c: c.kl.coef, "kl.coef above 0"),
    Need(("kl.horizon",), lambda c: c.kl.target, "kl.target"),
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
    method_of(cfg)  # refuses options that do not fit the method

    def is_set(name: str, value: Any) -> bool:
        return value != DEFAULTS[name] or name in given

    _check_method(cfg, method, is_set, given)
    check_rules(method.resolve(cfg), is_set)
    find_rewards(cfg.reward)
    _check_read(cfg, method, is_set)
    values = dict(flatten(cfg))
    wrong = _of_training(cfg, method), _of_loss(cfg, method), _of_model(cfg, method)
    for is_wrong, field, rule in itertools.chain(*wrong):
        if is_wrong:
            raise ConfigError(field, rule, repr(values[field]))
    _check_devices(cfg)


def _check_rules(section: Any, prefix: str = "") -> None:
    """Refuses the first value that breaks its field's rule, or holds a float that is not finite."""
    for name, hint in get_type_hints(type(section), include_extras=True).items():
        value, dotted = getattr(section, name), prefix + name
        entries = value if isinstance(value, tuple) else (value,)
        if dataclasses.is_dataclass(value):
            _check_rules(value, f"{dotted}.")
        elif name == "sections":
            for settings in section.sections.values():
                _check_rules(settings, f"{settings.section}.")
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
    for name, value in flatten(dataclasses.replace(cfg, sections={})):
        names = {name.partition(".")[0], name}
        reads_it = names & set(method.reads) or (name in OF_CREDIT and method.is_policy_gradient)
        if names & OF_SOME and not reads_it and is_set(name, value):
            raise not_read(name, value, cfg.method)
        if names & set(method.ignores) and value != DEFAULTS[name]:
            rule = f"is not read by method = {cfg.method!r}; leave it out"
            raise ConfigError(name, rule, repr(value))
    _check_sections(cfg, method, given)
    if "groups" in method.flags and cfg.rollout.per_prompt < 2:
        rule = (
            f"must be at least 2 for method = {cfg.method!r}: a solution is compared, or paired, "
            "with the others of its problem"
        )
        raise ConfigError("rollout.per_prompt", rule, repr(cfg.rollout.per_prompt))


def _check_sections(cfg: Config, method: Method, given: Collection[str]) -> None:
    """Refuses settings of other methods, and those that do not fit the configuration."""
    unset = {name.partition(".")[0]: name for name in given}
    for section in {*cfg.sections, *(x for x in unset if section_of(x))}:
        kind = type(cfg.sections[section]) if section in cfg.sections else section_of(section)
        assert kind is not None
        if issubclass(kind, MethodSettings) and kind is not method.settings:
            field, value = _first_change(cfg.sections.get(section, kind()), unset.get(section))
            raise not_read(field, value, cfg.method)
    for settings in (method.settings.of(cfg), *cfg.sections.values()):
        settings.check(cfg)


def _first_change(settings: Section, field: str | None) -> tuple[str, Any]:
    """The first field that differs from its default, or else `field`; with its value."""
    values = dict(flatten(settings, f"{settings.section}."))
    name = next(iter(settings.changed()), field or next(iter(values)))
    return name, values[name]


def not_read(field: str, value: Any, method: str) -> ConfigError:
    """The refusal of a field that this method does not read."""
    names = {field, field.partition(".")[0]}
    owners = [
        name
        for name, record in all_methods().items()
        if names & {record.settings.section, *record.reads}
    ]
    rule = f"is read by method = {' or '.join(map(repr, owners))} alone, and this run has"
    return ConfigError(field, f"{rule} {method!r}; leave it out", repr(value))


def _check_read(cfg: Config, method: Method, is_set: Callable[[str, Any], bool]) -> None:
    """Refuses fields that have no effect beside the others."""
    applied, values = method.resolve(cfg), dict(flatten(cfg))
    for need in NEEDS:
        for field in need.fields:
            if is_set(field, values[field]) and not need.holds(applied):
                raise ConfigError(field, f"needs {need.words}; leave it out", repr(values[field]))


Refusal = tuple[object, str, str]  # whether the field is wrong, its dotted name, the rule


def _of_training(cfg: Config, method: Method) -> Iterator[Refusal]:
    """Sampling, chats and batches that are impossible or useless, for this method."""
    ppo, group = cfg.ppo, cfg.rollout.per_prompt
    yield (
        cfg.sample.temperature <= 0,
        "sample.temperature",
        "must be greater than 0: argmax makes all solutions of a problem, and all continuations"
        " of a state, equal, so there is nothing to learn from (eval.temperature may be 0)",
    )
    if "" in cfg.sample.stop:
        raise ConfigError("sample.stop", "holds an empty string, which stops every text at once")
    for name in ("system", "template_vars"):
        is_idle = getattr(cfg.data, name) and not cfg.data.chat_template
        yield is_idle, f"data.{name}", "needs data.chat_template; leave it out"
    is_uneven = ppo.microbatch and ppo.minibatch % ppo.microbatch
    yield is_uneven, "ppo.microbatch", f"must divide ppo.minibatch = {ppo.minibatch}"
    is_uneven = ppo.microbatch and cfg.sft.batch % ppo.microbatch
    yield is_uneven, "sft.batch", f"must be a multiple of ppo.microbatch = {ppo.microbatch}"
    yield (
        cfg.budget.episodes is not None and cfg.budget.episodes < group,
        "budget.episodes",
        f"must be at least rollout.per_prompt = {group}: only whole groups are sampled",
    )


def _of_loss(cfg: Config, method: Method) -> Iterator[Refusal]:
    """A loss beside a method's own, and bounds that leave nothing between them."""
    ppo = cfg.ppo
    has_own = ppo.loss != "method" and method.resolve(Config()).ppo.loss == "method"
    rule = f"must be 'method' for method = {cfg.method!r}, which has a loss of its own"
    yield has_own, "ppo.loss", rule
    low, high = ppo.correction_min, ppo.correction_max
    rule = f"must be less than ppo.correction_max = {high}"
    yield low and high and low >= high, "ppo.correction_min", rule


def _of_model(cfg: Config, method: Method) -> Iterator[Refusal]:
    """Sizes of a new model, adapters, a profile and a log that are impossible."""
    model = cfg.model
    is_missing = model.architecture and not Path(model.architecture).expanduser().is_file()
    yield is_missing, "model.architecture", "no such file"
    if not model.path:  # else the sizes come with the weights
        is_uneven = model.num_heads % model.num_kv_heads
        yield is_uneven, "model.num_kv_heads", f"must divide model.num_heads = {model.num_heads}"
        yield (
            model.width % (2 * model.num_heads),
            "model.width",
            f"must be a multiple of 2 * model.num_heads = {2 * model.num_heads}: RoPE turns pairs",
        )
    if model.lora_rank:
        is_unknown = not model.lora_targets or set(model.lora_targets) - set(PROJECTIONS)
        yield is_unknown, "model.lora_targets", f"must be some of {', '.join(PROJECTIONS)}"
        rule = "must be False with model.lora_rank: the reference is a part of the policy"
        yield cfg.offload.reference, "offload.reference", rule
    start, _, stop = cfg.profile.partition(":")
    is_range = start.isdecimal() and stop.isdecimal()
    yield (
        cfg.profile and not (is_range and int(start) < min(int(stop), cfg.iterations)),
        "profile",
        "must be 'start:stop' with start < stop and start < iterations, or '': no trace",
    )
    yield (
        cfg.log.wandb and importlib.util.find_spec("wandb") is None,
        "log.wandb",
        "needs the wandb package: pip install 'vinejax[wandb]', or set log.wandb to ''",
    )


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
