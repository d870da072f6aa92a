"""The fields of options: defaults by method, and what is refused, in one line each."""

from typing import Any

import pytest
from helpers.refusals import refuses

from vinejax.config.checks import check_config
from vinejax.config.load import default, fields_set, from_dict
from vinejax.methods.known import METHODS

ONE = {"per_prompt": 1}


def test_every_field_has_the_methods_own_choice():
    """The choices of DAPO and REINFORCE++ are their records'; those of others are plain."""
    for name, record in METHODS.items():
        cfg = record.resolve(from_dict({"method": name}))
        found = cfg.rollout.zero_variance, cfg.reward.overlong, cfg.kl.place
        of_dapo, of_kl = ("resample", 0.2, "loss"), ("keep", 0.0, "reward")
        plain = ("keep", 0.0, "loss")
        assert found == {"dapo": of_dapo, "reinforce++": of_kl}.get(name, plain), name
        assert (cfg.reward.scale == "method") == ("reward.scale" not in record.reads)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"rollout": {"zero_variance": "some"}}, "rollout.zero_variance"),
        ({"rollout": ONE | {"zero_variance": "drop"}}, "rollout.zero_variance"),
        ({"reward": {"overlong": 1.0}}, "reward.overlong"),
        ({"reward": {"scale": "batch"}}, "reward.scale"),
        ({"kl": {"place": "reward"}}, "kl.place"),
        ({"method": "ppo", "reward": {"scale": "none"}}, "reward.scale"),
        ({"kl": {"target": 0.0}}, "kl.target"),
        ({"method": "dapo", "dapo": {"overlong": 0.1}}, "dapo"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], field: str):
    with refuses(field):
        check_config(from_dict(fields))


OPTIONS: dict[str, Any] = {
    "rollout.zero_variance": "drop",
    "reward.overlong": 0.1,
    "reward.scale": "batch",
    "ppo.mask_truncated": True,
    "kl.place": "reward",
    "kl.target": 1.0,
}


@pytest.mark.parametrize("method", ["restem", "dpo_positive", "sft"])
@pytest.mark.parametrize("name", OPTIONS)
def test_methods_that_cannot_have_an_option_refuse_it(method: str, name: str):
    fields: Any = default()
    fields.method = method
    fields.rollout.per_prompt = 8
    section, _, leaf = name.partition(".")
    with fields.unlocked():
        fields[section][leaf] = OPTIONS[name]
    with refuses(name) as error:
        check_config(from_dict(fields), fields_set(fields))
    assert repr(method) in str(error.value)
