"""Another reference than the start: the policy of n iterations ago."""

from typing import Any

import jax.numpy as jnp
import pytest
from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.applied import stand_in

from vinejax.options.reference import Reference, copied
from vinejax.session.iteration import Iteration


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
