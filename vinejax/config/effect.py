"""Settings without effect: fields that are set, but unread because of the other settings.

A run with such fields does not stop. It prints a note for each of them at its start.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from vinejax.core.settings import Config, EnvConfig, GraderConfig, flatten, unset
from vinejax.credit.rules import READ_BY, TABLES, chosen_rules
from vinejax.methods.base import Method
from vinejax.tasks.base import (
    COLUMN_FIELDS,
    FIELDS,
    BatchGraded,
    Configured,
    OwnRules,
    Task,
    WithColumns,
    WithFreeSteps,
    WithGold,
)
from vinejax.tasks.checked import CheckedTask
from vinejax.tasks.environment import MultiTurn
from vinejax.tasks.rewards import TASK

Idle = Iterator[
    tuple[str, str]
]  # dotted names of fields, each with the reason why nothing reads it


class Need(NamedTuple):
    """A condition without which `fields` have no effect; `words` is the text of the condition."""

    fields: tuple[str, ...]
    holds: Callable[[Config], Any]  # called with the result of `method.resolve`
    words: str


LOSS_OF_FIELD = {  # field of `ppo` -> the one `ppo.loss` that reads it
    "dual_clip": "clip",
    "gspo_clip": "gspo",
    "cispo_clip": "cispo",
    "sapo_tau": "sapo",
}
FEW_SLOTS = 1024  # so many `rollout.slots` get no note, even if few of them are used
GRADER = tuple(name for name, _ in flatten(GraderConfig(), "grader."))
NEEDS = (
    Need(
        ("optimizer.b1", "optimizer.b2", "optimizer.eps"),
        lambda c: c.optimizer.name == "adamw",
        "optimizer.name = 'adamw'",
    ),
    Need(
        ("model.lora_alpha", "model.lora_targets"),
        lambda c: c.model.lora_rank,
        "model.lora_rank above 0",
    ),
    Need(
        ("offload.reference",),
        lambda c: not c.model.lora_rank,
        "model.lora_rank = 0: below adapters the reference model is a part of the policy",
    ),
    Need(
        ("ppo.clip", "ppo.clip_high"),
        lambda c: c.ppo.loss in ("clip", "method"),
        "ppo.loss = 'clip'",
    ),
    *(
        Need((f"ppo.{field}",), lambda c, loss=loss: c.ppo.loss == loss, f"ppo.loss = {loss!r}")
        for field, loss in LOSS_OF_FIELD.items()
    ),
    Need(
        ("ppo.correction_min", "ppo.correction_max"),
        lambda c: c.ppo.correction != "none",
        "ppo.correction other than 'none'",
    ),
    Need(("ppo.row_tokens",), lambda c: c.ppo.packing, "ppo.packing = True"),
    Need(("ppo.shift_mean",), lambda c: c.ppo.whiten != "none", "ppo.whiten other than 'none'"),
    Need(
        ("ppo.shift_mean",),
        lambda c: c.credit.labels == "off",
        "credit.labels = 'off': with labels, advantages are scaled and never shifted",
    ),
    Need(
        ("credit.label_weight",),
        lambda c: c.credit.labels in ("mixed", "blend"),
        "credit.labels of 'mixed' or 'blend'",
    ),
    Need(
        GRADER,
        lambda c: not c.reward.functions or TASK in c.reward.functions,
        f"{TASK!r} in reward.functions",
    ),
    Need(
        ("rollout.rounds",),
        lambda c: c.rollout.zero_variance == "resample",
        "rollout.zero_variance = 'resample'",
    ),
    Need(("kl.reduction",), lambda c: c.kl.place == "loss", "kl.place = 'loss'"),
    Need(("kl.target",), lambda c: c.kl.coef, "kl.coef above 0"),
    Need(("kl.horizon",), lambda c: c.kl.coef and c.kl.target, "kl.coef above 0 and kl.target"),
    Need(("credit.prior",), lambda c: c.values.prior, "values.prior"),
    Need(
        ("data.system", "data.template_vars"),
        lambda c: c.data.chat_template,
        "data.chat_template = True",
    ),
    Need(("log.wandb_name", "log.wandb_group"), lambda c: c.log.wandb, "log.wandb"),
)


def without_effect(cfg: Config, method: Method, task: Task, most_branches: int) -> Idle:
    """Yields (field, reason) for each field that was changed and has no effect in the run.

    `cfg` is the configuration as the user set it; `most_branches` is the largest number of branches
    that a phase of the run can have.
    """
    applied = method.resolve(cfg)
    reasons: dict[str, str] = {}
    for field, reason in itertools.chain(
        _beside_others(applied),
        _of_other_rules(applied),
        _unread_by_task(cfg, task),
        _beyond_use(cfg, most_branches),
    ):
        reasons.setdefault(field, reason)
    defaults, values = dict(flatten(unset(cfg))), dict(flatten(cfg))
    for field, reason in reasons.items():
        if values[field] != defaults[field]:
            yield field, reason


def _beside_others(applied: Config) -> Idle:
    """Yields the fields of `NEEDS` whose condition does not hold."""
    for need in NEEDS:
        if not need.holds(applied):
            for field in need.fields:
                yield field, f"it needs {need.words}"


def _of_other_rules(applied: Config) -> Idle:
    """Yields the fields that are read by some rules of credit, but not by the chosen ones.

    `READ_BY` lists these fields, each with the rules that read it.
    """
    rules = chosen_rules(applied)
    for field, of_rule, readers in READ_BY:
        name = rules[of_rule]
        if name in TABLES[of_rule] and name not in readers:  # a function of a user's may read it
            names = " or ".join(map(repr, readers))
            yield field, f"only {of_rule} = {names} reads it, and this run has {name!r}"


def _unread_by_task(cfg: Config, task: Task) -> Idle:
    """Yields the fields that `task` does not read, such as `env.*` if it has no environment."""
    if not isinstance(task, WithFreeSteps):
        yield "data.free_steps", f"task {task.name} has no free steps to count"
    reads = task.reads if isinstance(task, WithColumns) else ()
    for field in FIELDS:
        if field not in reads:
            other = "table" if field in COLUMN_FIELDS else "reasoning_gym"
            yield f"data.{field}", f"task {task.name} does not read it; vinejax.tasks.{other} does"
    if not isinstance(task, CheckedTask) and not hasattr(task, "path"):
        yield "data.path", f"task {task.name} makes its problems itself and reads no data"
    if not isinstance(task, BatchGraded):
        for field in GRADER:
            yield field, f"task {task.name} has no `rewards`, so no grader compares its answers"
    if not isinstance(task, WithGold):
        yield "grader.unreadable", f"task {task.name} has no `gold`"
    if isinstance(task, OwnRules):
        yield "grader.mode", f"task {task.name} scores by its own rules"
    if not isinstance(task, MultiTurn):
        for field, _ in flatten(EnvConfig(), "env."):
            yield field, f"task {task.name} has no environment"
    elif getattr(task, "acts_in_thinking", False):
        yield "env.thinking", f"task {task.name} always gets what the policy thinks"
    sections = task.sections if isinstance(task, Configured) else ()
    for name, settings in cfg.sections.items():
        if settings.of_task and name not in sections:
            for field, _ in flatten(settings, f"{name}."):
                yield field, f"task {task.name} does not read it"


def _beyond_use(cfg: Config, most_branches: int) -> Idle:
    """Yields `rollout.slots` if no phase of the run has enough branches to fill them."""
    if (cfg.rollout.slots or 0) > max(most_branches, FEW_SLOTS):
        yield "rollout.slots", f"no phase of this run has more than {most_branches:,} branches"
