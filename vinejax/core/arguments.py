"""Checks the arguments that users pass to the library's functions of arrays.

A compiled function broadcasts whatever it can, so that a wrong shape silently gives a wrong number.
`library` compares the arguments with the function's jaxtyping annotations.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import jaxtyped

F = TypeVar("F", bound=Callable[..., Any])
DTYPES = {"Integer": "int ", "Bool": "bool ", "Real": "real ", "Float32": "float32 ", "Shaped": ""}


class Shown(str):
    """The text of an annotation, which `help` prints without quotation marks."""

    __repr__ = str.__str__


def library(**bounds: tuple[int, str]) -> Callable[[F], F]:
    """Decorates a function of arrays: it converts lists to arrays and checks its arguments.

    A bound such as `counts=(0, "M")` is the range of an argument's entries, both ends included. The
    letter M stands for the size of the axes that the annotations call M. Bounds are not checked
    while an outer function is compiled, because the entries are not known then.
    `help` shows the annotations in a short form.

    The decorated function raises a ValueError of one line that names the function and the argument.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        found = {name: _arrays(x.annotation) for name, x in signature.parameters.items()}
        expected = {name: arrays for name, arrays in found.items() if arrays}
        optional = [name for name in expected if signature.parameters[name].default is None]

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs).arguments
            left_out = [name for name in optional if bound.get(name) is None]
            arrays = {name: x for name, x in expected.items() if name not in left_out}
            try:
                for name in arrays:
                    bound[name] = _as_array(name, bound[name])
                sizes = _check_arrays(bound, arrays)
                for name, (least, letter) in bounds.items():
                    _check_entries(name, bound[name], least, sizes, letter)
            except ValueError as error:
                raise ValueError(f"{function.__name__}: {error}") from error.__cause__
            return function(**bound)

        parameters = [
            x.replace(annotation=_shown(x.annotation)) for x in signature.parameters.values()
        ]
        shown = signature.replace(
            parameters=parameters, return_annotation=_shown(signature.return_annotation)
        )
        checked.__signature__ = shown  # pyright: ignore[reportAttributeAccessIssue]
        return checked  # pyright: ignore[reportReturnType]

    return decorate


def check_params(params: Any) -> None:
    """Raises ValueError unless `params` is a dict with `embed` and `layers`.

    `load_pretrained` returns such dicts.
    """
    if not isinstance(params, dict) or not {"embed", "layers"} <= params.keys():
        found = ", ".join(params) if isinstance(params, dict) else type(params).__name__
        message = "a tree with 'embed' and 'layers', as load_pretrained gives it"
        raise ValueError(f"params: expected {message}, not {found or 'an empty one'}")


def _arrays(annotation: Any) -> list[Any]:
    """The jaxtyping types of an annotation, made to accept NumPy's arrays as well as jax's.

    The list is empty for an annotation with a part that is neither a jaxtyping type nor None.
    """
    parts = [x for x in get_args(annotation) or (annotation,) if x is not type(None)]
    if get_origin(annotation) is tuple or not all(getattr(x, "dim_str", "") for x in parts):
        return []
    return [part.dtype[Any, part.dim_str] for part in parts]


def _as_array(name: str, value: Any) -> jax.Array | np.ndarray:
    """`value` as an array. Raises ValueError if jax cannot hold it without changing its entries."""
    if isinstance(value, jax.Array):
        return value
    try:
        array = value if isinstance(value, np.ndarray) else jnp.asarray(value)
    except OverflowError as error:
        raise ValueError(f"{name}: {error}") from error
    except (TypeError, ValueError) as error:
        message = f"expected an array, or lists of equal lengths, not {type(value).__name__}"
        raise ValueError(f"{name}: {message}") from error
    if not any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.number, jnp.bool_)):
        raise ValueError(f"{name}: expected numbers, not an array of dtype {array.dtype}")
    kept = jax.dtypes.canonicalize_dtype(array.dtype)  # of 64 bits jax keeps 32, without a word
    if array.size and kept != array.dtype and jnp.issubdtype(kept, jnp.integer):
        bounds = jnp.iinfo(kept)
        for entry in (array.min(), array.max()):
            if not bounds.min <= entry <= bounds.max:
                raise ValueError(f"{name} has the entry {entry}, out of bounds for {kept}")
    return array


def _check_arrays(
    arguments: Mapping[str, Any], expected: Mapping[str, list[Any]]
) -> dict[str, Any]:
    """The size of each axis, by the letter that annotations such as `int [B, C]` give to the axis.

    Raises ValueError for the first argument that does not fit its annotation.
    """
    sizes: dict[str, Any] = {}
    with jaxtyped("context"):  # within, a letter has one size
        for name, types in expected.items():
            array = arguments[name]
            fitting = next((x for x in types if isinstance(array, x)), None)
            if fitting is None:
                known = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
                found = f"{array.dtype} {list(array.shape)}, not {_spelled(types)}"
                raise ValueError(f"{name} is {found}" + (known and f" with {known}"))
            letters = fitting.dim_str.split()
            is_any = letters == ["*shape"]
            sizes |= {"shape": array.shape} if is_any else zip(letters, array.shape, strict=True)
    return sizes


def _check_entries(
    name: str, array: Any, least: int, sizes: Mapping[str, Any], letter: str
) -> None:
    """Raises ValueError for an entry below `least` or above the size that `letter` stands for.

    `sizes` has the sizes by letter. If `letter` is 'C-1', it stands for the size of C minus 1.
    """
    if isinstance(array, Tracer) or not getattr(array, "is_fully_addressable", True):
        return
    most = sizes[letter.removesuffix("-1")] - letter.endswith("-1")
    entries = np.asarray(array)
    wrong = entries[(entries < least) | (entries > most)]
    if wrong.size:
        raise ValueError(f"{name} has the entry {wrong[0]}, outside {least} .. {letter} = {most}")


def _spelled(types: list[Any]) -> str:
    """The jaxtyping types of one argument in a short form, such as `int [B, C]`."""
    shapes = [x.dim_str.replace("*shape", "...").replace(" ", ", ") for x in types]
    return DTYPES[types[0].dtype.__name__] + " | ".join(f"[{shape}]" for shape in shapes)


def _shown(annotation: Any) -> Any:
    """The short form of an annotation: 'int [B, C]' for an array, 'number' for a scalar."""
    if arrays := _arrays(annotation):
        return Shown(_spelled(arrays))
    if get_origin(annotation) is tuple:
        return Shown(f"({', '.join(repr(_shown(part)) for part in get_args(annotation))})")
    if "Shaped" in str(annotation):
        pair = " | (number, number)" if "Sequence" in str(annotation) else ""
        return Shown(f"number{pair}")
    return annotation
