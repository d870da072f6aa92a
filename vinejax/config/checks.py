"""Checks a configuration: the range of each field, and whether the fields fit together."""

import dataclasses
import importlib.util
import itertools
import math
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

from vinejax.config.load import section_of
from vinejax.core.errors import ConfigError
from vinejax.core.sections import MethodSettings, Section
from vinejax.core.settings import Config, flatten
from vinejax.credit.rules import check_rules
from vinejax.learner.policy_losses import LOSSES
from vinejax.methods.base import Method
from vinejax.methods.compose import method_of
from vinejax.methods.known import METHODS, all_methods, find_method
from vinejax.tasks.rewards import find_rewards

# The fields that choose the tokens to train on: every policy gradient reads them.
MASK_FIELDS = ("credit.mask", "credit.mask_above", "credit.mask_share")
DEFAULTS = dict(flatten(Config()))  # dotted name -> default of a field of the core
# Names of fields, and of groups of fields, that only some methods read.
FIELDS_OF_SOME = {name for method in METHODS.values() for name in method.reads}


def check_config(cfg: Config, set_fields: Collection[str] = ()) -> None:
    """Raises ConfigError for an impossible configuration, before anything is loaded or written.

    The error names the first field that is wrong, its value, and the values that are allowed.

    Args:
      cfg: the configuration as the user set it.
      set_fields: names of the fields that were set, as `config.load.fields_set` lists them. A set
        field that the method does not read is an error even at its default.
    """
    _check_rules(cfg)
    method = find_method(cfg.method)
    method_of(cfg)  # raises ConfigError for options that do not fit the method

    def is_set(name: str, value: Any) -> bool:
        return value != DEFAULTS[name] or name in set_fields

    _check_method(cfg, method, is_set, set_fields)
    check_rules(method.resolve(cfg), method.has_continuations)
    find_rewards(cfg.reward)
    values = dict(flatten(cfg))
    wrong = (
        _of_training(cfg, method),
        _of_loss(cfg, method),
        _of_labels(cfg, method),
        _of_model(cfg, method),
    )
    for is_wrong, field, rule in itertools.chain(*wrong):
        if is_wrong:
            raise ConfigError(field, rule, repr(values[field]))
    _check_devices(cfg)


def _check_rules(section: Any, prefix: str = "") -> None:
    """Raises ConfigError for the first value that is not finite or outside its field's range."""
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
            parts = (hint, *get_args(hint))  # the hint is `Count` or `Count | None`
            rules = [rule for part in parts for rule in getattr(part, "__metadata__", ())]
            for rule in rules:
                if not rule.holds(value):
                    raise ConfigError(dotted, rule.text, repr(value))


def _check_method(
    cfg: Config, method: Method, is_set: Callable[[str, Any], bool], set_fields: Collection[str]
) -> None:
    """Raises ConfigError for fields that `method` does not read.

    Also raises ConfigError if a problem has too few solutions for a method that compares them.
    """
    for name, value in flatten(dataclasses.replace(cfg, sections={})):
        names = {name.partition(".")[0], name}
        reads_it = names & set(method.reads) or (name in MASK_FIELDS and method.is_policy_gradient)
        if names & FIELDS_OF_SOME and not reads_it and is_set(name, value):
            raise not_read(name, value, cfg.method)
        if names & set(method.ignores) and value != DEFAULTS[name]:
            message = f"is not read by method = {cfg.method!r}; leave it out"
            raise ConfigError(name, message, repr(value))
    _check_sections(cfg, method, set_fields)
    if "groups" in method.flags and cfg.rollout.per_prompt < 2:
        message = (
            f"must be at least 2 for method = {cfg.method!r}: a solution is compared, or paired, "
            "with the others of its problem"
        )
        raise ConfigError("rollout.per_prompt", message, repr(cfg.rollout.per_prompt))


def _check_sections(cfg: Config, method: Method, set_fields: Collection[str]) -> None:
    """Raises ConfigError for settings of other methods than `method`.

    Raises what `Section.check` raises for each group of settings.
    """
    unset = {name.partition(".")[0]: name for name in set_fields}
    for section in {*cfg.sections, *(x for x in unset if section_of(x))}:
        kind = type(cfg.sections[section]) if section in cfg.sections else section_of(section)
        assert kind is not None
        if issubclass(kind, MethodSettings) and kind is not method.settings:
            field, value = _first_change(cfg.sections.get(section, kind()), unset.get(section))
            raise not_read(field, value, cfg.method)
    for settings in (method.settings.of(cfg), *cfg.sections.values()):
        settings.check(cfg)


def _first_change(settings: Section, field: str | None) -> tuple[str, Any]:
    """Name and value of the first field of `settings` that is not at its default.

    If all fields are at their defaults, the result is for `field` or, if that is None, for the
    first field.
    """
    values = dict(flatten(settings, f"{settings.section}."))
    name = next(iter(settings.changed()), field or next(iter(values)))
    return name, values[name]


def not_read(field: str, value: Any, method: str) -> ConfigError:
    """The error for a field that `method` does not read; it names the methods that read it."""
    names = {field, field.partition(".")[0]}
    owners = [
        repr(name)
        for name, record in all_methods().items()
        if names & {record.settings.section, *record.reads}
    ]
    readers = "policy gradients" if field in MASK_FIELDS else f"method = {' or '.join(owners)}"
    message = f"is read by {readers} alone, and this run has {method!r}; leave it out"
    return ConfigError(field, message, repr(value))


Refusal = tuple[object, str, str]  # (whether the field is wrong, its dotted name, the message)


def _of_training(cfg: Config, method: Method) -> Iterator[Refusal]:
    """Checks sampling and batches."""
    ppo, group = cfg.ppo, cfg.rollout.per_prompt
    yield (
        cfg.sample.temperature <= 0,
        "sample.temperature",
        "must be greater than 0: argmax makes all solutions of a problem, and all continuations"
        " of a state, equal, so there is nothing to learn from (eval.temperature may be 0)",
    )
    if "" in cfg.sample.stop:
        raise ConfigError("sample.stop", "holds an empty string, which stops every text at once")
    yield (
        group < 2 and method.resolve(cfg).rollout.zero_variance != "keep",
        "rollout.zero_variance",
        "must be 'keep' with rollout.per_prompt = 1: the rewards of a group of 1 are always equal",
    )
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
    """Checks `ppo.loss` and the bounds of `ppo.correction`."""
    ppo = cfg.ppo
    has_own = ppo.loss != "method" and method.resolve(Config()).ppo.loss == "method"
    message = f"must be 'method' for method = {cfg.method!r}, which has a loss of its own"
    yield has_own, "ppo.loss", message
    low, high = ppo.correction_min, ppo.correction_max
    is_empty = ppo.correction != "none" and low and high and low >= high
    yield is_empty, "ppo.correction_min", f"must be less than ppo.correction_max = {high}"


def _of_labels(cfg: Config, method: Method) -> Iterator[Refusal]:
    """Checks `credit.labels`."""
    applied, kind = method.resolve(cfg), cfg.credit.labels
    ppo, values = applied.ppo, applied.values
    needs = {
        "method = 'vineppo': only its continuations are trained on": cfg.method == "vineppo",
        "values.budget = 'left': all samples at a position need one horizon": (
            values.budget == "left"
        ),
        "a values.allocation other than 'bisection', in which returns decide what is sampled": (
            values.allocation != "bisection"
        ),
        "a credit.mask of 'none' or 'top_entropy': others depend on the token itself": (
            applied.credit.mask in ("none", "top_entropy")
        ),
        "ppo.gamma = 1: the steps of a continuation are not those of its solution": ppo.gamma == 1,
        "ppo.whiten of 'iteration' or 'none': labels are scaled over an iteration": (
            ppo.whiten != "minibatch"
        ),
        f"a ppo.loss of single tokens, which {ppo.loss!r} is not": (
            ppo.loss == "method" or not LOSSES[ppo.loss].of_sequences
        ),
        "a values.prior, whose values are part of its baselines": (
            kind != "blend" or bool(values.prior)
        ),
    }
    for needed, is_met in needs.items():
        yield kind != "off" and not is_met, "credit.labels", f"needs {needed}"


def _of_model(cfg: Config, method: Method) -> Iterator[Refusal]:
    """Checks a new model's sizes, `profile` and `log.wandb`."""
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
            message = f"must be at least 1, and divide {both}"
            raise ConfigError(f"meshes.{name}.microbatch", message, repr(row.microbatch))
