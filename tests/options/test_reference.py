"""Another reference than the start: the mean of two folders, and the policy of n iterations ago."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.applied import stand_in
from helpers.paths import CONFIGS

from vinejax.core.errors import UserError
from vinejax.model.hf.weights import save_pretrained
from vinejax.options.reference import Reference, copied, mean
from vinejax.session.iteration import Iteration
from vinejax.training.startup import open_session


def test_a_soup_is_the_mean_of_the_weights():
    one, other = ({"w": jnp.array(x)} for x in ([1.0, 2.0], [3.0, -2.0]))
    np.testing.assert_array_equal(mean(one, other)["w"], [2.0, 0.0])  # SALSA with α = ½


def test_a_copy_is_of_other_arrays():
    params = cases.params()
    found = copied(params)
    cases.assert_equal(found, params)
    assert found["embed"] is not params["embed"]


@pytest.mark.parametrize(("every", "renewed"), [(0, []), (1, [1, 2, 3, 4]), (2, [2, 4])])
def test_the_policy_becomes_the_reference(every: int, renewed: list[int]):
    cfg = methods.config("grpo", kl={"renew": every})
    kept: Any = {"w": jnp.float32(-1)}
    seen = []
    for number in range(5):
        it = stand_in(Iteration, cfg=cfg, number=number)
        after = Reference().begin(it, kept, {"w": jnp.float32(number)})
        if after is not kept:
            assert float(after["w"]) == number
            seen.append(number)
        kept = after
    assert seen == renewed


def test_a_soup_is_made_of_two_folders(tmp_path: Path):
    save_pretrained(tmp_path / "one", cases.model(), cases.params(0), cases.tokenizer())
    save_pretrained(tmp_path / "other", cases.model(), cases.params(1), cases.tokenizer())
    model, kl = {"path": str(tmp_path / "one")}, {"soup": str(tmp_path / "other")}
    cfg = cases.config(method="grpo", model=model, kl=kl, values={"k": 9, "max_states": None})
    with open_session(cfg, tmp_path / "run") as session:
        found = Reference().fresh(session)
    expected = mean(cases.params(0), cases.params(1))
    cases.assert_close(found, expected, 1e-6)


def test_a_soup_of_two_architectures_is_refused_before_anything_is_written(tmp_path: Path):
    save_pretrained(tmp_path / "one", cases.model(), cases.params(0), cases.tokenizer())
    model, other = {"path": str(tmp_path / "one")}, str(CONFIGS / "tiny_start")
    for soup, message in (
        (other, "^kl.soup = .* model of the run"),
        (f"{other}x", "no such model"),
    ):
        fields = {"kl": {"soup": soup}, "values": {"k": 9, "max_states": None}}
        cfg = cases.config(method="grpo", model=model, **fields)
        with pytest.raises(UserError, match=message) as error:
            open_session(cfg, tmp_path / "run", trains=True)
        assert "\n" not in str(error.value) and not (tmp_path / "run").exists()
