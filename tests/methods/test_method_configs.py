"""The config files of the methods: what they change, that they load, and what is refused."""

import ast
import copy
import dataclasses
import itertools
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import CONFIGS, REPO
from helpers.refusals import refuses

from vinejax.config.checks import MASK_FIELDS, check_config
from vinejax.config.load import (
    Fields,
    default,
    fields_set,
    from_dict,
    from_file,
    section_names,
    section_of,
)
from vinejax.core.errors import ConfigError
from vinejax.core.settings import Config, flatten
from vinejax.credit.rules import READ_BY
from vinejax.methods.base import Method
from vinejax.methods.known import METHODS, find_method
from vinejax.methods.settings import CriticConfig, DPOConfig, RestEMConfig

TINY = sorted(path.name for path in CONFIGS.glob("tiny_*.py"))
OF_THE_PAPER = ("vineppo", "ppo", "grpo", "rloo", "restem", "dpo_positive", "sft")
SETTINGS = ("rho_math", "rho_gsm8k", "deepseek_math", "deepseek_gsm8k")


def checked(fields: Fields) -> Config:
    cfg = from_dict(fields)
    check_config(cfg, fields_set(fields))
    return cfg


def load(name: str) -> Config:
    return checked(from_file(str(CONFIGS / "x"), name))


def of_paper(setting: str, method: str) -> Config:
    return load(f"paper.py:{setting.replace('_', ',')},{method}")


def lines_between(one: Config, other: Config) -> list[str]:
    fields = own_defaults() | dict(flatten(one))
    found = own_defaults() | dict(flatten(other))
    return [f"{name} = {x!r}" for name, x in found.items() if fields[name] != x]


def own_defaults() -> dict[str, Any]:
    """The settings of all methods by their dotted names."""
    kinds = {name: section_of(name) for name in section_names()}
    sections = (flatten(kind(), f"{name}.") for name, kind in kinds.items() if kind)
    return dict(itertools.chain.from_iterable(sections))


def test_every_method_is_at_most_ten_lines_from_vineppo():
    tiny = load("tiny.py")
    found = {tiny.method} | {load(name).method for name in TINY}
    assert found == set(METHODS)
    for name in TINY:
        changed = lines_between(tiny, load(name))
        print(f"{name}: {len(changed)} lines: {'; '.join(changed)}")
        assert 1 <= len(changed) <= 10 and not any("model." in x or "task" in x for x in changed)
        text = (CONFIGS / name).read_text(encoding="utf-8")
        assert text.count("    cfg.") == len(changed)


@pytest.mark.parametrize("setting", SETTINGS)
def test_paper_configs_differ_in_few_lines(setting: str):
    base = of_paper(setting, "vineppo")
    for method in OF_THE_PAPER:
        cfg = of_paper(setting, method)
        assert cfg.method == method
        unread = set(find_method(method).ignores)
        names = [line.partition(" = ")[0] for line in lines_between(base, cfg)]
        read = [name for name in names if not {name, name.partition(".")[0]} & unread]
        assert len(read) <= 9


def test_the_file_of_the_paper_says_what_it_runs():
    module = runpy.run_path(str(CONFIGS / "paper.py"))
    runs = {f"{model}_{task}" for model in module["MODELS"] for task in module["TASKS"]}
    assert runs == set(SETTINGS) and set(module["METHODS"]) == set(OF_THE_PAPER)
    text = module["__doc__"]
    for part in ("Hardware: ", "Reproduces: ", "the paper", "Departs: ", *OF_THE_PAPER):
        assert part in text, part


def test_grpo_and_rloo_of_the_paper_have_the_settings_of_vineppo_and_say_so():
    """The paper does not state theirs; configs/paper.py, docs/methods.md, decisions.md agree."""
    for setting in SETTINGS:
        vine = of_paper(setting, "vineppo")
        for method in ("grpo", "rloo"):
            cfg = of_paper(setting, method)
            assert (cfg.ppo, cfg.kl) == (vine.ppo, vine.kl)
            assert (cfg.ppo.whiten, cfg.ppo.shift_mean) == ("minibatch", True)
            assert (cfg.ppo.reduction, cfg.kl.reduction) == ("method", "sequence")
    for file in (CONFIGS / "paper.py", REPO / "docs/methods.md", REPO / "docs/decisions.md"):
        text = " ".join(file.read_text(encoding="utf-8").split())
        assert "summed over each sequence" in text and "whitened over a minibatch" in text, file
        assert "Loss and KL are token means" not in text


def test_configs_of_methods_published_without_kl_have_none():
    """Those that the page of the methods names, and no others."""
    text = " ".join((REPO / "docs/methods.md").read_text(encoding="utf-8").split())
    (names,) = re.findall(r"config files of (.+?), published without KL, set it to 0", text)
    named = {re.sub(r"\W+", "_", name.lower()) for name in re.split(", | and ", names)}
    loaded = [load(name) for name in TINY]
    assert named == {cfg.method for cfg in loaded if cfg.kl.coef == 0.0}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.py")), ids=lambda path: path.name)
def test_the_commands_of_a_config_file_name_it_and_load(path: Path):
    text = path.read_text(encoding="utf-8")
    commands = re.findall(r"--config=configs/(\S+)", ast.get_docstring(ast.parse(text)) or "")
    assert commands and all(name.partition(":")[0] == path.name for name in commands)
    for name in commands:
        load(name)


def test_hyperparameters_of_the_paper():
    for setting, iterations in zip(SETTINGS, (1000, 650, 1000, 650), strict=True):
        vine = of_paper(setting, "vineppo")
        assert vine.iterations == iterations and vine.values.budget == "fresh"
        assert vine.values.max_states == (25 if "gsm8k" in setting else None)
        sample = vine.sample
        assert (sample.temperature, sample.top_p, sample.max_tokens) == (0.6, 0.9, 1024)
        assert (vine.rollout.prompts, vine.rollout.per_prompt, vine.values.k) == (64, 8, 9)
        ppo = vine.ppo
        assert (ppo.epochs, ppo.minibatch, ppo.clip, ppo.gamma) == (2, 64, 0.2, 1.0)
        assert (vine.kl.coef, vine.kl.reduction) == (1e-4, "sequence")
        assert (vine.optimizer.learning_rate, vine.optimizer.warmup) == (1e-6, "log")
        critic = CriticConfig.of(of_paper(setting, "ppo"))
        assert (critic.lam, critic.clip, critic.learning_rate) == (1.0, 0.2, 1e-6)
        dpo = of_paper(setting, "dpo_positive")
        own = DPOConfig.of(dpo)
        assert own.beta == (0.3 if "gsm8k" in setting else 0.1)
        assert (own.penalty, own.pairs, own.epochs) == (50.0, 64, 3)
        assert dpo.rollout.per_prompt == 64 and dpo.iterations == 1
        restem = of_paper(setting, "restem")
        assert restem.iterations == 10 and RestEMConfig.of(restem).problems is None
        own = RestEMConfig.of(restem)
        assert (own.keep, own.epochs, own.eval_every) == (10, 8, 500)
        sft = of_paper(setting, "sft")
        rate = 1e-5 if "rho" in setting else 5e-5
        assert (sft.iterations, sft.sft.batch, sft.sft.learning_rate) == (2, 64, rate)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"method": "pppo"}, "method"),
        ({"method": "grpo", "rollout": {"per_prompt": 1}}, "rollout.per_prompt"),
        ({"method": "rloo", "rollout": {"per_prompt": 1}}, "rollout.per_prompt"),
        ({"method": "dapo", "rollout": {"per_prompt": 1}}, "rollout.per_prompt"),
        ({"method": "dpo_positive", "rollout": {"per_prompt": 1}}, "rollout.per_prompt"),
        ({"method": "ppo", "values": {"k": 3}}, "values.k"),
        ({"method": "grpo", "values": {"max_states": 2}}, "values.max_states"),
        ({"critic": {"lam": 0.95}}, "critic.lam"),
        ({"method": "rloo", "critic": {"clip": 0.1}}, "critic.clip"),
        ({"method": "ppo", "dpo": {"beta": 0.3}}, "dpo.beta"),
        ({"method": "dpo_positive", "dpo": {"beta": 0.0}}, "dpo.beta"),
        ({"method": "dpo_positive", "dpo": {"beta": -0.1}}, "dpo.beta"),
        ({"method": "ppo", "critic": {"lam": 1.5}}, "critic.lam"),
        ({"method": "ppo", "critic": {"clip": 0.0}}, "critic.clip"),
        ({"method": "dapo", "rollout": {"rounds": 0}}, "rollout.rounds"),
        ({"method": "dapo", "reward": {"overlong": 1.0}}, "reward.overlong"),
        ({"budget": {"episodes": 0}}, "budget.episodes"),
        ({"ppo": {"reduction": "mean"}}, "ppo.reduction"),
        ({"method": "grpo", "ppo": {"gamma": 0.9}}, "ppo.gamma"),
        ({"method": "dapo", "ppo": {"gamma": 0.9}}, "ppo.gamma"),
        ({"ppo": {"microbatch": 32}, "sft": {"batch": 48}}, "sft.batch"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], field: str):
    with refuses(field):
        check_config(from_dict(fields))


def test_a_group_of_one_is_enough_where_nothing_is_compared():
    for method in ("vineppo", "ppo", "reinforce++", "restem", "sft"):
        check_config(from_dict({"method": method, "rollout": {"per_prompt": 1}}))


def sections_of(record: Method) -> dict[str, Any]:
    """The sections that the method reads and others do not."""
    own = {record.settings.section: record.settings} if record.settings.section else {}
    sections = [name for name in record.reads if "." not in name]
    return own | {name: type(getattr(Config(), name)) for name in sections}


OWN_FIELDS = [
    (method, section, field.name)
    for method, record in METHODS.items()
    for section, kind in sections_of(record).items()
    for field in dataclasses.fields(kind)
    if f"{section}.{field.name}" not in {field for field, _, _ in READ_BY} | {*MASK_FIELDS}
]


@pytest.mark.parametrize(("method", "section", "name"), OWN_FIELDS)
def test_a_field_of_another_method_is_refused_at_its_default_too(method, section, name):
    fields: Any = default()
    fields.method = method
    fields[section][name] = fields[section][name]
    checked(fields)
    fields.method, fields.rollout.per_prompt = "grpo", 8
    for copied in (fields, copy.deepcopy(fields)):
        with refuses(f"{section}.{name}"):
            checked(copied)
    fields[section] = default()[section]  # as a file does that changes another's method
    checked(fields)


def test_a_refused_mask_names_who_reads_it():
    """Every policy gradient reads the mask, not only the methods that read all of `credit`."""
    cfg = from_dict({"method": "restem", "credit": {"mask": "top_entropy"}})
    with pytest.raises(ConfigError, match="is read by policy gradients alone, .* has 'restem'"):
        check_config(cfg)
    check_config(from_dict({"method": "grpo", "credit": {"mask": "top_entropy"}}))


def test_a_methods_own_settings_are_always_there():
    assert from_dict({"method": "ppo"}) == from_dict({"method": "ppo", "critic": {}})
    for fields, field in (
        ({"sections": 3}, "sections"),
        ({"method": "ppo", "critic": {"section": "x"}}, "critic.section"),
    ):
        with refuses(field):
            from_dict(fields)
