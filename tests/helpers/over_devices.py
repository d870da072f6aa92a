"""Gradients of methods over a mesh of eight devices, in a process that has them.

`from helpers import over_devices; over_devices.check(["vineppo"])` prints the methods that it has
checked.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax

from helpers import loop_cases as cases
from helpers import method_cases as methods
from helpers.whole_logits import whole
from vinejax.model.config import Compute
from vinejax.model.sharding import mesh_over

OWN_LOSS = ("critic", "dpo_positive", "restem")


def check(names: Iterable[str], **sections: Any) -> None:
    """Compares gradients in parts with that of one pass on one device, from all logits at once."""
    assert jax.device_count() == 8
    by_chunks = dataclasses.replace(cases.model(), compute=Compute(vocab_chunk=7))
    for name in names:
        expected, _ = methods.gradient_and_sums(name, None, model=whole(cases.model()), **sections)
        divided = [((2, 2, 2), 4, True) if name in OWN_LOSS else ((1, 2, 1), 2, True)]
        if name == "vineppo":
            divided += [((1, 2, 1), 2, False), ((1, 8, 1), None, False), ((2, 2, 2), 4, True)]
        for sizes, microbatch, packed in divided:
            n = sizes[0] * sizes[1] * sizes[2]
            mesh = mesh_over(sizes, jax.devices()[:n])  # rows, weights and gradients in parts
            found, _ = methods.gradient_and_sums(
                name, microbatch, mesh, by_chunks, packed, **sections
            )
            parts = {len(x.sharding.device_set) for x in jax.tree.leaves(found)}
            assert parts == {n}, parts
            cases.assert_close(found, expected, cases.ROUNDING)
        print(name)
