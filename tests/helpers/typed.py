"""Types and shapes of the package's calls are checked at run time, with --types.

A call through jaxtyping's decorator takes 7 microseconds, through beartype's half of one. Where no
shape is declared both check the same, so that there beartype decorates alone.
"""

import dataclasses
import inspect
from typing import Any

import jaxtyping

# An int where a float is declared is right in Python (PEP 484), so beartype is told to allow it. A
# wrong type is a TypeError, as with jaxtyping: the package catches it where it reads damaged files.
SETTINGS = "is_pep484_tower=True, violation_type=TypeError"
TYPE_CHECKER = f"beartype.beartype(conf=beartype.BeartypeConf({SETTINGS}))"

jaxtyped = jaxtyping.jaxtyped


def install() -> None:
    """Decorates the functions and dataclasses of what is imported from the package afterwards."""
    jaxtyping.jaxtyped = jaxtyped_where_needed  # pyright: ignore
    jaxtyping.install_import_hook("vinejax", TYPE_CHECKER)


def jaxtyped_where_needed(*context: Any, **settings: Any) -> Any:
    """`jaxtyping.jaxtyped` as its import hook calls it, or for a context."""
    if context:
        return jaxtyped(*context)
    with_shapes, without = jaxtyped(**settings), settings["typechecker"]

    def decorate(decorated: Any) -> Any:
        if dataclasses.is_dataclass(decorated):
            if needs_jaxtyping(vars(decorated).get("__init__")):
                return with_shapes(decorated)
            decorated.__init__ = without(decorated.__init__)
            return decorated
        return with_shapes(decorated) if needs_jaxtyping(decorated) else without(decorated)

    return decorate


def needs_jaxtyping(decorated: Any) -> bool:
    """Whether this is no function, or a function that beartype alone would check otherwise.

    jaxtyping ignores a hint with a name that it cannot find, where beartype raises an error, and
    checks the arguments of a generator when it is called.
    """
    if not inspect.isfunction(decorated) or inspect.isgeneratorfunction(decorated):
        return True
    if inspect.iscoroutinefunction(decorated) or inspect.isasyncgenfunction(decorated):
        return True
    return any(map(has_shape_or_quoted_name, decorated.__annotations__.values()))


def has_shape_or_quoted_name(hint: Any) -> bool:
    written = repr(hint)
    return "jaxtyping." in written or ("'" in written and not isinstance(hint, type))
