"""Tests the configuration: defaults, conversion to the frozen form, and every range check."""

import copy
import dataclasses
import math
import pickle
import subprocess
import sys
from typing import Any

import pytest
from helpers.paths import REPO
from helpers.refusals import refuses
from ml_collections import config_dict

from vinejax.config.checks import check_config
from vinejax.config.load import check_name, default, fields_set, from_dict, override
from vinejax.core.errors import ConfigError
from vinejax.core.settings import RENAMED, Config, flatten
from vinejax.tasks.base import COLUMN_FIELDS


def set_field(config: Any, name: str, value: object) -> None:
    group, _, field = name.rpartition(".")
    (config[group] if group else config)[field] = value


def changed(**fields: object) -> Config:
    """The defaults with `ppo__clip=...` for `ppo.clip`, set as a config file would."""
    config = default()
    for name, value in fields.items():
        set_field(config, name.replace("__", "."), value)
    return from_dict(config)


def test_defaults_survive_the_round_trip():
    assert from_dict(default()) == Config() == from_dict({})
    check_config(Config())


def test_every_field_can_be_reached_as_an_attribute():
    """`values` is a method of ConfigDict, and no other field may hide or be hidden by one."""
    config = default()
    for name, value in flatten(Config()):
        found = config
        for part in name.split("."):
            found = getattr(found, part)
        assert (found.to_dict() if isinstance(value, dict) else found) == value, name


def test_config_files_change_fields():
    config = default()
    config.values.k = 3
    config.values.max_states = 2
    config.kl.coef = 1
    config.sample.stop = ("###", "\n\n")
    cfg = from_dict(config)
    assert (cfg.values.k, cfg.values.max_states) == (3, 2)
    assert cfg.kl.coef == 1.0 and type(cfg.kl.coef) is float
    assert cfg.sample.stop == ("###", "\n\n")
    assert dataclasses.replace(cfg, values=Config().values) != cfg


def test_defaults_are_not_shared():
    default().ppo.clip = 0.9
    assert default().ppo.clip == Config().ppo.clip


def test_lists_become_tuples_and_none_unsets():
    cfg = from_dict({"sample": {"stop": ["a", "b"]}, "eval": {"problems": None}})
    assert cfg.sample.stop == ("a", "b")
    assert cfg.eval.problems is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"ppo": {"clpi": 0.1}}, "ppo.clpi"),
        ({"clip": 0.1}, "clip"),
        ({"ppo.clip": 0.1}, "ppo.clip"),
        ({"iteration": 3}, "iteration"),
        ({"eval": {"sample": 1}}, "eval.sample"),
        ({"values": {"k": True}}, "values.k"),
        ({"values": {"k": 3.0}}, "values.k"),
        ({"values": {"k": None}}, "values.k"),
        ({"values": {"max_states": "3"}}, "values.max_states"),
        ({"kl": {"coef": True}}, "kl.coef"),
        ({"resume": 1}, "resume"),
        ({"profile": None}, "profile"),
        ({"sample": {"stop": "###"}}, "sample.stop"),
        ({"sample": {"stop": ("a", 3)}}, "sample.stop"),
        ({"ppo": 3}, "ppo"),
    ],
)
def test_wrong_fields_are_named(fields: dict, field: str):
    with refuses(field):
        from_dict(fields)


def test_the_settings_can_be_imported_from_the_module_of_config_files():
    """Users import the settings from there in their own tasks and configs."""
    from vinejax.config import DataConfig, SampleConfig
    from vinejax.core import settings

    assert DataConfig is settings.DataConfig and SampleConfig is settings.SampleConfig
    with pytest.raises(ImportError):
        from vinejax.config import NoSuchConfig  # noqa: F401  # pyright: ignore


def test_fields_remember_that_they_were_set():
    fields: Any = default()
    assert fields_set(fields) == set()
    fields.seed = 42  # which is the default
    fields.values.max_states = None
    fields["ppo"]["clip"] = 0.1
    names = {"seed", "values.max_states", "ppo.clip"}
    for copied in (fields, copy.deepcopy(fields), pickle.loads(pickle.dumps(fields))):
        assert fields_set(copied) == names and from_dict(copied) == from_dict(fields)
    fields.values = default()["values"]
    assert fields_set(fields) == names - {"values.max_states"}


def test_a_configuration_can_be_pickled_and_changed():
    cfg = changed(eval__problems=3)
    assert pickle.loads(pickle.dumps(cfg)) == cfg
    assert dataclasses.replace(cfg, eval=Config().eval) == Config()


def test_rows_of_meshes_have_the_ranges_of_their_fields():
    for field, value in (("slots", 0), ("data", 0), ("memory_gib", 0.0), ("memory_gib", math.inf)):
        with refuses(f"meshes.cpu:8.{field}"):
            check_config(from_dict({"meshes": {"cpu:8": {field: value}}}))


@pytest.mark.parametrize("old, new", RENAMED.items())
def test_an_old_name_is_told_the_new_one(old: str, new: str):
    """The error comes from a config file, a dict, the command line and an override."""
    section, leaf = old.split(".")
    value = {"rollout.flat": "drop", "values.spread": 4}.get(old, 0.5)
    of_file: Any = default()
    setattr(of_file[section], leaf, value)
    for refused in (
        lambda: from_dict(of_file),
        lambda: from_dict({section: {leaf: value}}),
        lambda: check_name(old, default()),  # as command.py does before it sets a field
        lambda: override(default(), {old: value}),
    ):
        with refuses(old) as error:
            refused()
        assert new in str(error.value)


@pytest.mark.parametrize("weight", [math.nan, -math.inf])
def test_every_number_of_a_list_is_finite(weight: float):
    cfg = changed(reward__functions=("math.sqrt", "math.exp"), reward__weights=(1.0, weight))
    with refuses("reward.weights"):
        check_config(cfg)


def test_check_name():
    check_name("ppo.clip")
    with refuses("ppo"):
        check_name("ppo")
    with refuses("ppo.clip.low"):
        check_name("ppo.clip.low")


@pytest.mark.parametrize(
    ("field", "bad", "good"),
    [
        ("iterations", [-1], [0]),
        ("seed", [-1, 2**32], [0, 2**32 - 1]),
        ("profile", ["3", "3:", "a:b", "5:5", "-1:2", "1:2:3"], ["", "0:1", "10:12"]),
        ("data.task", [""], ["my.module"]),
        ("data.max_prompt_tokens", [0], [1]),
        ("model.compute_dtype", ["float16"], ["auto", "float32", "bfloat16"]),
        ("model.num_layers", [0], [1]),
        ("model.num_kv_heads", [3, 0], [1, 2, 4]),
        ("model.width", [100, 0], [8, 64]),
        ("model.ffn", [0], [1]),
        ("model.context", [0], [1]),
        ("sample.temperature", [0.0, -1.0, 1e-40, math.nan, math.inf], [1e-6, 2.0]),
        ("sample.top_p", [0.0, 1e-46, 1.1], [1e-6, 1.0]),
        ("sample.top_k", [-1], [0, 5]),
        ("sample.max_tokens", [0], [1]),
        ("sample.stop", [("a", "")], [(), ("a",)]),
        ("rollout.prompts", [0], [1]),
        ("rollout.per_prompt", [0], [1]),
        ("rollout.slots", [0], [None, 1, 60]),
        ("rollout.memory_gib", [0.0, -1.0], [None, 0.5]),
        ("values.k", [0], [1]),
        ("values.budget", ["all"], ["left", "fresh"]),
        ("values.max_states", [-1], [None, 0, 3]),
        ("reward.truncated", [math.nan], [-1.0]),
        ("grader.mode", ["math"], ["strict", "reference"]),
        ("grader.workers", [0], [None, 1]),
        ("grader.timeout_s", [0.0, math.inf], [0.5]),
        ("grader.memory_mb", [0], [512]),
        ("grader.unreadable", ["raise"], ["drop", "keep"]),
        ("ppo.clip", [0.0, -0.1], [0.01]),
        ("ppo.epochs", [0], [1]),
        ("ppo.minibatch", [0], [1, 96]),
        ("ppo.microbatch", [0, 48, 128], [None, 1, 32, 64]),
        ("ppo.gamma", [-0.1, 0.0, 1.1], [0.1, 1.0]),
        ("ppo.whiten", ["batch"], ["iteration", "minibatch", "none"]),
        ("ppo.max_ratio", [1.0, 0.0], [1.5]),
        ("kl.coef", [-1.0], [0.0]),
        ("kl.reduction", ["mean"], ["token", "sequence"]),
        ("optimizer.name", ["sgd"], ["adamw", "adafactor"]),
        ("optimizer.learning_rate", [0.0], [1e-9]),
        ("optimizer.warmup", ["cosine"], ["linear", "log"]),
        ("optimizer.warmup_fraction", [-0.1, 1.0], [0.0, 0.99]),
        ("optimizer.b1", [1.0, -0.1], [0.0]),
        ("optimizer.b2", [1.0, -0.1], [0.0]),
        ("optimizer.eps", [0.0], [1e-12]),
        ("optimizer.weight_decay", [-0.1], [0.0]),
        ("optimizer.max_grad_norm", [0.0], [0.1]),
        ("sft.steps", [-1], [0]),
        ("sft.batch", [0], [1]),
        ("sft.learning_rate", [0.0], [1e-9]),
        ("sft.warmup_fraction", [1.0], [0.0]),
        ("eval.every", [-1], [0]),
        ("eval.samples", [0], [1]),
        ("eval.temperature", [-0.1, 1e-40], [0.0, 1e-6]),
        ("eval.top_p", [0.0, 1e-46], [1e-6, 1.0]),
        ("eval.problems", [0], [None, 1]),
        ("mesh.data", [0, -2], [-1, 1, 8]),
        ("mesh.fsdp", [0, -2], [-1, 8]),
        ("mesh.tensor", [0, -2], [-1, 8]),
        ("checkpoint.every", [0], [1]),
        ("checkpoint.keep", [0], [1]),
        ("log.vines", [-1], [0]),
        ("log.wandb", ["project"], [""]),
        ("sample.stop_ids", [(-1,), (3, -2)], [(), (0, 7)]),
        ("data.template_vars", [("a",), ("=1",), ("1a=2",)], [(), ("a=1",)]),
        ("model.lora_targets", [("q", "x"), ()], [("q",)]),
    ],
)
def test_ranges(field: str, bad: list, good: list, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    name = field.replace(".", "__")
    for value in good:
        check_config(changed(**{name: value}))
    for value in bad:
        with pytest.raises(ConfigError) as error:
            check_config(changed(**{name: value}))
        message = str(error.value)
        assert "\n" not in message
        # A batch or a head count may be reported through the field that it does not fit.
        group = field.partition(".")[0]
        assert message.startswith(field) or (group in ("ppo", "model") and field in message)


def test_every_number_and_choice_is_checked():
    """A new field needs a check, or a place on this list of fields that may have any value."""
    anything = {"data.path", "data.chat_template", "model.path", "resume", "log.wandb"}
    anything |= {
        "values.dedup",
        "values.reuse",
        "ppo.shift_mean",
        "ppo.mask_truncated",
        "ppo.packing",
        "ppo.share_prefixes",
        "reward.truncated",
        "data.task",
        "sample.stop",
        "sample.skip_special_tokens",
    }
    anything |= {
        "values.reuse",
        "topology",
        "meshes",
        "compile_cache",
        "offload.reference",
        "offload.optimizer",
    }
    anything |= {f"data.{name}" for name in COLUMN_FIELDS}  # the task checks them
    anything |= {
        "code.partial",
        "values.backup",
        "spo_tree.drop",
        "rollout.skip_repeats",
        "data.system",
        "log.wandb_name",
        "log.wandb_group",
    }
    for name, value in flatten(Config()):
        if name in anything:
            continue
        wrong = "nonsense" if isinstance(value, str) else -2 * (10**12)
        if isinstance(value, tuple):
            wrong = (wrong,)
        config = default()
        set_field(config, name, wrong)
        with pytest.raises(ConfigError):
            check_config(from_dict(config))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"method": "restem", "ppo__clip": 0.1}, "ppo.clip"),
        ({"method": "sft", "kl__coef": 0.1}, "kl.coef"),
        ({"method": "dpo_positive", "ppo__loss": "sapo"}, "ppo.loss"),
        ({"method": "sft", "ppo__correction": "none"}, "ppo.correction"),
        ({"method": "restem", "entropy__coef": 0.1}, "entropy.coef"),
        ({"ppo__correction_min": 3.0}, "ppo.correction_min"),
        ({"profile": "9:12", "iterations": 9}, "profile"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields: dict[str, Any], field: str):
    with refuses(field):
        check_config(changed(**fields))


def test_what_a_chat_template_reads_goes_with_one():
    chat = {"data__chat_template": True, "data__system": "Be brief."}
    check_config(changed(**chat, data__template_vars=("thinking=False", "budget=")))
    with refuses("data.template_vars"):
        check_config(changed(**chat, data__template_vars=("a",)))


def test_sizes_of_a_pretrained_model_are_not_checked():
    check_config(changed(model__path="/some/model", model__num_kv_heads=3))


def test_only_one_mesh_axis_takes_what_is_left():
    with refuses("mesh"):
        check_config(changed(mesh__data=-1, mesh__fsdp=-1))


def test_the_settings_are_imported_without_jax_and_numpy():
    code = (
        "import sys, vinejax, vinejax.core.settings;"
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


READING = """
import sys
from pathlib import Path
from vinejax.config.load import from_dict, load
from_dict(load('configs/tiny.py'))
ours = [x for name, x in sys.modules.items() if f'{name}.'.startswith('vinejax.')]
lines = sum(len(Path(module.__file__).read_text().splitlines()) for module in ours)
assert lines < 3000, f'{lines} lines: {[module.__name__ for module in ours]}'
assert 'jax' not in sys.modules
"""


def test_a_configuration_is_read_without_the_methods_and_jax():
    """Fewer than 3,000 lines of the package are imported, 1,370 when this was written."""
    done = subprocess.run([sys.executable, "-c", READING], capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 0, done.stderr


def test_accepts_plain_config_dicts():
    config = config_dict.ConfigDict({"ppo": {"clip": 0.3}})
    assert from_dict(config).ppo.clip == 0.3
