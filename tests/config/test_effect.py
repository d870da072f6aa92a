"""Notes on settings: which fields have no effect beside the others, and which do."""

from collections.abc import Sequence
from typing import Any

import pytest

from vinejax.config.checks import check_config
from vinejax.config.effect import NEEDS, without_effect
from vinejax.config.load import from_dict
from vinejax.core.settings import Config, DataConfig, flatten
from vinejax.core.types import Problem
from vinejax.credit.rules import READ_BY, TABLES
from vinejax.grading import Grader
from vinejax.methods.adaptive_kl import composed
from vinejax.methods.compose import method_of
from vinejax.tasks.arithmetic import Arithmetic
from vinejax.tasks.checked import CheckedTask
from vinejax.tasks.countdown import make as make_countdown
from vinejax.tasks.doors import DoorsTask
from vinejax.tasks.math import MATH

MANY = 10**6  # branches of a phase
SPO = {"method": "spo_chain"}


class Graded(Arithmetic):
    """A task whose answers the run's grader compares, so that it reads `grader`."""

    def rewards(self, items: Sequence[tuple[Problem, str]], grader: Grader) -> list[float]:
        return [0.0 for _ in items]

    def gold(self, problem: Problem) -> str | None:
        return None


def noted(fields: dict[str, Any], task: Any = None, most_branches: int = MANY) -> list[str]:
    """The fields of the notes; no configuration with notes is refused."""
    cfg = from_dict(fields)
    check_config(cfg)
    found = list(without_effect(cfg, method_of(cfg), task or Graded(), most_branches))
    assert all(reason and "\n" not in reason for _, reason in found)
    return [field for field, _ in found]


def test_the_defaults_have_no_notes():
    assert noted({}) == noted({}, Arithmetic()) == noted({}, MATH("x")) == []


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"log": {"wandb_name": "mine"}}, "log.wandb_name"),
        ({"log": {"wandb_group": "ours"}}, "log.wandb_group"),
        ({"method": "grpo", "ppo": {"shift_mean": False}}, "ppo.shift_mean"),
        ({"optimizer": {"name": "adafactor", "b1": 0.8}}, "optimizer.b1"),
        ({"optimizer": {"name": "adafactor", "eps": 1e-6}}, "optimizer.eps"),
        ({"model": {"lora_alpha": 8.0}}, "model.lora_alpha"),
        ({"model": {"lora_targets": ("q",)}}, "model.lora_targets"),
        ({"model": {"lora_rank": 4}, "offload": {"reference": True}}, "offload.reference"),
        ({"ppo": {"loss": "gspo", "clip": 0.1}}, "ppo.clip"),
        ({"ppo": {"loss": "sapo", "clip_high": 0.3}}, "ppo.clip_high"),
        ({"ppo": {"gspo_clip": (0.1, 0.1)}}, "ppo.gspo_clip"),
        ({"ppo": {"cispo_clip": (0.1, 0.1)}}, "ppo.cispo_clip"),
        ({"ppo": {"sapo_tau": (0.1, 0.1)}}, "ppo.sapo_tau"),
        ({"method": "reinforce++", "ppo": {"loss": "gspo", "dual_clip": 3.0}}, "ppo.dual_clip"),
        ({"ppo": {"correction": "none", "correction_max": 2.0}}, "ppo.correction_max"),
        ({"ppo": {"correction": "none", "correction_min": 4.0}}, "ppo.correction_min"),
        ({"ppo": {"packing": False, "row_tokens": 64}}, "ppo.row_tokens"),
        (
            {"reward": {"functions": ("math.sqrt",)}, "grader": {"mode": "reference"}},
            "grader.mode",
        ),
        ({"rollout": {"rounds": 2}}, "rollout.rounds"),
        ({"method": "reinforce++", "kl": {"reduction": "sequence"}}, "kl.reduction"),
        ({"kl": {"coef": 0.0, "target": 1.0}}, "kl.target"),
        ({"kl": {"horizon": 5.0}}, "kl.horizon"),
        ({"credit": {"prior": 0.5}}, "credit.prior"),
        ({"data": {"system": "Be brief."}}, "data.system"),
        ({"data": {"template_vars": ("a=1",)}}, "data.template_vars"),
        ({"values": {"every": 7}}, "values.every"),
        ({"values": {"below": 0.5}}, "values.below"),
        ({"values": {"positions": "tokens", "below": 0.5}}, "values.below"),
        ({"values": {"threshold": 2.0}}, "values.threshold"),
        ({"credit": {"mask_above": 0.5}}, "credit.mask_above"),
        ({"credit": {"mask_share": 0.1}}, "credit.mask_share"),
        (SPO | {"credit": {"mask": "none", "mask_above": 0.5}}, "credit.mask_above"),
    ],
    ids=str,
)
def test_a_field_without_effect_has_a_note(fields: dict[str, Any], field: str):
    assert noted(fields) == [field]


@pytest.mark.parametrize(
    "fields",
    [
        {"values": {"positions": "tokens", "every": 7}},
        SPO | {"values": {"every": 7, "below": 0.5}, "credit": {"mask_above": 0.5}},
        {"values": {"allocation": "bisection", "threshold": 2.0}},
        {"credit": {"mask": "low_probability", "mask_above": 0.5}},
        # A user's rule may read any of them.
        {"values": {"positions": "vinejax.credit.positions.blank_lines", "below": 0.5}},
        {"optimizer": {"b1": 0.8}, "model": {"lora_rank": 4, "lora_alpha": 8.0}},
        {"ppo": {"clip": 0.1, "dual_clip": 3.0, "row_tokens": 64, "correction_max": 2.0}},
        {"ppo": {"loss": "gspo", "gspo_clip": (0.1, 0.1)}},
        {"kl": {"target": 1.0, "horizon": 5.0, "reduction": "sequence"}},
        {"data": {"chat_template": True, "system": "Be brief.", "template_vars": ("a=1",)}},
        {"values": {"prior": "probe"}, "credit": {"prior": 0.5}},
        {"rollout": {"zero_variance": "resample", "rounds": 2}, "offload": {"reference": True}},
        {"method": "dapo", "rollout": {"rounds": 2}},
        {"grader": {"mode": "reference", "unreadable": "keep"}},
    ],
    ids=str,
)
def test_a_field_that_is_read_has_none(fields: dict[str, Any]):
    assert noted(fields) == []


def name_of(value: Any) -> str:
    """The id of a parameter: a task's name, and the text of all else."""
    return value.name if hasattr(value, "name") else str(value)


@pytest.mark.parametrize(
    "task, fields, field",
    [
        (Arithmetic(), {"data": {"free_steps": 0}}, "data.free_steps"),
        (Arithmetic(), {"data": {"question": "problem"}}, "data.question"),
        (Arithmetic(), {"data": {"size": 10}}, "data.size"),
        (Arithmetic(), {"data": {"path": "somewhere"}}, "data.path"),
        (Arithmetic(), {"grader": {"workers": 3}}, "grader.workers"),
        (Arithmetic(), {"grader": {"unreadable": "keep"}}, "grader.unreadable"),
        (Arithmetic(), {"env": {"observed": 9}}, "env.observed"),
        (Arithmetic(), {"env": {"max_turns": 2}}, "env.max_turns"),
        (MATH("x"), {"data": {"template": "{question}"}}, "data.template"),
    ],
    ids=name_of,
)
def test_a_field_that_the_task_does_not_read_has_a_note(
    task: Any, fields: dict[str, Any], field: str
):
    assert noted(fields, task) == [field]


@pytest.mark.parametrize(
    "task, fields",
    [
        (DoorsTask(), {"env": {"observed": 9, "max_turns": 2}}),
        (make_countdown(DataConfig()), {"data": {"free_steps": 2}}),
        (CheckedTask(Arithmetic()), {"data": {"path": "somewhere"}}),  # a user's may read it
        (MATH("x"), {"data": {"path": "x"}, "grader": {"mode": "reference", "unreadable": "keep"}}),
    ],
    ids=name_of,
)
def test_a_field_that_the_task_reads_has_none(task: Any, fields: dict[str, Any]):
    assert noted(fields, task) == []


def test_slots_that_could_never_be_busy_have_a_note():
    assert noted({"rollout": {"slots": 2001}}, most_branches=2000) == ["rollout.slots"]
    assert noted({"rollout": {"slots": 2000}}, most_branches=2000) == []
    assert noted({"rollout": {"slots": 1024}}, most_branches=5) == []
    assert noted({"rollout": {"slots": None}}, most_branches=5) == []


def test_a_coefficient_of_0_follows_no_target():
    cfg = from_dict({"kl": {"coef": 0.0, "target": 1.0}})
    method = method_of(cfg)
    assert composed(method, method.resolve(cfg)) is method


def test_every_field_of_the_tables_is_a_setting():
    names = {name for name, _ in flatten(Config())}
    assert {field for need in NEEDS for field in need.fields} <= names
    for field, of_rule, readers in READ_BY:
        assert field in names and of_rule in TABLES and set(readers) <= set(TABLES[of_rule])


def test_a_task_whose_tools_are_called_in_thinking_has_no_choice_about_it():
    class Tool(DoorsTask):
        acts_in_thinking = True

    kept = {"env": {"observed": 9, "thinking": "kept"}}
    assert noted(kept, DoorsTask()) == [] and noted(kept, Tool()) == ["env.thinking"]
