"""The config files and settings of contributed methods: what they change, and what is refused."""

import dataclasses
import re
from typing import Any

import pytest
from helpers.paths import CONFIGS, REPO
from helpers.refusals import refuses

from vinejax.config import sizes
from vinejax.config.checks import check_config
from vinejax.config.effect import without_effect
from vinejax.config.environments import check_environment
from vinejax.config.load import default, fields_set, from_dict, from_file
from vinejax.contrib.names import METHODS
from vinejax.core.settings import Config, flatten
from vinejax.methods.base import DEFAULTS
from vinejax.methods.compose import method_of
from vinejax.methods.known import find_method
from vinejax.session.budget import num_updates
from vinejax.tasks.arithmetic import Arithmetic
from vinejax.tasks.doors import DoorsTask

TINY = sorted(path.name for path in (CONFIGS / "contrib").glob("tiny_*.py"))


def load(name: str) -> Config:
    fields = from_file(str(CONFIGS / "x"), name)
    cfg = from_dict(fields)
    check_config(cfg, fields_set(fields))
    return cfg


def test_every_method_is_at_most_ten_lines_from_vineppo():
    tiny = dict(flatten(load("tiny.py")))
    found = {}
    for name in TINY:
        cfg = load(f"contrib/{name}")
        found[cfg.method] = cfg
        changed = [field for field, x in flatten(cfg) if field in tiny and tiny[field] != x]
        assert 1 <= len(changed) and not any("model." in x or "task" in x for x in changed)
        text = (CONFIGS / "contrib" / name).read_text(encoding="utf-8")
        assert len(changed) <= text.count("    cfg.") <= 10, name
        # Those that the README of these methods names as published without KL.
        assert (cfg.kl.coef == 0.0) == (cfg.method in without_kl()), name
    assert set(METHODS) <= set(found) and "tempo" in without_kl()


def without_kl() -> set[str]:
    text = " ".join(
        (REPO / "vinejax/contrib/methods/README.md").read_text(encoding="utf-8").split()
    )
    (names,) = re.findall(r"config files of (.+?), published without KL, set it to 0", text)
    return {re.sub(r"\W+", "_", name.lower()) for name in re.split(", | and ", names)}


def test_choices_that_records_may_leave_open():
    """As methods/test_option_fields.py and credit/test_rules.py have them of the core's methods."""
    for name in METHODS:
        record = find_method(name)
        cfg = record.resolve(from_dict({"method": name}))
        assert (cfg.rollout.zero_variance, cfg.reward.overlong, cfg.kl.place) == (
            "keep",
            0.0,
            "loss",
        ), name
        assert (cfg.reward.scale == "method") == ("reward.scale" not in record.reads)
        assert set(record.defaults) <= set(DEFAULTS) | {field for field, _ in flatten(Config())}


ONE = {"per_prompt": 1}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"method": "drpo", "ppo": {"clip": 0.1}}, "ppo.clip"),
        ({"method": "gdpo", "rollout": {"zero_variance": "drop"}}, "rollout.zero_variance"),
        ({"method": "gdpo", "reward": {"overlong": 0.2}}, "reward.overlong"),
        ({"method": "drpo", "reward": {"overlong": 0.2}}, "reward.overlong"),
        (
            {"method": "opd", "opd": {"teacher": "x"}, "reward": {"overlong": 0.2}},
            "reward.overlong",
        ),
        ({"method": "sdpo", "reward": {"overlong": 0.2}}, "reward.overlong"),
        ({"method": "turn_credit", "ppo": {"gamma": 0.9}}, "ppo.gamma"),
        ({"method": "opmd", "ppo": {"max_ratio": 5.0}}, "ppo.max_ratio"),
        ({"method": "opmd", "ppo": {"loss": "sapo"}}, "ppo.loss"),
        ({"method": "asymre", "asymre": {"shift": 2.0}}, "asymre.shift"),
        ({"method": "asymre", "reward": {"scale": "group"}}, "reward.scale"),
        ({"method": "treepo", "reward": {"scale": "none"}}, "reward.scale"),
        ({"method": "single_stream"}, "rollout.per_prompt"),
        (
            {"method": "single_stream", "rollout": ONE, "reward": {"truncated": -1}},
            "reward.truncated",
        ),
        ({"method": "single_stream", "single_stream": {"explore": 0.0}}, "single_stream.explore"),
        ({"single_stream": {"start_count": 4.0}}, "single_stream.start_count"),
        ({"method": "opd"}, "opd.teacher"),
        ({"method": "sdpo", "sdpo": {"text": "{question}"}}, "sdpo.text"),
        ({"rollout": {"zero_variance": "resample"}, "reset": {"source": "gold"}}, "reset.source"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], field: str):
    with refuses(field):
        check_config(from_dict(fields))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"method": "opmd", "ppo": {"dual_clip": 3.0}}, "ppo.dual_clip"),
        ({"code": {"partial": True}}, "code.partial"),
    ],
)
def test_what_has_no_effect_gets_a_note(fields: dict[str, Any], field: str):
    cfg = from_dict(fields)
    check_config(cfg)
    notes = without_effect(cfg, method_of(cfg), Arithmetic(), most_branches=10**6)
    assert field in [name for name, _ in notes]


def test_trees_of_tokens_have_no_turns():
    cfg = from_dict({"data": {"task": "vinejax.tasks.doors"}, "env": {"observed": 16}})
    with refuses("method"):
        check_environment(cfg, find_method("treerl"), DoorsTask())


def test_a_credit_of_likelihoods_needs_no_reference_model():
    """It reads those of the policy. The KL alone reads the reference's."""
    for name in ("drpo", "unlikely"):
        cfg = load(f"contrib/tiny_{name}.py")
        method = find_method(name)
        for coef in (0.0, 0.1):
            kl = dataclasses.replace(cfg.kl, coef=coef)
            assert method.reads_reference(dataclasses.replace(cfg, kl=kl)) == bool(coef)


def test_settings_of_another_method_are_refused():
    tree = from_dict({"method": "spo_tree", "spo_tree": {"segment": 8}})
    with refuses("spo_tree.segment"):
        check_config(dataclasses.replace(tree, method="grpo"))


def test_a_group_of_one_is_enough_for_single_stream():
    check_config(from_dict({"method": "single_stream", "rollout": ONE}))


def test_solutions_for_first_values_take_nothing_of_the_budget():
    for samples in (0, 8):
        fields = {"method": "single_stream", "iterations": 9, "budget": {"episodes": 70}}
        fields |= {"rollout": {"prompts": 32, "per_prompt": 1}, "ppo": {"minibatch": 16}}
        cfg = from_dict(fields | {"single_stream": {"start_samples": samples}})
        assert num_updates(cfg) == (2 + 2 + 1) * 2  # minibatches of 32, 32 and 6 problems; epochs


def test_a_tree_has_a_solution_per_leaf():
    """Of these depend the memory of a host, and the note on more slots than branches."""
    for name in ("treerl", "tree_grpo"):
        own = {"forks": 3, "branches": 2, "rounds": 2}
        fields = {"method": name, name: own, "rollout": {"prompts": 8, "per_prompt": 4}}
        assert sizes.solutions_of(from_dict(fields), find_method(name)) == 8 * 4 * (1 + 3 * 2 * 2)


def test_a_tree_with_too_many_solutions_has_too_many_problems(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sizes, "host_memory", lambda: 16 * 2**30)
    cfg: Any = default()
    cfg.method, cfg.rollout.prompts = "spo_tree", 10**7
    with refuses("rollout.prompts"):
        sizes.check_sizes(from_dict(cfg), find_method("spo_tree"))
