"""The fields of options: defaults by method, and what is refused, in one line each."""

from typing import Any

import pytest

from vinejax.config.checks import check_config
from vinejax.config.load import default, fields_set, from_dict
from vinejax.core.errors import ConfigError
from vinejax.methods.known import all_methods

ONE = {"per_prompt": 1}


def test_every_field_has_the_methods_own_choice():
    """The choices of DAPO and REINFORCE++ are their records'; those of others are plain."""
    for name, record in all_methods().items():
        cfg = record.resolve(from_dict({"method": name}))
        found = cfg.rollout.zero_variance, cfg.reward.overlong, cfg.kl.place
        of_dapo, of_kl = ("resample", 0.2, "loss"), ("keep", 0.0, "reward")
        plain = ("keep", 0.0, "loss")
        assert found == {"dapo": of_dapo, "reinforce++": of_kl}.get(name, plain), name
        assert (cfg.reward.scale == "method") == ("reward.scale" not in record.reads)


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        (
            {"rollout": {"zero_variance": "some"}},
            "rollout.zero_variance",
            "'keep' or 'drop' or 'resample'",
        ),
        (
            {"rollout": ONE | {"zero_variance": "drop"}},
            "rollout.zero_variance",
            "rollout.per_prompt = 1",
        ),
        ({"reward": {"overlong": 1.0}}, "reward.overlong", "less than 1"),
        ({"reward": {"scale": "batch"}}, "reward.scale", "and this run has 'vineppo'"),
        ({"kl": {"place": "reward"}}, "kl.place", "and this run has 'vineppo'"),
        ({"method": "treepo", "reward": {"scale": "none"}}, "reward.scale", "has 'treepo'"),
        ({"method": "ppo", "reward": {"scale": "none"}}, "reward.scale", "has 'ppo'"),
        ({"method": "asymre", "reward": {"scale": "group"}}, "reward.scale", "has 'asymre'"),
        ({"kl": {"target": 0.0}}, "kl.target", "greater than 0"),
        (
            {"rollout": {"zero_variance": "resample"}, "reset": {"source": "gold"}},
            "reset.source",
            "must be 'none' with rollout.zero_variance = 'resample'",
        ),
        ({"method": "dapo", "dapo": {"overlong": 0.1}}, "dapo", "no such field"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], field: str, message: str):
    with pytest.raises(ConfigError) as error:
        check_config(from_dict(fields))
    assert error.value.field == field
    assert message in str(error.value) and "\n" not in str(error.value)


OPTIONS: dict[str, Any] = {
    "rollout.zero_variance": "drop",
    "reward.overlong": 0.1,
    "reward.scale": "batch",
    "ppo.mask_truncated": True,
    "kl.place": "reward",
    "kl.target": 1.0,
}


@pytest.mark.parametrize("method", ["single_stream", "restem", "dpo_positive", "sft"])
@pytest.mark.parametrize("name", OPTIONS)
def test_methods_that_cannot_have_an_option_refuse_it(method: str, name: str):
    fields: Any = default()
    fields.method = method
    fields.rollout.per_prompt = 1 if method == "single_stream" else 8
    section, _, leaf = name.partition(".")
    with fields.unlocked():
        fields[section][leaf] = OPTIONS[name]
    reads = method == "single_stream" and name in {"ppo.mask_truncated", "kl.target"}
    if reads:
        check_config(from_dict(fields), fields_set(fields))
        return
    with pytest.raises(ConfigError) as error:
        check_config(from_dict(fields), fields_set(fields))
    assert error.value.field == name and "\n" not in str(error.value)
    assert repr(method) in str(error.value)
