"""Checks of the arguments that users pass to the library's functions of arrays.

A compiled function broadcasts whatever it can, so that a wrong shape gives a wrong number in
silence. `library` reads the shapes and kinds from the function's annotations and compares.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

F = TypeVar("F", bound=Callable[..., Any])
Bounds = Mapping[str, tuple[int, str]]  # argument -> smallest entry, letter of the largest
KINDS = {"Integer": ("iu", "integers"), "Bool": ("b", "booleans"), "Real": ("biuf", "numbers")}
NUMBERS = ("bool", "int", "uint", "float", "bfloat")  # beginnings of names of real dtypes


class Shown:
    """An annotation as `help` prints it."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


def library(**bounds: tuple[int, str]) -> Callable[[F], F]:
    """Decorates a function of arrays: lists become arrays, and wrong arguments are one line.

    Shapes are compared with those of the annotations, letter by letter: `Real[Array, "B C"]`. A
    bound such as `counts=(0, "M")` is the range of an argument's entries, both ends included; it is
    looked at where the entries are known, and not while a function around it is compiled. `help`
    shows the annotations in short.

    The decorated function raises ValueError, which names itself and the argument.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        expected = {
            name: found
            for name, parameter in signature.parameters.items()
            if (found := _arrays(parameter.annotation))
        }

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            for name in expected:
                if not isinstance(given[name], (jax.Array, np.ndarray)):
                    given[name] = _as_array(function.__name__, name, given[name])
            sizes = _check_shapes(function.__name__, given, expected)
            for name, (least, letter) in bounds.items():
                _check_entries(function.__name__, name, given[name], least, sizes, letter)
            return function(**given)

        checked.__signature__ = _shown(signature)  # pyright: ignore[reportAttributeAccessIssue]
        return checked  # pyright: ignore[reportReturnType]

    return decorate


def check_params(params: Any) -> None:
    """ValueError unless `params` has a model's embedding and layers, as `load_pretrained` gives."""
    if not isinstance(params, dict) or not {"embed", "layers"} <= params.keys():
        found = ", ".join(params) if isinstance(params, dict) else type(params).__name__
        rule = "a tree with 'embed' and 'layers', as load_pretrained gives it"
        raise ValueError(f"params: expected {rule}, not {found or 'an empty one'}")


def _arrays(annotation: Any) -> list[Any]:
    """The jaxtyping annotations in one: itself, or the parts of a union; [] for other types."""
    if getattr(annotation, "__origin__", None) is tuple:
        return []
    parts = get_args(annotation) or (annotation,)
    arrays = [part for part in parts if getattr(part, "dim_str", "")]
    return arrays if len(arrays) == len(parts) else []


def _as_array(function: str, name: str, value: Any) -> jax.Array:
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        rule = f"expected an array, or lists of equal lengths, not {type(value).__name__}"
        raise ValueError(f"{function}: {name}: {rule}") from error


def _check_shapes(
    function: str, given: Mapping[str, Any], expected: Mapping[str, list[Any]]
) -> dict[str, Any]:
    """Sizes by letter. Raises ValueError for the first argument that does not fit those before."""
    sizes: dict[str, Any] = {}
    for name, choices in expected.items():
        shape, kind = tuple(given[name].shape), _kind(choices[0])
        fitting = (found for one in choices if (found := _fit(one.dim_str, shape, sizes)))
        found = next(fitting, None)
        if found is None:
            shapes = " or ".join(f"[{_letters(one.dim_str)}]" for one in choices)
            others = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
            known = f" with {others.replace('*shape', 'shape')}" if others else ""
            raise ValueError(f"{function}: {name} has shape {list(shape)}, not {shapes}{known}")
        sizes |= found
        if kind and not _is_kind(given[name].dtype, kind[0]):
            raise ValueError(f"{function}: {name} must be {kind[1]}, not {given[name].dtype}")
    return sizes


def _fit(letters: str, shape: tuple[int, ...], sizes: Mapping[str, Any]) -> dict[str, Any] | None:
    """The sizes of the letters if the shape can have them; None if it cannot."""
    names = letters.split()
    values: tuple[Any, ...] = (shape,) if names == ["*shape"] else shape
    if len(names) != len(values):
        return None
    found = dict(zip(names, values, strict=True))
    fits = all(sizes.get(name, size) == size for name, size in found.items())
    return found if fits else None


def _check_entries(
    function: str, name: str, value: Any, least: int, sizes: Mapping[str, Any], letter: str
) -> None:
    """Raises ValueError for an entry outside least .. the size of the letter (less 1: 'C-1')."""
    if isinstance(value, Tracer) or not getattr(value, "is_fully_addressable", True):
        return
    most = sizes[letter.removesuffix("-1")] - letter.endswith("-1")
    entries = np.asarray(value)
    wrong = entries[(entries < least) | (entries > most)]
    if wrong.size:
        rule = f"outside {least} .. {letter} = {most}"
        raise ValueError(f"{function}: {name} has the entry {wrong[0]}, {rule}")


def _kind(annotation: Any) -> tuple[str, str] | None:
    return KINDS.get(annotation.__name__.partition("[")[0])


def _is_kind(dtype: Any, kinds: str) -> bool:
    if kinds == "biuf":
        return str(dtype).startswith(NUMBERS)
    return np.dtype(dtype).kind in kinds


def _letters(dims: str) -> str:
    return "..." if dims == "*shape" else dims.replace(" ", ", ")


def _shown(signature: inspect.Signature) -> inspect.Signature:
    parameters = [
        parameter.replace(annotation=_short(parameter.annotation))
        for parameter in signature.parameters.values()
    ]
    return signature.replace(
        parameters=parameters, return_annotation=_short(signature.return_annotation)
    )


def _short(annotation: Any) -> Any:
    """`int [B, C]` for an annotation of arrays, 'number' for jaxtyping's scalars."""
    if arrays := _arrays(annotation):
        words = {"Integer": "int ", "Bool": "bool ", "Float32": "float32 "}
        name = arrays[0].__name__.partition("[")[0]
        shapes = " | ".join(f"[{_letters(one.dim_str)}]" for one in arrays)
        return Shown(words.get(name, "") + shapes)
    parts = get_args(annotation)
    if len(parts) == 2 and parts[1] is type(None):
        return Shown(f"{_short(parts[0])!r} | None")
    if getattr(annotation, "__origin__", None) is tuple:
        return Shown(f"({', '.join(repr(_short(part)) for part in get_args(annotation))})")
    if "Shaped" in str(annotation):
        pair = " | (number, number)" if "Sequence" in str(annotation) else ""
        return Shown(f"number{pair}")
    return annotation
