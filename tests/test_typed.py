"""--types: beartype checks a function alone only where jaxtyping would check no more."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import beartype
import numpy as np
import pytest
from helpers.typed import TYPE_CHECKER, jaxtyped_where_needed, needs_jaxtyping
from jaxtyping import Float, Int, TypeCheckError


def plain(a: int, b: list[str] | None = None) -> dict[str, np.ndarray]:
    return {}


def shaped(a: Float[np.ndarray, " B"], b: list[Int[np.ndarray, " B"]]) -> None: ...


def unresolved(a: "Missing") -> None: ...  # noqa: F821  # pyright: ignore


def generator(a: int) -> Iterator[int]:
    yield a


@dataclasses.dataclass
class Numbers:
    first: int


def test_what_jaxtyping_decorates():
    assert not needs_jaxtyping(plain) and not needs_jaxtyping(Numbers.__init__)
    assert all(map(needs_jaxtyping, (shaped, unresolved, generator, Numbers, None)))


def test_wrong_types_and_shapes_raise():
    checker = eval(TYPE_CHECKER, {"beartype": beartype})
    decorate = jaxtyped_where_needed(typechecker=checker)
    wrong: Any = "1"
    for function in (decorate(plain), decorate(Numbers)):
        function(1)
        with pytest.raises(TypeError, match="type hint <class 'int'>"):
            function(wrong)
    a, b = np.zeros(2, np.float32), [np.zeros(3, np.int32)]
    decorate(shaped)(a, [])
    with pytest.raises(TypeCheckError):
        decorate(shaped)(a, b)
    decorate(unresolved)(wrong)
